"""InOrder: loops and conditions whose bodies run one op after another.

TensorFlow runs a body's ops as soon as their inputs are there, on as many threads as it has, and
begins an iteration of a loop before the last one has ended. The memory that a body takes, and its
place, then differ from step to step. With a chain of control edges they do not. But a chain costs
time where ops are as small as those of a recurrent cell, which do not fill a device alone: so a
body of which all values together are little memory has none.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from types import SimpleNamespace
from typing import Any

import tensorflow as tf

from checkmate.tf2.graph.bodies import IN_ORDER, functions_of, named
from checkmate.tf2.graph.graph_writer import GraphCopy, GraphWriter, names_of_inputs, reachable
from checkmate.tf2.graph.grappler import optimize
from checkmate.tf2.graph.operations import (
    can_be_copied,
    has_bodies,
    is_argument,
    is_loop,
    may_run_again,
    role_of,
    source_of,
)
from checkmate.tf2.graph.sizes import exact_bytes
from checkmate.tf2.ops.rule import Fusion, Role, Shares
from checkmate.tf2.ops.table import rule_of

AT_ONCE = 2
"""How many iterations of a loop may run at once, where their values together are little memory."""


class InOrder(GraphWriter):
    """A GraphWriter that copies loops and conditions with bodies in order.

    Args:
      graph: That of the function whose ops are copied, which has the functions that they run.
      little_bytes: Bodies that take no more than this, as often as they run at once, run their ops
        as soon as inputs are there.
    """

    def __init__(self, graph: tf.Graph, little_bytes: int = 0):
        super().__init__()
        self._graph, self._little_bytes = graph, little_bytes
        self._bodies: dict[str, Any] = {}

    def definition(self, operation: tf.Operation) -> Any:
        """An op's definition; a loop or condition runs bodies in order, a loop its iterations."""
        node, at_once = super().definition(operation), AT_ONCE
        for function in functions_of(operation, node):
            traced = named(self._graph, function.name)
            taken = None if traced is None else _all_values(traced)
            is_little = taken is not None and AT_ONCE * taken <= self._little_bytes
            at_once = at_once if is_little else 1
            if function.name not in self._bodies:
                self._bodies[function.name] = self._copy(traced, in_order=not is_little)
            body = self._bodies[function.name]
            function.name = body.name if body else function.name
        if "parallel_iterations" in node.attr:
            asked = node.attr["parallel_iterations"]
            asked.i = min(asked.i, at_once)
        return node

    def _copy(self, body: Any, *, in_order: bool) -> Any:
        """A function like a body, and its ops one after another with `in_order`; None if there is
        no body, or if its ops run so themselves."""
        if body is None or body.get_collection(IN_ORDER):
            return None
        writer = InOrder(body, self._little_bytes)
        concrete = SimpleNamespace(
            graph=body, inputs=body.inputs, outputs=body.outputs, captured_inputs=()
        )
        with tf.init_scope():
            body = optimize(concrete, ()).graph
        copies, last = GraphCopy(body, writer), ""
        for operation in reachable(body):
            if is_argument(operation):
                continue
            inputs = writer.apart(operation, copies.inputs(operation), [last] if last else [])
            chained = in_order and role_of(operation) is Role.KERNEL
            copy = copies.copy(
                operation, inputs, edge_from(last, operation, inputs) if chained else ()
            )
            last = copy if chained else last
        specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in body.inputs]

        def run(*inputs: tf.Tensor) -> list[tf.Tensor]:
            given = dict(zip(names_of_inputs(body).values(), inputs, strict=True))
            return writer.import_here(given, [copies.names[each.ref()] for each in body.outputs])

        with tf.init_scope():
            return tf.function(run, autograph=False).get_concrete_function(*specs)

    def apart(
        self, operation: tf.Operation, inputs: Sequence[str], last: Sequence[str]
    ) -> list[str]:
        """The names of an op's inputs; those that may be computed within one kernel with it wait
        for the ops `last`, which run in between.

        TensorFlow and oneDNN fuse two kernels without regard to the ops between them, and the fused
        kernel would wait for itself. A control edge to the op would not prevent that, nor one to an
        identity before it: if the op reads one of `last` itself, TensorFlow's optimizer removes
        both.
        """
        found = list(inputs)
        for k, tensor in enumerate(operation.inputs):
            between = last and not any(inputs[k].startswith(f"{each}:") for each in last)
            fusion = rule_of(source_of(tensor).op.type).fusion
            if between and fusion in (Fusion.PRODUCT, Fusion.READER):
                found[k] = self.wait(last, inputs[k], tensor)
        return found

    def import_here(
        self, given: dict[str, tf.Tensor], outputs: Any, *, scope: str = ""
    ) -> list[tf.Tensor]:
        """As in `GraphWriter`; the graph also keeps the bodies alive."""
        tf.compat.v1.get_default_graph().add_to_collection(IN_ORDER, self._bodies)
        return super().import_here(given, outputs, scope=scope)


def edge_from(last: str, operation: tf.Operation, inputs: Sequence[str]) -> list[str]:
    """The control edge by which an op of a chain waits for the one before; none if it reads that
    one's value.

    A control edge parallel to a data edge would keep kernels from being fused. A loop gets it all
    the same: it begins as soon as one of its inputs is there.
    """
    reads = any(name.startswith(f"{last}:") for name in inputs)
    return [last] if last and (is_loop(operation) or not reads) else []


def _all_values(body: Any) -> int | None:
    """The bytes of all that a body makes; None unless they are known and it only computes."""
    operations = [each for each in body.get_operations() if not is_argument(each)]
    if any(has_bodies(each) or not may_run_again(each) for each in operations):
        return None
    # What the next turn reads, or every turn, is not written over.
    held = {source_of(tensor).ref() for tensor in body.outputs}
    made = [
        tensor
        for each in operations
        if role_of(each) is Role.KERNEL
        for tensor in each.outputs
        if can_be_copied(tensor.dtype) and not _has_memory(each, tensor, held)
    ]
    known = all(tensor.shape.is_fully_defined() for tensor in made)
    return sum(map(exact_bytes, made)) if known else None


def _has_memory(operation: tf.Operation, made: tf.Tensor, held: Set[Any]) -> bool:
    """Whether what an op makes lies in memory that is there: an entry of a list, or a value of the
    same size that no other op reads, and that is not `held`."""
    rule = rule_of(operation.type)
    if rule.list_op is not None and rule.shares is Shares.PART:
        return True
    if rule.in_place is None:
        return False
    return any(
        len(tensor.consumers()) == 1
        and source_of(tensor).ref() not in held
        and exact_bytes(tensor) == exact_bytes(made)
        for tensor in (operation.inputs if rule.is_elementwise else operation.inputs[:1])
    )
