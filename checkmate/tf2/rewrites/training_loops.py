"""training_bodies(): loops that train, whose body runs under a plan of its own.

A loop in whose body gradients are taken, as the epochs of an agent's update, is one op of a plan,
and in its body are a forward pass, a backward pass and an update. So the body is traced as a step
is, with variables and iterators captured and all else as arguments, and planned as one. The loop
then runs a body with the ops of that plan, one after another, and its condition as it was.

What the body of such a loop runs under a condition, as for an iterator that may have ended, and a
loop within the body are planned when the body is.

Loops are left as they are that leave their gradients lists, or that take from those, and where a
shape is not known in the body.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from checkmate.core.footprint import Footprint
from checkmate.errors import TraceError
from checkmate.tf2.execution.replay import Written
from checkmate.tf2.graph import bodies
from checkmate.tf2.graph.flat_graph import in_backward_scope, trains
from checkmate.tf2.graph.graph_writer import GraphCopy, captured_tensors, reachable, tell_shapes
from checkmate.tf2.graph.operations import (
    can_be_copied,
    has_bodies,
    is_argument,
    is_constant,
    is_loop,
    source_of,
)
from checkmate.tf2.graph.sizes import known_bytes
from checkmate.tf2.graph.trace import TracedStep, analyse, rewritten


@dataclass(frozen=True, slots=True, eq=False)
class Body:
    """The function of this name that a loop or condition runs.

    Attributes:
      step: The same as a step, which captures variables and iterators, and returns what it makes.
      function: The step, to be traced for other shapes.
      arguments: Which inputs of the function are the arguments of the step.
      handles: Which inputs are those that the step captures, by the `id` of these.
    """

    operation: tf.Operation
    name: str
    graph: Any
    step: TracedStep
    function: Any
    arguments: tuple[int, ...]
    handles: Mapping[int, int]

    @property
    def constant_bytes(self) -> int:
        """In memory from the first turn on."""
        made = (o.outputs for o in self.step.flat.graph.get_operations() if is_constant(o))
        return known_bytes(tensor for outputs in made for tensor in outputs)

    def specs(self) -> tuple[tf.TensorSpec, ...]:
        return tuple(tf.TensorSpec(each.shape, each.dtype) for each in self.step.argument_tensors())

    def planned(self, written: Written, taken_bytes: int, footprint: Footprint) -> Any:
        """A function like this one that runs the ops of a plan, and takes so many bytes besides its
        inputs."""
        captured = (self.handles[id(each)] for each in written.traced.flat.captured_inputs)
        places = (*self.arguments, *captured)
        for node in written.writer.nodes:
            like = written.writer.like.get(node.name)
            if isinstance(like, tf.Operation):  # as no read of an argument tells its shape
                tell_shapes(node, like)

        def run(*inputs: tf.Tensor) -> list[tf.Tensor]:
            given = dict(zip(written.given, (inputs[k] for k in places), strict=True))
            made = iter(written.writer.import_here(given, written.outputs))
            results = [next(made) if k is None else inputs[k] for k in _passed_on(self.graph)]
            for result, like in zip(results, self.graph.outputs, strict=True):
                result.set_shape(like.shape)
            return results

        specs = [tf.TensorSpec(each.shape, each.dtype) for each in self.graph.inputs]
        with tf.init_scope():
            function = tf.function(run, autograph=False).get_concrete_function(*specs)
        function.graph.add_to_collection(bodies.TAKEN_BYTES, taken_bytes)
        function.graph.add_to_collection(bodies.FOOTPRINT, footprint)
        return function


def training_bodies(traced: TracedStep, operation: tf.Operation) -> list[Body]:
    """The functions of a loop or condition that take gradients."""
    if not has_bodies(operation) or in_backward_scope(operation):
        return []
    names = [each.name for each in bodies.functions_of(operation, operation.node_def)]
    inputs = list(operation.inputs)[0 if is_loop(operation) else 1 :]
    found = []
    for name in dict.fromkeys(names[:1] if is_loop(operation) else names):
        graph = bodies.named(traced.function.graph, name)
        if graph is not None and trains(graph) and len(graph.inputs) == len(inputs):
            body = _body(traced, operation, name, graph, inputs)
            found += [body] if body else []
    return found


def _body(
    traced: TracedStep, operation: tf.Operation, name: str, graph: Any, inputs: Sequence[tf.Tensor]
) -> Body | None:
    """None where a shape is not known."""
    captured = {tensor.ref(): value for tensor, value in captured_tensors(traced.flat)}
    values = [captured.get(source_of(each).ref()) for each in inputs]
    handles = {k: each for k, each in enumerate(values) if inputs[k].dtype == tf.resource}
    handles = {k: each for k, each in handles.items() if each is not None}
    arguments = tuple(k for k in range(len(inputs)) if k not in handles)
    copy = GraphCopy(graph)
    given = list(copy.names.values())
    for each in reachable(graph):
        if not is_argument(each):
            copy.copy(each, copy.inputs(each))
    results = [
        copy.names[tensor.ref()]
        for tensor, k in zip(graph.outputs, _passed_on(graph), strict=True)
        if k is None
    ]

    def run(*tensors: tf.Tensor) -> list[tf.Tensor]:
        bodies.share_functions(graph, tf.compat.v1.get_default_graph())
        here = handles | dict(zip(arguments, tensors, strict=True))
        return copy.writer.import_here({given[k]: here[k] for k in here}, results)

    specs = [tf.TensorSpec(graph.inputs[k].shape, graph.inputs[k].dtype) for k in arguments]
    function = tf.function(run, autograph=False)
    try:
        with tf.init_scope():
            concrete = function.get_concrete_function(*specs)
            step = analyse(concrete, name=operation.name)
    except (TraceError, ValueError):
        return None
    made = [tensor for each in step.order for tensor in each.outputs if can_be_copied(tensor.dtype)]
    if not all(tensor.shape.is_fully_defined() for tensor in (*made, *step.argument_tensors())):
        return None
    places = {id(each): k for k, each in handles.items()}
    return Body(operation, name, graph, step, function, arguments, places)


def _passed_on(graph: Any) -> list[int | None]:
    """For each result of a function, which input it is, if any."""
    place = {tensor.ref(): k for k, tensor in enumerate(graph.inputs)}
    return [place.get(source_of(tensor).ref()) for tensor in graph.outputs]


def with_bodies(traced: TracedStep, planned: Mapping[Body, Any]) -> TracedStep:
    """The step whose loops and conditions run these functions instead of those bodies."""
    copy = GraphCopy(traced.flat)
    for function in planned.values():
        function.add_to_graph(traced.function.graph)
    for operation in traced.order:
        if is_argument(operation):
            continue
        copy.copy(operation, copy.inputs(operation))
        own = {body.name: new for body, new in planned.items() if body.operation is operation}
        for function in bodies.functions_of(operation, copy.writer.nodes[-1]) if own else ():
            function.name = own[function.name].name if function.name in own else function.name
    outputs = [copy.names[tensor.ref()] for tensor in traced.flat.outputs]
    return rewritten(traced, copy.writer.function_like(traced.flat, outputs), {})
