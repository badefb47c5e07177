"""Beside: work in a thread, so that the caller can do other work meanwhile, give it up, and be
interrupted."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from typing import Any


def working() -> list[Beside]:
    """The work that was given up, is not done, and must be before the process ends."""
    return [
        thread
        for thread in threading.enumerate()
        if isinstance(thread, Beside) and not thread.may_be_cut_off
    ]


@atexit.register
def _wait() -> None:
    """A process that ends while HiGHS works in it is aborted by HiGHS's own threads; it works no
    longer than its time limit."""
    for work in working():
        work.wait()


class Beside(threading.Thread):
    """Does `work` in a thread.

    HiGHS leaves Python to other threads while it works, and waiting for a thread can be
    interrupted: so Ctrl-C comes through.

    Args:
      work: What to do.
      may_be_cut_off: The end of the process does not wait for it.
    """

    def __init__(self, work: Callable[[], Any], *, may_be_cut_off: bool = False):
        super().__init__(daemon=True)
        self.may_be_cut_off = may_be_cut_off
        self._work = work
        self._done = threading.Event()
        self._answer: Any = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:  # noqa: D102 - that of Thread
        try:
            self._answer = self._work()
        except BaseException as error:
            self._error = error
        finally:
            self._done.set()

    @property
    def busy(self) -> bool:
        """Whether the work goes on. After a Ctrl-C in `join`, Python 3.11's own `is_alive` says
        that it does not."""
        return not self._done.is_set()

    def wait(self, seconds: float | None = None) -> None:
        """Waits until the work is done, or so many seconds."""
        self._done.wait(seconds)

    def answer(self, seconds: float) -> Any:
        """What the work came to; None when it is not done within so many seconds: it is left alone
        then."""
        self.wait(seconds)
        if self._error is not None:
            raise self._error
        return self._answer
