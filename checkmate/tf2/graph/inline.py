"""inline(): puts the bodies of called functions in the place of the calls, so that their ops are
planned one by one.

A `tf.function` that a step calls is one op in the step's graph, and its gradient is another.
TensorFlow inlines their bodies before it runs a graph; `inline` does so before the graph is
planned. It leaves functions for XLA, functions marked as not to be inlined or which TensorFlow
replaces with another implementation on this device, and the bodies of loops and conditions.

Every stateful op of a body waits for all that the call waited for, and what waited for the call
waits for all stateful ops of its body. Variables are thus read and written in the same order as
before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from checkmate.tf2 import device as devices
from checkmate.tf2.graph import bodies
from checkmate.tf2.graph.graph_writer import GraphCopy, reachable
from checkmate.tf2.graph.operations import is_argument, is_call

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
