"""What goes into TensorFlow's graph optimizer, Grappler, and what comes out of it: a GraphDef as
Grappler expects it, and a function of the nodes that Grappler returns."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from checkmate.errors import CheckmateError
from checkmate.tf2.graph.graph_writer import (
    GraphWriter,
    names_of_inputs,
    reachable,
    tell_shapes,
)

_STAND_IN = "FakeParam"
"""Stands for an argument: an op without inputs that has a shape and no value. Grappler does not
trust the shapes of placeholders."""

_CONVOLUTION = (
    "T",
    "strides",
    "use_cudnn_on_gpu",
    "padding",
    "explicit_paddings",
    "data_format",
    "dilations",
)
_ATTRIBUTES = {"Conv2D": _CONVOLUTION, "BiasAdd": ("T", "data_format")}


class UnusableError(CheckmateError):
    """What Grappler returned lacks something."""


def described(concrete: Any, variables: Iterable[tf.Variable], device: str) -> Any:
    """Returns the graph of a function with what TensorFlow adds when it instantiates one: a device
    for every op, and the shapes of arguments and variables.

    Args:
      device: The full name of the device of ops that do not name one.
    """
    graph_def = concrete.graph.as_graph_def()
    by_handle = {id(variable.handle): variable for variable in variables}
    captured = concrete.captured_inputs
    placeholders = concrete.inputs[len(concrete.inputs) - len(captured) :]
    captured_as = {t.op.name: value for t, value in zip(placeholders, captured, strict=True)}
    arguments = {tensor.op.name: k for k, tensor in enumerate(concrete.inputs)}
    for node in graph_def.node:
        node.device = node.device or device
        if node.name not in arguments:
            continue
        node.attr.pop("_user_specified_name", None)
        if node.attr["dtype"].type != tf.resource.as_datatype_enum:
            node.op = _STAND_IN
            node.attr["_argument"].i = arguments[node.name]  # or two of one shape would be merged
            continue
        node.op = "_Arg"
        node.attr["T"].type = node.attr.pop("dtype").type
        node.attr["index"].i = arguments[node.name]
        node.attr.pop("shape", None)
        variable = by_handle.get(id(captured_as.get(node.name)))
        if variable is not None:
            node.attr["_handle_dtypes"].list.type.append(variable.dtype.as_datatype_enum)
            node.attr["_handle_shapes"].list.shape.add().CopyFrom(variable.shape.as_proto())
    return graph_def


def as_registered(node: Any) -> list[Any]:
    """Returns the node, or the ops that it was made of if its op is not registered for its type, as
    a convolution fused in bfloat16 is not.

    oneDNN has kernels for such an op, and fuses its parts again when they run one after another.
    """
    if node.op != "_FusedConv2D" or node.attr["T"].type != tf.bfloat16.as_datatype_enum:
        return [node]
    fused = [name.decode() for name in node.attr["fused_ops"].list.s]
    if not fused or fused[0] != "BiasAdd" or len(fused) > 2:
        return [node]
    parts: list[Any] = []
    more_inputs: tuple[list[str], ...] = ([*node.input[:2]], [node.input[2]], [])
    for kind, more in zip(("Conv2D", *fused), more_inputs, strict=False):
        inputs = [*([parts[-1].name] if parts else []), *more]
        part = tf.compat.v1.NodeDef(
            name=f"{node.name}/{kind}", op=kind, input=inputs, device=node.device
        )
        for key in _ATTRIBUTES.get(kind, ("T",)):
            part.attr[key].CopyFrom(node.attr[key])
        parts.append(part)
    parts[-1].name = node.name
    parts[0].input.extend(name for name in node.input if name.startswith("^"))
    return parts


def functions(node: Any) -> Iterable[str]:
    """Yields the names of the functions that an op runs."""
    for value in node.attr.values():
        found = [value.func] if value.HasField("func") else value.list.func
        yield from (function.name for function in found)


def in_order_of_trace(concrete: Any, nodes: list[Any]) -> list[Any]:
    """Returns the nodes, inputs first, otherwise in the order of the trace. A node that Grappler
    made comes as soon as its inputs are there."""
    traced = {operation.name: k for k, operation in enumerate(reachable(concrete.graph))}
    index = {node.name: k for k, node in enumerate(nodes)}
    readers: list[list[int]] = [[] for _ in nodes]
    missing = []
    for k, node in enumerate(nodes):
        names = {each.removeprefix("^").partition(":")[0] for each in node.input}
        inputs = {index[name] for name in names if name in index}
        missing.append(len(inputs))
        for other in inputs:
            readers[other].append(k)
    ready = [(traced.get(node.name, -1), k) for k, node in enumerate(nodes) if not missing[k]]
    heapq.heapify(ready)
    order = []
    while ready:
        at, k = heapq.heappop(ready)
        order.append(nodes[k])
        for reader in readers[k]:
            missing[reader] -= 1
            if not missing[reader]:
                heapq.heappush(ready, (traced.get(nodes[reader].name, at), reader))
    if len(order) < len(nodes):
        raise UnusableError("its result has a cycle.")
    return order


def imported(concrete: Any, nodes: list[Any]) -> Any:
    """Returns a function like `concrete` of these nodes.

    Raises:
      UnusableError: The shape of a tensor of `concrete` is not known in that function.
    """
    given = names_of_inputs(concrete)
    outputs = [given.get(tensor.ref(), tensor.name) for tensor in concrete.outputs]
    found = GraphWriter(nodes).function_like(concrete, outputs, as_written=True)
    # Shapes that Python set are not in the definitions of ops.
    if lost := _without_shapes(concrete, found):
        for node in nodes:
            if node.name in lost:
                tell_shapes(node, lost[node.name])
        found = GraphWriter(nodes).function_like(concrete, outputs, as_written=True)
        if lost := _without_shapes(concrete, found):
            raise UnusableError(f"the shape of {next(iter(lost))!r} is gone from its result.")
    return found


def _without_shapes(concrete: Any, found: Any) -> dict[str, tf.Operation]:
    """The ops of `concrete`, by name, with an output whose rank is known there and not in
    `found`."""
    known = {operation.name: operation for operation in concrete.graph.get_operations()}
    lost = {}
    for operation in found.graph.get_operations():
        before = known.get(operation.name)
        traced = before.outputs if before else ()
        for tensor, as_traced in zip(operation.outputs, traced, strict=False):
            if tensor.shape.rank is None and as_traced.shape.rank is not None:
                lost[operation.name] = before
    return lost
