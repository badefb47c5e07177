"""Places: which entries along the axis of the examples numbers name, such as those of
`tf.range(batch)`. Each function returns how many places each example has that the first output of
an op names, or 0 if it is not known to name places of that example alone (`Relation.places`).

A gather or a scatter along the axis of the examples is then one of each slice's own; a check when
the step runs tells whether it is.
"""

from __future__ import annotations

from collections.abc import Callable

from checkmate.tf2.ops.call import Answer, Call, one_number
from checkmate.tf2.ops.relation import Kind

Places = Callable[[Call, Answer], int]


def _of(call: Call, answer: Answer, k: int) -> int:
    relation = answer.inputs[k]
    return call.places(k, relation.axis) if relation.kind is Kind.BATCHED else 0


def moved(call: Call, answer: Answer) -> int:
    return _of(call, answer, 0)


def joined(call: Call, answer: Answer) -> int:
    """Places joined with places, and with nothing else."""
    found = {_of(call, answer, k) for k in range(len(call.inputs) - (call.type == "ConcatV2"))}
    return found.pop() if len(found) == 1 else 0


def leading_moved(call: Call, answer: Answer) -> int:
    """The same of an op that keeps the order of elements and the last axis."""
    relation = answer.inputs[0]
    keeps = call.result()[-1:] == call.shape(0)[-1:]
    return call.leading(0, relation.axis) if keeps and relation.kind is Kind.BATCHED else 0


def leading(call: Call, answer: Answer) -> int:
    """The places that the first of several tensors names, which are joined along the last axis; of
    index vectors that are joined, those of all."""
    rank, joins = len(call.result()), call.type == "ConcatV2"
    axis = int(call.value(len(call.inputs) - 1) if joins else call.attr("axis")) % rank
    if axis == rank - 1:
        return _of(call, answer, 0) if not joins or call.shape(0)[axis] == 1 else 0
    found = {
        call.leading(k, answer.inputs[k].axis) if answer.inputs[k].kind is Kind.BATCHED else 0
        for k in range(len(call.inputs) - joins)
    }
    return found.pop() if len(found) == 1 else 0


def added(call: Call, answer: Answer) -> int:
    """Places and a number of which only the run of the step tells whether it is small enough."""
    found = [_of(call, answer, k) for k in range(len(call.inputs))]
    for places, known in zip(found, call.known, strict=True):
        number = not places and known is not None and known.size
        if number and (known.min() < 0 or known.max() >= max(found)):
            return 0
    return sum(found)


def multiplied(call: Call, answer: Answer) -> int:
    found = [_of(call, answer, k) for k in (0, 1)]
    other = call.known[1] if found[0] else call.known[0]
    if all(found) or not any(found) or other is None or not one_number(other):
        return 0
    return max(0, sum(found) * int(other.flat[0]))


def at_least_zero(call: Call, answer: Answer) -> int:
    """The larger of a place and 0."""
    found = [_of(call, answer, k) for k in (0, 1)]
    other = call.known[1] if found[0] else call.known[0]
    return sum(found) if other is not None and not all(found) and not other.any() else 0
