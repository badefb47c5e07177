"""Plans as JSON files, with a version and the fingerprint of their graph.

A plan file is `{"format": "checkmate-plan", "version": 1, "graph": FINGERPRINT, "steps":
[["compute", i] | ["free", i], ...]}` and may carry more keys for people; `FACTS` gives the types of
those that commands show.
"""

from __future__ import annotations

import hashlib
import json
import os
import reprlib
import sys
from collections.abc import Callable
from typing import Any

from checkmate.core.graph import DFGraph
from checkmate.core.json_files import read_json, write_json
from checkmate.core.plan import Compute, Free, Plan, Step
from checkmate.core.replay import replay
from checkmate.errors import PlanFileError

PLAN_FORMAT, PLAN_VERSION = "checkmate-plan", 1

_Check = tuple[str, Callable[[Any], bool]]
_TEXT: _Check = ("text", lambda value: isinstance(value, str))
_BYTES: _Check = (
    "a whole number of bytes below 2^63",
    lambda value: type(value) is int and 0 <= value < 2**63,
)
_NUMBER: _Check = (  # refuses nan and infinity
    "a finite number, 0 or more,",
    lambda value: type(value) in (int, float) and 0 <= value <= sys.float_info.max,
)

FACTS: dict[str, _Check] = {
    "status": _TEXT,
    "solver": _TEXT,
    "bound_covers": _TEXT,
    "bound": _NUMBER,
    "gap": _NUMBER,
    "seconds": _NUMBER,
    "budget_bytes": _BYTES,
}
"""Optional keys of a plan file about the search, each with the values that are allowed."""


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
    head = {"format": PLAN_FORMAT, "version": PLAN_VERSION, "graph": fingerprint(graph)}
    write_json(path, {**head, "name": graph.name, **facts, "steps": steps})


def read_plan(path: str | os.PathLike) -> dict[str, Any]:
    """Returns the contents of a plan file.

    Args:
      path: The file.

    Raises:
      PlanFileError: There is no such file, it is not JSON, or it has another format or version.

    Examples:
      >>> save_plan(result.plan, "chain.plan.json", graph=graph, cost=result.cost)
      >>> read_plan("chain.plan.json")["cost"] == result.cost
      True
    """
    data = read_json(path)
    if data.get("format") != PLAN_FORMAT or data.get("version") != PLAN_VERSION:
        found, version = (reprlib.repr(data.get(key)) for key in ("format", "version"))
        raise PlanFileError(
            f"{path} has format {found} version {version}; this library reads {PLAN_FORMAT!r}"
            f" version {PLAN_VERSION}. Make it again: by `checkmate solve GRAPH -o`, `checkmate"
            " plan MODEL -o`, or `save` of the step that runs it."
        )
    return data


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
    if data.get("graph") != fingerprint(graph):
        raise PlanFileError(
            f"{path} was made for {data.get('name') or 'a graph'} with fingerprint"
            f" {str(data.get('graph'))[:23]}..., but this is {graph.name or 'a graph'} with"
            f" {len(graph)} ops and fingerprint {fingerprint(graph)[:23]}.... The model, its shapes"
            " or the library versions differ. Make the plan again."
        )
    for key, (expected, allowed) in FACTS.items():
        value = data.get(key)
        if value is not None and not allowed(value):
            raise PlanFileError(
                f"{path}: its {key} is {reprlib.repr(value)}; {expected} was expected. Make the"
                " plan again."
            )
    plan = Plan(_steps(path, data.get("steps")))
    replay(graph, plan)
    return plan


def _steps(path: str | os.PathLike, written: Any) -> tuple[Step, ...]:
    verbs: dict[str, type[Compute] | type[Free]] = {"compute": Compute, "free": Free}
    steps: list[Step] = []
    if not isinstance(written, list):
        raise PlanFileError(
            f"{path}: its steps are a JSON {type(written).__name__}; a list was expected."
        )
    for k, step in enumerate(written):
        match step:
            case [str(verb), int(i)] if verb in verbs and type(i) is int:
                steps.append(verbs[verb](i))
            case _:
                raise PlanFileError(
                    f"{path}: step {k} is {reprlib.repr(step)}; it must be ['compute', i] or"
                    " ['free', i]."
                )
    return tuple(steps)
