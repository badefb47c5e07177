"""Replays a Plan inside the graph that TensorFlow is tracing: the same ops with the same attributes, in the plan's order.

Ordering is by control edges: every evaluation waits for the one before it. Without that chain TensorFlow's executor would start
a recomputation as soon as its inputs are there, and nothing would be saved. Views, constants and reads stay off the chain.

oneDNN fuses two kernels after all of this, without a look at what the chain has between them: that would close a cycle. It
does so only where both wait for the same control edges. Hence no edge beside a data edge (Conv2D and its BiasAdd are then
neighbours or differ), and the two gradients of a convolution's bias and filter follow each other (see `trace`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from checkmate.core.plan import Compute, Plan
from checkmate.tf2 import op_rules
from checkmate.tf2.op_rules import Role
from checkmate.tf2.trace import TracedStep

EVALUATION_MARK = "/evaluation_"
"""The k-th evaluation of op X is named X/evaluation_k in the executed graph, so that it can be counted there."""


def replay_in_graph(traced: TracedStep, plan: Plan, arguments: Sequence[tf.Tensor]) -> Any:
    """Makes the ops of a plan in the graph being traced.

    Args:
      traced: The step that the plan is for.
      plan: A plan the judge has accepted for `traced.graph`.
      arguments: A tensor for each argument of the step, flattened as the step's specs are.

    Returns:
      What the step returns, in the same structure.
    """
    replayer = _Replayer(traced, arguments)
    for step in plan.steps:
        if isinstance(step, Compute):
            replayer.evaluate(step.op)
    return replayer.finish()


def copy_operation(operation: tf.Operation, inputs: Sequence[tf.Tensor], name: str) -> tf.Operation:
    """Makes an op like `operation`, on other inputs, in the graph being traced."""
    attributes = {key: value for key, value in operation.node_def.attr.items() if key != "_class"}  # colocation goes by old names
    dtypes = [tensor.dtype for tensor in operation.outputs]
    graph = tf.compat.v1.get_default_graph()
    return graph.create_op(operation.type, list(inputs), dtypes, name=name, attrs=attributes, op_def=operation.op_def)


class _Replayer:
    """Where each tensor of the traced step is, at this point of the replay."""

    def __init__(self, traced: TracedStep, arguments: Sequence[tf.Tensor]):
        self.traced = traced
        self.graph = tf.compat.v1.get_default_graph()
        self.planned = {operation for group in traced.groups for operation in group}
        inputs = traced.function.inputs
        values = [*arguments, *traced.function.captured_inputs]
        self.given = {tensor.ref(): value for tensor, value in zip(inputs, values, strict=True)}
        self.current: dict[tf.Operation, tf.Operation] = {}  # planned op -> its latest evaluation
        self.once: dict[tf.Operation, tf.Operation] = {}  # any other op -> the one made for it
        self.evaluations: Counter[tf.Operation] = Counter()
        self.last: tf.Operation | None = None

    def evaluate(self, i: int) -> None:
        """Runs DFGraph op i once more."""
        for operation in self.traced.groups[i]:
            inputs = [self.tensor(tensor, {}) for tensor in operation.inputs]
            # What has to come before the first evaluation came before the others, too.
            first = operation not in self.current
            after = [self.made(before) for before in operation.control_inputs if before.type != "NoOp"] if first else []
            # Reading the last op's value orders the two already; an edge beside it would keep kernels from being fused.
            if self.last is not None and not any(tensor is output for tensor in inputs for output in self.last.outputs):
                after.append(self.last)
            name = f"{operation.name}{EVALUATION_MARK}{self.evaluations[operation]}"
            self.current[operation] = self.last = self.make(operation, inputs, after, name)
            self.evaluations[operation] += 1

    def tensor(self, tensor: tf.Tensor, views: dict[Any, tf.Tensor]) -> tf.Tensor:
        """The tensor's value now. `views` holds the views made for the one reader that asks."""
        tensor = op_rules.source(tensor)
        operation = tensor.op
        if tensor.ref() in self.given:
            return self.given[tensor.ref()]
        if operation in self.planned:
            return self.current[operation].outputs[tensor.value_index]
        if op_rules.role(operation) is Role.SHAPE and (shape := op_rules.static_shape(operation, tensor.value_index)) is not None:
            return tf.constant(shape, tensor.dtype)
        if op_rules.role(operation) is Role.VIEW and operation not in self.once:
            if tensor.ref() not in views:
                inputs = [self.tensor(each, views) for each in operation.inputs]
                views[tensor.ref()] = self.make(operation, inputs, [], operation.name).outputs[tensor.value_index]
            return views[tensor.ref()]
        return self.made(operation).outputs[tensor.value_index]

    def made(self, operation: tf.Operation) -> tf.Operation:
        """The op made for one that runs once, made now if need be; for a planned op, its latest evaluation."""
        pending = [operation]
        while pending:
            top = pending[-1]
            if top in self.once or top in self.current:
                pending.pop()
                continue
            befores = [op_rules.source(tensor).op for tensor in top.inputs if op_rules.source(tensor).ref() not in self.given]
            befores += top.control_inputs
            missing = [before for before in befores if before not in self.once and before not in self.current]
            missing = [before for before in missing if op_rules.role(before) is not Role.ALIAS]
            if missing:
                pending.extend(missing)
                continue
            pending.pop()
            inputs = [self.tensor(tensor, {}) for tensor in top.inputs]
            after = [self.made(before) for before in top.control_inputs if op_rules.role(before) is not Role.ALIAS]
            self.once[top] = self.make(top, inputs, after, top.name)
        return self.once.get(operation) or self.current[operation]

    def make(self, operation: tf.Operation, inputs: list[tf.Tensor], after: list[tf.Operation], name: str) -> tf.Operation:
        """Copies one op to run after others."""
        with self.graph.control_dependencies(None), self.graph.control_dependencies(after), tf.device(operation.device):
            return copy_operation(operation, inputs, name)

    def finish(self) -> Any:
        """Runs the small side effects that nothing asked for yet, and returns the step's results."""
        for operation in self.traced.function.graph.control_outputs:
            if operation not in self.planned and op_rules.role(operation) is not Role.ALIAS:
                self.made(operation)
        views: dict[Any, tf.Tensor] = {}
        outputs = [self.tensor(tensor, views) for tensor in self.traced.function.outputs]
        return tf.nest.pack_sequence_as(self.traced.function.structured_outputs, outputs, expand_composites=True)
