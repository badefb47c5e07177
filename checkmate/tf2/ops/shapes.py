"""Rules of ops that move, repeat, join and cut values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from checkmate.tf2.ops.call import Answer, Call, Relations, UnknownError, product
from checkmate.tf2.ops.elementwise import aligned
from checkmate.tf2.ops.relation import SAME, WHOLE, ZERO, Kind, Relation, batched
from checkmate.tf2.ops.signature import EACH, OWN, TOGETHER, Label, Labels, Signature


def reshape(call: Call) -> Relations | Answer | None:
    """The elements stay in order: whatever precedes the examples in that order still does."""
    relation, *others = call.inputs
    if any(other.kind not in (Kind.SAME, Kind.ZERO, Kind.SIZE) for other in others):
        return None
    asked = call.asked.get(0)
    if asked is not None and relation in (SAME, ZERO):
        found, relation = asked, _in_shape(call, asked, call.result(), call.shape(0))
    elif relation.kind is not Kind.BATCHED:
        return None if relation.kind in (Kind.WHOLE, Kind.SIZE) else [relation]
    else:
        found = _in_shape(call, relation, call.shape(0), call.result())
    if WHOLE in (found, relation):
        return None
    scaled = call.scaled(1, found.axis) if call.type == "Reshape" else {}
    return Answer([found], [relation, *others], scaled)


def _in_shape(
    call: Call, relation: Relation, shape: Sequence[int], other: Sequence[int]
) -> Relation:
    """The relation of a value of one shape, of its elements in another; WHOLE if there is none."""
    before = product(shape[: relation.axis]) * relation.blocks
    for axis, size in enumerate(other):
        now = product(other[:axis])
        if now <= before and not before % now and not size % (call.examples * (before // now)):
            return batched(axis, before // now, relation.places)
    return WHOLE


def transpose(call: Call) -> Signature:
    labels = tuple(range(call.ranks()[0]))
    order = tuple(int(axis) for axis in call.value(1))
    return Signature((labels, OWN), (order,), linear=EACH)


def broadcast(call: Call) -> Signature:
    rank = len(call.result())
    labels = aligned(call.shape(0), rank)
    return Signature((labels, OWN), (tuple(range(rank)),), linear=EACH, shapes=frozenset({1}))


def fill(call: Call) -> Signature:
    labels = tuple(range(len(call.result())))
    return Signature((OWN, ()), (labels,), linear=EACH, shapes=frozenset({0}))


def empty(call: Call) -> Signature:
    return Signature((OWN,), (tuple(range(len(call.result()))),), shapes=frozenset({0}))


def like(call: Call) -> Signature:
    """A tensor of the first input's shape that does not depend on its values."""
    labels = tuple(range(call.ranks()[0]))
    return Signature((labels,), (labels,))


def tile(call: Call) -> Answer | Signature | None:
    """Repeated examples are as many blocks; what is repeated for each example is repeated as often
    in a slice."""
    times, shape, relation = call.value(1), call.shape(0), call.inputs[0]
    if relation.kind is Kind.BATCHED:
        blocks = relation.blocks * int(times[relation.axis])
        return Answer([replace(relation, blocks=blocks)], list(call.inputs))
    labels = tuple(k if times[k] == 1 else None for k in range(len(shape)))
    output = tuple(k if times[k] == 1 or shape[k] == 1 else None for k in range(len(shape)))
    return Signature((labels, OWN), (output,), linear=EACH, shapes=frozenset({1}))


def concat(call: Call) -> Relations | Answer | Signature | None:
    """Examples behind examples are blocks."""
    count = len(call.inputs) - 1
    rank = call.ranks()[0]
    axis = int(call.value(count)) % rank
    data = call.inputs[:count]
    if any(_lies_along(relation, axis) for relation in data):
        # What is the same for all slices is cut along with the others.
        blocks = [r.blocks if r.kind is Kind.BATCHED else 1 for r in data]
        sizes = {call.shape(k)[axis] / blocks[k] for k in range(count)}
        inputs = [batched(axis, each) for each in blocks]
        fits = all(r in (mine, SAME, ZERO) for r, mine in zip(data, inputs, strict=True))
        if len(sizes) != 1 or not fits:
            return None
        return Answer([batched(axis, sum(blocks))], [*inputs, call.inputs[count]])
    labels = tuple(None if k == axis else k for k in range(rank))
    return Signature((labels,) * count + (OWN,), (labels,), linear=TOGETHER)


def split(call: Call) -> Relations | Signature | None:
    """Equal parts along an axis; those of `SplitV` have any size."""
    at = {"Split": 0, "SplitV": 2}[call.type]
    data = 1 - at if at < 2 else 0
    axis = int(call.value(at)) % call.ranks()[data]
    outputs = len(call.operation.outputs)
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
    return Signature((labels,), (output,) * len(call.operation.outputs), linear=EACH)


def pad(call: Call) -> Signature:
    """The entries that `PadV2` adds are a number."""
    kept = [not row.any() for row in call.value(1)]
    labels = tuple(k if keep else None for k, keep in enumerate(kept))
    more: tuple[Labels, ...] = ((),) if call.type == "PadV2" else ()
    linear = None if more else EACH
    return Signature((labels, OWN, *more), (labels,), linear=linear)


def cut(call: Call) -> Answer | Signature | None:
    """`Slice`: axes that are kept in full; or whole blocks of the examples."""
    begins, sizes, shape = call.value(1), call.value(2), call.shape(0)
    sizes = np.where(sizes < 0, np.asarray(shape) - begins, sizes)
    full = [begins[k] == 0 and sizes[k] == shape[k] for k in range(len(shape))]
    relation = call.inputs[0]
    if relation.kind is Kind.BATCHED and not full[relation.axis]:
        axis = relation.axis
        blocks = _blocks_of(call, 0, int(begins[axis]), int(sizes[axis]))
        scaled = call.scaled(1, axis) | call.scaled(2, axis)
        return Answer([replace(relation, blocks=blocks)], list(call.inputs), scaled)
    labels = tuple(k if keep else None for k, keep in enumerate(full))
    return Signature((labels, OWN, OWN), (labels,), linear=EACH, shapes=frozenset({2}))


def strided_slice(call: Call) -> Answer | Signature | None:
    """`x[...]`: axes that are kept in full; or whole blocks of the examples."""
    axes, relation = _strided_axes(call, call.shape(0)), call.inputs[0]
    if relation.kind is Kind.BATCHED:
        axis = next(each for each in axes if each.large == relation.axis)
        if axis.small is None or axis.step != 1:
            return None
        full = axis.is_full(call.shape(0))
        if min(axis.low, axis.high) < 0:
            return None
        blocks = relation.blocks if full else _blocks_of(call, 0, axis.low, axis.high - axis.low)
        found = batched(axis.small, blocks, relation.places)
        return Answer([found], list(call.inputs), _scaled_ends(call, axis, 1))
    inputs, output = _kept_labels(axes, call.shape(0))
    return Signature((inputs, OWN, OWN, OWN), (output,), linear=EACH)


def strided_slice_grad(call: Call) -> Answer | Signature | None:
    shape, relation = call.result(), call.inputs[4]
    axes = _strided_axes(call, shape)
    if relation.kind is Kind.BATCHED:
        axis = next(each for each in axes if each.small == relation.axis)
        if axis.large is None or not axis.is_full(shape):
            return None
        scaled = call.scaled(0, axis.large) | _scaled_ends(call, axis, 1)
        return Answer([batched(axis.large, relation.blocks)], list(call.inputs), scaled)
    output, inputs = _kept_labels(axes, shape)
    return Signature(
        (OWN, OWN, OWN, OWN, inputs),
        (output,),
        linear=EACH,
        linear_in=frozenset({4}),
        shapes=frozenset({0}),
    )


@dataclass(frozen=True, slots=True)
class _Axis:
    """An axis of a strided slice.

    Attributes:
      large, small: Its place in the larger and in the smaller tensor; None where it is not there.
      low, high, step: The part of it that is kept; -1 or 0 where that is not known.
      entry: Its entry in `begin`, `end` and `strides`; None within an ellipsis.
      begins, ends: Its begin and its end are told there.
    """

    large: int | None
    small: int | None
    low: int
    high: int
    step: int
    entry: int | None = None
    begins: bool = False
    ends: bool = False

    def is_full(self, shape: Sequence[int]) -> bool:
        return self.large is not None and (self.low, self.high, self.step) == (
            0,
            shape[self.large],
            1,
        )


def _scaled_ends(call: Call, axis: _Axis, first: int) -> dict[int, int]:
    """The entries of `begin` (input `first`) and `end` that lie along the axis of the examples."""
    scaled: dict[int, int] = {}
    if axis.entry is not None:
        for k, read in ((first, axis.begins), (first + 1, axis.ends)):
            if read and call.value(k)[axis.entry] < 0:
                raise UnknownError
            # An end beyond the axis stands for its end.
            if read and not (k > first and call.value(k)[axis.entry] > axis.high):
                scaled |= call.scaled(k, axis.entry)
    return scaled


def _strided_axes(call: Call, shape: Sequence[int]) -> list[_Axis]:
    """The axes, by the shape of the larger tensor."""
    begin, end, step = (call.known[k] for k in (1, 2, 3))
    entries = call.shape(1)[0]
    names = ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    masks = {name: int(call.attr(f"{name}_mask")) for name in names}
    used = sum(not (masks["new_axis"] | masks["ellipsis"]) >> k & 1 for k in range(entries))
    axes: list[_Axis] = []
    old = new = 0
    for k in range(entries + 1):
        has = {name for name in names if masks[name] >> k & 1}
        if k == entries or "ellipsis" in has:
            for _ in range(len(shape) - max(used, 0) if k < entries else len(shape) - old):
                axes.append(_Axis(old, new, 0, shape[old], 1))
                old, new = old + 1, new + 1
        elif "new_axis" in has:
            axes.append(_Axis(None, new, 0, 1, 1))
            new += 1
        else:
            keeps = "shrink_axis" not in has
            begins, ends = "begin" not in has or not keeps, "end" not in has or not keeps
            low = _position(begin, k, shape[old]) if begins else 0
            high = _position(end, k, shape[old]) if ends else shape[old]
            by = 0 if step is None else int(step[k])
            axes.append(_Axis(old, new if keeps else None, low, high, by, k, begins, ends))
            old, new = old + 1, new + keeps
    return axes


def _position(indices: Any, k: int, size: int) -> int:
    """Where an axis is cut; -1 if that is not known before the step runs."""
    if indices is None or size < 0:
        return -1
    index = int(indices[k])
    return min(index + size if index < 0 else index, size)


def _kept_labels(axes: list[_Axis], shape: Sequence[int]) -> tuple[Labels, Labels]:
    """The labels of the larger and of the smaller tensor of a strided slice."""
    large: list[Label] = [None] * len(shape)
    small: dict[int, Label] = {}
    for axis in axes:
        label = axis.large if axis.is_full(shape) else None
        if axis.small is not None:
            small[axis.small] = label
        if axis.large is not None and axis.small is not None:
            large[axis.large] = label
    return tuple(large), tuple(small[k] for k in range(len(small)))


def _blocks_of(call: Call, data: int, begin: int, size: int) -> int:
    """The number of whole blocks of the examples from `begin` on; raises UnknownError where a part
    of a block would be cut off."""
    relation = call.inputs[data]
    length = call.shape(data)[relation.axis] // relation.blocks
    if begin % length or size % length or not size:
        raise UnknownError
    return size // length


def space_to_batch(call: Call) -> Relations | None:
    """Parts of the space become blocks before the examples."""
    relation, block = call.inputs[0], call.value(1)
    if relation.kind in (Kind.SAME, Kind.SUMMED, Kind.ZERO):
        return [relation]
    if relation.kind is Kind.BATCHED and relation.axis > len(block):
        return [relation]
    if not _lies_along(relation, 0):
        return None
    return [batched(0, relation.blocks * math.prod(block.tolist()))]


def batch_to_space(call: Call) -> Relations | None:
    """Blocks before the examples become parts of the space."""
    relation, block = call.inputs[0], call.value(1)
    parts = math.prod(block.tolist())
    if relation.kind in (Kind.SAME, Kind.SUMMED, Kind.ZERO):
        return [relation]
    if relation.kind is Kind.BATCHED and relation.axis > len(block):
        return [relation]
    if not _lies_along(relation, 0) or relation.blocks % parts:
        return None
    return [batched(0, relation.blocks // parts)]


def add_up(call: Call) -> Signature:
    labels = tuple(range(call.ranks()[0]))
    return Signature((labels,) * len(call.inputs), (labels,), linear=TOGETHER)


def _lies_along(relation: Relation, axis: int) -> bool:
    return relation.kind is Kind.BATCHED and relation.axis == axis
