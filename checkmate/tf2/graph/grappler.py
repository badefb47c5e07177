"""optimize(): a traced function as TensorFlow's graph optimizer, Grappler, leaves it; run(): a
function as it is, without Grappler.

TensorFlow rewrites a function before it runs it for the first time: it folds constants, replaces
powers by products, drops what cancels out, and fuses kernels. A plan for the graph as it was traced
would count ops that the plain step does not run, and the control edges of a plan would keep
Grappler from doing most of this. So Grappler goes first, the plan is made for what is left, and
that runs without Grappler.

Which passes run, `tf.config.optimizer` says, as for any function of the process. Three are left
out. One inlines functions and loops: `inline` has done the former, and a loop is one op of a plan.
Another moves ops into the branches of conditions, where a plan does not see them. The third saves
memory, which is the plan's task: it turns large sums into accumulators that no plan could free or
compute again. For the other passes the graph is described as TensorFlow describes it where it
instantiates a function: every op has a device, every argument a shape. Then they leave the very ops
that plain TensorFlow runs.

Behind a fence: Grappler has no public entry. Used here are
`tensorflow.python.grappler.tf_optimizer.OptimizeGraph` and
`tensorflow.python.eager.context.context().function_call_options`. Where they are missing, or what
they return cannot be used, the traced graph is what is planned, and a warning says so once.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from checkmate.errors import CheckmateError
from checkmate.tf2 import device as devices
from checkmate.tf2 import ops as op_rules
from checkmate.tf2.execution.graph_writer import (
    GraphWriter,
    names_of_inputs,
    reachable,
    tell_shapes,
)

log = logging.getLogger("checkmate")

_OFF, _NO_MEMORY_OPTIMIZATION = 2, 1
"""RewriterConfig.Toggle.OFF, RewriterConfig.MemOptType.NO_MEM_OPT."""

_STAND_IN = "FakeParam"
"""An op without inputs that has a shape and no value: what an argument is to Grappler, which
distrusts the shapes of placeholders."""

_ATTRIBUTES = {
    "Conv2D": (
        "T",
        "strides",
        "use_cudnn_on_gpu",
        "padding",
        "explicit_paddings",
        "data_format",
        "dilations",
    ),
    "BiasAdd": ("T", "data_format"),
}
_ADDED_BY_RUNTIME = ("_class", "_XlaHasReferenceVars")
_warned: set[str] = set()
_without_grappler: dict[tuple[bytes, Any], Any] = {}


def run(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a `ConcreteFunction`, and has TensorFlow run its ops as they are.

    Only for this call in this thread: no setting of the process is touched. Inside of another
    function, what Grappler does is up to whoever runs that. Where a TensorFlow has not what this
    takes, the call is an ordinary one.
    """
    try:
        context, usual = _context()
        context.function_call_options = _switched_off(usual)
    except (ImportError, AttributeError, TypeError, ValueError):
        return function(*arguments)
    try:
        return function(*arguments)
    finally:
        context.function_call_options = usual


def optimize(concrete: Any, variables: Iterable[tf.Variable]) -> Any:
    """Returns a `ConcreteFunction` of the ops that TensorFlow would run for this one.

    Args:
      concrete: A traced function, its calls inlined.
      variables: The variables whose handles it captures; their shapes are told to Grappler.

    Returns: A function of the same flattened arguments with the same flat outputs and side effects,
      or `concrete` itself where Grappler is switched off in this process
      (`tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})`) or cannot
      be used.
    """
    try:
        if _config().graph_options.rewrite_options.disable_meta_optimizer:
            return concrete
        return _imported(concrete, _in_order_of_trace(concrete, _optimized(concrete, variables)))
    except (
        ImportError,
        AttributeError,
        TypeError,
        ValueError,
        KeyError,
        tf.errors.OpError,
        _UnusableError,
    ) as error:
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


class _UnusableError(CheckmateError):
    """What Grappler returned lacks something."""


def _context() -> tuple[Any, Any]:
    """TensorFlow's context, and the options with which functions are called in this thread."""
    from tensorflow.python.eager import context

    return context.context(), context.context().function_call_options


def _config() -> Any:
    """The process' settings for functions, as a new message."""
    return tf.compat.v1.ConfigProto.FromString(_context()[1].config_proto_serialized)


def _switched_off(usual: Any) -> Any:
    """The same options without Grappler; made once, as TensorFlow instantiates a function anew for
    others."""
    key = usual.config_proto_serialized, usual.executor_type
    if key not in _without_grappler:
        config = tf.compat.v1.ConfigProto.FromString(key[0])
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        _without_grappler[key] = type(usual)(config_proto=config, executor_type=key[1])
    return _without_grappler[key]


def _optimized(concrete: Any, variables: Iterable[tf.Variable]) -> list[Any]:
    """The nodes that Grappler leaves, without those of the arguments, whose readers know them by
    the names that `names_of_inputs` gives."""
    from tensorflow.python.grappler import tf_optimizer

    config = _config()
    options = config.graph_options.rewrite_options
    options.min_graph_nodes = -1  # small graphs, too
    options.function_optimization, options.memory_optimization = _OFF, _NO_MEMORY_OPTIMIZATION
    if not tf.config.list_physical_devices("GPU"):
        options.layout_optimizer = (
            _OFF  # it leaves the graphs of CPUs as they are, once it has found out all shapes
        )
    options.disable_tfg_optimizer = (
        True  # all that this one does by default is to move ops into branches
    )
    given = dict(
        zip(
            (tensor.op.name for tensor in concrete.inputs),
            names_of_inputs(concrete).values(),
            strict=True,
        )
    )
    graph_def = _described(concrete, variables)
    own_device = {operation.name: operation.device for operation in concrete.graph.get_operations()}
    meta_graph = tf.compat.v1.MetaGraphDef(graph_def=graph_def)
    effects = [operation.name for operation in concrete.graph.control_outputs]
    meta_graph.collection_def["train_op"].node_list.value.extend(
        [*(tensor.name for tensor in concrete.outputs), *effects]
    )
    left = (
        node
        for node in tf_optimizer.OptimizeGraph(config, meta_graph).node
        if node.name not in given
    )
    nodes = [each for node in left for each in _as_registered(node)]
    names = {node.name for node in nodes}
    lost = [name for name in _needed(concrete) if name not in names and name not in given]
    if lost:
        raise _UnusableError(
            f"{len(lost)} outputs or side effects are gone from its result, such as {lost[0]!r}."
        )
    known = {name for node in graph_def.node for name in _functions(node)}
    for node in nodes:
        if not known.issuperset(_functions(node)):
            raise _UnusableError(f"{node.name!r} calls a function that the step does not have.")
        for name in [
            key for key in node.attr if key in _ADDED_BY_RUNTIME or key.startswith("_grappler")
        ]:
            del node.attr[name]
        node.device = own_device.get(node.name, "")
        node.input[:] = [
            given.get(name.removesuffix(":0"), name)
            for name in node.input
            if name.removeprefix("^") not in given or name[0] != "^"
        ]
    return nodes


def _as_registered(node: Any) -> list[Any]:
    """The node, or where its op is not registered for its type, as a convolution fused in bfloat16
    is not, the ops that it was made of.

    oneDNN has kernels for such an op all the same, and makes one of its parts when they run one
    after another.
    """
    if node.op != "_FusedConv2D" or node.attr["T"].type != tf.bfloat16.as_datatype_enum:
        return [node]
    fused = [name.decode() for name in node.attr["fused_ops"].list.s]
    if not fused or fused[0] != "BiasAdd" or len(fused) > 2:
        return [node]
    parts = []
    for kind, more in zip(
        ("Conv2D", *fused), ([*node.input[:2]], [node.input[2]], []), strict=False
    ):
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


def _described(concrete: Any, variables: Iterable[tf.Variable]) -> Any:
    """The graph with what Grappler asks for when a function is instantiated: a device for every op,
    shapes of arguments and variables."""
    graph_def = concrete.graph.as_graph_def()
    device = next(
        each.name
        for each in tf.config.list_logical_devices()
        if each.name.endswith(devices.training_device())
    )
    device = f"/job:localhost/replica:0/task:0{device}" if device.startswith("/device") else device
    held = {id(variable.handle): variable for variable in variables}
    captured = concrete.captured_inputs
    of_argument = dict(
        zip(
            (tensor.op.name for tensor in concrete.inputs[len(concrete.inputs) - len(captured) :]),
            captured,
            strict=True,
        )
    )
    arguments = {tensor.op.name: k for k, tensor in enumerate(concrete.inputs)}
    for node in graph_def.node:
        node.device = node.device or device
        if node.name not in arguments:
            continue
        node.attr.pop("_user_specified_name", None)
        if node.attr["dtype"].type != tf.resource.as_datatype_enum:
            node.op = _STAND_IN
            node.attr["_argument"].i = arguments[node.name]  # or two of one shape would be one
            continue
        node.op = "_Arg"
        node.attr["T"].type = node.attr.pop("dtype").type
        node.attr["index"].i = arguments[node.name]
        node.attr.pop("shape", None)
        if (variable := held.get(id(of_argument.get(node.name)))) is not None:
            node.attr["_handle_dtypes"].list.type.append(variable.dtype.as_datatype_enum)
            node.attr["_handle_shapes"].list.shape.add().CopyFrom(variable.shape.as_proto())
    return graph_def


def _needed(concrete: Any) -> Iterable[str]:
    """Names of the ops that outputs and side effects are."""
    yield from (tensor.op.name for tensor in concrete.outputs)
    yield from (
        operation.name
        for operation in concrete.graph.control_outputs
        if op_rules.is_stateful(operation)
    )


def _functions(node: Any) -> Iterable[str]:
    """Names of the functions that an op runs."""
    for value in node.attr.values():
        yield from (
            function.name
            for function in ([value.func] if value.HasField("func") else value.list.func)
        )


def _in_order_of_trace(concrete: Any, nodes: list[Any]) -> list[Any]:
    """The nodes, inputs first, else in the order of the trace; one that Grappler made comes as soon
    as its inputs are there."""
    traced = {operation.name: k for k, operation in enumerate(reachable(concrete.graph))}
    place = {node.name: k for k, node in enumerate(nodes)}
    inputs = [
        {
            place[name]
            for each in node.input
            if (name := each.removeprefix("^").partition(":")[0]) in place
        }
        for node in nodes
    ]
    readers: list[list[int]] = [[] for _ in nodes]
    for k, before in enumerate(inputs):
        for other in before:
            readers[other].append(k)
    left = [len(before) for before in inputs]
    ready = [(traced.get(node.name, -1), k) for k, node in enumerate(nodes) if not left[k]]
    heapq.heapify(ready)
    order = []
    while ready:
        at, k = heapq.heappop(ready)
        order.append(nodes[k])
        for reader in readers[k]:
            left[reader] -= 1
            if not left[reader]:
                heapq.heappush(ready, (traced.get(nodes[reader].name, at), reader))
    if len(order) < len(nodes):
        raise _UnusableError("its result has a cycle.")
    return order


def _imported(concrete: Any, nodes: list[Any]) -> Any:
    """A function like `concrete` of these nodes."""
    given = names_of_inputs(concrete)
    outputs = [given.get(tensor.ref(), tensor.name) for tensor in concrete.outputs]
    found = GraphWriter(nodes).function_like(concrete, outputs, as_written=True)
    # What Python told of the ops is not in their definitions.
    if lost := _without_shapes(concrete, found):
        for node in nodes:
            if node.name in lost:
                tell_shapes(node, lost[node.name])
        found = GraphWriter(nodes).function_like(concrete, outputs, as_written=True)
        if lost := _without_shapes(concrete, found):
            raise _UnusableError(f"the shape of {next(iter(lost))!r} is gone from its result.")
    return found


def _without_shapes(concrete: Any, found: Any) -> dict[str, tf.Operation]:
    """The ops of `concrete`, by name, that make tensors whose rank is not known in another
    function."""
    known = {operation.name: operation for operation in concrete.graph.get_operations()}
    lost = {}
    for operation in found.graph.get_operations():
        before = known.get(operation.name)
        for tensor, as_traced in zip(
            operation.outputs, before.outputs if before else (), strict=False
        ):
            if tensor.shape.rank is None and as_traced.shape.rank is not None:
                lost[operation.name] = before
    return lost
