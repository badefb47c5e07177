"""Dataflow graphs as JSON files: `DFGraph.save` and `DFGraph.load` are built on this.

A graph file is `{"name", "nodes": [{"name", "op", "cost", "bytes", "backward", "workspace",
"output", ...}], "edges": [[u, v], ...], "fixed_bytes"}`. The order of the nodes is the topological
order. The type of every field is checked.
"""

from __future__ import annotations

import os
import reprlib
from collections.abc import Sequence
from typing import Any

from checkmate.core.json_files import read_json, write_json
from checkmate.core.op import Op
from checkmate.errors import CheckmateError, PlanFileError


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
        nodes.append(node)
    edges = [[d, i] for i, op in enumerate(ops) for d in op.deps]
    write_json(path, {"name": name, "nodes": nodes, "edges": edges, "fixed_bytes": fixed_bytes})


def read_graph(path: str | os.PathLike) -> tuple[tuple[Op, ...], tuple[int, ...], int, str]:
    """Returns ops, outputs, fixed bytes and name, the fields of `DFGraph` in their order.

    Raises:
      PlanFileError: There is no such file, it is not JSON, or a field is missing or of the wrong
        type.
      GraphError: A field of an op has an illegal value.
    """
    data = read_json(path)
    try:
        nodes, edges = data["nodes"], data["edges"]
        deps: list[list[int]] = [[] for _ in nodes]
        for u, v in edges:
            if not (type(u) is int and type(v) is int and 0 <= v < len(nodes)):
                raise PlanFileError(
                    f"{path}: edge {reprlib.repr([u, v])} does not join two of the"
                    f" {len(nodes)} nodes."
                )
            deps[v].append(u)
        ops = tuple(_op(node, deps[i]) for i, node in enumerate(nodes))
        outputs = tuple(i for i, node in enumerate(nodes) if _flag(node, "output", False))
        return ops, outputs, _number(data, "fixed_bytes", 0), _text(data, "name", "")
    except CheckmateError:
        raise
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise PlanFileError(
            f"{path} is no graph file: {type(error).__name__} {error}. A graph file has 'nodes'"
            " with name, cost and bytes, and 'edges'."
        ) from error


def _op(node: dict[str, Any], deps: Sequence[int]) -> Op:
    return Op(
        name=_text(node, "name"),
        deps=tuple(deps),
        cost=_number(node, "cost"),
        output_bytes=_number(node, "bytes"),
        workspace_bytes=_number(node, "workspace", 0),
        is_backward=_flag(node, "backward", False),
        recomputable=_flag(node, "recomputable", True),
        control_deps=_indices(node, "control_deps"),
        overwrites=_indices(node, "overwrites"),
        kind=_text(node, "op", ""),
        in_place=_indices(node, "in_place"),
    )


def _text(fields: dict[str, Any], name: str, default: str | None = None) -> str:
    value = fields[name] if default is None else fields.get(name, default)
    if not isinstance(value, str):
        raise TypeError(f"{name} is a text; got {reprlib.repr(value)}")
    return value


def _number(fields: dict[str, Any], name: str, default: int | None = None) -> Any:
    """A field that is a number; `Op` and `DFGraph` check its value."""
    value = fields[name] if default is None else fields.get(name, default)
    if isinstance(value, bool):
        raise TypeError(f"{name} is a number; got {value!r}")
    return value


def _flag(fields: dict[str, Any], name: str, default: bool) -> bool:
    value = fields.get(name, default)
    if value not in (False, True) or not isinstance(value, int):  # 0 and 1 are allowed
        raise TypeError(f"{name} is true or false; got {reprlib.repr(value)}")
    return bool(value)


def _indices(fields: dict[str, Any], name: str) -> tuple[int, ...]:
    value = fields.get(name, [])
    if not (isinstance(value, list) and all(type(k) is int for k in value)):
        raise TypeError(f"{name} is a list of numbers of nodes; got {reprlib.repr(value)}")
    return tuple(value)
