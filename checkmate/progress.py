"""Progress: one line about what runs now, for whatever takes longer than a second.

A terminal shows the line in place, and so does a notebook, in one output of its cell. A log, which
is any other standard error, gets a line for each phase that took seconds, and more while it lasts.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from checkmate.printable import printable

LOG_AFTER_S, LOG_EVERY_S = 2.0, 30.0
"""A log is told of a phase that took the former, and again each time that it took the latter."""

TICK_S = 1.0
"""How often a notebook's line is written anew, and a log's next line is considered."""


@dataclass(slots=True)
class _Phase:
    name: str
    limit_s: float
    detail: str = ""
    started: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def __str__(self) -> str:
        limit = f"/{round(self.limit_s, 1):g}" if math.isfinite(self.limit_s) else ""
        detail = f", {self.detail}" if self.detail else ""
        return f"{self.name} {self.seconds:.0f}{limit} s{detail}"


class Progress:
    """One line with the current phase, its number, the seconds it took and may take, and how far it
    is; at the end a summary in its place.

    Args:
      name: Start of the line, such as the name of a model.
      phases: Name of a phase -> its number. The largest number is how many there are; phases that
        are part of one have its number. Others are shown without a number.
      enabled: False shows nothing.
    """

    def __init__(self, name: str, phases: Mapping[str, int] | None = None, *, enabled: bool = True):
        console = Console(stderr=True)
        in_place = console.is_terminal and not console.is_dumb_terminal
        screen = _Notebook if console.is_jupyter else _Terminal if in_place else _Log
        self._name, self._phases = name, phases or {}
        self._running: list[_Phase] = []
        self._started, self._summary = time.monotonic(), ""
        self._screen = screen(console, self) if enabled else None
        self.is_open = False

    def __enter__(self) -> Progress:
        self.is_open = True
        if self._screen:
            self._screen.start()
        return self

    def __exit__(self, *exception: Any) -> None:
        self.is_open = False
        if self._screen:
            self._screen.stop(self._summary)

    @contextmanager
    def phase(self, name: str, *, limit_s: float = math.inf) -> Iterator[None]:
        number = self._phases.get(name)
        numbered = f"{number}/{max(self._phases.values())} {name}" if number else name
        phase = _Phase(numbered, limit_s)
        self._running.append(phase)
        try:
            yield
        finally:
            if isinstance(self._screen, _Log):
                self._screen.ended(phase.seconds)
            self._running.pop()

    @contextmanager
    def of_part(self, name: str) -> Iterator[Progress]:
        """Has lines begin with another name meanwhile: that of a part of the work."""
        whole, self._name = self._name, name
        try:
            yield self
        finally:
            self._name = whole

    def tell(self, detail: str) -> None:
        if self._running:
            self._running[-1].detail = detail

    def advance(self, done: int, total: int) -> None:
        self.tell(f"{done} of {total}")

    def improved(self, search: Any) -> None:
        """Shows the cost of the best plan over the plain step's, and its gap; `search` is a
        `solvers.search.Search`, of a layer above."""
        total, found, bound = search.graph.total_cost, search.timeline, search.bound
        if not total:
            return
        if found is None:
            self.tell(f"no plan yet, bound {bound / total - 1:+.2%} time")
        else:
            above = f", {found.cost / bound - 1:.2%} above the bound" if bound else ""
            self.tell(f"{found.cost / total - 1:+.2%} time{above}")

    def done(self, summary: str) -> None:
        """Has this stay at the end, with the seconds that all phases took."""
        seconds = time.monotonic() - self._started
        self._summary = printable(f"{self._name}: {summary} ({seconds:.1f} s)")

    def line(self, width: float = math.inf) -> str:
        """The text to show now, "" between two phases; without the name where it is too long for
        `width`."""
        running = [*self._running]  # a thread asks while phases end
        around = [each.name for each in running[:-1]]
        text = printable(", ".join([*around, *map(str, running[-1:])]))
        named = f"{printable(self._name)}: {text}" if text else ""
        return named if len(named) <= width else text

    @property
    def seconds(self) -> float:
        return sum(phase.seconds for phase in self._running[-1:])


class _Terminal:
    """A line that is drawn again in its place."""

    def __init__(self, console: Console, progress: Progress):
        self._console, self._progress, self._spinner = console, progress, Spinner("dots")
        self._live = Live(
            get_renderable=self._drawn, console=console, transient=True, refresh_per_second=10
        )

    def start(self) -> None:
        self._live.start()

    def stop(self, summary: str) -> None:
        self._live.stop()
        if summary:
            self._console.print(Text(summary))

    def _drawn(self) -> Text:
        line = self._progress.line(self._console.width - 2)
        frame = self._spinner.render(self._console.get_time())
        return Text(f"{frame} {line}", no_wrap=True, overflow="ellipsis") if line else Text()


class _Notebook:
    """An output of the cell, which is written anew every second."""

    def __init__(self, console: Console, progress: Progress):
        self._progress, self._handle, self._shown = progress, None, ""
        self._ticker = _Ticker(lambda: self._show(progress.line()))

    def start(self) -> None:
        from IPython.display import display

        self._handle = display({"text/plain": ""}, raw=True, display_id=True)
        self._ticker.start()

    def stop(self, summary: str) -> None:
        self._ticker.stop()
        self._show(summary)

    def _show(self, line: str) -> None:
        if self._handle is not None and line != self._shown:
            self._shown = line
            self._handle.update({"text/plain": line}, raw=True)


class _Log:
    """A file or a pipe, where what was written stays."""

    def __init__(self, console: Console, progress: Progress):
        self._console, self._progress, self._next_s = console, progress, LOG_EVERY_S
        self._ticker = _Ticker(self._consider)

    def start(self) -> None:
        self._ticker.start()

    def ended(self, seconds: float) -> None:
        self._next_s = LOG_EVERY_S
        if seconds >= LOG_AFTER_S:
            self._write(self._progress.line())

    def stop(self, summary: str) -> None:
        self._ticker.stop()
        if summary:
            self._write(summary)

    def _consider(self) -> None:
        if self._progress.seconds >= self._next_s:
            self._next_s += LOG_EVERY_S
            self._write(self._progress.line())

    def _write(self, line: str) -> None:
        # Work does not end because nobody reads its log any more.
        with contextlib.suppress(OSError, ValueError):
            self._console.print(Text(line), soft_wrap=True)


class _Ticker:
    """Calls a function every `TICK_S` in a thread of its own, until it is stopped."""

    def __init__(self, function: Callable[[], None]):
        self._function, self._stopped = function, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="checkmate progress")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(TICK_S):
            self._function()
