"""In which order the inputs of an op come back and are locked: the latest first, and none is locked
before the latest is back.

On paper inputs are locked in order, which on the long way back of a gradient locks an activation
per layer.
"""

from __future__ import annotations

from collections.abc import Iterable

from checkmate.dtr.memory import Memory
from checkmate.dtr.recomputation import Frame
from checkmate.dtr.storage import Tensor


def next_missing(memory: Memory, frame: Frame) -> Tensor | None:
    """Locks inputs that are in memory, and returns the next one that has to come back first."""
    inputs = frame.tensor.call.inputs
    if frame.missing is None:
        frame.missing = missing(inputs)
        if frame.missing:
            return frame.missing[-1]
    if not frame.locked:
        if frame.missing and not frame.missing[-1].defined:
            return frame.missing[-1]
        for tensor in inputs:
            if tensor.defined:
                frame.lock(memory, tensor)
        frame.missing = missing(inputs)
    return frame.next_missing(memory)


def missing(inputs: Iterable[Tensor]) -> list[Tensor]:
    """Those that are not in memory, the latest last."""
    return sorted((tensor for tensor in inputs if not tensor.defined), key=number)


def number(tensor: Tensor) -> int:
    """Calls are numbered in the order in which they first ran."""
    return tensor.call.number
