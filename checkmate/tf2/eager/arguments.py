"""From the tensors that the program passes to an op to what runs it, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from checkmate.tf2.eager import private_api, tapes
from checkmate.tf2.eager.storage import Arguments
from checkmate.tf2.eager.tensors import LazyTensor


def gathered(tensors: Sequence[Any]) -> Arguments:
    """The inputs of an op, in one pass: this runs for every op."""
    row, cells, values, signatures, gone = [], [], [], [], False
    for each in tensors:
        if type(each) is LazyTensor:
            cell = each.cell
            row.append(cell)
            cells.append(cell)
            values.append(cell.value)
            signatures.append(cell.made.signature)
            gone = gone or not cell.defined
        else:
            row.append(each)
            values.append(each)
            signatures.append(private_api.signature_of(each))
    # Values that are kept here could not be evicted until the missing ones are back.
    return Arguments(row, cells, None if gone else values, signatures)


def skipped(row: list[Any]) -> tuple[int, ...] | None:
    """The inputs that no tape asks for; None where no tape asks for any."""
    if not tapes.is_recording():
        return None
    skip = tuple([k for k, each in enumerate(row) if not private_api.tape_records((each,))])
    return skip if len(skip) < len(row) else None


def arranged(result: Any, outputs: list[Any]) -> Any:
    """The outputs in the shape of TensorFlow's result: one, a list, a list of lists, or None."""
    if type(result) is not list:
        return outputs[0] if outputs else result
    rest = iter(outputs)
    return [[next(rest) for _ in each] if type(each) is list else next(rest) for each in result]
