"""Positions in the batch: numbers such as those of `tf.range(batch)`, which count from 0 in each
slice, too.

A slice needs its own: where such numbers index a tensor of all examples in the whole, they index a
tensor of the slice's examples in a slice. Their relation has an `offset`, by which the entries of
one slice are less than those of the next would be in the whole. What is linear keeps the relation;
a gather or a scatter along the axis of the examples ends it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from checkmate.tf2.ops.call import Call, Relations, one_number
from checkmate.tf2.ops.relation import Kind, Relation, batched


def has_positions(call: Call) -> bool:
    return any(relation.offset for relation in call.inputs)


def without_positions(call: Call) -> Call:
    """The same with the positions taken for values like others."""
    return replace(call, inputs=[replace(relation, offset=0) for relation in call.inputs])


def sum_of(*signs: int) -> Callable[[Call, Relations | None], Relations | None]:
    def rule(call: Call, outputs: Relations | None) -> Relations | None:
        offsets = (relation.offset for relation in call.inputs)
        return _with_offset(outputs, sum(a * b for a, b in zip(signs, offsets, strict=True)))

    return rule


def product(call: Call, outputs: Relations | None) -> Relations | None:
    offsets = [relation.offset for relation in call.inputs]
    k = 0 if offsets[0] else 1
    other = call.known[1 - k]
    if offsets[1 - k] or other is None or not (one_number(other[0]) and one_number(other[1])):
        return None
    numbers = [int(each.flat[0]) for each in other]
    return _with_offset(outputs, offsets[k] * numbers[0]) if numbers[0] == numbers[1] else None


def maximum(call: Call, outputs: Relations | None) -> Relations | None:
    """The larger of a position and 0 is the position."""
    offset = max(relation.offset for relation in call.inputs)
    return _with_offset(outputs, offset) if _compares_with_zero(call) else None


def not_below(call: Call, outputs: Relations | None) -> Relations | None:
    """Whether positions are at least 0, which holds for all."""
    return _with_offset(outputs, 0) if _compares_with_zero(call) else None


def moved(call: Call, outputs: Relations | None) -> Relations | None:
    """An op whose elements are those of its inputs."""
    data = {each.offset for each in call.inputs if each.kind is Kind.BATCHED}
    return _with_offset(outputs, data.pop()) if len(data) == 1 else None


def joined(call: Call, outputs: Relations | None) -> Relations | None:
    """Positions joined with positions, and with nothing else."""
    data = call.inputs[: len(call.inputs) - (call.type[0] == "C")]
    mixed = any(each.kind is Kind.SAME for each in data)
    return None if mixed else moved(call, outputs)


def _with_offset(outputs: Relations | None, offset: int) -> Relations | None:
    return outputs and [replace(relation, offset=offset) for relation in outputs]


def _compares_with_zero(call: Call) -> bool:
    """True if positions are compared with 0, which those of a slice's own examples are not below,
    neither in the slice nor in the whole."""
    others = [known for known, each in zip(call.known, call.inputs, strict=True) if not each.offset]
    return len(others) == 1 and others[0] is not None and not (others[0][0].any())


def gather(call: Call, outputs: Relations | None) -> Relations | None:
    data, index = call.inputs[:2]
    axis = int(call.value(2)) % call.ranks()[0] if len(call.inputs) > 2 else 0
    size = call.shapes(0)[1][axis]
    along = data.kind is Kind.BATCHED and data.axis == axis and data.blocks == 1 and not data.offset
    if not along or not _indexes(index, size) or call.attr("batch_dims"):
        return None
    return [batched(axis + index.axis)]


def segment_sum(call: Call, outputs: Relations | None) -> Relations | None:
    data, index = call.inputs[:2]
    same = data.kind is Kind.BATCHED and (data.axis, data.blocks) == (index.axis, index.blocks)
    return [batched(0)] if same and _indexes(index, call.results()[1][0]) else None


def scatter(call: Call, outputs: Relations | None) -> Relations | None:
    index, data = call.inputs[:2]
    same = data.kind is Kind.BATCHED and (data.axis, data.blocks) == (index.axis, index.blocks)
    deep = call.shapes(0)[0][-1] != 1
    return [batched(0)] if same and not deep and _indexes(index, call.results()[1][0]) else None


def _indexes(index: Relation, size: int) -> bool:
    """True if positions count through the entries that belong to a slice along an axis."""
    return index.kind is Kind.BATCHED and index.offset == size
