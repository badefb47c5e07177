"""inline(): puts the bodies of called functions in the place of the calls, so that their ops are
planned one by one.

A `tf.function` that a step calls is one op in the step's graph, and its gradient is another.
TensorFlow puts their bodies there before it runs a graph; here that is done before the graph is
planned. Left as they are: functions for XLA, functions that say that they must not be inlined or
that TensorFlow exchanges for another implementation on this device, and the bodies of loops and
conditions.

Whatever has state in a body waits for all that the call waited for, and what waited for the call
waits for all that has state in its body, so that variables are read and written in the order in
which they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from checkmate.tf2 import device as devices
from checkmate.tf2.execution.graph_writer import GraphWriter, names_of_inputs, reachable
from checkmate.tf2.graph import bodies
from checkmate.tf2.graph.bodies import CALLS

KEPT = ("_XlaMustCompile", "_noinline")
"""Attributes of a function, or of its call, with which it stays one op."""

EXCHANGED, MADE_FOR = "api_implements", "api_preferred_device"
"""Attributes of a function that has another implementation for other kinds of devices, and of the
kind that it is made for."""


def inline(concrete: Any) -> Any:
    """Returns a `ConcreteFunction` that computes the same flat outputs and side effects without
    calls of functions.

    Args:
      concrete: A traced function.

    Returns: A function of the same flattened arguments, or `concrete` itself where it calls nothing
      that can be inlined.
    """
    if not any(operation.type in CALLS for operation in concrete.graph.get_operations()):
        return concrete
    inliner = _Inliner(concrete)
    inliner.write(reachable(concrete.graph))
    if not inliner.count:
        return concrete
    return inliner.writer.function_like(
        concrete, [inliner.names[tensor.ref()] for tensor in concrete.outputs]
    )


class _Inliner:
    """Copies ops; `names` holds the name of each tensor's copy, `effects` those of the copies that
    whatever waits for an op waits for."""

    def __init__(self, concrete: Any):
        self.writer = GraphWriter()
        self.count = 0
        self.names = dict(names_of_inputs(concrete))
        self.effects: dict[tf.Operation, tuple[str, ...]] = {}
        self._library = {
            function.signature.name: function
            for function in concrete.graph.as_graph_def().library.function
        }

    def write(
        self, operations: Sequence[tf.Operation], after: Sequence[str] = (), device: str = ""
    ) -> tuple[str, ...]:
        """Copies the ops of one body, those with state to run after others; returns the names of
        the copies with state."""
        written: list[str] = []
        for operation in operations:
            if operation.type == "Placeholder":
                continue
            stateful = operation.op_def.is_stateful
            befores = [
                name for before in operation.control_inputs for name in self.effects.get(before, ())
            ]
            befores += after if stateful else ()
            body = self._body(operation)
            if body is not None:
                self.effects[operation] = self._write_body(
                    operation, body, befores, operation.device or device
                )
            else:
                inputs = [self.names[tensor.ref()] for tensor in operation.inputs]
                copy = self.writer.copy(operation, inputs, after=befores, device=device)
                self.effects[operation] = (copy,)
                self.names.update(
                    {tensor.ref(): f"{copy}:{k}" for k, tensor in enumerate(operation.outputs)}
                )
            if stateful or body is not None:
                written.extend(self.effects[operation])
        return tuple(written)

    def _write_body(
        self, call: tf.Operation, body: Any, befores: Sequence[str], device: str
    ) -> tuple[str, ...]:
        self.count += 1
        for inside, outside in zip(body.inputs, call.inputs, strict=True):
            self.names[inside.ref()] = self.names[outside.ref()]
        written = self.write(reachable(body), befores, device)
        for inside, outside in zip(body.outputs, call.outputs, strict=True):
            self.names[outside.ref()] = self.names[inside.ref()]
        return written

    def _body(self, operation: tf.Operation) -> Any:
        """The graph of the function that an op calls, or None where it is to stay a call."""
        if operation.type not in CALLS:
            return None
        definition = self._library.get(operation.get_attr("f").name)
        attributes = [operation.node_def.attr, definition.attr if definition else {}]
        if (
            definition is None
            or any(found[name].b for found in attributes for name in KEPT if name in found)
            or _is_exchanged(definition)
        ):
            return None
        shapes = [
            None if tensor.dtype == tf.resource else tensor.shape.as_proto()
            for tensor in operation.inputs
        ]
        return bodies.from_definition(definition, shapes)


def _is_exchanged(definition: Any) -> bool:
    """True for a function in whose place TensorFlow runs another one on the device that trains."""
    kind = devices.training_device().partition(":")[0].encode()
    return EXCHANGED in definition.attr and definition.attr[MADE_FOR].s != kind
