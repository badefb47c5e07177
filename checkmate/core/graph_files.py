"""Dataflow graphs as JSON files: `DFGraph.save` and `DFGraph.load` are built on this.

A graph file is `{"format": "checkmate-graph", "version": 1, "name", "nodes": [{"name", "op",
"cost", "bytes", "backward", "workspace", "output", ...}], "edges": [[u, v], ...], "fixed_bytes"}`.
The order of the nodes is the topological order. Nodes are named by their number or their name. The
type of every field is checked; `schemas/graph.schema.json` and docs/formats.md have them all.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from checkmate.core.fields import (
    BYTES,
    FLAG,
    GRAPH_FORMAT,
    LIST,
    NUMBER,
    OBJECT,
    TEXT,
    TEXTS,
    VERSION,
    field,
    read_format,
    refusal,
    shown,
)
from checkmate.core.json_files import write_json
from checkmate.core.op import Op


def write_graph(
    path: str | os.PathLike, ops: Sequence[Op], outputs: Sequence[int], fixed_bytes: int, name: str
) -> None:
    """Writes a graph so that `read_graph` returns the same four values."""
    nodes = []
    for i, op in enumerate(ops):
        node: dict[str, Any] = {
            "name": op.name,
            "op": op.kind,
            "cost": op.cost.item() if hasattr(op.cost, "item") else op.cost,  # NumPy's numbers
            "bytes": op.output_bytes,
            "backward": op.is_backward,
            "workspace": op.workspace_bytes,
            "output": i in outputs,
        }
        if not op.recomputable:
            node["recomputable"] = False
        for key in ("control_deps", "overwrites", "in_place"):
            if indices := getattr(op, key):
                node[key] = list(indices)
        if op.fused:
            node["fused"] = list(op.fused)
        nodes.append(node)
    edges = [[d, i] for i, op in enumerate(ops) for d in op.deps]
    head = {"format": GRAPH_FORMAT, "version": VERSION, "name": name}
    write_json(path, {**head, "nodes": nodes, "edges": edges, "fixed_bytes": fixed_bytes})


def read_graph(path: str | os.PathLike) -> tuple[tuple[Op, ...], tuple[int, ...], int, str]:
    """Returns ops, outputs, fixed bytes and name, the fields of `DFGraph` in their order.

    Raises:
      PlanFileError: There is no such file, it is not JSON, or a field is missing or has a value
        that is not allowed.
      GraphError: An op is not consistent in itself.
    """
    data = read_format(path, GRAPH_FORMAT)
    nodes = _Nodes(path, field(data, "nodes", LIST, path))
    deps: list[list[int]] = [[] for _ in nodes.fields]
    for k, edge in enumerate(field(data, "edges", LIST, path)):
        if not LIST.allows(edge) or len(edge) != 2:
            raise refusal(path, f"edge {k} is {shown(edge)}", f"a pair of {nodes.expected}")
        u, v = nodes.numbers(edge, path, f"edge {k}")
        deps[v].append(u)
    ops = tuple(nodes.op(i, before) for i, before in enumerate(deps))
    outputs = tuple(
        i
        for i, node in enumerate(nodes.fields)
        if field(node, "output", FLAG, nodes.where(i), False)
    )
    return (
        ops,
        outputs,
        int(field(data, "fixed_bytes", BYTES, path, 0)),
        field(data, "name", TEXT, path, ""),
    )


class _Nodes:
    """The nodes of a file, which other fields name by their number or their name."""

    def __init__(self, path: str | os.PathLike, nodes: list[Any]):
        self.path, self.fields = path, nodes
        self.expected = f"nodes, each as its number from 0 to {len(nodes) - 1} or its name,"
        self._number: dict[str, int] = {}
        for i, node in enumerate(nodes):
            if not OBJECT.allows(node):
                raise refusal(
                    path, f"node {i} is {shown(node)}", "an object with name, cost, bytes"
                )
            self._number[field(node, "name", TEXT, f"{path}: node {i}")] = i

    def numbers(self, named: list[Any], where: object, what: str) -> tuple[int, ...]:
        found = [self._number.get(each, -1) if TEXT.allows(each) else each for each in named]
        for each, i in zip(named, found, strict=True):
            if type(i) is not int or not 0 <= i < len(self.fields):
                raise refusal(
                    where,
                    f"{what} is {shown(named)}, and {shown(each)} is no node",
                    f"a list of {self.expected}",
                )
        return tuple(found)

    def where(self, i: int) -> str:
        return f"{self.path}: node {i} {self.fields[i]['name']!r}"

    def op(self, i: int, deps: Sequence[int]) -> Op:
        node, where = self.fields[i], self.where(i)
        others = {
            key: self.numbers(field(node, key, LIST, where, []), where, key)
            for key in ("control_deps", "overwrites", "in_place")
        }
        return Op(
            name=node["name"],
            deps=tuple(deps),
            cost=field(node, "cost", NUMBER, where),
            output_bytes=field(node, "bytes", BYTES, where),
            workspace_bytes=field(node, "workspace", BYTES, where, 0),
            is_backward=bool(field(node, "backward", FLAG, where, False)),
            recomputable=bool(field(node, "recomputable", FLAG, where, True)),
            kind=field(node, "op", TEXT, where, ""),
            fused=tuple(field(node, "fused", TEXTS, where, [])),
            **others,
        )
