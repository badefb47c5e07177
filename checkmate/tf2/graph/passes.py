"""Passes over a traced step before it is planned: `inline` and `simplify`.

inline(): puts the bodies of called functions in the place of the calls, so that their ops are
planned one by one.

A `tf.function` that a step calls is one op in the step's graph, and its gradient is another.
TensorFlow inlines their bodies before it runs a graph; `inline` does so before the graph is
planned. It leaves functions for XLA, functions marked as not to be inlined or which TensorFlow
replaces with another implementation on this device, and the bodies of loops and conditions.

Every stateful op of a body waits for all that the call waited for, and what waited for the call
waits for all stateful ops of its body. Variables are thus read and written in the same order as
before.

simplify(): removes from a traced step broadcasts that nothing needs in full, and scalars that
are computed twice.

The gradient of a mean is a small tensor, tiled to the size of what was averaged, divided by a
number, and multiplied by a tensor of that size. BatchNormalization and LayerNormalization make
several of these per layer, each of full size. Elementwise ops broadcast on their own, so the tile
can wait: the division runs on the small tensor, and the product broadcasts. A sum of gradients
(AddN, which takes equal shapes only) becomes additions in the same order. Each element goes through
the same operations in the same order, so every bit is the same, with fewer and smaller tensors.

A tensor with one number everywhere is a broadcast of that number, such as a gradient of zeros. If
it is needed in full, the executor makes it each time: TensorFlow would fold it into a constant,
which takes memory as long as the function exists.

An optimizer reads its learning rate and its step counter for each variable, and computes the same
powers of them. TensorFlow does not merge reads of variables, nor what is made of them. `simplify`
merges scalars of equal inputs that no write separates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from checkmate.tf2 import device as devices
from checkmate.tf2.graph import bodies
from checkmate.tf2.graph.graph_writer import GraphCopy, reachable
from checkmate.tf2.graph.operations import is_argument, is_call, is_constant, may_repeat, source_of
from checkmate.tf2.ops.table import rule_of

NOT_INLINED = ("_XlaMustCompile", "_noinline")
"""Attributes of a function, or of its call, with which the call stays one op."""

REPLACED, MADE_FOR = "api_implements", "api_preferred_device"
"""Attributes of a function that has other implementations for other kinds of devices, and the kind
of device of this one."""


def inline(concrete: Any) -> Any:
    """Returns a `ConcreteFunction` of the same flattened arguments, outputs and side effects
    without calls of functions, or `concrete` itself if it calls nothing that can be inlined."""
    if not any(map(is_call, concrete.graph.get_operations())):
        return concrete
    inliner = _Inliner(concrete)
    inliner.write(reachable(concrete.graph))
    if not inliner.count:
        return concrete
    return inliner.writer.function_like(
        concrete, [inliner.names[tensor.ref()] for tensor in concrete.outputs]
    )


class _Inliner(GraphCopy):
    """Copies ops; for a call, others wait for all stateful copies of its body."""

    def __init__(self, concrete: Any):
        super().__init__(concrete)
        self.count = 0
        library = concrete.graph.as_graph_def().library.function
        self._library = {function.signature.name: function for function in library}

    def write(
        self, operations: Sequence[tf.Operation], after: Sequence[str] = (), device: str = ""
    ) -> tuple[str, ...]:
        """Copies the ops of one body, the stateful ones to run after the ops `after`; returns the
        names of the stateful copies."""
        written: list[str] = []
        for operation in operations:
            if is_argument(operation):
                continue
            stateful = operation.op_def.is_stateful
            befores = after if stateful else ()
            body = self._body(operation)
            if body is None:
                self.copy(operation, self.inputs(operation), befores, device)
            else:
                befores = [*self.before(operation), *befores]
                self.copies[operation] = self._write_body(
                    operation, body, befores, operation.device or device
                )
            if stateful or body is not None:
                written.extend(self.copies[operation])
        return tuple(written)

    def _write_body(
        self, call: tf.Operation, body: Any, befores: Sequence[str], device: str
    ) -> tuple[str, ...]:
        self.count += 1
        for inner, outer in zip(body.inputs, call.inputs, strict=True):
            self.names[inner.ref()] = self.names[outer.ref()]
        written = self.write(reachable(body), befores, device)
        for inner, outer in zip(body.outputs, call.outputs, strict=True):
            self.names[outer.ref()] = self.names[inner.ref()]
        return written

    def _body(self, operation: tf.Operation) -> Any:
        if not is_call(operation):
            return None
        definition = self._library.get(operation.get_attr("f").name)
        attributes = [operation.node_def.attr, definition.attr if definition else {}]
        if (
            definition is None
            or any(found[name].b for found in attributes for name in NOT_INLINED if name in found)
            or _is_replaced(definition)
        ):
            return None
        shapes = [
            None if tensor.dtype == tf.resource else tensor.shape.as_proto()
            for tensor in operation.inputs
        ]
        return bodies.from_definition(definition, shapes)


def _is_replaced(definition: Any) -> bool:
    kind = devices.training_device().partition(":")[0].encode()
    return REPLACED in definition.attr and definition.attr[MADE_FOR].s != kind


ADDS_IN_ORDER = (tf.float32, tf.float64)
"""Types whose AddN sums from left to right without a wider accumulator, for up to `MOST_TERMS`."""

MOST_TERMS = 8

MOST_DIMENSIONS = 5
"""TensorFlow's kernels broadcast no further, while Tile takes tensors of more dimensions."""

Small = tuple[str, tuple[int, ...]]


def simplify(concrete: Any) -> Any:
    """Returns a `ConcreteFunction` of the same flattened arguments, outputs and side effects, with
    fewer broadcasts, constants and repeated scalars."""
    simplifier = _Simplifier(concrete)
    for operation in reachable(concrete.graph):
        simplifier.write(operation)
    outputs = [simplifier.name(tensor) for tensor in concrete.outputs]
    return simplifier.writer.function_like(concrete, outputs)


class _Simplifier(GraphCopy):
    """Copies ops.

    Attributes:
      small: For each tensor that is not broadcast yet, what is to be broadcast.
      folded: Tensors that depend on constants alone.
      made: The copies' names: of a scalar by all that its value depends on, else by the op.
    """

    def __init__(self, concrete: Any):
        super().__init__(concrete)
        self.small: dict[Any, Small] = {}
        self.folded: set[Any] = set()
        self.made: dict[Any, str] = {}

    def write(self, operation: tf.Operation) -> None:
        if is_argument(operation):
            return
        inputs = [source_of(tensor) for tensor in operation.inputs]
        output = operation.outputs[0] if operation.outputs else None
        if output is not None and inputs:
            if all(tensor.ref() in self.folded or is_constant(tensor.op) for tensor in inputs):
                self.folded.add(output.ref())
            if _is_broadcast(operation):
                self.small[output.ref()] = self._smallest(inputs[0])
                return
            if (number := _number(operation)) is not None:
                self.small[output.ref()] = (self.writer.constant(number, output.dtype), ())
                self.folded.add(output.ref())
                return
            waiting = any(tensor.ref() in self.small for tensor in inputs)
            known = all(tensor.shape.is_fully_defined() for tensor in inputs)
            if waiting and known and self._combine(operation, inputs):
                return
        names = [self.name(tensor) for tensor in operation.inputs]
        if output is not None and output.ref() in self.folded:
            held = self.writer.held_back(operation, names)
            if held != names:
                self.folded.remove(output.ref())
                names = held
        self._copy(operation, names)

    def name(self, tensor: tf.Tensor) -> str:
        if tensor.ref() in self.names:
            return self.names[tensor.ref()]
        source = source_of(tensor)
        if source.ref() not in self.small:
            return f"{self.copies[tensor.op][0]}:{tensor.value_index}"
        if source.ref() not in self.names:
            self.names[source.ref()] = self._broadcast(source)
        return self.names[source.ref()]

    def _broadcast(self, tensor: tf.Tensor) -> str:
        name, shape = self.small[tensor.ref()]
        full = tensor.shape.as_list()
        if list(shape) == full:
            return name
        extent = self.writer.constant(full, tf.int32)
        if tensor.ref() in self.folded:
            name = self.writer.not_folded(name, tensor.dtype, name=f"{tensor.op.name}/number")
        return self.writer.add(
            "BroadcastTo", [name, extent], tensor.dtype, name=f"{tensor.op.name}/broadcast"
        )

    def _smallest(self, tensor: tf.Tensor) -> Small:
        tensor = source_of(tensor)
        if tensor.ref() in self.small:
            return self.small[tensor.ref()]
        return self.name(tensor), tuple(tensor.shape.as_list())

    def _combine(self, operation: tf.Operation, inputs: Sequence[tf.Tensor]) -> bool:
        output = operation.outputs[0]
        if rule_of(operation.type).broadcasts:
            small = [self._smallest(tensor) for tensor in inputs]
            name = self._copy(operation, [name for name, _ in small])
            shape = np.broadcast_shapes(*(shape for _, shape in small))
            self.small[output.ref()] = f"{name}:0", shape
            return True
        in_order = len(inputs) <= MOST_TERMS and output.dtype in ADDS_IN_ORDER
        if operation.type == "AddN" and in_order:
            self.small[output.ref()] = self._add_in_order(operation, inputs)
            return True
        return False

    def _copy(self, operation: tf.Operation, inputs: list[str]) -> str:
        after = self.before(operation)
        # A read of a variable after a write waits for that write, a read before it does not.
        same: Any = operation
        if _makes_scalars(operation):
            same = (_definition(operation), *inputs, None, *sorted(set(after)))
        if same not in self.made:
            self.made[same] = self.writer.copy(operation, inputs, after=after)
        self.copies[operation] = (self.made[same],)
        return self.made[same]

    def _add_in_order(self, operation: tf.Operation, inputs: Sequence[tf.Tensor]) -> Small:
        total, shape = self._smallest(inputs[0])
        for k, tensor in enumerate(inputs[1:], start=1):
            name, other = self._smallest(tensor)
            read = [total, name]
            total = self.writer.add("AddV2", read, tensor.dtype, name=f"{operation.name}/add_{k}")
            shape = np.broadcast_shapes(shape, other)
        return total, shape


def _makes_scalars(operation: tf.Operation) -> bool:
    numbers = bool(operation.outputs) and all(
        tensor.shape.rank == 0 and tensor.dtype != tf.variant for tensor in operation.outputs
    )
    return numbers and may_repeat(operation)


def _definition(operation: tf.Operation) -> bytes:
    """An op's definition without its name and inputs; equal for equal ops."""
    node = operation.node_def
    node.name = ""
    del node.input[:]
    return node.SerializeToString(deterministic=True)


def _is_broadcast(operation: tf.Operation) -> bool:
    """True for a Tile or BroadcastTo that only repeats along dimensions of size one, and that
    kernels can do instead: with all shapes known, of few dimensions."""
    if operation.type not in ("Tile", "BroadcastTo"):
        return False
    before, after = operation.inputs[0].shape, operation.outputs[0].shape
    if not (before.is_fully_defined() and after.is_fully_defined()) or operation.control_inputs:
        return False
    if after.rank > MOST_DIMENSIONS:
        return False
    if operation.type == "BroadcastTo":
        return True
    return all(a in (1, b) for a, b in zip(before.as_list(), after.as_list(), strict=True))


def _number(operation: tf.Operation) -> float | None:
    """The number that all elements of an op's output are, or None if the graph does not tell."""
    if operation.type not in ("ZerosLike", "OnesLike", "Fill") or operation.control_inputs:
        return None
    shape, dtype = operation.outputs[0].shape, operation.outputs[0].dtype
    if (
        dtype not in (tf.float16, tf.float32, tf.float64)
        or not shape.is_fully_defined()
        or shape.rank > MOST_DIMENSIONS
        or shape.num_elements() < 2
    ):
        return None
    if operation.type != "Fill":
        return float(operation.type == "OnesLike")
    value = tf.get_static_value(operation.inputs[1])
    return None if value is None else float(value)
