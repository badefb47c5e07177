"""optimize(): a traced function as TensorFlow's graph optimizer, Grappler, leaves it; run(): a
function call without Grappler.

TensorFlow rewrites a function before it runs it for the first time: it folds constants, replaces
powers by products, drops what cancels out, and fuses kernels. A plan for the graph as it was traced
would count ops that the plain step does not run, and the control edges of a plan would keep
Grappler from doing most of this. So Grappler runs first, its result is planned, and the planned
function runs without Grappler.

`tf.config.optimizer` says which passes run, as for any function of the process. Three are left out.
One inlines functions and loops: `inline` has inlined the functions, and a loop is one op of a plan.
Another moves ops into the branches of conditions, where a plan does not see them. The third saves
memory, which is the plan's task: it turns large sums into accumulators that no plan could free or
recompute. For the other passes, `described` gives every op a device and every argument a shape, as
TensorFlow does when it instantiates a function, so that they leave the ops that TensorFlow runs.

The layout pass, which works for GPUs alone, runs before planning and never after. It has
convolutions compute in another order of axes and puts transpositions, as large as activations,
around them. After planning, no control edge of the plan would order those: they would run early and
stay in memory, and the plan would save next to nothing. Before planning, they are ops like others,
which plans count, free and recompute. Switched off altogether, convolutions would run other kernels
than those of the plain step, with transpositions inside of each. So the plain step is run with
Grappler, as users run it; and all that we run of what Grappler left (the planned step, and single
ops that are measured) is run without.

Grappler has no public entry. This file alone uses `tensorflow.python.grappler.tf_optimizer` and
`.cluster`, `tensorflow.core.protobuf.device_properties_pb2`, and
`tensorflow.python.eager.context.context().function_call_options`, and names the attribute
`_noinline` of functions. If they are missing, or if their result cannot be used, the traced graph
is planned, and a warning says so once. `test_grappler` asserts that the installed TensorFlow has
them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import tensorflow as tf

from checkmate.errors import CheckmateError
from checkmate.tf2 import device as devices
from checkmate.tf2.graph.bodies import function_names
from checkmate.tf2.graph.graph_writer import (
    GraphWriter,
    captured_tensors,
    inputs_first,
    names_of_inputs,
    reachable,
    tell_loop_shapes,
    tell_shapes,
)
from checkmate.tf2.graph.operations import is_stateful

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
_ATTRIBUTES = {
    "Conv2D": _CONVOLUTION,
    "MatMul": ("T", "transpose_a", "transpose_b"),
    "BiasAdd": ("T",),
}
_FUSED = {"_FusedConv2D": "Conv2D", "_FusedMatMul": "MatMul"}
_ACTIVATIONS = ("Relu", "Relu6", "Elu", "Tanh", "Sigmoid")


class UnusableError(CheckmateError):
    """Grappler's result lacks something."""


def described(concrete: Any, variables: Iterable[tf.Variable], device: str) -> Any:
    """Returns a function's graph with all that TensorFlow adds when it instantiates one: the full
    name of a device for every op, and the shapes of arguments and variables."""
    graph_def = concrete.graph.as_graph_def()
    by_handle = {id(variable.handle): variable for variable in variables}
    captured_as = {tensor.op.name: value for tensor, value in captured_tensors(concrete)}
    arguments = {tensor.op.name: k for k, tensor in enumerate(concrete.inputs)}
    for node in graph_def.node:
        node.device = node.device or device
        tell_loop_shapes(node, concrete.graph.get_operation_by_name(node.name))
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
    a convolution fused in bfloat16 is not: oneDNN has kernels for it, and fuses its parts again."""
    is_one = node.op == "_FusedConv2D" and node.attr["T"].type == tf.bfloat16.as_datatype_enum
    return unfused(node) if is_one else [node]


def unfused(node: Any) -> list[Any]:
    """The ops that Grappler made a product or convolution with a bias of, the last one by the
    node's name; the node itself where these are not known."""
    fused = [name.decode() for name in node.attr["fused_ops"].list.s] if node.op in _FUSED else []
    if fused[:1] != ["BiasAdd"] or not {*fused[1:]} <= {*_ACTIVATIONS} or len(fused) > 2:
        return [node]
    parts: list[Any] = []
    more_inputs: tuple[list[str], ...] = ([*node.input[:2]], [node.input[2]], [])
    for kind, more in zip((_FUSED[node.op], *fused), more_inputs, strict=False):
        inputs = [*([parts[-1].name] if parts else []), *more]
        part = tf.compat.v1.NodeDef(name=f"{node.name}/{kind}", op=kind, input=inputs)
        part.device = node.device
        for key in _ATTRIBUTES.get(kind, ("T",)):
            part.attr[key].CopyFrom(node.attr[key])
        if kind == "BiasAdd" and "data_format" in node.attr:
            part.attr["data_format"].CopyFrom(node.attr["data_format"])
        parts.append(part)
    parts[-1].name = node.name
    parts[0].input.extend(name for name in node.input if name.startswith("^"))
    return parts


def in_order_of_trace(concrete: Any, nodes: list[Any]) -> list[Any]:
    """The nodes, inputs first, otherwise in the order of the trace. A node that Grappler made comes
    as soon as its inputs are there."""
    traced = {operation.name: k for k, operation in enumerate(reachable(concrete.graph))}
    index = {node.name: k for k, node in enumerate(nodes)}
    names = [{each.removeprefix("^").partition(":")[0] for each in node.input} for node in nodes]
    before = [{index[name] for name in read if name in index} for read in names]
    order = inputs_first(before, lambda k, at: traced.get(nodes[k].name, at))
    if len(order) < len(nodes):
        raise UnusableError("its result has a cycle.")
    return [nodes[k] for k in order]


def imported(concrete: Any, nodes: list[Any]) -> Any:
    """A function like `concrete` of these nodes. Raises `UnusableError` where a shape that
    `concrete` knows is not known in it."""
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
    """The ops of `concrete`, by name, with an output whose rank is known there alone."""
    known = {operation.name: operation for operation in concrete.graph.get_operations()}
    lost = {}
    for operation in found.graph.get_operations():
        before = known.get(operation.name)
        traced = before.outputs if before else ()
        for tensor, as_traced in zip(operation.outputs, traced, strict=False):
            if tensor.shape.rank is None and as_traced.shape.rank is not None:
                lost[operation.name] = before
    return lost


log = logging.getLogger("checkmate")

_OFF, _NO_MEMORY_OPTIMIZATION = 2, 1
"""RewriterConfig.Toggle.OFF, RewriterConfig.MemOptType.NO_MEM_OPT."""

_RUN_AS_A_WHOLE = "_noinline"
_ADDED_BY_RUNTIME = ("_class", "_XlaHasReferenceVars")
_LACKING = (ImportError, AttributeError, TypeError, ValueError)
"""Errors where TensorFlow lacks private names, or has them otherwise."""
_warned: set[str] = set()
_without_grappler: dict[tuple[bytes, Any], Any] = {}


def run(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a `ConcreteFunction` and has TensorFlow run its ops without optimizing them.

    This applies to one call in one thread and changes no setting of the process. Inside of another
    function it applies to what `apart` made; TensorFlow would merge any other function into the one
    that calls it. If TensorFlow lacks the private names, the call is an ordinary one.
    """
    try:
        context, usual = _context()
        context.function_call_options = _switched_off(usual)
    except _LACKING:
        return function(*arguments)
    try:
        return function(*arguments)
    finally:
        context.function_call_options = usual


def apart(body: Callable[..., Any], *specs: Any) -> Any:
    """Returns a `ConcreteFunction` that TensorFlow runs as a whole where another function calls it,
    with the options of that call, and does not merge into the other one."""
    function = tf.function(body, autograph=False, experimental_attributes={_RUN_AS_A_WHOLE: True})
    return function.get_concrete_function(*specs)


def optimize(concrete: Any, variables: Iterable[tf.Variable]) -> Any:
    """The ops that TensorFlow would run for a traced function, its calls inlined, as a
    `ConcreteFunction`; `concrete` itself if Grappler is switched off in this process
    (`tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})`) or cannot be
    used. Grappler needs the shapes of the `variables` whose handles the function captures."""
    try:
        if _config().graph_options.rewrite_options.disable_meta_optimizer:
            return concrete
        return imported(concrete, in_order_of_trace(concrete, _optimized(concrete, variables)))
    except (*_LACKING, KeyError, tf.errors.OpError, UnusableError) as error:
        why = str(error).partition("\n")[0]
        if why not in _warned:
            _warned.add(why)
            log.warning(
                "TensorFlow %s's graph optimizer cannot be used beforehand, so the graph as traced"
                " is planned: %s",
                tf.__version__,
                why,
            )
        return concrete


def _context() -> tuple[Any, Any]:
    from tensorflow.python.eager import context

    return context.context(), context.context().function_call_options


def _config() -> Any:
    return tf.compat.v1.ConfigProto.FromString(_context()[1].config_proto_serialized)


def _switched_off(usual: Any) -> Any:
    """The same options without Grappler; made once, since for others a function is made again."""
    key = usual.config_proto_serialized, usual.executor_type
    if key not in _without_grappler:
        config = tf.compat.v1.ConfigProto.FromString(key[0])
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        _without_grappler[key] = type(usual)(config_proto=config, executor_type=key[1])
    return _without_grappler[key]


def _optimized(concrete: Any, variables: Iterable[tf.Variable]) -> list[Any]:
    """The nodes that Grappler leaves, without those of the arguments, whose readers have the names
    that `names_of_inputs` gives."""
    from tensorflow.python.grappler import cluster, tf_optimizer

    device = training_device()
    placeholders = (tensor.op.name for tensor in concrete.inputs)
    given = dict(zip(placeholders, names_of_inputs(concrete).values(), strict=True))
    graph_def = described(concrete, variables, device.name)
    meta_graph = tf.compat.v1.MetaGraphDef(graph_def=graph_def)
    effects = [operation.name for operation in concrete.graph.control_outputs]
    meta_graph.collection_def["train_op"].node_list.value.extend(
        [*(tensor.name for tensor in concrete.outputs), *effects]
    )
    optimized = tf_optimizer.OptimizeGraph(
        _passes(device), meta_graph, cluster=cluster.Cluster(devices=[device])
    ).node
    nodes = [each for node in optimized if node.name not in given for each in as_registered(node)]
    names = {node.name for node in nodes}
    lost = [name for name in _needed(concrete) if name not in names and name not in given]
    if lost:
        raise UnusableError(
            f"{len(lost)} outputs or side effects are gone from its result, such as {lost[0]!r}."
        )
    known = {name for node in graph_def.node for name in function_names(node)}
    own_device = {operation.name: operation.device for operation in concrete.graph.get_operations()}
    for node in nodes:
        if not known.issuperset(function_names(node)):
            raise UnusableError(f"{node.name!r} calls a function that the step does not have.")
        _clean(node, given, own_device, device.name)
    return nodes


def training_device() -> Any:
    """The device that trains, a `NamedDevice`: its full name, and for a GPU the compute capability,
    by which the layout pass decides."""
    from tensorflow.core.protobuf import device_properties_pb2

    suffix = devices.training_device()
    logical = tf.config.list_logical_devices()
    name = next(each.name for each in logical if each.name.endswith(suffix))
    kind = suffix.partition(":")[0]
    found = device_properties_pb2.NamedDevice(
        name=f"/job:localhost/replica:0/task:0{name}" if name.startswith("/device") else name
    )
    found.properties.type = kind
    if kind == "GPU":
        capability = devices.gpu_details(suffix).get("compute_capability", ())
        found.properties.environment["architecture"] = ".".join(map(str, capability))
    return found


def _passes(device: Any) -> Any:
    config = _config()
    options = config.graph_options.rewrite_options
    options.min_graph_nodes = -1  # small graphs, too
    options.function_optimization, options.memory_optimization = _OFF, _NO_MEMORY_OPTIMIZATION
    if device.properties.type != "GPU":
        # This pass leaves the graphs of CPUs unchanged, after it has inferred all shapes.
        options.layout_optimizer = _OFF
    # By default, all that this one does is to move ops into branches.
    options.disable_tfg_optimizer = True
    return config


def _clean(
    node: Any, given: Mapping[str, str], own_device: Mapping[str, str], default: str
) -> None:
    """Takes back what `described` and Grappler added to a node. An op that Grappler made stays on
    the device of what it was made of."""
    added = [key for key in node.attr if key in _ADDED_BY_RUNTIME or key.startswith("_grappler")]
    for name in added:
        del node.attr[name]
    node.device = own_device.get(node.name, "" if node.device == default else node.device)
    node.input[:] = [
        given.get(name.removesuffix(":0"), name)
        for name in node.input
        if name.removeprefix("^") not in given or name[0] != "^"
    ]


def _needed(concrete: Any) -> Iterable[str]:
    yield from (tensor.op.name for tensor in concrete.outputs)
    yield from (o.name for o in concrete.graph.control_outputs if is_stateful(o))
