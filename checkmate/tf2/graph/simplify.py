"""simplify(): removes from a traced step broadcasts that nothing needs in full, and scalars that
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

from checkmate.tf2.graph.graph_writer import GraphCopy, reachable
from checkmate.tf2.graph.operations import is_argument, is_constant, may_repeat, source_of
from checkmate.tf2.ops.table import rule_of

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
        self._copy(operation, [self.name(tensor) for tensor in operation.inputs])

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
