"""The order of a trace, for the ops that TensorFlow's graph optimizer left of it.

Of several equal ops the optimizer keeps one, which may be the last: a constant of the forward pass
is then one of the update, by its name and by its place. What reads it must not wait for the ops
that the trace has before that place: an update of a variable would come before the ops that read
the variable's old content, and TensorFlow would copy the variable for them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence

import tensorflow as tf


def in_order_of_trace(
    operations: Sequence[tf.Operation], place: Mapping[str, int]
) -> list[tf.Operation]:
    """Returns ops in the order of the trace, inputs first. An op comes no later than the first of
    its readers would; an op that the trace does not have comes as soon as its inputs are there.

    Args:
      operations: The ops, inputs first.
      place: The place in the trace of each op that is there, by its name.
    """
    before = {operation: set(_before(operation)) for operation in operations}
    readers: dict[tf.Operation, list[tf.Operation]] = {operation: [] for operation in operations}
    for operation, needed in before.items():
        for each in needed:
            readers[each].append(operation)
    wanted = _wanted(operations, readers, place)
    number = {operation: k for k, operation in enumerate(operations)}
    missing = {operation: len(needed) for operation, needed in before.items()}
    ready = [
        (min(place.get(operation.name, -1), wanted[operation]), number[operation])
        for operation in operations
        if not missing[operation]
    ]
    heapq.heapify(ready)
    order: list[tf.Operation] = []
    while ready:
        at, k = heapq.heappop(ready)
        order.append(operations[k])
        for reader in readers[operations[k]]:
            missing[reader] -= 1
            if not missing[reader]:
                at_reader = min(place.get(reader.name, at), wanted[reader])
                heapq.heappush(ready, (at_reader, number[reader]))
    return order


def _wanted(
    operations: Sequence[tf.Operation],
    readers: Mapping[tf.Operation, Sequence[tf.Operation]],
    place: Mapping[str, int],
) -> dict[tf.Operation, int]:
    """The first place in the trace of each op and of all that depends on it."""
    wanted: dict[tf.Operation, int] = {}
    for operation in reversed(operations):
        own = place.get(operation.name, len(place))
        wanted[operation] = min([own, *(wanted[reader] for reader in readers[operation])])
    return wanted


def _before(operation: tf.Operation) -> Iterable[tf.Operation]:
    yield from (tensor.op for tensor in operation.inputs)
    yield from operation.control_inputs
