"""Background tasks: work in a thread, which the caller can wait for, abandon, and interrupt.

HiGHS and compiled code release Python's lock while they work, and waiting for a thread can be
interrupted. So Ctrl-C arrives at once, and a call that is late is left to end by itself.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from typing import Any


def unfinished_tasks() -> list[BackgroundTask]:
    """Tasks that must end before the process does, and have not."""
    threads = threading.enumerate()
    return [t for t in threads if isinstance(t, BackgroundTask) and t.must_end and t.busy]


@atexit.register
def _wait() -> None:
    # HiGHS aborts a process that ends while HiGHS works in it. Its own time limit ends the work.
    for task in unfinished_tasks():
        task.wait()


class BackgroundTask(threading.Thread):
    """Runs `work` in a thread, from now on.

    Args:
      must_end: The process waits for the end of the work before it ends itself.
      use: A message for users who wait for work that later processes use. Commands end without
        waiting for other work.
    """

    def __init__(self, work: Callable[[], Any], *, must_end: bool = True, use: str = ""):
        super().__init__(daemon=True)
        self.must_end, self.use = must_end, use
        self._work = work
        self._done = threading.Event()
        self._result: Any = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:  # noqa: D102 - that of Thread
        try:
            self._result = self._work()
        except BaseException as error:
            self._error = error
        finally:
            self._done.set()

    @property
    def busy(self) -> bool:
        """Whether the work goes on. `is_alive` is wrong after Ctrl-C during `join` (Python
        3.11)."""
        return not self._done.is_set()

    def wait(self, seconds: float | None = None) -> None:
        """Waits until the work is done, for `seconds` at most."""
        self._done.wait(seconds)

    def result(self, seconds: float | None = None) -> Any:
        """Returns the work's result, or raises its error.

        Args:
          seconds: How long to wait. None is returned when the work takes longer.
        """
        self.wait(seconds)
        if self._error is not None:
            raise self._error
        return self._result
