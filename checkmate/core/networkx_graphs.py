"""Dataflow graphs as `networkx.DiGraph`s: `DFGraph.from_networkx` and `DFGraph.to_networkx` are
built on this. networkx is imported on the first call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from checkmate.core.op import Op
from checkmate.errors import GraphError


def read_digraph(digraph: Any) -> tuple[tuple[Op, ...], tuple[int, ...]]:
    """Returns ops in topological order and outputs of a `networkx.DiGraph`. Raises `GraphError` on
    a cycle, or on an attribute that is no field of `Op`."""
    import networkx as nx

    position = {node: k for k, node in enumerate(digraph)}
    try:
        order = list(nx.lexicographical_topological_sort(digraph, key=position.__getitem__))
    except nx.NetworkXUnfeasible as error:
        cycle = [str(edge[0]) for edge in nx.find_cycle(digraph)]
        raise GraphError(
            f"The graph has a cycle through {cycle}; a training step has none."
        ) from error
    number = {node: i for i, node in enumerate(order)}
    ops = tuple(_op(digraph, node, number) for node in order)
    return ops, tuple(number[node] for node in order if digraph.nodes[node].get("output"))


def _op(digraph: Any, node: Any, number: dict[Any, int]) -> Op:
    attributes = {key: value for key, value in digraph.nodes[node].items() if key != "output"}
    before: dict[bool, list[int]] = {True: [], False: []}
    for producer, _, data in digraph.in_edges(node, data=True):
        before[bool(data.get("control"))].append(number[producer])
    for key in ("overwrites", "in_place"):
        attributes[key] = tuple(sorted(number[other] for other in attributes.get(key, ())))
    deps, control_deps = tuple(sorted(before[False])), tuple(sorted(before[True]))
    try:
        return Op(str(node), deps, control_deps=control_deps, **attributes)
    except TypeError as error:
        raise GraphError(f"Node {node!r} has an attribute that no Op has: {error}.") from error


def make_digraph(ops: Sequence[Op], outputs: Sequence[int], **attributes: Any) -> Any:
    """Returns a `networkx.DiGraph` with a node per op, from which `read_digraph` returns the same
    ops and outputs; `attributes` are the graph's own."""
    import networkx as nx

    digraph = nx.DiGraph(**attributes)
    for i, op in enumerate(ops):
        digraph.add_node(
            op.name,
            cost=op.cost,
            output_bytes=op.output_bytes,
            workspace_bytes=op.workspace_bytes,
            is_backward=op.is_backward,
            recomputable=op.recomputable,
            overwrites=tuple(ops[d].name for d in op.overwrites),
            kind=op.kind,
            in_place=tuple(ops[d].name for d in op.in_place),
            output=i in outputs,
        )
        digraph.add_edges_from((ops[d].name, op.name, {"control": True}) for d in op.control_deps)
        digraph.add_edges_from((ops[d].name, op.name) for d in op.deps)
    return digraph
