"""In which order calls run so that an evicted tensor is back: depth first, inputs before the call
that reads them."""

from __future__ import annotations

from collections.abc import Callable, Generator

from checkmate.dtr.memory import Memory
from checkmate.dtr.storage import Storage, Tensor


class Frame:
    """A call that is about to run.

    Attributes:
      tensor: The output for which it runs.
      locked: Its inputs that are locked.
      missing: Its inputs that are not in memory, the next one last; None before the search
        for them.
    """

    __slots__ = ("locked", "missing", "tensor")

    def __init__(self, tensor: Tensor):
        self.tensor = tensor
        self.locked: list[Storage] = []
        self.missing: list[Tensor] | None = None

    def lock(self, memory: Memory, tensor: Tensor) -> None:
        """Locks an input that is in memory."""
        memory.lock(tensor.storage)
        self.locked.append(tensor.storage)

    def next_missing(self, memory: Memory) -> Tensor | None:
        """Locks missing inputs that have come back, up to the next one that has not."""
        assert self.missing is not None
        while self.missing:
            if not self.missing[-1].defined:
                return self.missing[-1]
            self.lock(memory, self.missing.pop())
        return None

    def unlock(self, memory: Memory) -> None:
        """Unlocks all inputs, once the call has run."""
        self.locked.clear()
        for tensor in self.tensor.call.inputs:
            memory.unlock(tensor.storage)


NextMissing = Callable[[Memory, Frame], Tensor | None]
"""Locks inputs of a frame's call that are in memory, and returns the next one that has to come back
first; None once all are locked."""


def frames(
    target: Tensor, memory: Memory, next_missing: NextMissing
) -> Generator[Frame, None, None]:
    """Yields the calls to run, one after the other, the one that makes `target` last.

    The inputs of a call are locked when it is yielded. The caller runs it and then unlocks them.
    The stack is a list: chains of evicted tensors are longer than Python's stack. When the iterator
    is closed early, all locks of calls that did not run are taken back.
    """
    stack = [Frame(target)]
    try:
        while stack:
            missing = next_missing(memory, stack[-1])
            if missing is not None:
                stack.append(Frame(missing))
                continue
            yield stack[-1]
            stack.pop()
    finally:
        for frame in stack:
            for storage in frame.locked:
                memory.unlock(storage)
