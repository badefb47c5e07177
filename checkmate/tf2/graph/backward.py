"""Which ops of a step belong to the backward pass or the optimizer's update."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from checkmate.tf2.graph.graph_writer import reachable
from checkmate.tf2.graph.operations import source_of


def in_backward_scope(operation: tf.Operation) -> bool:
    """True if the op's name says that it computes a gradient."""
    return "gradient_tape/" in operation.name or operation.name.startswith("gradients/")


def follows_gradients(operation: tf.Operation, backward: set[tf.Operation]) -> bool:
    """True for an op that computes a gradient or depends on an op of `backward`.

    Lists do not count: a loop of the forward pass reads the lists that its gradient will read.
    """
    if in_backward_scope(operation) or not backward.isdisjoint(operation.control_inputs):
        return True
    return any(
        source_of(tensor).op in backward
        for tensor in operation.inputs
        if tensor.dtype != tf.variant
    )


def forward_names(concrete: Any) -> set[str]:
    """Returns the names of a traced function's ops that are not part of the backward pass."""
    backward: set[tf.Operation] = set()
    for operation in reachable(concrete.graph):
        if follows_gradients(operation, backward):
            backward.add(operation)
    return {
        operation.name for operation in concrete.graph.get_operations() if operation not in backward
    }


def with_inputs(operations: list[tf.Operation], names: set[str]) -> set[tf.Operation]:
    """Returns the ops of these names and all ops that they are computed from.

    Args:
      operations: All ops, inputs first.
    """
    found: set[tf.Operation] = set()
    for operation in reversed(operations):
        if operation.name in names or operation in found:
            found.add(operation)
            found.update(tensor.op for tensor in operation.inputs if tensor.dtype != tf.variant)
    return found
