"""Rules of ops that take indices: gather, scatter, one-hot, sums by segment; and of the losses and
images that treat each example alone."""

from __future__ import annotations

from checkmate.tf2.ops.call import Answer, Call
from checkmate.tf2.ops.relation import Kind, batched
from checkmate.tf2.ops.signature import EACH, OWN, Labels, Signature

_FIRST, _SECOND = frozenset({0}), frozenset({1})


def gather(call: Call) -> Signature | Answer:
    """Along the axis of the examples, too, where the indices are places of the slice's own."""
    ranks = call.ranks()
    axis = int(call.value(2)) % ranks[0] if len(ranks) > 2 else 0
    if _lies_along(call, 0, axis) and not int(call.attr("batch_dims")):
        places = call.shape(0)[axis] // call.examples
        along = _axis_of_places(call, 1, places)
        if along is not None:
            read = [call.inputs[0], batched(along, places=places), *call.inputs[2:]]
            return Answer([batched(axis + along)], read, shifted={1: places})
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
    depth = call.shape(1)[-1]
    left = tuple(f"data {k}" for k in range(depth, data))
    rows = tuple(range(indices - 1))
    return Signature(
        ((None,) * depth + left, (*rows, None)), ((*rows, *left),), linear=EACH, linear_in=_FIRST
    )


def scatter_nd(call: Call) -> Signature | Answer:
    """Zeros to which parts are added, by the indices of their first axes."""
    indices, updates = call.ranks()[:2]
    depth = call.shape(0)[-1]
    if depth == 1 and (answer := _added_at_places(call, 0, 1, call.result()[0])):
        return answer
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


def segment_sum(call: Call) -> Signature | Answer:
    data, indices = call.ranks()[:2]
    if answer := _added_at_places(call, 1, 0, call.result()[0]):
        return answer
    rows = tuple(range(indices))
    left = tuple(f"data {k}" for k in range(data - indices))
    return Signature(
        ((*rows, *left), rows, OWN),
        ((None, *left),),
        summed=frozenset(rows),
        linear=EACH,
        linear_in=_FIRST,
    )


def _added_at_places(call: Call, index: int, data: int, rows: int) -> Answer | None:
    """The copy of an op that adds data to rows of the slice's own examples."""
    relation = call.inputs[data]
    if relation.kind is not Kind.BATCHED or relation.blocks != 1 or rows % call.examples:
        return None
    places = rows // call.examples
    if not places or _axis_of_places(call, index, places) != relation.axis:
        return None
    inputs = list(call.inputs)
    inputs[index] = batched(relation.axis, places=places)
    return Answer([batched(0)], inputs, call.scaled(2, 0), {index: places})


def _axis_of_places(call: Call, input_: int, places: int) -> int | None:
    """The axis along which indices are so many places for each example, in order."""
    axes = range(call.ranks()[input_])
    return next((axis for axis in axes if call.places(input_, axis) == places), None)


def _lies_along(call: Call, input_: int, axis: int) -> bool:
    return call.inputs[input_] == batched(axis)


def resource_gather(call: Call) -> Signature:
    rows = tuple(range(call.ranks()[1]))
    left = tuple(f"data {k}" for k in range(len(call.result()) - len(rows)))
    return Signature((OWN, rows), ((*rows, *left),))


def reverse_sequence(call: Call) -> Signature:
    """The first entries along an axis in reverse order, as many as the other input says."""
    turned, batch = int(call.attr("seq_dim")), int(call.attr("batch_dim"))
    labels = tuple(None if k == turned else k for k in range(call.ranks()[0]))
    return Signature((labels, (batch,)), (labels,), linear=EACH, linear_in=_FIRST)


def one_hot(call: Call) -> Signature:
    rank = call.ranks()[0]
    axis = int(call.attr("axis")) % (rank + 1)
    labels = tuple(range(rank))
    return Signature((labels, OWN, (), ()), ((*labels[:axis], None, *labels[axis:]),))


def cross_entropy(call: Call) -> Signature:
    labels = (0, None)
    classes = (0,) if call.type.startswith("Sparse") else labels
    return Signature((labels, classes), ((0,), labels))


def random(call: Call) -> Signature:
    """Random numbers of any shape: a slice draws those of its part."""
    rank = len(call.result())
    inputs = (OWN,) * len(call.inputs)
    return Signature(inputs, (tuple(range(rank)),), shapes=frozenset({0}))


def is_random(op_type: str) -> bool:
    """True for ops that make random numbers, also for those without a row."""
    named = any(part in op_type for part in ("Random", "TruncatedNormal", "Multinomial"))
    return named and "GetKeyCounter" not in op_type
