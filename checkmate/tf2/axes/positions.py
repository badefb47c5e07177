"""Positions in the batch: numbers such as those of `tf.range(batch)`, which count from 0 in each
slice, too.

A slice needs its own: where such numbers index a tensor of all examples in the whole, they index a
tensor of the slice's examples in a slice. Their relation has an `offset`, by which the entries of
one slice are less than those of the next would be in the whole. What is linear keeps the relation;
a gather or a scatter along the axis of the examples ends it.
"""

from __future__ import annotations

from dataclasses import replace

from checkmate.tf2.axes.call import Call, Relations
from checkmate.tf2.axes.relation import Kind, Relation, batched
from checkmate.tf2.axes.static_values import one_number

_SUMS = {"Add": (1, 1), "AddV2": (1, 1), "Sub": (1, -1)}
_MOVES = (
    *("Cast", "ExpandDims", "Identity", "Reshape", "Squeeze", "StopGradient", "Transpose"),
    *("BroadcastTo", "ConcatV2", "Pack", "Tile"),
)


def has_positions(call: Call) -> bool:
    """True if an input is made of positions in the batch."""
    return any(relation.offset for relation in call.inputs)


def without_positions(call: Call) -> Call:
    """Returns the same with the positions taken for values like others."""
    return replace(call, inputs=[replace(relation, offset=0) for relation in call.inputs])


def with_positions(call: Call, outputs: Relations | None) -> Relations | None:
    """Returns the relations of the outputs of an op that reads positions, or None if they are none
    of the known.

    Args:
      outputs: The relations if the positions were values like others.
    """
    if call.type in _INDEXED:
        return _INDEXED[call.type](call)
    offset = _offset(call)
    if outputs is None or offset is None:
        return None
    return [replace(relation, offset=offset) for relation in outputs]


def _offset(call: Call) -> int | None:
    offsets = [relation.offset for relation in call.inputs]
    if call.type in _SUMS:
        signs = _SUMS[call.type]
        return sum(sign * each for sign, each in zip(signs, offsets, strict=True))
    if call.type == "Mul":
        return _product(call, offsets)
    if call.type in ("Maximum", "GreaterEqual") and _compares_with_zero(call):
        return max(offsets) if call.type == "Maximum" else 0
    if call.type not in _MOVES:
        return None
    data = {each.offset for each in call.inputs if each.kind is Kind.BATCHED}
    mixed = call.type in ("ConcatV2", "Pack") and any(
        each.kind is Kind.SAME for each in call.inputs[: len(call.inputs) - (call.type[0] == "C")]
    )
    return None if len(data) != 1 or mixed else data.pop()


def _product(call: Call, offsets: list[int]) -> int | None:
    """The offset of positions times a number."""
    k = 0 if offsets[0] else 1
    other = call.known[1 - k]
    if offsets[1 - k] or other is None or not (one_number(other[0]) and one_number(other[1])):
        return None
    numbers = [int(each.flat[0]) for each in other]
    return offsets[k] * numbers[0] if numbers[0] == numbers[1] else None


def _compares_with_zero(call: Call) -> bool:
    """True if positions are compared with 0, which those of a slice's own examples are not below,
    neither in the slice nor in the whole."""
    others = [known for known, each in zip(call.known, call.inputs, strict=True) if not each.offset]
    return len(others) == 1 and others[0] is not None and not (others[0][0].any())


def _gather(call: Call) -> Relations | None:
    data, index = call.inputs[:2]
    axis = int(call.value(2)) % call.ranks()[0] if len(call.inputs) > 2 else 0
    size = call.shapes(0)[1][axis]
    along = data.kind is Kind.BATCHED and data.axis == axis and data.blocks == 1 and not data.offset
    if not along or not _indexes(index, size) or call.attr("batch_dims"):
        return None
    return [batched(axis + index.axis)]


def _segment_sum(call: Call) -> Relations | None:
    data, index = call.inputs[:2]
    same = data.kind is Kind.BATCHED and (data.axis, data.blocks) == (index.axis, index.blocks)
    return [batched(0)] if same and _indexes(index, call.results()[1][0]) else None


def _scatter(call: Call) -> Relations | None:
    index, data = call.inputs[:2]
    same = data.kind is Kind.BATCHED and (data.axis, data.blocks) == (index.axis, index.blocks)
    deep = call.shapes(0)[0][-1] != 1
    return [batched(0)] if same and not deep and _indexes(index, call.results()[1][0]) else None


def _indexes(index: Relation, size: int) -> bool:
    """True if positions count through the entries that belong to a slice along an axis."""
    return index.kind is Kind.BATCHED and index.offset == size


_INDEXED = {
    "GatherV2": _gather,
    "UnsortedSegmentSum": _segment_sum,
    "ScatterNd": _scatter,
}
