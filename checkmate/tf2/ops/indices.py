"""Rules of ops that take indices: gather, scatter, one-hot, sums by segment; and of the losses and
images that treat each example alone."""

from __future__ import annotations

from checkmate.tf2.ops.call import Answer, Call, product
from checkmate.tf2.ops.relation import SAME, ZERO, Kind, Relation, batched
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


def gather_nd(call: Call) -> Signature | Answer:
    """Parts of the first input, by the indices of their first axes."""
    data, indices = call.ranks()
    depth = call.shape(1)[-1]
    if depth > 0 and _lies_along(call, 0, 0):
        places = call.shape(0)[0] // call.examples
        along = _axis_of_places(call, 1, places, leading=True)
        if along is not None:
            read = [call.inputs[0], batched(along, 1, places, places)]
            return Answer([batched(along)], read, shifted={1: places}, leads=True)
    left = tuple(f"data {k}" for k in range(depth, data))
    rows = tuple(range(indices - 1))
    return Signature(
        ((None,) * depth + left, (*rows, None)), ((*rows, *left),), linear=EACH, linear_in=_FIRST
    )


def scatter_nd(call: Call) -> Signature | Answer:
    """Zeros to which parts are added, by the indices of their first axes."""
    indices, updates = call.ranks()[:2]
    depth = call.shape(0)[-1]
    length = call.result()[0] if depth > 0 else 0
    if answer := _added_at_places(call, 0, 1, length, leading=True):
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


def _added_at_places(
    call: Call, index: int, data: int, rows: int, *, leading: bool = False
) -> Answer | None:
    """The copy of an op that adds data to rows of the slice's own examples."""
    relation = call.inputs[data]
    if relation.kind is not Kind.BATCHED or relation.blocks != 1 or rows % call.examples:
        return None
    places = rows // call.examples
    if not places or _axis_of_places(call, index, places, leading=leading) != relation.axis:
        return None
    inputs = list(call.inputs)
    inputs[index] = batched(relation.axis, 1, places, places)
    return Answer([batched(0)], inputs, call.scaled(2, 0), {index: places}, leads=leading)


def tensor_scatter(call: Call) -> Answer | None:
    """A tensor of which parts are replaced, by the indices of their first axes."""
    if not call.ranks()[0] or not call.shape(1)[-1] or call.shape(0)[0] % call.examples:
        return None
    places = call.shape(0)[0] // call.examples
    along = _axis_of_places(call, 1, places, leading=True)
    if along is None:
        return None
    read = [batched(0), batched(along, 1, places, places), batched(along)]
    return _cut(call, read, {1: places}, leads=True)


def boxes(call: Call) -> Answer | None:
    """Parts of images at boxes, of which each names its image; or the gradients."""
    of_images, of_boxes = (call.type.endswith(kind) for kind in ("GradImage", "GradBoxes"))
    k = 3 if of_boxes else 2
    images = (call.result() if of_images else call.shape(k - 2))[0]
    places = images // call.examples
    if images % call.examples or _axis_of_places(call, k, places) != 0:
        return None
    read = [*[batched(0)] * k, batched(0, places=places), *call.inputs[k + 1 :]]
    return _cut(call, read, {k: places}, call.scaled(3, 0) if of_images else {})


def _cut(
    call: Call,
    inputs: list[Relation],
    shifted: dict[int, int],
    scaled: dict[int, int] | None = None,
    *,
    leads: bool = False,
) -> Answer | None:
    """The copy of an op that reads these parts, if its inputs are so or can be cut."""
    pairs = list(zip(call.inputs, inputs, strict=True))
    if any(found not in (part, SAME, ZERO) for found, part in pairs):
        return None
    if not call.asked and all(found in (SAME, ZERO) for found, _ in pairs):
        return None
    return Answer([batched(0)], inputs, scaled or {}, shifted, leads)


def _axis_of_places(call: Call, input_: int, places: int, *, leading: bool = False) -> int | None:
    """The axis along which indices are so many places for each example, in order; with `leading`
    the first entries of indices, which lie along the last axis."""
    axes = range(call.ranks()[input_] - leading)
    named = call.leading if leading else call.places
    return next((axis for axis in axes if places and named(input_, axis) == places), None)


def _lies_along(call: Call, input_: int, axis: int) -> bool:
    return call.inputs[input_] == batched(axis)


def resource_gather(call: Call) -> Signature:
    rows = tuple(range(call.ranks()[1]))
    left = (None,) * (len(call.result()) - len(rows))
    return Signature((OWN, rows), ((*rows, *left),))


def search(call: Call) -> Signature:
    """Where values stand in sorted rows, each in its own."""
    return Signature(((0, None), (0, 1)), ((0, 1),))


def bincount(call: Call) -> Signature | None:
    """How often each number occurs in each row, or in all."""
    rank = call.ranks()[0]
    numbers: Labels = (0, None) if rank == 2 else (0,)
    if rank == 1 and call.attr("binary_output"):
        return None
    weights = numbers if product(call.shape(2)) else OWN
    counts: Labels = (0, None) if rank == 2 else (None,)
    return Signature((numbers, (), weights), (counts,), summed=frozenset({0}) - set(counts))


def lookup(call: Call) -> Signature:
    """Values of a table that nothing changes while slices run."""
    keys = tuple(range(call.ranks()[1]))
    left = (None,) * (len(call.result()) - len(keys))
    return Signature((OWN, keys, left), ((*keys, *left),))


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
