"""IsolatedOps: a few TensorFlow ops, copied to run on inputs of their own and be measured."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from checkmate.tf2.execution.sequential import edge_from
from checkmate.tf2.graph import in_place
from checkmate.tf2.graph.bodies import called, is_pure
from checkmate.tf2.graph.graph_writer import GraphWriter
from checkmate.tf2.graph.in_place import Group
from checkmate.tf2.graph.operations import (
    can_be_copied,
    has_bodies,
    is_constant,
    role_of,
    source_of,
    static_shape,
)
from checkmate.tf2.graph.sizes import known_bytes, tensor_bytes
from checkmate.tf2.ops.rule import Fusion, Pooling, Role
from checkmate.tf2.ops.table import rule_of

SMALL_CONSTANT_BYTES = 4096
"""A larger constant is made where it is read, as the values of other ops are: a function has its
constants in memory as long as it lives."""


@dataclass(frozen=True, slots=True)
class Copied:
    """The result of `IsolatedOps.write`: the range of its nodes, the names of the nodes that make
    the arguments, of each op's last copy, and of the ops that tell the time before and after."""

    nodes: slice
    inputs: tuple[str, ...]
    made: dict[tf.Operation, str]
    clocks: tuple[str, str]


class IsolatedOps:
    """A group of TensorFlow ops that can run alone, with an argument for each tensor of other ops
    and for each large constant. `values` are the ops whose outputs are the group's value, `taken`
    those whose values it overwrites, `times` the number of evaluations, one after another."""

    def __init__(self, group: Group, values: Group, taken: Group, times: int = 1):
        self.group, self.values, self.taken, self.times = group, values, taken, times
        read = group[-1].inputs if len(group) > 1 and not has_bodies(group[-1]) else ()
        if any(tensor.dtype in (tf.resource, tf.variant) for tensor in read):
            # Without the final write to a variable, which takes the buffer of what it writes. That
            # buffer is workspace, not value.
            self.group, self.values = group[:-1], ()
        self.arguments: list[tf.Tensor] = []
        self._index: dict[Any, int] = {}
        for operation in self.group:
            for tensor in operation.inputs:
                self._collect(tensor)
        # oneDNN has the gradient of a pooling that it reads directly take what that left in memory.
        self._poolings = {
            tensor.op
            for tensor in self.arguments
            if rule_of(tensor.op.type).pooling is Pooling.FORWARD
            and all(source_of(each).ref() in self._index for each in tensor.op.inputs)
        }
        self.arguments.sort(key=lambda tensor: tensor.op in self._poolings)  # after their inputs
        self._index = {tensor.ref(): k for k, tensor in enumerate(self.arguments)}

    @property
    def runs(self) -> bool:
        """Whether the ops may run on other data, and such data can be made."""
        return all(map(_can_be_made, self.arguments)) and all(map(is_pure, self.group))

    @property
    def touched_bytes(self) -> int:
        made = [tensor for operation in self.group for tensor in operation.outputs]
        return known_bytes((*self.arguments, *made))

    def signature(self) -> str:
        """A digest of all that decides about time and memory."""
        position = {operation: k for k, operation in enumerate(self.group)}
        parts: list[Any] = [self.times, [o in self.values for o in self.group]]
        parts.append(
            [[in_place.made_by(tensor) in self.taken for tensor in o.inputs] for o in self.group]
        )
        parts += [
            [
                o.type,
                _attributes(o),
                [_content(body) for body in called(o)],
                [self._describe(tensor, position) for tensor in o.inputs],
            ]
            for o in self.group
        ]
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]

    def write(
        self,
        writer: GraphWriter,
        clock: tf.Operation,
        numbers: dict[tf.DType, str],
        after: Sequence[str],
    ) -> Copied:
        """Writes the ops, on inputs that no other op holds, between two clocks (`clock` returns the
        time). `numbers` names a scalar of each type; the inputs wait for the ops `after`: then the
        group before is out of memory.

        The inputs of an evaluation wait for the one before, and not its ops: TensorFlow and oneDNN
        run two of them as one kernel only where neither waits. The first of several evaluations
        leave their inputs to the last one, which alone may overwrite them.
        """
        start = len(writer.nodes)
        inputs, last = list[str](), after
        for tensor in self.arguments:
            if tensor.op in self._poolings:
                read = [self._name(each, writer, {}, inputs) for each in tensor.op.inputs]
                inputs.append(f"{writer.copy(tensor.op, read, after=last)}:{tensor.value_index}")
            else:
                # After the one before: TensorFlow makes one of ops that are equal.
                inputs.append(writer.made(numbers[tensor.dtype], tensor, after=last))
            last = [_op(inputs[-1])]
        started = writer.copy(clock, [], after=writer.after(last), device="/device:CPU:0")
        last, made = [started], dict[tf.Operation, str]()
        for _ in range(self.times):
            given = [
                name if each.op in self._poolings else writer.wait(last, name, each)
                for name, each in zip(inputs, self.arguments, strict=True)
            ]
            made = self._evaluate(writer, given, last)
            last = list(made.values()) or last
        # Each value is read, as that of a step is: only then it may take the memory of an input.
        inside = {in_place.buffer_of(t).ref() for o in self.group for t in o.inputs}
        read = [
            writer.wait([], f"{name}:{tensor.value_index}", tensor)
            for operation, name in made.items()
            for tensor in operation.outputs
            if operation in self.values or tensor.ref() not in inside
        ]
        last = [_op(name) for name in read] or last
        ended = writer.copy(clock, [], after=writer.after(last), device="/device:CPU:0")
        nodes = slice(start, len(writer.nodes))
        return Copied(nodes, tuple(map(_op, inputs)), made, (started, ended))

    def _evaluate(
        self, writer: GraphWriter, given: Sequence[str], last: Sequence[str]
    ) -> dict[tf.Operation, str]:
        """Writes the ops once, in order as in a plan (see `PlanWriter`), and returns their
        names."""
        made: dict[tf.Operation, str] = {}
        edges, before = [] if given else list(last), None
        for operation in self.group:
            names = [self._name(tensor, writer, made, given) for tensor in operation.inputs]
            fusion = rule_of(operation.type).fusion
            if before is not None:
                paired = rule_of(before.type).fusion, fusion
                edges = edge_from(made[before], operation, names)
                if paired == (Fusion.BIAS_GRADIENT, Fusion.FILTER_GRADIENT):
                    edges = []
                elif edges and fusion is Fusion.PRODUCT:
                    names[0] = writer.wait(edges, names[0], operation.inputs[0])
                    edges = []
            made[operation] = writer.copy(operation, names, after=edges)
            before = operation
        return made

    def _name(
        self,
        tensor: tf.Tensor,
        writer: GraphWriter,
        made: dict[tf.Operation, str],
        given: Sequence[str],
    ) -> str:
        tensor = source_of(tensor)
        if tensor.op in made:
            return f"{made[tensor.op]}:{tensor.value_index}"
        if tensor.ref() in self._index:
            return given[self._index[tensor.ref()]]
        if (shape := _shape_value(tensor)) is not None:
            return writer.constant(shape, tensor.dtype)
        inputs = [self._name(each, writer, made, given) for each in tensor.op.inputs]
        return f"{writer.copy(tensor.op, inputs)}:{tensor.value_index}"

    def _collect(self, tensor: tf.Tensor) -> None:
        tensor = source_of(tensor)
        if tensor.op in self.group or _is_known(tensor):
            return
        if role_of(tensor.op) is Role.VIEW:
            for each in tensor.op.inputs:
                self._collect(each)
        elif tensor.ref() not in self._index:
            self._index[tensor.ref()] = len(self.arguments)
            self.arguments.append(tensor)

    def _describe(self, tensor: tf.Tensor, position: dict[tf.Operation, int]) -> Any:
        tensor = source_of(tensor)
        if tensor.op in position:
            return ["made", position[tensor.op], tensor.value_index]
        if tensor.ref() in self._index:
            return ["given", self._index[tensor.ref()], tensor.dtype.name, str(tensor.shape)]
        if (shape := _shape_value(tensor)) is not None:
            return ["shape", shape]
        return [
            tensor.op.type,
            _attributes(tensor.op),
            [self._describe(each, position) for each in tensor.op.inputs],
        ]


def some_value(spec: tf.TensorSpec) -> tf.Tensor:
    """A value that ops can run on: halves for floating-point numbers, since no kernel is slow on
    them, and zeros for indices."""
    if spec.dtype.is_floating or spec.dtype.is_complex:
        return tf.fill(spec.shape, tf.constant(0.5, spec.dtype))
    return tf.zeros(spec.shape, spec.dtype)


def _can_be_made(tensor: tf.Tensor) -> bool:
    return tensor.shape.is_fully_defined() and can_be_copied(tensor.dtype)


def _is_known(tensor: tf.Tensor) -> bool:
    """Whether ops run on the tensor's own values, since these decide about memory and whether they
    run at all: small constants, static shapes, and values computed of those, as the axes of a
    sum."""
    pending = [source_of(tensor)]
    while pending:
        tensor = pending.pop()
        if _shape_value(tensor) is not None:
            continue
        unknown = not (is_constant(tensor.op) or (tensor.op.inputs and is_pure(tensor.op)))
        if unknown or (tensor_bytes(tensor) or 0) > SMALL_CONSTANT_BYTES:
            return False
        pending += map(source_of, tensor.op.inputs)
    return True


def _op(tensor: str) -> str:
    return tensor.partition(":")[0]


def _shape_value(tensor: tf.Tensor) -> Any:
    return static_shape(tensor.op, tensor.value_index) if role_of(tensor.op) is Role.SHAPE else None


def _content(body: Any) -> Any:
    """All that decides about time and memory of a function, whatever its name."""
    number = {operation: k for k, operation in enumerate(body.get_operations())}
    ops = [
        [
            operation.type,
            _attributes(operation),
            [(number[tensor.op], tensor.value_index) for tensor in operation.inputs],
            [str(tensor.shape) for tensor in operation.outputs],
            [_content(each) for each in called(operation)],
        ]
        for operation in number
    ]
    return [ops, [(number[tensor.op], tensor.value_index) for tensor in body.outputs]]


def _attributes(operation: tf.Operation) -> list[tuple[str, str]]:
    """Those that tell kernels apart. Functions have other names in each trace."""
    attributes = operation.node_def.attr
    return [
        (key, hashlib.sha256(attributes[key].SerializeToString()).hexdigest()[:16])
        for key in sorted(attributes)
        if not key.startswith("_")
        and not attributes[key].HasField("func")
        and not attributes[key].list.func
    ]
