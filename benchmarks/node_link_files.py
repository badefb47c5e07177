"""Graphs as MOCCASIN publishes them (Bartan et al., ICML 2023): JSON in networkx' node-link format.

There are two kinds of files. Random layered graphs name a node by `name`, its cost `duration`, its
size `out_cost`, and the ends of a link `"0"` and `"1"`; `graph.order` is the order in which the
nodes are computed. Graphs of Keras models have `id`, `cost_cpu`, `cost_ram`, `source` and `target`,
and `backward`; the order is that of the nodes. Other attributes are not read.

The files come with MOCCASIN's program, under its licence; this package has none of them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from checkmate.core.graph import DFGraph
from checkmate.core.json_files import read_json
from checkmate.errors import PlanFileError

NODE_NAMES = (("id",), ("name",))
COSTS = (("cost_cpu",), ("duration",))
SIZES = (("cost_ram",), ("out_cost",))
LINK_ENDS = (("source", "target"), ("0", "1"))


def load_node_link(path: str | os.PathLike) -> DFGraph:
    """Reads a graph from a node-link file, which may be gzipped.

    Sizes count as bytes, whatever their unit in the file. Nodes that no other reads are outputs.

    Raises:
      PlanFileError: The file cannot be read, or holds no such graph; the message says what is
        missing or wrong.
      GraphError: A cost or a size is not a number, or negative.
    """
    import networkx as nx

    data = read_json(path)
    nodes, links = _objects(path, data, "nodes"), _objects(path, data, "links")
    (name,) = _keys(path, nodes, "node", NODE_NAMES)
    (cost,) = _keys(path, nodes, "node", COSTS)
    (size,) = _keys(path, nodes, "node", SIZES)
    source, target = _keys(path, links, "link", LINK_ENDS)
    # networkx 3.4 renamed the key of the links.
    whole = {"nodes": nodes, "links": links, "edges": links}
    try:
        graph = nx.node_link_graph(
            whole, directed=True, multigraph=False, name=name, source=source, target=target
        )
    except (TypeError, nx.NetworkXError) as error:
        raise PlanFileError(f"{path} has a node or link that networkx refuses: {error}.") from error
    _check_nodes(path, graph, len(nodes), cost)
    about = data["graph"] if isinstance(data.get("graph"), dict) else {}
    ordered = nx.DiGraph()
    for node in _order(path, graph, about.get("order")):
        facts = graph.nodes[node]
        ordered.add_node(
            node,
            cost=facts[cost],
            output_bytes=facts[size],
            is_backward=bool(facts.get("backward")),
            output=not graph.out_degree(node),
        )
    ordered.add_edges_from(graph.edges)
    return DFGraph.from_networkx(ordered, name=str(about.get("name") or Path(path).stem))


def _objects(path: str | os.PathLike, data: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """The list of JSON objects under a key of the file."""
    found = data.get(key)
    if not (isinstance(found, list) and found and all(isinstance(each, dict) for each in found)):
        raise PlanFileError(
            f"{path} is no graph in node-link format: there {key!r} is a list of objects. A graph"
            " file of this library is read by `python -m benchmarks solvers`."
        )
    return found


def _keys(
    path: str | os.PathLike,
    objects: Sequence[dict[str, Any]],
    kind: str,
    choices: Sequence[tuple[str, ...]],
) -> tuple[str, ...]:
    """The first choice of keys that all objects have."""
    for keys in choices:
        if all(key in each for each in objects for key in keys):
            return keys
    wanted = " or ".join(" and ".join(map(repr, keys)) for keys in choices)
    odd = next(
        (each for each in objects if not any(set(keys) <= set(each) for keys in choices)), {}
    )
    found = f"one has {', '.join(map(repr, odd)) or 'no keys'}" if odd in objects else "both occur"
    raise PlanFileError(f"{path}: every {kind} has {wanted}, the same for all; here {found}.")


def _check_nodes(path: str | os.PathLike, graph: Any, count: int, cost: str) -> None:
    """Every end of a link is a node, and no two nodes have one name."""
    for node, facts in graph.nodes(data=True):
        if cost not in facts:
            raise PlanFileError(f"{path}: a link ends at {node!r}, which is none of the nodes.")
    if len(graph) < count:
        raise PlanFileError(f"{path}: {count} nodes have only {len(graph)} names.")


def _order(path: str | os.PathLike, graph: Any, order: Any) -> list[Any]:
    """The order in which nodes are computed: the one given, else that of the file."""
    if order is None:
        order = list(graph)
    if (
        not isinstance(order, list)
        or len(order) != len(graph)
        or any(node not in order for node in graph)
    ):
        raise PlanFileError(f"{path}: 'order' does not name each of the {len(graph)} nodes once.")
    place = {node: k for k, node in enumerate(order)}
    for u, v in graph.edges:
        if place[u] >= place[v]:
            raise PlanFileError(
                f"{path}: node {v!r} is computed before node {u!r}, which it reads. Is there a"
                " cycle, or an order that is not topological?"
            )
    return order
