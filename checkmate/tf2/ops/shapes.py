"""Rules of ops that move, repeat, join and cut values."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from checkmate.tf2.ops.call import Call, Relations, UnknownError, has_own, product
from checkmate.tf2.ops.elementwise import aligned
from checkmate.tf2.ops.relation import Kind, Relation, batch_axis, batched
from checkmate.tf2.ops.signature import EACH, OWN, TOGETHER, Label, Labels, Signature


def reshape(call: Call) -> Relations | None:
    """The elements stay in order: whatever precedes the examples in that order still does."""
    relation = call.inputs[0]
    if not all(has_own(call, k) for k in range(1, len(call.inputs))):
        return None
    if relation.kind is not Kind.BATCHED:
        return None if relation.kind is Kind.WHOLE else [relation]
    shape, (result, part) = call.shapes(0)[0], call.results()
    axis = batch_axis(result, part, call.count)
    if axis is None:
        return None
    if (
        not relation.blocks
        and shape[: relation.axis] == result[:axis]
        and shape[relation.axis] == result[axis]
    ):
        return [batched(axis, 0)]
    before = product(shape[: relation.axis]) * max(relation.blocks, 1)
    now = product(result[:axis])
    return None if before % now else [batched(axis, before // now)]


def transpose(call: Call) -> Signature:
    labels = tuple(range(call.ranks()[0]))
    order = tuple(int(axis) for axis in call.value(1))
    return Signature((labels, OWN), (order,), linear=EACH)


def broadcast(call: Call) -> Signature:
    result = call.results()[0]
    labels = aligned(call.shapes(0)[0], len(result))
    return Signature(
        (labels, OWN),
        (tuple(range(len(result))),),
        linear=EACH,
        broadcasts=True,
        shapes=frozenset({1}),
    )


def fill(call: Call) -> Signature:
    labels = tuple(range(len(call.results()[0])))
    return Signature((OWN, ()), (labels,), linear=EACH, broadcasts=True, shapes=frozenset({0}))


def like(call: Call) -> Signature:
    """A tensor of the first input's shape that does not depend on its values."""
    labels = tuple(range(call.ranks()[0]))
    return Signature((labels,), (labels,), broadcasts=True)


def tile(call: Call) -> Relations | Signature | None:
    """Repeated examples are as many blocks."""
    whole, part = call.values(1)
    shape = call.shapes(0)[0]
    relation = call.inputs[0]
    if relation.kind is Kind.BATCHED and (whole == part).all():
        times = int(whole[relation.axis])
        return [batched(relation.axis, relation.blocks * times)]
    moved = (whole == 1) & (part == 1)
    if any(whole[k] != part[k] and shape[k] != 1 for k in range(len(shape))):
        return None  # entries along the axis repeat with the table's length, and are not equal
    labels = tuple(k if moved[k] else None for k in range(len(shape)))
    output = tuple(k if moved[k] or shape[k] == 1 else None for k in range(len(shape)))
    return Signature((labels, OWN), (output,), linear=EACH, broadcasts=True, shapes=frozenset({1}))


def concat(call: Call) -> Relations | Signature | None:
    """Examples behind examples are blocks."""
    count = len(call.pair.whole.inputs) - 1
    rank = call.ranks()[0]
    axis = int(call.value(count)) % rank
    if all(_lies_along(call.inputs[k], axis) for k in range(count)):
        blocks = [max(call.inputs[k].blocks, 1) for k in range(count)]
        sizes = {call.shapes(k)[0][axis] // blocks[k] for k in range(count)}
        return [batched(axis, sum(blocks))] if len(sizes) == 1 else None
    labels = tuple(None if k == axis else k for k in range(rank))
    return Signature((labels,) * count + (OWN,), (labels,), linear=TOGETHER)


def split(call: Call) -> Relations | Signature | None:
    """Equal parts along an axis; those of `SplitV` have any size."""
    at = {"Split": 0, "SplitV": 2}[call.type]
    data = 1 - at if at < 2 else 0
    axis = int(call.value(at)) % call.ranks()[data]
    outputs = len(call.pair.whole.outputs)
    relation = call.inputs[data]
    if _lies_along(relation, axis):
        left = relation.blocks % outputs
        equal = call.type == "Split" and not left
        return [batched(axis, relation.blocks // outputs)] * outputs if equal else None
    labels = tuple(None if k == axis else k for k in range(call.ranks()[data]))
    inputs = tuple(labels if k == data else OWN for k in range(len(call.inputs)))
    return Signature(inputs, (labels,) * outputs, linear=EACH)


def pack(call: Call) -> Signature:
    rank = call.ranks()[0]
    axis = int(call.attr("axis")) % (rank + 1)
    labels = tuple(range(rank))
    output = (*labels[:axis], None, *labels[axis:])
    return Signature((labels,) * len(call.inputs), (output,), linear=TOGETHER)


def unpack(call: Call) -> Signature:
    rank = call.ranks()[0]
    axis = int(call.attr("axis")) % rank
    labels = tuple(None if k == axis else k for k in range(rank))
    output = tuple(k for k in labels if k is not None)
    return Signature((labels,), (output,) * len(call.pair.whole.outputs), linear=EACH)


def pad(call: Call) -> Signature:
    """The entries that `PadV2` adds are a number."""
    kept = [not row.any() for row in call.value(1)]
    labels = tuple(k if keep else None for k, keep in enumerate(kept))
    more: tuple[Labels, ...] = ((),) if call.type == "PadV2" else ()
    linear = None if more else EACH
    return Signature((labels, OWN, *more), (labels,), linear=linear)


def cut(call: Call) -> Relations | Signature | None:
    """`Slice`: axes that are kept in full; or whole blocks of the examples."""
    begins, sizes = call.values(1), call.values(2)
    shapes = call.shapes(0)
    sizes = tuple(
        np.where(size < 0, np.asarray(shape) - begin, size)
        for size, shape, begin in zip(sizes, shapes, begins, strict=True)
    )
    full = [
        all(
            begin[k] == 0 and size[k] == shape[k]
            for begin, size, shape in zip(begins, sizes, shapes, strict=True)
        )
        for k in range(len(shapes[0]))
    ]
    relation = call.inputs[0]
    if relation.kind is Kind.BATCHED and not full[relation.axis]:
        axis = relation.axis
        return _blocks_of(call, axis, [begin[axis] for begin in begins], [s[axis] for s in sizes])
    cut_axes = [k for k, keep in enumerate(full) if not keep]
    if any(begins[0][k] != begins[1][k] or sizes[0][k] != sizes[1][k] for k in cut_axes):
        return None  # a slice would read another place
    labels = tuple(k if keep else None for k, keep in enumerate(full))
    return Signature((labels, OWN, OWN), (labels,), linear=EACH, shapes=frozenset({1, 2}))


def strided_slice(call: Call) -> Relations | Signature | None:
    """`x[...]`: axes that are kept in full; or whole blocks of the examples."""
    axes = [_strided_axes(call, side, call.shapes(0)[side]) for side in (0, 1)]
    relation = call.inputs[0]
    if relation.kind is Kind.BATCHED:
        found = [{each[0]: each for each in side}[relation.axis] for side in axes]
        _, new, _, _, step = found[0]
        if new is not None and step == 1 and not _is_full(call, found, relation.axis):
            begins, sizes = [each[2] for each in found], [each[3] - each[2] for each in found]
            moved = _blocks_of(call, relation.axis, begins, sizes)
            return moved and [batched(new, moved[0].blocks)]
    inputs, output = _kept_labels(call, axes, call.shapes(0))
    return Signature((inputs, OWN, OWN, OWN), (output,), linear=EACH, shapes=frozenset({1, 2, 3}))


def strided_slice_grad(call: Call) -> Signature:
    shapes = call.results()
    axes = [_strided_axes(call, side, shapes[side]) for side in (0, 1)]
    output, inputs = _kept_labels(call, axes, shapes)
    return Signature(
        (OWN, OWN, OWN, OWN, inputs),
        (output,),
        linear=EACH,
        linear_in=_FIFTH,
        shapes=frozenset(range(4)),
    )


_FIFTH = frozenset({4})

_Axis = tuple[int | None, int | None, int, int, int]
"""Axis of the input, axis of the output (None where there is none), begin, end and step."""


def _strided_axes(call: Call, side: int, shape: Sequence[int]) -> list[_Axis]:
    begin, end, step = (call.values(1 + k)[side] for k in range(3))
    names = ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    masks = {name: int(call.attr(f"{name}_mask")) for name in names}
    used = sum(not (masks["new_axis"] | masks["ellipsis"]) >> k & 1 for k in range(len(begin)))
    axes: list[_Axis] = []
    old = new = 0
    for k in range(len(begin) + 1):
        has = {name for name in names if masks[name] >> k & 1}
        if k == len(begin) or "ellipsis" in has:
            for _ in range(len(shape) - max(used, 0) if k < len(begin) else len(shape) - old):
                axes.append((old, new, 0, shape[old], 1))
                old, new = old + 1, new + 1
        elif "new_axis" in has:
            axes.append((None, new, 0, 1, 1))
            new += 1
        else:
            if shape[old] < 0 and not {"begin", "end"} <= has:
                raise UnknownError
            low = 0 if "begin" in has else _position(begin[k], shape[old])
            high = shape[old] if "end" in has else _position(end[k], shape[old])
            keeps = "shrink_axis" not in has
            axes.append((old, new if keeps else None, low, high, int(step[k])))
            old, new = old + 1, new + keeps
    return axes


def _position(index: int, size: int) -> int:
    return min(int(index) + size if index < 0 else int(index), size)


def _kept_labels(
    call: Call, axes: list[list[_Axis]], shapes: Sequence[Sequence[int]]
) -> tuple[Labels, Labels]:
    """The labels of the larger and of the smaller tensor of a strided slice. Raises `UnknownError`
    where a slice takes another part of an axis that is not kept in full than the whole."""
    large: list[Label] = [None] * len(shapes[0])
    small: dict[int, Label] = {}
    for each in zip(*axes, strict=True):
        old, new = each[0][:2]
        whole_axis = old is not None and all(
            (low, high, by) == (0, shape[old], 1)
            for (_, _, low, high, by), shape in zip(each, shapes, strict=True)
        )
        if old is not None and not whole_axis and each[0] != each[1]:
            raise UnknownError
        if new is not None:
            small[new] = old if whole_axis else None
            if old is not None and whole_axis:
                large[old] = old
    return tuple(large), tuple(small[k] for k in range(len(small)))


def _is_full(call: Call, found: list[_Axis], axis: int) -> bool:
    return all(
        (low, high, by) == (0, call.shapes(0)[side][axis], 1)
        for side, (_, _, low, high, by) in enumerate(found)
    )


def _blocks_of(call: Call, axis: int, begins: list[int], sizes: list[int]) -> Relations | None:
    """Whole blocks of the examples, from `begins` on, `sizes` long, for the whole and for a
    slice."""
    relation = call.inputs[0]
    shapes = call.shapes(0)
    if not relation.blocks:
        return [batched(axis, 0)] if sizes[0] == call.count * sizes[1] else None
    lengths = [shape[axis] // relation.blocks for shape in shapes]
    found = {
        (begin // length, size // length) if not (begin % length or size % length) else None
        for begin, size, length in zip(begins, sizes, lengths, strict=True)
    }
    if len(found) != 1 or None in found:
        return None
    ((_, blocks),) = found  # type: ignore[misc]
    return [batched(axis, blocks)]


def space_to_batch(call: Call) -> Relations | None:
    """Parts of the space become blocks before the examples."""
    relation, block = call.inputs[0], call.value(1)
    if relation.kind in (Kind.SAME, Kind.SUMMED, Kind.ZERO):
        return [relation]
    if not _lies_along(relation, 0):
        return None
    return [batched(0, max(relation.blocks, 1) * math.prod(block.tolist()))]


def batch_to_space(call: Call) -> Relations | None:
    """Blocks before the examples become parts of the space."""
    relation, parts = call.inputs[0], math.prod(call.value(1).tolist())
    if relation.kind in (Kind.SAME, Kind.SUMMED, Kind.ZERO):
        return [relation]
    if not _lies_along(relation, 0) or relation.blocks % parts:
        return None
    return [batched(0, relation.blocks // parts)]


def add_up(call: Call) -> Signature:
    labels = tuple(range(call.ranks()[0]))
    return Signature((labels,) * len(call.inputs), (labels,), linear=TOGETHER)


def _lies_along(relation: Relation, axis: int) -> bool:
    return relation.kind is Kind.BATCHED and relation.axis == axis
