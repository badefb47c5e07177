"""Which neighbouring planned ops become one op of the DFGraph.

A kernel whose value only the very next kernel reads, and which is no smaller than what that one
makes, is fused with it (convolution + bias + activation). Retaining its value alone would never
pay, and TensorFlow computes such pairs in place. The two stay apart if one op would need much more
memory at once than either of them, since it holds all that both read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf

from checkmate.tf2.graph.flat_graph import FlatGraph
from checkmate.tf2.graph.operations import source_of
from checkmate.tf2.ops.rule import Fusion
from checkmate.tf2.ops.table import rule_of

Group = tuple[tf.Operation, ...]
Pairs = Mapping[tf.Operation, tf.Operation]

RAISED_SHARE = 0.25
"""A fused op may need more bytes at once than each of its parts by this share of the most that any
op needs."""


def values_of(flat: FlatGraph, group: Group) -> Group:
    inside = set(group)
    return tuple(
        o for o in group if o is group[-1] or o in flat.read_once or not flat.readers[o] <= inside
    )


def paired_gradients(
    flat: FlatGraph, order: list[tf.Operation], update: set[tf.Operation]
) -> dict[tf.Operation, tf.Operation]:
    """The gradients of biases -> the filter gradient of the same convolution: both read one
    tensor."""
    makes = [o for o in order if rule_of(o.type).fusion is Fusion.FILTER_GRADIENT]
    filters = {source_of(o.inputs[2]).ref(): o for o in makes}
    position = {operation: k for k, operation in enumerate(order)}
    paired: dict[tf.Operation, tf.Operation] = {}
    for operation in order:
        if rule_of(operation.type).fusion is not Fusion.BIAS_GRADIENT:
            continue
        filter_gradient = filters.pop(source_of(operation.inputs[0]).ref(), None)
        if filter_gradient is not None and all(
            o in update or position[o] > position[filter_gradient] for o in flat.readers[operation]
        ):
            paired[operation] = filter_gradient
    return paired


def fused(
    flat: FlatGraph, order: list[tf.Operation], paired: Pairs, recomputable: set[tf.Operation]
) -> tuple[Group, ...]:
    """Neighbouring planned ops that become one op each, whose inner values they alone read."""
    tolerated = RAISED_SHARE * max(_needed_bytes(flat, [operation]) for operation in order)

    def fits(one: Sequence[tf.Operation], other: Sequence[tf.Operation]) -> bool:
        apart = max(_needed_bytes(flat, one), _needed_bytes(flat, other))
        return _needed_bytes(flat, [*one, *other]) <= apart + tolerated

    def belong(before: list[tf.Operation], group: list[tf.Operation]) -> bool:
        last, operation = before[-1], group[-1]
        if paired.get(last) is operation:
            return True
        alike = all((last in kind) == (operation in kind) for kind in (recomputable, flat.backward))
        # The next op must be a reader, or all that an update of many variables waits for would
        # become one op with it.
        readers = flat.readers[last]
        alone = last not in flat.read_once and group[0] in readers and readers <= set(group)
        # Retaining a smaller input instead of the value can pay, if the value can be recomputed.
        no_smaller = flat.bytes_of(last) >= flat.bytes_of(operation)
        pays = operation not in recomputable or no_smaller
        return alike and alone and pays and fits(before, group)

    groups: list[list[tf.Operation]] = []
    for operation in order:
        group = [operation]
        while groups and belong(groups[-1], group):
            group = groups.pop() + group
        groups.append(group)
    return tuple(map(tuple, groups))


def _needed_bytes(flat: FlatGraph, group: Sequence[tf.Operation]) -> int:
    """Bytes that one op of these ops needs at once: all that it reads, from its beginning to its
    end, and its inner values. A value that is never freed does not count."""
    inside = set(group)
    read = {before for operation in group for before in flat.data_deps[operation]}
    read -= inside | flat.read_once
    outer = sum(map(flat.bytes_of, read))
    if all(rule_of(operation.type).is_elementwise for operation in group):
        largest = max(map(flat.bytes_of, group))
        if any(flat.bytes_of(before) >= largest for before in read):
            return outer  # every op forwards what it reads
    peak = live = 0
    for k, operation in enumerate(group):
        size, left = flat.bytes_of(operation), set(group[k + 1 :])
        done = [o for o in flat.data_deps[operation] & inside if not flat.readers[o] & left]
        forwards = rule_of(operation.type).is_elementwise and any(
            flat.bytes_of(before) >= size for before in done
        )
        peak = max(peak, live + (0 if forwards else size))
        live += size - sum(map(flat.bytes_of, done))
    return outer + peak
