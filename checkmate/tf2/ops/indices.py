"""Rules of ops that take indices: gather, scatter, one-hot, sums by segment; and of the losses and
images that treat each example alone."""

from __future__ import annotations

from checkmate.tf2.ops.call import Call, Relations
from checkmate.tf2.ops.relation import SAME, Kind, batch_axis, batched
from checkmate.tf2.ops.signature import EACH, OWN, Labels, Signature

_FIRST, _SECOND = frozenset({0}), frozenset({1})


def gather(call: Call) -> Signature:
    ranks = call.ranks()
    axis = int(call.value(2)) % ranks[0] if len(ranks) > 2 else 0
    shared = int(call.attr("batch_dims")) % (ranks[1] + 1) if call.type == "GatherV2" else 0
    labels = (*range(shared), *(f"data {k}" for k in range(shared, ranks[0])))
    data: Labels = tuple(None if k == axis else label for k, label in enumerate(labels))
    indices: Labels = (*range(shared), *(f"index {k}" for k in range(shared, ranks[1])))
    output = (*data[:axis], *indices[shared:], *data[axis + 1 :])
    inputs = (data, indices, OWN)[: len(ranks)]
    return Signature(inputs, (output,), linear=EACH, linear_in=_FIRST)


def gather_nd(call: Call) -> Signature:
    """Parts of the first input, by the indices of their first axes."""
    data, indices = call.ranks()
    depth = call.shapes(1)[0][-1]
    left = tuple(f"data {k}" for k in range(depth, data))
    rows = tuple(range(indices - 1))
    return Signature(
        ((None,) * depth + left, (*rows, None)), ((*rows, *left),), linear=EACH, linear_in=_FIRST
    )


def scatter_nd(call: Call) -> Signature:
    """Zeros to which parts are added, by the indices of their first axes."""
    indices, updates = call.ranks()[:2]
    depth = call.shapes(0)[0][-1]
    rows = tuple(range(indices - 1))
    left = tuple(f"data {k}" for k in range(updates - len(rows)))
    return Signature(
        ((*rows, None), (*rows, *left), OWN),
        ((None,) * depth + left,),
        summed=frozenset(rows),
        linear=EACH,
        linear_in=_SECOND,
        shapes=frozenset({2}),
    )


def segment_sum(call: Call) -> Signature:
    data, indices = call.ranks()[:2]
    rows = tuple(range(indices))
    left = tuple(f"data {k}" for k in range(data - indices))
    return Signature(
        ((*rows, *left), rows, OWN),
        ((None, *left),),
        summed=frozenset(rows),
        linear=EACH,
        linear_in=_FIRST,
        shapes=frozenset({2}),
    )


def one_hot(call: Call) -> Signature:
    rank = call.ranks()[0]
    axis = int(call.attr("axis")) % (rank + 1)
    labels = tuple(range(rank))
    return Signature((labels, OWN, (), ()), ((*labels[:axis], None, *labels[axis:]),))


def cross_entropy(call: Call) -> Signature:
    labels = (0, None)
    classes = (0,) if call.type.startswith("Sparse") else labels
    return Signature((labels, classes), ((0,), labels))


def random(call: Call) -> Relations | None:
    """Random numbers: those of a slice are a part of the whole's along the axis that is longer
    there, if the slice draws the numbers of its part, and the same if there is no such axis."""
    axis = batch_axis(*call.results(), call.count)
    known = all(relation.kind in (Kind.SAME, Kind.SIZE, Kind.ZERO) for relation in call.inputs)
    return [SAME if axis is None else batched(axis)] if known else None


def is_random(op_type: str) -> bool:
    """True for ops that make random numbers, also for those without a row."""
    named = any(part in op_type for part in ("Random", "TruncatedNormal", "Multinomial"))
    return named and "GetKeyCounter" not in op_type
