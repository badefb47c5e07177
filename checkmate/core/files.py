"""Graphs and plans as JSON files: versioned, fingerprinted, read with a check of every field. Never
pickle.

A graph file is `{"name", "nodes": [{"name", "op", "cost", "bytes", "backward", "workspace",
"output", ...}], "edges": [[u, v], ...], "fixed_bytes"}`; the list order is the topological order. A
plan file is `{"format": "checkmate-plan", "version": 1, "graph": FINGERPRINT, "steps": [["compute",
i] | ["free", i], ...]}` and may carry more keys for people; of those, `FACTS` have types.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import reprlib
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

from checkmate.core.graph import DFGraph, Op
from checkmate.core.plan import Compute, Free, Plan
from checkmate.errors import CheckmateError, PlanFileError

PLAN_FORMAT, PLAN_VERSION = "checkmate-plan", 1
FACTS: dict[str, str] = {
    "status": "text",
    "solver": "text",
    "bound_covers": "text",
    "bound": "number",
    "gap": "number",
    "seconds": "number",
    "budget_bytes": "bytes",
}
"""What a plan file may say of how its plan was found, and of which kind each is; any may be missing
or null."""

GZIP_MAGIC = b"\x1f\x8b"


def fingerprint(graph: DFGraph) -> str:
    """Returns what a plan depends on, as text: the ops' dependencies, sizes and permissions.

    Names, costs, workspaces and what is computed in place are left out: they are measured or made
    up anew in every process.
    """
    facts = [
        [
            list(op.deps),
            op.output_bytes,
            op.recomputable,
            list(op.control_deps),
            list(op.overwrites),
        ]
        for op in graph.ops
    ]
    text = json.dumps([facts, list(graph.outputs)], separators=(",", ":"))
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def save_graph(graph: DFGraph, path: str | os.PathLike) -> None:
    """Writes `graph` so that `load_graph` reads back an equal one. A file already there is replaced
    whole or not at all."""
    outputs = set(graph.outputs)
    nodes = []
    for i, op in enumerate(graph.ops):
        node: dict[str, Any] = {
            "name": op.name,
            "op": op.kind,
            "cost": _plain(op.cost),
            "bytes": op.output_bytes,
            "backward": op.is_backward,
        }
        node |= {"workspace": op.workspace_bytes, "output": i in outputs}
        if not op.recomputable:
            node["recomputable"] = False
        if op.control_deps:
            node["control_deps"] = list(op.control_deps)
        if op.overwrites:
            node["overwrites"] = list(op.overwrites)
        if op.in_place:
            node["in_place"] = list(op.in_place)
        nodes.append(node)
    edges = [list(edge) for edge in graph.edges]
    write_json(
        path, {"name": graph.name, "nodes": nodes, "edges": edges, "fixed_bytes": graph.fixed_bytes}
    )


def load_graph(path: str | os.PathLike) -> DFGraph:
    """Reads a graph file.

    Raises:
      PlanFileError: There is no such file, it is not JSON, or a field is missing or of the wrong
        type.
      GraphError: It describes no legal graph.
    """
    data = read_json(path)
    try:
        nodes, edges = data["nodes"], data["edges"]
        deps: list[list[int]] = [[] for _ in nodes]
        for u, v in edges:
            if not (type(u) is int and type(v) is int and 0 <= v < len(nodes)):
                raise PlanFileError(
                    f"{path}: edge [{u!r}, {v!r}] does not join two of the {len(nodes)} nodes."
                )
            deps[v].append(u)
        ops = tuple(
            Op(
                name=_text(node, "name"),
                deps=tuple(deps[i]),
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
            for i, node in enumerate(nodes)
        )
        outputs = tuple(i for i, node in enumerate(nodes) if _flag(node, "output", False))
        return DFGraph(ops, outputs, _number(data, "fixed_bytes", 0), _text(data, "name", ""))
    except CheckmateError:
        raise
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise PlanFileError(
            f"{path} is no graph file: {type(error).__name__} {error}. It needs 'nodes' with name,"
            " cost and bytes, and 'edges'."
        ) from error


def _text(fields: dict, name: str, otherwise: str | None = None) -> str:
    value = fields[name] if otherwise is None else fields.get(name, otherwise)
    if not isinstance(value, str):
        raise TypeError(f"{name} is a text; got {reprlib.repr(value)}")
    return value


def _number(fields: dict, name: str, otherwise: int | None = None) -> Any:
    """The number of that name; what numbers it may be is the graph's own business."""
    value = fields[name] if otherwise is None else fields.get(name, otherwise)
    if isinstance(value, bool):
        raise TypeError(f"{name} is a number; got {value!r}")
    return value


def _flag(fields: dict, name: str, otherwise: bool) -> bool:
    value = fields.get(name, otherwise)
    if value not in (False, True) or not isinstance(value, int):  # 0 and 1 will do
        raise TypeError(f"{name} is true or false; got {reprlib.repr(value)}")
    return bool(value)


def _indices(fields: dict, name: str) -> tuple[int, ...]:
    value = fields.get(name, [])
    if not (isinstance(value, list) and all(type(k) is int for k in value)):
        raise TypeError(f"{name} is a list of numbers of nodes; got {reprlib.repr(value)}")
    return tuple(value)


def save_plan(plan: Plan, path: str | os.PathLike, *, graph: DFGraph, **facts: Any) -> None:
    """Writes a plan and the fingerprint of its graph. `facts` are JSON values for people (cost,
    budget, ...)."""
    steps = [["compute" if isinstance(step, Compute) else "free", step.op] for step in plan.steps]
    write_json(
        path,
        {
            "format": PLAN_FORMAT,
            "version": PLAN_VERSION,
            "graph": fingerprint(graph),
            "name": graph.name,
            **facts,
            "steps": steps,
        },
    )


def load_plan(path: str | os.PathLike, *, graph: DFGraph) -> Plan:
    """Reads a plan file for `graph` and has the judge accept it.

    Raises:
      PlanFileError: No such file, not JSON, another format or version, made for another graph, or
        with one of `FACTS` of another type.
      PlanError: Its steps are not legal for the graph.
    """
    from checkmate.core.replay import replay

    data = read_json(path)
    if data.get("format") != PLAN_FORMAT or data.get("version") != PLAN_VERSION:
        found = f"format {data.get('format')!r} version {data.get('version')!r}"
        raise PlanFileError(
            f"{path} has {found}; this library reads {PLAN_FORMAT!r} version {PLAN_VERSION}. Make"
            " the plan again."
        )
    if data.get("graph") != fingerprint(graph):
        made_for = (
            f"{data.get('name') or 'a graph'} with fingerprint {str(data.get('graph'))[:23]}..."
        )
        raise PlanFileError(
            f"{path} was made for {made_for}, but this is {graph.name or 'a graph'} with"
            f" {len(graph)} ops and fingerprint {fingerprint(graph)[:23]}.... The model, its shapes"
            " or the library versions differ. Make the plan again."
        )
    _check_facts(path, data)
    verbs: dict[str, type[Compute] | type[Free]] = {"compute": Compute, "free": Free}
    written = data.get("steps") or []
    steps: list[Compute | Free] = []
    if not isinstance(written, list):
        raise PlanFileError(
            f"{path}: its steps are a JSON {type(written).__name__}; a list was expected."
        )
    for k, step in enumerate(written):
        if not (
            isinstance(step, list)
            and len(step) == 2
            and isinstance(step[0], str)
            and step[0] in verbs
            and type(step[1]) is int
        ):
            raise PlanFileError(
                f"{path}: step {k} is {step!r}; it must be ['compute', i] or ['free', i]."
            )
        steps.append(verbs[step[0]](step[1]))
    plan = Plan(tuple(steps))
    replay(graph, plan)
    return plan


def _check_facts(path: str | os.PathLike, data: dict[str, Any]) -> None:
    """Raises `PlanFileError` for one of `FACTS` that cannot be shown, drawn or written as JSON."""
    for key, kind in FACTS.items():
        value = data.get(key)
        if value is None:
            continue
        if kind == "text":
            fits, expected = isinstance(value, str), "text"
        elif kind == "bytes":
            fits, expected = (
                type(value) is int and 0 <= value < 2**63,
                "a whole number of bytes below 2^63",
            )
        else:  # also refuses nan and infinity
            fits, expected = (
                type(value) in (int, float) and 0 <= value <= sys.float_info.max,
                "a finite number, 0 or more,",
            )
        if not fits:
            raise PlanFileError(
                f"{path}: its {key} is {reprlib.repr(value)}; {expected} was expected. Make the"
                " plan again."
            )


def read_json(path: str | os.PathLike) -> dict[str, Any]:
    """Reads a file that holds one JSON object, gzipped or not; `PlanFileError` says what else it
    found."""
    try:
        content = Path(path).read_bytes()
        data = json.loads(gzip.decompress(content) if content.startswith(GZIP_MAGIC) else content)
    except (OSError, EOFError, zlib.error) as error:
        raise PlanFileError(
            f"Cannot read {path}: {getattr(error, 'strerror', None) or error}."
        ) from error
    except (
        ValueError,
        RecursionError,
    ) as error:  # no JSON, no UTF-8, or a number of thousands of digits
        raise PlanFileError(
            f"{path} is not JSON: {error}. It may be cut short or of another kind."
        ) from error
    if not isinstance(data, dict):
        raise PlanFileError(f"{path} holds a JSON {type(data).__name__}; an object was expected.")
    return data


def write_json(path: str | os.PathLike, data: dict[str, Any]) -> None:
    """Writes beside the target and renames, so that a file is never half written; `PlanFileError`
    says why it cannot be."""
    path = Path(path)
    try:
        handle, temporary = tempfile.mkstemp(
            dir=path.parent, prefix=f".{path.name}.", suffix=".tmp"
        )
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(data, file, separators=(",", ":"))
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise PlanFileError(f"Cannot write {path}: {error.strerror or error}.") from error


def _plain(number: Any) -> int | float:
    """A NumPy number as Python's, so that JSON can hold it."""
    return number.item() if hasattr(number, "item") else number
