"""From the written ops of a plan to the nodes that the allocator serves, one after another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from checkmate.core.events import Log, Program
from checkmate.core.footprint import Kind, Node
from checkmate.core.graph import DFGraph
from checkmate.tf2.execution.plan_writer import SCOPE
from checkmate.tf2.execution.replay import Written
from checkmate.tf2.graph import in_place
from checkmate.tf2.graph.operations import can_be_copied, is_constant, may_share_memory
from checkmate.tf2.graph.trace import TracedStep
from checkmate.tf2.memory.profiler import Observation
from checkmate.tf2.op_rule import Pooling, Role
from checkmate.tf2.ops import rule_of

_KINDS = {Role.ALIAS: Kind.VIEW, Role.VIEW: Kind.VIEW, Role.SOURCE: Kind.RESIDENT}


class Programs:
    """Makes the programs of a step's plans. The facts about an op are found once for all plans.

    Args:
      graph: The step's graph with costs, for the workspaces of ops that were not seen to run yet.
    """

    def __init__(self, traced: TracedStep, graph: DFGraph):
        self._workspaces, self._in_place = _workspaces(traced, graph), _seen_in_place(traced, graph)
        self._facts: dict[tf.Operation, Node] = {}
        self._estimates = traced.estimates

    def of(self, written: Written) -> Program:
        """Returns the nodes of a plan's step in the order in which they run, which is that in which
        they are written."""
        definitions, like = written.writer.nodes, written.writer.like
        nodes = [self._node(definition, like.get(definition.name)) for definition in definitions]
        _hand_on_workspaces(nodes, [definition.op for definition in definitions])
        return Program(tuple(nodes), tuple(_tensor(name) for name in written.outputs))

    def _node(self, definition: Any, like: Any) -> Node:
        if not isinstance(like, tf.Operation):
            return node_of(definition, like)
        if like not in self._facts:
            node = node_of(definition, like)
            sizes = self._estimates.get(like.name) if node.kind is Kind.KERNEL else None
            self._facts[like] = replace(
                node,
                output_bytes=sizes or node.output_bytes,
                workspace_bytes=self._workspaces.get(like.name, 0),
                in_place=node.in_place or like.name in self._in_place,
            )
        return replace(self._facts[like], name=definition.name, reads=_reads(definition))


def node_of(definition: Any, like: tf.Operation | Iterable[tf.Tensor] | None) -> Node:
    """Returns the node of an op that is written, without what was measured of it.

    Args:
      like: The op that it is a copy of, or tensors that its outputs are like, if known.
    """
    if not isinstance(like, tf.Operation):
        return _made(definition, like or ())
    shares = any(map(may_share_memory, like.outputs))
    return replace(_made(definition, like.outputs), key=like.name, shares=shares)


def _hand_on_workspaces(nodes: list[Node], types: Sequence[str]) -> None:
    """Has the workspace of a pooling live until its gradient has run, which reads it in oneDNN and
    needs none of its own."""
    pools = {
        node.name: k for k, node in enumerate(nodes) if rule_of(types[k]).pooling is Pooling.FORWARD
    }
    for k, node in enumerate(nodes):
        is_gradient = rule_of(types[k]).pooling is Pooling.GRADIENT
        before = pools.get(node.reads[1][0]) if is_gradient else None
        if before is not None and (
            nodes[before].workspace_bytes or len(nodes[before].output_bytes) > 1
        ):
            pool = nodes[before]
            if pool.workspace_bytes:
                nodes[before] = replace(
                    pool, output_bytes=(*pool.output_bytes, pool.workspace_bytes), workspace_bytes=0
                )
            nodes[k] = replace(node, reads=(*node.reads, (pool.name, 1)), workspace_bytes=0)


def constants_of(written: Written) -> tuple[int, ...]:
    """Returns the bytes of each constant of a plan's function, which TensorFlow allocates once."""
    like = (written.writer.like.get(node.name) for node in written.writer.nodes)
    constants = (each for each in like if isinstance(each, tf.Operation) and is_constant(each))
    return tuple(size for each in constants if (size := exact_bytes(each.outputs[0])))


def log_of(seen: Observation) -> Log:
    """Returns what ops asked for and gave back, for `core.events.requests_by_node`."""
    return [
        (
            event.op.removeprefix(f"{SCOPE}/") if event.is_request else None,
            event.address,
            event.requested_bytes,
            event.region_type == "output",
        )
        for event in seen.events
    ]


def _made(definition: Any, outputs: Iterable[tf.Tensor]) -> Node:
    """A node whose outputs are like some tensors."""
    kind = _KINDS.get(rule_of(definition.op).role, Kind.KERNEL)
    sizes = tuple(exact_bytes(tensor) for tensor in outputs) or ((0,) if kind is Kind.VIEW else ())
    return Node(
        definition.name,
        definition.name,
        kind,
        _reads(definition),
        sizes,
        in_place=rule_of(definition.op).in_place is not None,
    )


def _reads(definition: Any) -> tuple[tuple[str, int], ...]:
    return tuple(_tensor(name) for name in definition.input if name[0] != "^")


def _tensor(name: str) -> tuple[str, int]:
    operation, _, output = name.partition(":")
    return operation, int(output or 0)


def exact_bytes(tensor: tf.Tensor) -> int:
    """Returns the bytes that an op requests for a tensor; 0 where its shape is not known."""
    count = tensor.shape.num_elements()
    return count * tensor.dtype.size if count and can_be_copied(tensor.dtype) else 0


def _workspaces(traced: TracedStep, graph: DFGraph) -> dict[str, int]:
    """What the ops of a group were measured to take beyond their outputs, by the name of the op
    that is expected to."""
    found = {}
    for op, group, values, taken in zip(
        graph.ops, traced.groups, traced.values, traced.taken, strict=True
    ):
        more = op.workspace_bytes - in_place.workspace(group, values, taken)
        heavy = [operation for operation in group if rule_of(operation.type).scratch]
        if more > 0 and heavy:
            found[heavy[0].name] = more
    return found


def _seen_in_place(traced: TracedStep, graph: DFGraph) -> set[str]:
    """The names of the ops that were seen to run in place."""
    return {
        values[0].name
        for op, values in zip(graph.ops, traced.values, strict=True)
        if op.in_place and len(values) == 1
    }
