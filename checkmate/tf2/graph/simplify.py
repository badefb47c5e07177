"""simplify(): takes out of a traced step broadcasts that nobody needs in full, and numbers that are
computed twice.

The gradient of a mean is a small tensor, tiled to the size of what was averaged, divided by a
number, multiplied with something of that size. BatchNormalization and LayerNormalization make
several of these per layer, each a full-sized tensor. Elementwise ops broadcast by themselves, so
the tile can wait: the division is done on the small tensor, the product broadcasts, and what is
left of the sum of gradients (AddN needs equal shapes) is added one by one in the same order. Every
number is the same to the bit, as each element goes through the same operations in the same order;
there are only fewer and smaller tensors.

A tensor of one number everywhere, as the gradient of what does not matter is, is a broadcast of
that number. Where it is needed in full it is made anew: TensorFlow would fold it into a constant,
which lies in memory as long as the function lives.

An optimizer reads its learning rate and its number of steps for each variable, and computes the
same powers of them. TensorFlow keeps reads of variables apart, and what is made of them. Those that
nothing is written between are made once here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from checkmate.tf2 import ops as op_rules
from checkmate.tf2.execution.graph_writer import GraphWriter, names_of_inputs, reachable

ELEMENTWISE = frozenset(
    {
        "Mul",
        "AddV2",
        "Add",
        "Sub",
        "RealDiv",
        "Neg",
        "Square",
        "Sqrt",
        "Rsqrt",
        "Maximum",
        "Minimum",
        "Cast",
    }
)
"""Ops on which a broadcast of the inputs can be exchanged with one of the result."""

ADDS_IN_ORDER = (tf.float32, tf.float64)
"""Types whose AddN sums from left to right without a wider accumulator, up to eight inputs."""


def simplify(concrete: Any) -> Any:
    """Returns a `ConcreteFunction` that computes the same flat outputs and side effects with fewer
    broadcasts, constants and repeated numbers.

    Args:
      concrete: A traced function.

    Returns:
      A function of the same flattened arguments.
    """
    writer = _Simplifier(concrete)
    for operation in reachable(concrete.graph):
        writer.write(operation)
    return writer.writer.function_like(
        concrete, [writer.name(tensor) for tensor in concrete.outputs]
    )


class _Simplifier:
    """Copies ops.

    Attributes:
      small: For each tensor whose broadcast waits the name and shape of what is to be broadcast.
      folded: Tensors that depend on constants alone.
      copies: The name of each op's copy.
      made: The same by all that its value hangs on, where that is a number, and by the op itself
        otherwise.
    """

    def __init__(self, concrete: Any):
        self.writer = GraphWriter()
        self.given = names_of_inputs(concrete)
        self.names: dict[Any, str] = {}
        self.small: dict[Any, tuple[str, list[int]]] = {}
        self.folded: set[Any] = set()
        self.copies: dict[tf.Operation, str] = {}
        self.made: dict[Any, str] = {}

    def write(self, operation: tf.Operation) -> None:
        """Copies one op, or does without it."""
        if operation.type == "Placeholder":
            return
        inputs = [op_rules.source(tensor) for tensor in operation.inputs]
        if (
            operation.outputs
            and inputs
            and all(tensor.ref() in self.folded or tensor.op.type == "Const" for tensor in inputs)
        ):
            self.folded.add(operation.outputs[0].ref())
        if _is_broadcast(operation):
            self.small[operation.outputs[0].ref()] = self._smallest(inputs[0])
            return
        if (number := _number(operation)) is not None:
            self.small[operation.outputs[0].ref()] = (
                self.writer.constant(number, operation.outputs[0].dtype),
                [],
            )
            self.folded.add(operation.outputs[0].ref())
            return
        if any(tensor.ref() in self.small for tensor in inputs):
            if operation.type in ELEMENTWISE:
                name = self._copy(operation, [self._smallest(tensor)[0] for tensor in inputs])
                self._keep(
                    operation.outputs[0],
                    f"{name}:0",
                    np.broadcast_shapes(*(self._smallest(tensor)[1] for tensor in inputs)),
                )
                return
            if (
                operation.type == "AddN"
                and len(inputs) <= 8
                and operation.outputs[0].dtype in ADDS_IN_ORDER
            ):
                self._add_in_order(operation, inputs)
                return
        self._copy(operation, [self.name(tensor) for tensor in operation.inputs])

    def name(self, tensor: tf.Tensor) -> str:
        """The name of a tensor in full size."""
        if tensor.ref() in self.given:
            return self.given[tensor.ref()]
        source = op_rules.source(tensor)
        if source.ref() not in self.small:
            return f"{self.copies[tensor.op]}:{tensor.value_index}"
        if source.ref() not in self.names:
            name, shape = self.small[source.ref()]
            full = source.shape.as_list()
            if shape != full:
                extent = self.writer.constant(full, tf.int32)
                if source.ref() in self.folded:
                    name = self.writer.not_folded(
                        name, source.dtype, name=f"{source.op.name}/number"
                    )
                name = self.writer.add(
                    "BroadcastTo", [name, extent], source.dtype, name=f"{source.op.name}/broadcast"
                )
            self.names[source.ref()] = name
        return self.names[source.ref()]

    def _smallest(self, tensor: tf.Tensor) -> tuple[str, list[int]]:
        tensor = op_rules.source(tensor)
        if tensor.ref() in self.small:
            return self.small[tensor.ref()]
        return self.name(tensor), tensor.shape.as_list()

    def _keep(self, tensor: tf.Tensor, name: str, shape: tuple[int, ...]) -> None:
        self.small[tensor.ref()] = (name, list(shape))

    def _copy(self, operation: tf.Operation, inputs: list[str]) -> str:
        after = [
            self.copies[before] for before in operation.control_inputs if before in self.copies
        ]
        # What is written between two reads of a variable is what the later one waits for and the
        # earlier one does not.
        same = (
            (_definition(operation), *inputs, None, *sorted(set(after)))
            if _makes_scalars(operation)
            else operation
        )
        if same not in self.made:
            self.made[same] = self.writer.copy(operation, inputs, after=after)
        self.copies[operation] = self.made[same]
        return self.copies[operation]

    def _add_in_order(self, operation: tf.Operation, inputs: list[tf.Tensor]) -> None:
        total, shape = self._smallest(inputs[0])
        for k, tensor in enumerate(inputs[1:], start=1):
            name, other = self._smallest(tensor)
            total = self.writer.add(
                "AddV2", [total, name], tensor.dtype, name=f"{operation.name}/add_{k}"
            )
            shape = np.broadcast_shapes(shape, other)
        self._keep(operation.outputs[0], total, shape)


def _makes_scalars(operation: tf.Operation) -> bool:
    """True for an op that makes single numbers, of its inputs or by reading variables, and does
    nothing else."""
    numbers = bool(operation.outputs) and all(
        tensor.shape.rank == 0 and tensor.dtype != tf.variant for tensor in operation.outputs
    )
    return numbers and op_rules.may_repeat(operation)


def _definition(operation: tf.Operation) -> bytes:
    """What an op is but for its name and inputs; equal for equal ops."""
    node = operation.node_def
    node.name = ""
    del node.input[:]
    return node.SerializeToString(deterministic=True)


def _is_broadcast(operation: tf.Operation) -> bool:
    """True for a Tile or BroadcastTo that only repeats along dimensions of size one, with all
    shapes known."""
    if operation.type not in ("Tile", "BroadcastTo"):
        return False
    before, after = operation.inputs[0].shape, operation.outputs[0].shape
    if not (before.is_fully_defined() and after.is_fully_defined()) or operation.control_inputs:
        return False
    if operation.type == "BroadcastTo":
        return True
    return all(a in (1, b) for a, b in zip(before.as_list(), after.as_list(), strict=True))


def _number(operation: tf.Operation) -> float | None:
    """What all elements of an op's output are, where the graph tells."""
    if operation.type not in ("ZerosLike", "OnesLike", "Fill") or operation.control_inputs:
        return None
    shape, dtype = operation.outputs[0].shape, operation.outputs[0].dtype
    if (
        dtype not in (tf.float16, tf.float32, tf.float64)
        or not shape.is_fully_defined()
        or shape.num_elements() < 2
    ):
        return None
    if operation.type != "Fill":
        return float(operation.type == "OnesLike")
    value = tf.get_static_value(operation.inputs[1])
    return None if value is None else float(value)
