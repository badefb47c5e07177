"""Progress on a terminal for what takes longer than a second; nothing where nobody looks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

if TYPE_CHECKING:
    from checkmate.solvers.search import Search


class Progress:
    """One line that says what is being done, on standard error, gone when it is done.

    Args:
      name: What is being worked on.
      enabled: False shows nothing. Where standard error is no terminal nothing is shown either.
    """

    def __init__(self, name: str, *, enabled: bool = True):
        console = Console(stderr=True)
        columns = (
            SpinnerColumn(),
            TextColumn(f"{name}: {{task.description}}", markup=False),
            BarColumn(bar_width=20),
            TimeElapsedColumn(),
        )
        self._bars = Bars(
            *columns, console=console, transient=True, disable=not (enabled and console.is_terminal)
        )
        self._task: Any = None

    def __enter__(self) -> Progress:
        self._bars.start()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._bars.stop()

    @contextmanager
    def phase(self, description: str) -> Iterator[None]:
        """Shows what is being done now."""
        before, self._task = self._task, self._bars.add_task(description, total=None)
        try:
            yield
        finally:
            self._bars.remove_task(self._task)
            self._task = before

    def advance(self, done: int, total: int) -> None:
        """Says how much of the present phase is done."""
        self._bars.update(self._task, completed=done, total=total)

    def improved(self, search: Search) -> None:
        """Shows the best plan and bound so far, as time beyond the plain step's."""
        total = search.graph.total_cost
        if total:
            best = (
                f"best plan {search.timeline.cost / total - 1:+.2%}"
                if search.timeline
                else "no plan yet"
            )
            gap = (
                f", gap {search.timeline.cost / search.bound - 1:.2%}"
                if search.timeline and search.bound
                else ""
            )
            self._bars.update(
                self._task,
                description=f"solving: {best}, bound {search.bound / total - 1:+.2%}{gap}",
            )
