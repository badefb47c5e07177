"""Plans that last: a planned step as a JSON file, and a folder of them, so that the next run of a
script does not plan again.

A file holds the plan, the costs it was made with, what was measured, and what it was made for. Read
back, it must be for the same graph, the same shapes and the same kind of device, and the judge must
accept its steps; else it is refused and never run.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tensorflow as tf

from checkmate.core.files import fingerprint, load_plan, read_json, save_plan
from checkmate.core.graph import DFGraph
from checkmate.core.plan import Plan
from checkmate.core.replay import replay
from checkmate.errors import GraphError, PlanError, PlanFileError
from checkmate.solvers.result import SolveResult, SolveStats, SolveStatus
from checkmate.tf2 import device as devices
from checkmate.tf2.graph.trace import TracedStep
from checkmate.tf2.memory.plain_step import PlainStep
from checkmate.units import format_bytes
from checkmate.version import __version__

log = logging.getLogger("checkmate")


@dataclass(frozen=True, slots=True)
class KeptPlan:
    """What a file tells of a planned step.

    Attributes:
      graph: The step's graph with the costs that the plan was made with.
      plan: The plan, or None where the step runs as it is.
      budget_bytes: What it was made for.
      measured_peak_bytes: What its run took by the allocator's count then, or None.
      as_here: It was made on the same device, with the same TensorFlow.
      plain_peak_bytes: The plain step's predicted peak.
      named: The file was asked for by its name, and not found in a folder.
      plain: What the plain step was measured to take then, on a device like this.
      step_seconds: What a planned step was measured to take there, or None.
    """

    path: Path
    graph: DFGraph
    plan: Plan | None
    budget_bytes: int
    measured_peak_bytes: int | None
    as_here: bool
    plain_peak_bytes: int
    named: bool = True
    plain: PlainStep = field(default_factory=PlainStep)
    step_seconds: float | None = None

    def result(self, budget_bytes: int) -> SolveResult:
        """The plan as a solver's answer; proven is only what needs no solver: every op runs at
        least once."""
        return SolveResult(
            SolveStatus.FEASIBLE,
            self.graph,
            budget_bytes,
            self.plan,
            replay(self.graph, self.plan),
            self.graph.total_cost,
            SolveStats("a file", 0.0, found_by=self.path.name),
        )


def save(
    path: str | os.PathLike, traced: TracedStep, graph: DFGraph, plan: Plan, *, unchanged: bool, budget_bytes: int, measured: int | None,
    **more: Any,
) -> None:  # fmt: skip
    """Writes a planned step; what lies there is replaced whole or not at all. `more` is written for
    people, and not read back."""
    made_for = _made_for(traced)
    costs = [[op.cost, op.workspace_bytes, op.in_place] for op in graph.ops]
    facts = {
        "budget_bytes": budget_bytes,
        "peak_bytes": replay(graph, plan).peak_bytes,
        "measured_peak_bytes": measured,
    }
    save_plan(
        plan,
        path,
        graph=graph,
        made_for=made_for,
        unchanged=unchanged,
        costs=costs,
        **(more | facts),
    )


def load(path: str | os.PathLike, traced: TracedStep) -> KeptPlan:
    """Reads a planned step for this one.

    Raises:
      PlanFileError: No such file, not JSON, of another version, or made for another graph, other
        shapes or another kind of device.
      PlanError: Its steps are not legal for the graph.
    """
    data, here = read_json(path), _made_for(traced)
    found = data.get("made_for")
    differing = [
        key
        for key in ("arguments", "ops", "device_kind")
        if isinstance(found, dict) and found.get(key) != here[key]
    ]
    if differing:
        listed = "; ".join(
            f"{_NAMES[key]} {found.get(key)} there and {here[key]} here" for key in differing
        )
        raise PlanFileError(
            f"{path} was made for another step than {traced.graph.name!r}: {listed}. Make the plan"
            " again."
        )
    plan = load_plan(path, graph=traced.graph)
    try:
        graph = _with_costs(traced.graph, data["costs"])
        budget, measured = data["budget_bytes"], data["measured_peak_bytes"]
        if type(budget) is not int or not (measured is None or type(measured) is int):
            raise TypeError("its sizes are not whole numbers of bytes")
        as_here = all(found[key] == here[key] for key in ("device", "tensorflow"))
        known, plain_peak = (
            None if data["unchanged"] else plan,
            replay(graph, traced.plain_plan()).peak_bytes,
        )
        plain, step_s = (
            _plain_step(data)
            if as_here
            else (PlainStep(why_not="the plan's file is from another device"), None)
        )
        return KeptPlan(
            Path(path),
            graph,
            known,
            budget,
            measured,
            as_here,
            plain_peak,
            plain=plain,
            step_seconds=step_s,
        )
    except (KeyError, TypeError, ValueError, OverflowError, GraphError) as error:
        raise PlanFileError(
            f"{path} is no file of a planned step: {type(error).__name__} {error}. Make the plan"
            " again."
        ) from error


def _plain_step(data: dict[str, Any]) -> tuple[PlainStep, float | None]:
    """What a file tells of the plain step as it was measured, and the time of the planned one, if
    it does."""
    peak, *seconds = (
        data.get(key) for key in ("plain_measured_bytes", "plain_seconds", "step_seconds")
    )
    if not (peak is None or type(peak) is int) or not all(
        each is None or (type(each) is float and each > 0) for each in seconds
    ):
        raise TypeError("what the plain step took is not a number of bytes and seconds")
    return PlainStep(peak, seconds[0], "" if peak else "the plan's file does not tell"), seconds[1]


def find(
    kept: str | os.PathLike,
    traced: TracedStep,
    asked: Sequence[Any],
    accept: Callable[[KeptPlan], None],
) -> KeptPlan | None:
    """The plan of the file `kept`, which must be one for this step and accepted; or that of the
    folder `kept`, None where it has none such."""
    path = path_in(kept, traced, asked)
    try:
        known = load(path or kept, traced)
        known = replace(known, named=path is None)
        accept(known)
    except (PlanFileError, PlanError) as error:
        if path is None:
            raise
        log.info("No plan was kept for %r: %s", traced.graph.name, error)
        return None
    return known


def path_in(kept: str | os.PathLike, traced: TracedStep, asked: Sequence[Any]) -> Path | None:
    """Where a folder has the plan of this step; None where `kept` is a file, whose name ends in
    .json.

    The name stands for all that a plan depends on: the graph, what was asked for, device and
    versions.
    """
    if Path(kept).suffix == ".json":
        return None
    here = _made_for(traced)
    facts = [
        fingerprint(traced.graph),
        traced.graph.fixed_bytes,
        here["device"],
        here["tensorflow"],
        __version__,
        *map(repr, asked),
    ]
    return Path(kept) / f"plan-{hashlib.sha256(repr(facts).encode()).hexdigest()[:16]}.json"


def make_folder(kept: str | os.PathLike) -> None:
    """Makes the folder where plans are to be kept, before any work is done for one; a file, whose
    name ends in .json, is left alone."""
    try:
        if Path(kept).suffix != ".json":
            Path(kept).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PlanFileError(
            f"No plan can be kept in {kept}: {error.strerror or error}. Name a folder that can be"
            " written to, or a .json file that holds a plan."
        ) from error


def refuse_above(kept: KeptPlan, budget_bytes: int) -> None:
    """Raises where a plan from a file takes more than the budget, by prediction or as it was
    measured."""
    plan = kept.plan
    peak = max(replay(kept.graph, plan).peak_bytes if plan else 0, kept.measured_peak_bytes or 0)
    if peak > budget_bytes:
        raise PlanFileError(
            f"The plan of {kept.path} takes {format_bytes(peak)},"
            f" {format_bytes(peak - budget_bytes)} more than the budget of"
            f" {format_bytes(budget_bytes)}. Make a plan for that budget."
        )


_NAMES = {"arguments": "its arguments are", "ops": "its ops are", "device_kind": "its device is"}


def _made_for(traced: TracedStep) -> dict[str, Any]:
    device = devices.training_device()
    return {
        "arguments": [
            f"{tensor.dtype.name}{tensor.shape.as_list()}" for tensor in traced.argument_tensors()
        ],
        "ops": len(traced.graph),
        "device_kind": device.split(":")[0],
        "device": devices.describe(device),
        "tensorflow": tf.__version__,
    }


def _with_costs(graph: DFGraph, costs: list[list[Any]]) -> DFGraph:
    ops = (
        replace(
            op,
            cost=float(cost),
            workspace_bytes=int(workspace),
            in_place=tuple(map(int, more[0] if more else ())),
        )
        for op, (cost, workspace, *more) in zip(graph.ops, costs, strict=True)
    )
    return replace(graph, ops=tuple(ops))
