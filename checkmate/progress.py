"""Progress on a terminal for what takes longer than a second; nothing if standard error is no
terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars


class _Search(Protocol):
    """What is read of a `solvers.search.Search`, which is of a layer above."""

    @property
    def graph(self) -> Any: ...
    @property
    def timeline(self) -> Any: ...
    @property
    def bound(self) -> float: ...


class Progress:
    """One line on standard error with the current phase; it disappears at the end.

    Args:
      name: Start of the line, such as the name of a model.
      enabled: False shows nothing. Nothing is shown either if standard error is no terminal.
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
        """Shows this description while the block runs."""
        before, self._task = self._task, self._bars.add_task(description, total=None)
        try:
            yield
        finally:
            self._bars.remove_task(self._task)
            self._task = before

    def advance(self, done: int, total: int) -> None:
        """Shows how much of the current phase is done."""
        self._bars.update(self._task, completed=done, total=total)

    def improved(self, search: _Search) -> None:
        """Shows the cost of the best plan, and the bound, relative to the plain step's cost."""
        total, found, bound = search.graph.total_cost, search.timeline, search.bound
        if total:
            best = f"best plan {found.cost / total - 1:+.2%}" if found else "no plan yet"
            gap = f", gap {found.cost / bound - 1:.2%}" if found and bound else ""
            text = f"solving: {best}, bound {bound / total - 1:+.2%}{gap}"
            self._bars.update(self._task, description=text)
