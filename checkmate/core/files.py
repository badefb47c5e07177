"""Plans as JSON files, with a version and the fingerprint of their graph.

A plan file is `{"format": "checkmate-plan", "version": 1, "graph": FINGERPRINT, "steps":
[["compute", i] | ["free", i], ...]}` and may have more fields, those in `FACTS` and any others.
`schemas/plan.schema.json` and docs/formats.md have them all.
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any

from checkmate.core.fields import (
    BYTES,
    FLAG,
    LIST,
    NUMBER,
    OBJECT,
    PLAN_FORMAT,
    TEXT,
    VERSION,
    Kind,
    field,
    one_of,
    read_format,
    refusal,
    shown,
)
from checkmate.core.graph import DFGraph
from checkmate.core.json_files import write_json
from checkmate.core.plan import Compute, Free, Plan, Step
from checkmate.core.replay import replay
from checkmate.errors import PlanFileError

STATUSES = ("OPTIMAL", "FEASIBLE", "INTERRUPTED")
"""Names of `SolveStatus` for a search that ended with a plan."""

FACTS: dict[str, Kind] = {
    "name": TEXT,
    "graph_file": TEXT,
    "status": one_of(*STATUSES),
    "solver": TEXT,
    "rules": TEXT,
    "bound_covers": one_of("given order", "any order"),
    **dict.fromkeys(("cost", "overhead", "bound", "gap", "seconds"), NUMBER),
    **dict.fromkeys(("budget_bytes", "peak_bytes", "floor_bytes"), BYTES),
    # Of a training step:
    "unchanged": FLAG,
    **dict.fromkeys(("plain_bytes", "rise_bytes"), BYTES),
    "costs": LIST,
    **dict.fromkeys(("made_for", "rewrites"), OBJECT),
}
"""Optional fields of a plan file; null is as good as none."""


def fingerprint(graph: DFGraph) -> str:
    """Returns a text of all that a plan depends on: the ops' dependencies, sizes and permissions.

    Names, costs, workspaces and what may be computed in place are left out: each process measures
    or derives them anew.

    Args:
      graph: The graph.

    Examples:
      >>> fingerprint(DFGraph((checkmate.Op("a"),)))[:15]
      'sha256:f2c3c430'
    """
    facts = [
        [op.deps, op.output_bytes, op.recomputable, op.control_deps, op.overwrites]
        for op in graph.ops
    ]
    text = json.dumps([facts, list(graph.outputs)], separators=(",", ":"))
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def save_plan(plan: Plan, path: str | os.PathLike, *, graph: DFGraph, **facts: Any) -> None:
    """Writes a plan and the fingerprint of its graph.

    Args:
      plan: The plan.
      path: The file; an existing one is replaced whole or not at all.
      graph: The graph that the plan is for.
      facts: JSON values for people (cost, budget, ...).

    Raises:
      PlanFileError: The file cannot be written.

    Examples:
      >>> save_plan(result.plan, "chain.plan.json", graph=graph, cost=result.cost)
    """
    steps = [["compute" if isinstance(step, Compute) else "free", step.op] for step in plan.steps]
    head = {"format": PLAN_FORMAT, "version": VERSION, "graph": fingerprint(graph)}
    write_json(path, {**head, "name": graph.name, **facts, "steps": steps})


def read_plan(path: str | os.PathLike) -> dict[str, Any]:
    """Returns the contents of a plan file, without fields that are null.

    Args:
      path: The file.

    Raises:
      PlanFileError: There is no such file, it is not JSON, it has another format or version, or one
        of `FACTS` has a value that is not allowed.

    Examples:
      >>> save_plan(result.plan, "chain.plan.json", graph=graph, cost=result.cost)
      >>> read_plan("chain.plan.json")["cost"] == result.cost
      True
    """
    data = read_format(path, PLAN_FORMAT)
    found = {key: value for key, value in data.items() if value is not None}
    for key, kind in FACTS.items():
        field(found, key, kind, path, None)
    return found


def load_plan(path: str | os.PathLike, *, graph: DFGraph) -> Plan:
    """Reads a plan file and replays the plan.

    Args:
      path: The file.
      graph: The graph that the plan is for.

    Raises:
      PlanFileError: There is no such file, it is not JSON, it has another format or version, it was
        made for another graph, or one of `FACTS` has a value that is not allowed.
      PlanError: The steps are not legal for the graph.

    Examples:
      >>> save_plan(result.plan, "chain.plan.json", graph=graph)
      >>> load_plan("chain.plan.json", graph=graph) == result.plan
      True
    """
    data = read_plan(path)
    if (found := field(data, "graph", TEXT, path)) != fingerprint(graph):
        raise PlanFileError(
            f"{path} was made for {data.get('name') or 'a graph'} with fingerprint"
            f" {found[:23]}..., but this is {graph.name or 'a graph'} with"
            f" {len(graph)} ops and fingerprint {fingerprint(graph)[:23]}.... The model, its shapes"
            " or the library versions differ. Make the plan again."
        )
    plan = Plan(_steps(path, field(data, "steps", LIST, path)))
    replay(graph, plan)
    return plan


def _steps(path: str | os.PathLike, written: list[Any]) -> tuple[Step, ...]:
    verbs: dict[str, type[Compute] | type[Free]] = {"compute": Compute, "free": Free}
    steps: list[Step] = []
    for k, step in enumerate(written):
        match step:
            case [str(verb), int(i)] if verb in verbs and type(i) is int and i >= 0:
                steps.append(verbs[verb](i))
            case _:
                expected = '["compute", i] or ["free", i], with the number i of an op,'
                raise refusal(path, f"step {k} is {shown(step)}", expected)
    return tuple(steps)
