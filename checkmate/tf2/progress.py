"""Progress on a terminal for what takes longer than a second; nothing where nobody looks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from checkmate.solvers.search import Search


class Progress:
    """One line that says what is being done, on standard error, gone when it is done."""

    def __init__(self, name: str, *, enabled: bool):
        console = Console(stderr=True)
        columns = (SpinnerColumn(), TextColumn(f"{name}: {{task.description}}"), BarColumn(), TimeElapsedColumn())
        self._bars = Bars(*columns, console=console, transient=True, disable=not (enabled and console.is_terminal))
        self._task: Any = None

    def __enter__(self) -> Progress:
        self._bars.start()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._bars.stop()

    @contextmanager
    def phase(self, description: str) -> Iterator[None]:
        """Shows what is being done now."""
        self._task = self._bars.add_task(description, total=None)
        try:
            yield
        finally:
            self._bars.remove_task(self._task)

    def advance(self, done: int, total: int) -> None:
        """Says how much of the present phase is done."""
        self._bars.update(self._task, completed=done, total=total)

    def improved(self, search: Search) -> None:
        """Shows the best plan and bound so far."""
        if search.timeline is not None and search.graph.total_cost:
            overhead, gap = search.timeline.cost / search.graph.total_cost - 1, search.timeline.cost / max(search.bound, 1e-30) - 1
            self._bars.update(self._task, description=f"solving: best plan {overhead:+.2%}, gap {gap:.2%}")
