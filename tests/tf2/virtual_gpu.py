"""A GPU that is not there: TensorFlow's graph optimizer, Grappler, is told of one and rewrites
graphs as it would for it. Nothing runs on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import device_properties_pb2
from tensorflow.python.grappler import cluster, tf_optimizer

from checkmate.core.allocator import rounded_up
from checkmate.tf2.execution.replay import EVALUATION_MARK
from checkmate.tf2.graph.grappler import described
from checkmate.tf2.graph.in_place import buffer_of
from checkmate.tf2.graph.operations import role_of
from checkmate.tf2.graph.sizes import tensor_bytes
from checkmate.tf2.ops.rule import Role
from checkmate.tf2.ops.table import rule_of

GPU = "/job:localhost/replica:0/task:0/device:GPU:0"


def device() -> Any:
    """The `NamedDevice` of an A100."""
    found = device_properties_pb2.NamedDevice(name=GPU)
    found.properties.type = "GPU"
    found.properties.environment["architecture"] = "8.0"
    found.properties.memory_size = 40 * 2**30
    return found


def placed(concrete: Any, variables: Iterable[tf.Variable]) -> Any:
    """The graph of a function, on that GPU."""
    graph_def = described(concrete, variables, GPU)
    for node in graph_def.node:
        node.device = GPU
    return graph_def


def optimized(concrete: Any, variables: Iterable[tf.Variable]) -> Any:
    """The graph that TensorFlow would run on that GPU for a function if it optimized the function
    with the settings that users have."""
    graph_def = placed(concrete, variables)
    meta_graph = tf.compat.v1.MetaGraphDef(graph_def=graph_def)
    effects = [operation.name for operation in concrete.graph.control_outputs]
    meta_graph.collection_def["train_op"].node_list.value.extend(
        [*(tensor.name for tensor in concrete.outputs), *effects]
    )
    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.min_graph_nodes = -1
    return tf_optimizer.OptimizeGraph(
        config, meta_graph, cluster=cluster.Cluster(devices=[device()])
    )


def kinds(graph_def: Any) -> Counter[str]:
    """How often each op type is in a graph."""
    return Counter(node.op for node in graph_def.node)


def evaluations(graph_def: Any) -> set[str]:
    """The names of a plan's evaluations in a graph."""
    return {node.name for node in graph_def.node if EVALUATION_MARK in node.name}


def simulated_peak_bytes(graph_def: Any) -> int:
    """The most bytes of values in memory at once if ops run one after another, each as soon as its
    inputs and control inputs are there, in the order in which that is so. Arguments, constants and
    what variables hold are not counted. An elementwise op writes over an input that no other op
    reads any more."""
    operations = _imported(graph_def).get_operations()
    waits = {o: {*(tensor.op for tensor in o.inputs), *o.control_inputs} for o in operations}
    followers: dict[tf.Operation, list[tf.Operation]] = {o: [] for o in operations}
    for operation, before in waits.items():
        for each in before:
            followers[each].append(operation)
    kernels = {o for o in operations if role_of(o) is Role.KERNEL}
    readers = Counter(_buffer(tensor) for o in kernels for tensor in o.inputs)
    queue = [o for o in operations if not waits[o]]
    in_use = peak = 0
    for operation in queue:  # which grows meanwhile
        if operation in kernels:
            made = sum(_bytes(tensor) for tensor in operation.outputs)
            read = Counter(map(_buffer, operation.inputs))
            done = [each for each, times in read.items() if times == readers[each]]
            freed = sum(_bytes(each.deref()) for each in done if each.deref().op in kernels)
            over = any(_bytes(each.deref()) == made for each in done if each.deref().op in kernels)
            takes_over = over and rule_of(operation.type).in_place is not None
            peak = max(peak, in_use + (0 if takes_over else made))
            readers -= read
            unread = (t for t in operation.outputs if not readers[t.ref()])
            in_use += made - freed - sum(map(_bytes, unread))
        for follower in followers[operation]:
            waits[follower].discard(operation)
            if not waits[follower]:
                queue.append(follower)
    assert len(queue) == len(operations)
    return peak


def _imported(graph_def: Any) -> tf.Graph:
    """The graph with its shapes: reads of variables have them in arguments that stand for them."""
    nodes = tf.compat.v1.GraphDef()
    nodes.CopyFrom(graph_def)
    shapes = {
        node.name: node.attr["_handle_shapes"].list.shape[0]
        for node in nodes.node
        if node.attr["_handle_shapes"].list.shape
    }
    for node in nodes.node:
        node.device = ""
        if node.op == "ReadVariableOp":
            node.op = "Placeholder"
            node.attr["shape"].shape.CopyFrom(shapes[node.input[0].partition(":")[0]])
            del node.input[0]
        elif node.op == "_Arg":
            node.op = "Placeholder"
            node.attr["dtype"].type = node.attr.pop("T").type
            for name in ("index", "_handle_shapes", "_handle_dtypes"):
                node.attr.pop(name, None)
    graph = tf.Graph()
    with graph.as_default():
        tf.graph_util.import_graph_def(nodes, name="")
    return graph


def _buffer(tensor: tf.Tensor) -> Any:
    return buffer_of(tensor).ref()


def _bytes(tensor: tf.Tensor) -> int:
    return rounded_up(tensor_bytes(tensor) or 0)
