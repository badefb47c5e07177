"""The optimizer's update in a step: which ops belong to it, which of them run late, and when a
variable may be overwritten."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import tensorflow as tf

from checkmate.tf2.graph.backward import in_backward_scope
from checkmate.tf2.graph.flat_graph import FlatGraph
from checkmate.tf2.graph.operations import is_stateful


def update_only(flat: FlatGraph) -> set[tf.Operation]:
    """The optimizer's update: no gradients, and only writes to variables depend on its ops."""
    update: set[tf.Operation] = set()
    for operation in reversed(flat.planned):
        if in_backward_scope(operation) or operation in flat.read_once:
            continue
        writes = (
            any(tensor.dtype == tf.resource for tensor in operation.inputs)
            and is_stateful(operation)
            and not flat.only_reads(operation)
        )
        if writes or (flat.readers[operation] and flat.readers[operation] <= update):
            update.add(operation)
    return update


def late_updates(
    flat: FlatGraph, order: list[tf.Operation], update: set[tf.Operation]
) -> set[tf.Operation]:
    """Returns the updates that stay at the end of the step, where they are in the trace.

    An early update adds its own memory to that of the activations; a late one keeps its gradient
    until the end. It is late if it would set the peak of the step when early, and not when late.
    """
    steps = [operation for operation in order if operation not in update]
    place = {operation: k for k, operation in enumerate(steps)}
    live = _live_bytes(flat, steps, place)
    late: set[tf.Operation] = set()
    for together in _by_variable(flat, update):
        gradients = {o for operation in together for o in flat.data_deps[operation] if o in place}
        if not gradients:
            continue
        ready = max(place[o] for o in gradients)
        gradient_bytes = sum(flat.bytes_of(o) for o in gradients)
        # Two of its values, or one and the gradient.
        largest = max(flat.bytes_of(operation) for operation in together)
        own = max(gradient_bytes, 2 * largest) - gradient_bytes
        early_peak = live[ready] + own
        late_peak = max(max(live[ready + 1 :]) + gradient_bytes, live[-1] + gradient_bytes + own)
        if early_peak > max(live) and late_peak < early_peak:
            late |= together
            for t in range(ready + 1, len(live)):
                live[t] += gradient_bytes
    return late


def _live_bytes(
    flat: FlatGraph, steps: list[tf.Operation], place: dict[tf.Operation, int]
) -> list[int]:
    """Bytes in memory at each step, and after the last one, if every value is freed after its last
    reader among the steps."""
    change = [0] * (len(steps) + 1)
    for k, operation in enumerate(steps):
        readers = (place[reader] for reader in flat.readers[operation] if reader in place)
        change[k] += flat.bytes_of(operation)
        change[max(readers, default=k) + 1] -= flat.bytes_of(operation)
    return list(accumulate(change))


def _by_variable(flat: FlatGraph, update: set[tf.Operation]) -> list[set[tf.Operation]]:
    """The update in parts that do not depend on each other, the one with the largest values
    first."""
    part: dict[tf.Operation, set[tf.Operation]] = {}
    for operation in flat.planned:
        if operation in update:
            joined = {operation}.union(*(part[o] for o in flat.order_deps[operation] if o in part))
            part.update((o, joined) for o in joined)
    parts = {id(each): each for each in part.values()}.values()
    return sorted(parts, key=lambda each: -max(flat.bytes_of(o) for o in each))


def last_hazards(
    flat: FlatGraph, order: Sequence[tf.Operation], recomputable: set[tf.Operation]
) -> tuple[dict[tf.Operation, int], set[tf.Operation]]:
    """For each op that overwrites a variable, the position of the last op that could need the
    recomputation of a reader of the old content; and those of the ops `recomputable` that are.

    A value that ops after the writer read, most often metrics of the prediction, is retained, so
    that they need no such recomputation.
    """
    recomputable = set(recomputable)
    bit = {o: 1 << k for k, o in enumerate(order)}
    old_readers = {writer: sum(bit[o] for o in read) for writer, read in flat.overwritten.items()}
    again: dict[tf.Operation, int] = {}  # op -> the ops that may have to run again for it, as bits
    overwritten = 0
    for operation in order:
        bits = 0
        for before in flat.data_deps[operation]:
            if before in recomputable and (bit[before] | again[before]) & overwritten:
                recomputable.discard(before)
            if before in recomputable:
                bits |= bit[before] | again[before]
        again[operation] = bits
        overwritten |= old_readers.get(operation, 0)
    last_needed: dict[tf.Operation, int] = {}  # reader of old content -> where it may run last
    open_readers = overwritten
    for position in reversed(range(len(order))):
        found = again[order[position]] & open_readers & ~old_readers.get(order[position], 0)
        open_readers &= ~found
        while found:
            last_needed[order[found.bit_length() - 1]] = position
            found ^= 1 << (found.bit_length() - 1)
    hazards = {
        writer: max((last_needed[o] for o in read if o in last_needed), default=-1)
        for writer, read in flat.overwritten.items()
    }
    return {writer: last for writer, last in hazards.items() if last >= 0}, recomputable
