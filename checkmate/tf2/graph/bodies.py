"""The functions that loops, conditions and calls run, as graphs.

Behind a fence: TensorFlow has no public way from an op to the graph of a function that it names.
Used here, and nowhere else, are `Graph._get_function` and
`tensorflow.python.framework.function_def_to_graph`. Where a TensorFlow has them not, nothing is
known of such functions: calls stay one op, loops are kept, and what loops make is estimated.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from checkmate.tf2 import ops as op_rules

log = logging.getLogger("checkmate")

LOOPS = frozenset({"While", "StatelessWhile"})
CONDITIONS = frozenset({"If", "StatelessIf", "Case", "StatelessCase"})
CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
_NAMED_IN = {"While": ("body", "cond"), "If": ("then_branch", "else_branch"), "Case": ("branches",)}


def body_of(graph: tf.Graph, operation: tf.Operation, attribute: str) -> Any:
    """Returns the graph of the function that an op names, with all that is known of its shapes;
    None where that cannot be had.

    Args:
      graph: The graph of the step as it was traced, which still has the functions.
    """
    return named(graph, operation.get_attr(attribute).name)


def from_definition(definition: Any, shapes: list[Any]) -> Any:
    """Returns a new graph with the ops of a `FunctionDef` for inputs of these shapes, or None where
    that cannot be had."""
    try:
        from tensorflow.python.framework.function_def_to_graph import function_def_to_graph

        with tf.init_scope():
            return function_def_to_graph(definition, input_shapes=shapes)
    except (ImportError, AttributeError, TypeError) as error:
        log.info("The function %s is planned as one op: %s", definition.signature.name, error)
        return None


def only_reads(graph: tf.Graph, operation: tf.Operation) -> bool:
    """True for a loop or condition in which nothing happens but that values are computed, from its
    inputs and from variables."""
    bodies = list(_bodies(graph, operation))
    return bool(bodies) and all(body is not None and _is_pure(graph, body) for body in bodies)


def functions_of(operation: tf.Operation, node: Any) -> Iterator[Any]:
    """The functions that a loop or condition runs, as attributes of its definition; none of another
    op."""
    for attribute in _NAMED_IN.get(operation.type.removeprefix("Stateless"), ()):
        yield from node.attr[attribute].list.func or [node.attr[attribute].func]


def _bodies(graph: tf.Graph, operation: tf.Operation) -> Iterator[Any]:
    yield from (
        named(graph, function.name) for function in functions_of(operation, operation.node_def)
    )


def _is_pure(graph: tf.Graph, body: Any) -> bool:
    return all(
        only_reads(graph, each)
        if each.type in LOOPS | CONDITIONS
        else each.type == "Placeholder" or op_rules.may_run_again(each)
        for each in body.get_operations()
    )


def named(graph: tf.Graph, name: str) -> Any:
    """Returns the graph of the function of this name that an op of `graph` runs, or None where that
    cannot be had."""
    return getattr(getattr(graph, "_get_function", lambda name: None)(name), "graph", None)
