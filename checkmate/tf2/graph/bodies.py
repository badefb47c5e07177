"""The functions that loops, conditions and calls run, as graphs.

TensorFlow has no public way from an op to the graph of a function that the op names. This file
alone uses `Graph._get_function`, `_functions` and `_add_function_recursive`, a function's
`cached_definition`, `tensorflow.python.framework.function_def_to_graph` and
`tensorflow.python.eager.context.context().get_function_def`. If a TensorFlow version lacks them,
the library does without the graphs: a call stays one op and is not measured, a loop is not
recomputed, and the sizes of its outputs are estimated. `test_bodies` asserts that the installed
TensorFlow has them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import tensorflow as tf

from checkmate.tf2.graph.operations import can_be_copied, has_bodies, is_argument, may_run_again
from checkmate.tf2.ops.table import rule_of

log = logging.getLogger("checkmate")


def named(graph: tf.Graph, name: str) -> Any:
    """The graph of a function in the library of `graph`; None if TensorFlow does not give it."""
    function = getattr(graph, "_get_function", lambda name: None)(name)
    found = getattr(function, "graph", None)
    definition = getattr(function, "cached_definition", None)
    if found and definition and len(found.inputs) != len(definition.signature.input_arg):
        # The gradient of a loop's gradient gives this graph more inputs, for a function of another
        # name.
        return of_process(name)
    return found


def share_functions(graph: tf.Graph, other: tf.Graph) -> None:
    """Adds the functions in the library of `graph` to that of another one."""
    add = getattr(other, "_add_function_recursive", lambda function: None)
    for function in getattr(graph, "_functions", {}).values():
        add(function)


IN_ORDER, TAKEN_BYTES, FOOTPRINT = "bodies in order", "bytes taken", "footprint"
"""Collections of a graph: of one whose ops run one after another, the functions that these run; of
a body that runs a plan, the bytes that it takes besides its inputs, and its requests."""


def from_definition(definition: Any, shapes: list[Any] | None) -> Any:
    """A new graph of a `FunctionDef` for inputs of these shapes; None if TensorFlow makes none."""
    try:
        from tensorflow.python.framework.function_def_to_graph import function_def_to_graph

        with tf.init_scope():
            return function_def_to_graph(definition, input_shapes=shapes)
    except (ImportError, AttributeError, TypeError) as error:
        log.info("The function %s is planned as one op: %s", definition.signature.name, error)
        return None


def body_of(graph: tf.Graph, operation: tf.Operation, attribute: str) -> Any:
    """The graph of the function in an op's attribute, or None. `graph` is the step as it was
    traced, whose functions have the inferred shapes."""
    return named(graph, operation.get_attr(attribute).name)


def bodies_of(graph: tf.Graph, operation: tf.Operation) -> list[Any]:
    """The graphs (or None) of the functions that a loop or condition runs; none for another op."""
    return [named(graph, each.name) for each in functions_of(operation, operation.node_def)]


def planned_footprints(graph: tf.Graph, operation: tf.Operation) -> list[Any]:
    """The requests of those bodies of a loop or condition that run plans."""
    found = (body for body in bodies_of(graph, operation) if body is not None)
    return [each for body in found for each in body.get_collection(FOOTPRINT)]


def functions_of(operation: tf.Operation, node: Any) -> Iterator[Any]:
    """Yields the functions that a loop or condition runs, as attributes of its definition."""
    if has_bodies(operation):
        for attribute in rule_of(operation.type).functions:
            yield from node.attr[attribute].list.func or [node.attr[attribute].func]


def only_reads(graph: tf.Graph, operation: tf.Operation) -> bool:
    """True for a loop or condition that only computes values from its inputs and from variables."""
    bodies = bodies_of(graph, operation)
    return bool(bodies) and all(body is not None and _is_pure(graph, body) for body in bodies)


def _is_pure(graph: tf.Graph, body: Any) -> bool:
    return all(
        only_reads(graph, each) if has_bodies(each) else is_argument(each) or may_run_again(each)
        for each in body.get_operations()
    )


def is_pure(operation: tf.Operation) -> bool:
    """True for an op that may be run on any data at any time: TensorFlow ships it, its outputs
    follow from its inputs, all of them numbers, and it does nothing else; nor do the functions that
    it runs. On data that is not its own a loop may not end, and a condition may take less memory.
    """
    tensors = (*operation.inputs, *operation.outputs)
    return _computes(operation) and all(can_be_copied(tensor.dtype) for tensor in tensors)


def _computes(operation: tf.Operation) -> bool:
    """The same for an op in a function, which may take and return lists of tensors, too."""
    tensors = (*operation.inputs, *operation.outputs)
    if not may_run_again(operation) or has_bodies(operation):
        return False
    if any(tensor.dtype in (tf.resource, tf.string) for tensor in tensors):
        return False
    return all(
        body is not None and all(is_argument(o) or _computes(o) for o in body.get_operations())
        for body in called(operation)
    )


def function_names(node: Any) -> list[str]:
    found = (each for value in node.attr.values() for each in (value.func, *value.list.func))
    return [each.name for each in found if each.name]


def called(operation: tf.Operation) -> list[Any]:
    """The graphs (or None) of all functions that an op names. A graph that was imported does not
    have them; the process does."""
    names = function_names(operation.node_def)
    return [named(operation.graph, name) or of_process(name) for name in names]


@lru_cache(maxsize=256)
def of_process(name: str) -> Any:
    """The graph of a function that the process has; None if TensorFlow does not give it."""
    try:
        from tensorflow.python.eager import context

        return from_definition(context.context().get_function_def(name), None)
    except (ImportError, AttributeError, RuntimeError, tf.errors.NotFoundError):
        return None
