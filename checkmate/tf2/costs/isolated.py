"""IsolatedOps: a few TensorFlow ops as a function of their own, which is run to be measured."""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import tensorflow as tf

from checkmate.errors import CheckmateError
from checkmate.tf2.costs.measurement import Measurement
from checkmate.tf2.costs.timing import seconds_of_calls
from checkmate.tf2.graph import grappler, in_place
from checkmate.tf2.graph.copying import copy_of
from checkmate.tf2.graph.graph_writer import GraphWriter
from checkmate.tf2.graph.in_place import Group
from checkmate.tf2.graph.operations import (
    is_constant,
    is_stateful,
    role_of,
    source_of,
    static_shape,
)
from checkmate.tf2.graph.sizes import tensor_bytes
from checkmate.tf2.memory.profiler import observe
from checkmate.tf2.op_rule import Role
from checkmate.tf2.ops import rule_of

TIMES = 8
"""Ops that take less than a call of any function does are evaluated so often in one call: calls
differ by more than such ops take."""


class IsolatedOps:
    """A group of TensorFlow ops as a function of its own, with an argument for each tensor that
    other ops make.

    Args:
      group: The ops, in order.
      values: Those of them whose outputs are the group's value.
      taken: Ops whose values the group writes over.

    Attributes:
      arguments: The tensors that other ops make.
      runs: Whether the function can run: it touches no variable, list or string, and has no state.
    """

    def __init__(self, group: Group, values: Group, taken: Group):
        self.group, self.values, self.taken = group, values, taken
        if len(group) > 1 and _touches_resource(group[-1]):
            # Without the final write to a variable, which takes the buffer of what it writes. That
            # buffer is workspace, not value.
            self.group, self.values = group[:-1], ()
        self.arguments: list[tf.Tensor] = []
        self._index: dict[Any, int] = {}
        self._given: list[str] = []  # the names by which an evaluation reads its arguments
        for operation in self.group:
            for tensor in operation.inputs:
                self._collect(tensor)
        self.runs = all(_can_be_made(tensor) for tensor in self.arguments) and not any(
            _touches_resource(o) or is_stateful(o) or any(t.dtype == tf.variant for t in o.outputs)
            for o in self.group
        )

    def signature(self) -> str:
        """Returns a digest of all that decides about time and memory."""
        position = {operation: k for k, operation in enumerate(self.group)}
        parts: list[Any] = [[o in self.values for o in self.group]]
        parts.append(
            [[in_place.made_by(tensor) in self.taken for tensor in o.inputs] for o in self.group]
        )
        parts += [
            [o.type, _attributes(o), [self._describe(tensor, position) for tensor in o.inputs]]
            for o in self.group
        ]
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]

    def measure(
        self, device: str, reports: bool, overhead_s: float, expected_s: float
    ) -> Measurement | None:
        """Runs the function and returns what it takes, or None if TensorFlow refuses to run it.

        Args:
          reports: Whether the profiler sees what the device's allocator gives out.
          overhead_s: Seconds that a call of any function takes.
          expected_s: Seconds that the ops are expected to take.
        """
        specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in self.arguments]
        try:
            with tf.device(device):
                values = [some_value(spec) for spec in specs]
                times = TIMES if expected_s < overhead_s else 1
                call = self._call(times, specs, values)
                workspace = self._workspace(call) if reports else None
                seconds = _op_seconds(call, times, overhead_s)
                if times == 1 and seconds < overhead_s:
                    seconds = _op_seconds(self._call(TIMES, specs, values), TIMES, overhead_s)
        except (tf.errors.OpError, ValueError, TypeError):
            return None
        if workspace is None:
            workspace = in_place.workspace(self.group, self.values, self.taken)
        written_over = (
            tuple(k for k in self._candidates() if self._is_written_over(k, values, workspace))
            if reports
            else ()
        )
        return Measurement(max(seconds, 1e-6), int(workspace), written_over)

    def _call(
        self, times: int, specs: list[tf.TensorSpec], values: list[tf.Tensor]
    ) -> Callable[[], Any]:
        """A call of the function with these values that evaluates the ops so often. The function
        is run once, which creates kernels and maps memory."""
        build = partial(self._build, times)
        function = tf.function(build, autograph=False).get_concrete_function(*specs)

        def call() -> Any:
            return grappler.run(function, *values)

        call()
        return call

    def _candidates(self) -> list[int]:
        """Arguments that the value may be written over and of which the table says nothing."""
        known = {tensor.ref() for tensor in in_place.by_table(self.group, self.values)}
        found = {tensor.ref() for tensor in in_place.candidates(self.group, self.values)} - known
        return [k for k, tensor in enumerate(self.arguments) if tensor.ref() in found]

    def _is_written_over(self, k: int, values: list[tf.Tensor], workspace_bytes: int) -> bool:
        """Runs the ops with a copy of one argument that only they hold, and returns whether they
        request no memory for the value."""
        specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in self.arguments]

        def build(*arguments: tf.Tensor) -> list[tf.Tensor]:
            own = copy_of(arguments[k])
            return self._build(1, *arguments[:k], own, *arguments[k + 1 :])

        try:
            function = tf.function(build, autograph=False).get_concrete_function(*specs)
            grappler.run(function, *values)
            asked = observe(lambda: grappler.run(function, *values)).most_requested_bytes
        except (CheckmateError, tf.errors.OpError, ValueError, TypeError):
            return False
        return (
            asked - (tensor_bytes(self.arguments[k]) or 0)
            <= workspace_bytes + in_place.main_tensor(self.values)[1]
        )

    def _workspace(self, call: Callable[[], Any]) -> int | None:
        """Bytes that a call requests besides those of its values; None if they follow from shapes
        or cannot be observed."""
        if all(not rule_of(operation.type).scratch for operation in self.group):
            return None
        try:
            asked = observe(call).most_requested_bytes
        except CheckmateError:  # another profile is being taken
            return None
        return max(
            0,
            asked
            - sum(
                tensor_bytes(tensor) or 0
                for operation in self.values
                for tensor in operation.outputs
            ),
        )

    def _build(self, times: int, *arguments: tf.Tensor) -> list[tf.Tensor]:
        """Makes the ops so often, one evaluation after another; returns the last one's values.

        What an evaluation reads waits for the one before, and not its ops: TensorFlow and oneDNN
        run two of them as one kernel only where neither waits.
        """
        writer = GraphWriter()
        values = self.values or self.group[-1:]
        made: dict[tf.Operation, str] = {}
        for _ in range(times):
            after = [made[operation] for operation in values if made]
            self._given = [
                writer.wait(after, f"given_{k}:0", each) if after else f"given_{k}:0"
                for k, each in enumerate(self.arguments)
            ]
            made = {}
            for operation in self.group:
                inputs = [self._name(tensor, writer, made) for tensor in operation.inputs]
                made[operation] = writer.copy(
                    operation, inputs, after=() if self.arguments else after
                )
        names = [
            f"{made[operation]}:{k}" for operation in values for k in range(len(operation.outputs))
        ]
        return writer.import_here(
            {f"given_{k}:0": tensor for k, tensor in enumerate(arguments)}, names
        )

    def _name(self, tensor: tf.Tensor, writer: GraphWriter, made: dict[tf.Operation, str]) -> str:
        tensor = source_of(tensor)
        if tensor.op in made:
            return f"{made[tensor.op]}:{tensor.value_index}"
        if tensor.ref() in self._index:
            return self._given[self._index[tensor.ref()]]
        if (shape := _shape_value(tensor)) is not None:
            return writer.constant(shape, tensor.dtype)
        inputs = [self._name(each, writer, made) for each in tensor.op.inputs]
        return f"{writer.copy(tensor.op, inputs)}:{tensor.value_index}"

    def _collect(self, tensor: tf.Tensor) -> None:
        tensor = source_of(tensor)
        made_here = tensor.op in self.group or is_constant(tensor.op)
        if made_here or _shape_value(tensor) is not None:
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


def _op_seconds(call: Callable[[], Any], times: int, overhead_s: float) -> float:
    """The seconds that one of some evaluations of ops takes within a call."""
    seconds = seconds_of_calls(call)
    return ((statistics.median(seconds) if times == 1 else min(seconds)) - overhead_s) / times


def some_value(spec: tf.TensorSpec) -> tf.Tensor:
    """Returns a value that ops can run on: halves for floating-point numbers, since no kernel is
    slow on them, and zeros for indices."""
    if spec.dtype.is_floating or spec.dtype.is_complex:
        return tf.fill(spec.shape, tf.constant(0.5, spec.dtype))
    return tf.zeros(spec.shape, spec.dtype)


def _can_be_made(tensor: tf.Tensor) -> bool:
    return tensor.shape.is_fully_defined() and (
        tensor.dtype.is_floating
        or tensor.dtype.is_integer
        or tensor.dtype.is_bool
        or tensor.dtype.is_complex
    )


def _touches_resource(operation: tf.Operation) -> bool:
    return any(tensor.dtype in (tf.resource, tf.variant) for tensor in operation.inputs)


def _shape_value(tensor: tf.Tensor) -> Any:
    return static_shape(tensor.op, tensor.value_index) if role_of(tensor.op) is Role.SHAPE else None


def _attributes(operation: tf.Operation) -> list[tuple[str, str]]:
    attributes = operation.node_def.attr
    return [
        (key, hashlib.sha256(attributes[key].SerializeToString()).hexdigest()[:16])
        for key in sorted(attributes)
        if not key.startswith("_")
    ]
