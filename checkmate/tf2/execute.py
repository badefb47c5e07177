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


class GraphWriter:
    """Copies of ops, written down as a GraphDef and then imported into the graph being traced in one go.

    A tensor is named "op:k" here. Names of what comes from outside are the caller's to choose.
    """

    def __init__(self) -> None:
        self._graph_def = tf.compat.v1.GraphDef()
        self._graph_def.versions.producer = tf.version.GRAPH_DEF_VERSION
        self._node_defs: dict[tf.Operation, Any] = {}
        self._names: Counter[str] = Counter()

    def copy(self, operation: tf.Operation, inputs: Sequence[str], *, after: Sequence[str] = (), name: str = "") -> str:
        """Writes an op like `operation` on other inputs, to run after the ops of these names; returns its name."""
        if operation not in self._node_defs:
            self._node_defs[operation] = operation.node_def
        node = self._graph_def.node.add()
        node.CopyFrom(self._node_defs[operation])
        node.name = self._unique(name or operation.name)
        del node.input[:]
        node.input.extend([*inputs, *(f"^{before}" for before in dict.fromkeys(after))])
        node.attr.pop("_class", None)  # colocation goes by the old names
        return node.name

    def constant(self, value: Any, dtype: tf.DType) -> str:
        """Writes a constant and returns its tensor's name."""
        node = self._graph_def.node.add(name=self._unique("shape"), op="Const")
        node.attr["dtype"].type = dtype.as_datatype_enum
        node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, dtype))
        return f"{node.name}:0"

    def import_here(self, given: dict[str, tf.Tensor], outputs: Sequence[str]) -> list[tf.Tensor]:
        """Makes everything in the graph being traced and returns the tensors of these names.

        Args:
          given: The tensors from outside by name.
        """
        graph = tf.compat.v1.get_default_graph()
        read = {name for node in self._graph_def.node for name in node.input}
        # What is captured must become an input of the graph first; eager tensors cannot be imported onto.
        inside = {name: graph.capture(given[name]) for name in given if name in read}
        made = [name for name in outputs if name not in given]
        found = tf.graph_util.import_graph_def(self._graph_def, input_map=inside, return_elements=made, name="planned")
        by_name = dict(zip(made, found, strict=True))
        return [given[name] if name in given else by_name[name] for name in outputs]

    def _unique(self, name: str) -> str:
        self._names[name] += 1
        return name if self._names[name] == 1 else f"{name}_copy_{self._names[name] - 1}"


def replay_in_graph(traced: TracedStep, plan: Plan, arguments: Sequence[tf.Tensor]) -> Any:
    """Makes the ops of a plan in the graph being traced.

    Args:
      traced: The step that the plan is for.
      plan: A plan the judge has accepted for `traced.graph`.
      arguments: A tensor for each argument of the step, flattened as the step's specs are.

    Returns:
      What the step returns, in the same structure.
    """
    replayer = _Replayer(traced)
    for step in plan.steps:
        if isinstance(step, Compute):
            replayer.evaluate(step.op)
    return replayer.finish(arguments)


class _Replayer:
    """Where each tensor of the traced step is, at this point of the replay."""

    def __init__(self, traced: TracedStep):
        self.traced = traced
        self.writer = GraphWriter()
        self.planned = {operation for group in traced.groups for operation in group}
        self.given = {tensor.ref(): f"given_{k}:0" for k, tensor in enumerate(traced.function.inputs)}
        self.current: dict[tf.Operation, str] = {}  # planned op -> its latest evaluation
        self.once: dict[tf.Operation, str] = {}  # any other op -> the one made for it
        self.evaluations: Counter[tf.Operation] = Counter()
        self.last = ""

    def evaluate(self, i: int) -> None:
        """Runs DFGraph op i once more."""
        for operation in self.traced.groups[i]:
            inputs = [self.tensor(tensor) for tensor in operation.inputs]
            # What has to come before the first evaluation came before the others, too.
            after = [] if operation in self.current else self.befores(operation)
            # Reading the last op's value orders the two already; an edge beside it would keep kernels from being fused.
            if self.last and not any(name.startswith(f"{self.last}:") for name in inputs):
                after.append(self.last)
            name = f"{operation.name}{EVALUATION_MARK}{self.evaluations[operation]}"
            self.current[operation] = self.last = self.writer.copy(operation, inputs, after=after, name=name)
            self.evaluations[operation] += 1

    def tensor(self, tensor: tf.Tensor) -> str:
        """The name of the tensor's value now. A view of a planned value is made afresh for whoever asks."""
        tensor = op_rules.source(tensor)
        operation = tensor.op
        if tensor.ref() in self.given:
            return self.given[tensor.ref()]
        if operation in self.planned:
            return f"{self.current[operation]}:{tensor.value_index}"
        if op_rules.role(operation) is Role.SHAPE and (shape := op_rules.static_shape(operation, tensor.value_index)) is not None:
            return self.writer.constant(shape, tensor.dtype)
        if op_rules.role(operation) is Role.VIEW:
            return f"{self.writer.copy(operation, [self.tensor(each) for each in operation.inputs])}:{tensor.value_index}"
        return f"{self.made(operation)}:{tensor.value_index}"

    def befores(self, operation: tf.Operation) -> list[str]:
        """The names of the ops that the traced step has this one wait for."""
        return [self.made(before) for before in operation.control_inputs if self._is_made_once(before) or before in self.planned]

    def made(self, operation: tf.Operation) -> str:
        """The name of the op made for one that runs once, made now if need be; for a planned op, of its latest evaluation."""
        pending = [operation]
        while pending:  # a stack of its own: chains of small ops can be longer than Python's
            top = pending[-1]
            inputs = [op_rules.source(tensor) for tensor in top.inputs]
            befores = [tensor.op for tensor in inputs if tensor.ref() not in self.given] + list(top.control_inputs)
            missing = [] if self._exists(top) else [before for before in befores if self._is_made_once(before) and not self._exists(before)]
            if missing:
                pending.extend(missing)
                continue
            pending.pop()
            if not self._exists(top):
                self.once[top] = self.writer.copy(top, [self.tensor(tensor) for tensor in top.inputs], after=self.befores(top))
        return self.once.get(operation) or self.current[operation]

    def finish(self, arguments: Sequence[tf.Tensor]) -> Any:
        """Runs the small side effects that nothing asked for yet, makes it all, and returns the step's results."""
        function = self.traced.function
        for operation in function.graph.control_outputs:
            if self._is_made_once(operation):
                self.made(operation)
        names = [self.tensor(tensor) for tensor in function.outputs]
        given = dict(zip(self.given.values(), [*arguments, *function.captured_inputs], strict=True))
        outputs = self.writer.import_here(given, names)
        return tf.nest.pack_sequence_as(function.structured_outputs, outputs, expand_composites=True)

    def _exists(self, operation: tf.Operation) -> bool:
        return operation in self.once or operation in self.current

    def _is_made_once(self, operation: tf.Operation) -> bool:
        return operation not in self.planned and op_rules.role(operation) is not Role.ALIAS and operation.type not in ("NoOp", "Placeholder")
