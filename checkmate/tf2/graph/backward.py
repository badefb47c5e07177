"""Which ops of a step belong to the backward pass or the optimizer's update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from checkmate.tf2.graph.graph_writer import inputs_first, reachable
from checkmate.tf2.graph.operations import source_of

# Of several equal ops the optimizer keeps one, which may be the last: a constant of the forward
# pass is then one of the update, by its name and by its place. What reads it must not wait for the
# ops that the trace has before that place: an update of a variable would come before the ops that
# read the variable's old content, and TensorFlow would copy the variable for them.


def in_order_of_trace(
    operations: Sequence[tf.Operation], place: Mapping[str, int]
) -> list[tf.Operation]:
    """Ops in the order of the trace, inputs first. An op comes no later than the first of its
    readers would; one without a `place` in the trace, as soon as its inputs are there."""
    number = {operation: k for k, operation in enumerate(operations)}
    before = [
        {number[each] for each in (*(t.op for t in operation.inputs), *operation.control_inputs)}
        for operation in operations
    ]
    # The first place of each op and of all that depends on it.
    wanted = [place.get(operation.name, len(place)) for operation in operations]
    for k in reversed(range(len(operations))):
        for each in before[k]:
            wanted[each] = min(wanted[each], wanted[k])
    order = inputs_first(before, lambda k, at: min(place.get(operations[k].name, at), wanted[k]))
    return [operations[k] for k in order]


def in_backward_scope(operation: tf.Operation) -> bool:
    return "gradient_tape/" in operation.name or operation.name.startswith("gradients/")


def follows_gradients(operation: tf.Operation, backward: set[tf.Operation]) -> bool:
    """True for an op that computes a gradient or depends on one. Lists do not count: a loop of the
    forward pass reads the lists that its gradient will read."""
    if in_backward_scope(operation) or not backward.isdisjoint(operation.control_inputs):
        return True
    read = (tensor for tensor in operation.inputs if tensor.dtype != tf.variant)
    return any(source_of(tensor).op in backward for tensor in read)


def forward_names(concrete: Any) -> set[str]:
    backward: set[tf.Operation] = set()
    for operation in reachable(concrete.graph):
        if follows_gradients(operation, backward):
            backward.add(operation)
    return {o.name for o in concrete.graph.get_operations() if o not in backward}


def read_by_gradients(operations: list[tf.Operation]) -> set[tf.Operation]:
    """Returns the ops, given inputs first, that later gradients are computed from: values of any
    forward pass, and gradients of which gradients of higher order are computed."""
    highest: dict[tf.Operation, int] = {}  # the highest order of the gradients that read an op
    found = set()
    for operation in reversed(operations):
        order = _order(operation)
        above = highest.get(operation, 0)
        if above > order:
            found.add(operation)
        for tensor in operation.inputs:
            before = tensor.op
            highest[before] = max(highest.get(before, 0), order, above)
    return found


def has_second_order(operations: list[tf.Operation]) -> bool:
    return any(_order(operation) > 1 for operation in operations)


def _order(operation: tf.Operation) -> int:
    """The order of a gradient by its name: 1 for one of a loss, 2 for one of such; else 0."""
    return max(operation.name.count("gradient_tape/"), int(in_backward_scope(operation)))


def with_inputs(operations: list[tf.Operation], names: set[str]) -> set[tf.Operation]:
    """The ops of these names and all that they are computed from, inputs first."""
    found: set[tf.Operation] = set()
    for operation in reversed(operations):
        if operation.name in names or operation in found:
            found.add(operation)
            found.update(tensor.op for tensor in operation.inputs if tensor.dtype != tf.variant)
    return found
