"""Planned steps as JSON files, and a folder of them, so that the next run of a script does not plan
again.

A file holds the plan, the costs and peaks it was made with, and what it was made for. When
it is read, it must be for the same graph, the same shapes and the same kind of device, and the
judge must accept its steps; else it is refused and never run.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import tensorflow as tf

from checkmate.core.cache import forgiven
from checkmate.core.fields import (
    BYTES,
    COUNT,
    FLAG,
    INDICES,
    LIST,
    NUMBER,
    OBJECT,
    TEXT,
    Kind,
    field,
    refusal,
    shown,
)
from checkmate.core.files import fingerprint, load_plan, read_plan, save_plan
from checkmate.core.graph import DFGraph
from checkmate.core.plan import Plan
from checkmate.core.replay import replay
from checkmate.errors import GraphError, PlanError, PlanFileError
from checkmate.solvers.layer_rules import LayerRules
from checkmate.solvers.result import SolveResult, SolveStats, SolveStatus
from checkmate.tf2 import device as devices
from checkmate.tf2.execution.replay import Replayed
from checkmate.tf2.graph.sizes import known_bytes
from checkmate.tf2.graph.trace import TracedStep
from checkmate.tf2.memory.probe import make_output_buffers
from checkmate.tf2.ops.rule import Shares
from checkmate.tf2.ops.table import rule_of
from checkmate.tf2.options import PlanOptions
from checkmate.tf2.planning.request import Planned, PlanRequest, PlanTask, unchanged
from checkmate.tf2.rewrites.split import KINDS, Split
from checkmate.tf2.rewrites.step import Applied
from checkmate.units import format_bytes
from checkmate.version import __version__

PARTS = ("forward pass", "backward pass", "optimizer's update")

SMALL_SHARE = 0.01
"""Values are small next to the largest of the step up to this share."""


def parts_of(traced: TracedStep) -> dict[str, str]:
    """A fingerprint of each part: of the types of its ops and the shapes of their values, in any
    order. Small values, whose planning depends on the whole step, are left out, and so are counters
    and averages, which the forward pass updates."""
    found: dict[str, list[Any]] = {part: [] for part in PARTS}
    least = SMALL_SHARE * max(known_bytes(o.outputs) for o in chain.from_iterable(traced.groups))
    needed = _before_gradients(traced)
    for op, group in zip(traced.graph.ops, traced.groups, strict=True):
        for operation in group:
            counts = not op.is_backward and not operation.outputs
            if counts or (operation.outputs and known_bytes(operation.outputs) < least):
                continue
            is_gradient = _is_gradient(operation)
            part = PARTS[1 if is_gradient else 2 * (op.is_backward or operation not in needed)]
            shapes = [str(tensor.shape) for tensor in operation.outputs]
            found[part].append((operation.type, shapes))
    return {
        part: hashlib.sha256(repr(sorted(ops)).encode()).hexdigest()[:16]
        for part, ops in found.items()
    }


def _before_gradients(traced: TracedStep) -> set[tf.Operation]:
    """The ops from which gradients or results are computed. An update decays slots of the optimizer
    that no gradient has reached yet."""
    operations = chain.from_iterable(traced.groups)
    gradients = [o for o in operations if _is_gradient(o)]
    pending = [*gradients, *(tensor.op for tensor in traced.flat.outputs)]
    needed = set[tf.Operation]()
    while pending:
        operation = pending.pop()
        if operation not in needed:
            needed.add(operation)
            pending += [tensor.op for tensor in operation.inputs]
    return needed


def _is_gradient(operation: tf.Operation) -> bool:
    """By the name, which begins with the tape's, or by the type for sums of gradients; names of an
    update's ops begin with the optimizer's."""
    adds = rule_of(operation.type).shares is Shares.IDLE_SUM and "/" not in operation.name
    return operation.name.startswith("gradient_tape/") or adds


log = logging.getLogger("checkmate")


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """The contents of a planned step's file: the trace of the step that the plan runs, with its
    largest ops split as the file says; its graph with the costs that the plan was made with;
    no plan where the step runs unchanged; the predicted peaks of the step, no less than the judge's
    count, and of the plain step; and the proof of the solver (`NO_PROOF`), for budgets up to
    `budget_bytes`."""

    path: Path
    traced: TracedStep
    split: Split | None
    graph: DFGraph
    plan: Plan | None
    budget_bytes: int
    peak_bytes: int
    plain_bytes: int
    rise_bytes: int
    proof: dict[str, Any]

    def result(self, budget_bytes: int) -> SolveResult:
        """The solver's answer. Within a larger budget a cheaper plan may exist: the bound is then
        the cost of every op once."""
        assert self.plan is not None
        proof = self.proof
        if budget_bytes > self.budget_bytes:
            proof = NO_PROOF | {"solver": "a file for a smaller budget"}
        return SolveResult(
            SolveStatus[proof["status"]],
            self.graph,
            budget_bytes,
            self.plan,
            replay(self.graph, self.plan),
            max(proof["bound"], self.graph.total_cost),
            SolveStats(proof["solver"], proof["seconds"], found_by=self.path.name),
            proof["bound_covers"],
            rules=self.proof["rules"],
        )


NO_PROOF: dict[str, Any] = {
    "status": SolveStatus.FEASIBLE.name,
    "bound": 0.0,
    "bound_covers": "given order",
    "solver": "a file",
    "seconds": 0.0,
    "rules": "",
}
"""Fields of a file by which a solver's proof for its plan is told, and what holds without them."""


def _proof(result: SolveResult) -> dict[str, Any]:
    stats, proven = result.stats, (result.status.name, result.bound, result.bound_covers)
    return dict(zip(NO_PROOF, (*proven, stats.solver, stats.seconds, result.rules), strict=True))


def write(
    path: str | os.PathLike,
    traced: TracedStep,
    graph: DFGraph,
    plan: Plan,
    facts: Mapping[str, Any],
) -> None:
    """Writes a planned step; an older file is replaced whole or not at all. `facts` are `unchanged`
    and `budget_bytes`, the peaks of `StoredPlan`, and anything else for people."""
    costs = [[op.cost, op.workspace_bytes, op.in_place] for op in graph.ops]
    save_plan(
        plan,
        path,
        graph=graph,
        made_for=_made_for(traced),
        costs=costs,
        **{"peak_bytes": replay(graph, plan).peak_bytes, **facts},
    )


def load(path: str | os.PathLike, traced: TracedStep) -> StoredPlan:
    """Reads a planned step for this one. Raises `PlanFileError` for no such file, no JSON, another
    version, graph, shapes or kind of device, and `PlanError` where its steps are not legal for the
    graph."""
    data = read_plan(path)
    if (split := _split_of(path, data)) is not None:
        traced = split.of(traced) or traced
    _refuse_another_step(path, data, traced)
    plan = load_plan(path, graph=traced.graph)
    if "costs" not in data:
        raise PlanFileError(
            f"{path} is a plan of a graph alone: it has no costs. `checkmate plan MODEL` and `save`"
            " of a step write plans of steps."
        )
    path = Path(path)
    graph = _with_costs(path, traced.graph, data["costs"])
    timeline = replay(graph, plan)
    plain = traced.plain_peak_bytes(graph)
    peak = timeline.peak_bytes
    otherwise = {"plain_bytes": plain, "rise_bytes": max(0, peak - traced.between_bytes)}
    needed = ("budget_bytes", "peak_bytes", "plain_bytes", "rise_bytes")
    sizes = {key: int(field(otherwise | data, key, BYTES, path)) for key in needed}
    sizes["peak_bytes"] = max(peak, sizes["peak_bytes"])
    proof: dict[str, Any] = NO_PROOF | {
        key: data[key] for key in NO_PROOF if data.get(key) is not None
    }
    if proof["bound"] > (1 + 1e-6) * timeline.cost:
        most = f"at most {timeline.cost:g}, the cost of the plan,"
        raise refusal(path, f"bound is {proof['bound']:g}", most)
    own_plan = None if field(data, "unchanged", FLAG, path) else plan
    return StoredPlan(path, traced, split, graph, own_plan, **sizes, proof=proof)


def _split_of(path: str | os.PathLike, data: dict[str, Any]) -> Split | None:
    found = data.get("split")
    if found is None:
        return None
    where = f"{path}: split"
    above = int(field(found, "above_bytes", BYTES, where))
    kinds = tuple(str(kind) for kind in field(found, "kinds", LIST, where))
    if unknown := set(kinds) - set(KINDS):
        raise refusal(where, f"kinds has {min(unknown)!r}", f"some of {', '.join(KINDS)}")
    sums, tried = (bool(field(found, key, FLAG, where)) for key in ("sums", "tried"))
    return Split(above, kinds, sums, tried)


def _refuse_another_step(path: str | os.PathLike, data: dict[str, Any], traced: TracedStep) -> None:
    found, here = data.get("made_for"), _made_for(traced)
    if found is None:
        return
    for key, kind in MADE_FOR.items():
        field(found, key, kind, f"{path}: made_for", None)
    listed = [
        f"{shown} {found.get(key)} there and {here[key]} here"
        for key, shown in _NAMES.items()
        if found.get(key) != here[key]
    ]
    is_same_graph = data.get("graph") == fingerprint(traced.graph)
    if found.get("arguments") == here["arguments"] and not is_same_graph:
        there = found.get("parts") or {}
        others = [part for part, own in here["parts"].items() if there.get(part, own) != own]
        listed += [f"its {part} is another" for part in others[:1]]  # what follows differs by that
    if listed:
        raise PlanFileError(
            f"{path} was made for another step than {traced.graph.name!r}: {'; '.join(listed)}."
            " Save a plan of this step, or name a folder, which holds a plan for each."
        )


def path_of(request: PlanRequest, traced: TracedStep) -> Path | None:
    """The file of this step's plan in the folder of the request; None for a .json file, or without
    either. Its name stands for all that a plan depends on: graph, options, device and versions."""
    named = request.options.plan
    if not named or Path(named).suffix == ".json":
        return None
    here = _made_for(traced)
    facts = [
        fingerprint(traced.graph),
        traced.graph.fixed_bytes,
        here["device"],
        here["tensorflow"],
        __version__,
        *map(repr, request.options.key),
    ]
    return Path(named) / f"plan-{hashlib.sha256(repr(facts).encode()).hexdigest()[:16]}.json"


def prepare(named: str | os.PathLike) -> None:
    """Makes the folder for plans before any work is done for one; a .json file must hold a plan."""
    if Path(named).suffix == ".json":
        read_plan(named)
        return
    try:
        Path(named).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PlanFileError(
            f"No plan can be kept in {named}: {error.strerror or error}. Name a folder that can be"
            " written to, or a .json file that holds a plan."
        ) from error


def _refuse_above(stored: StoredPlan, budget_bytes: int, other_bytes: int) -> None:
    peak = stored.peak_bytes + other_bytes
    if peak > budget_bytes:
        raise PlanFileError(
            f"The plan of {stored.path} takes {format_bytes(peak)} with the"
            f" {format_bytes(other_bytes)} for next batches and others,"
            f" {format_bytes(peak - budget_bytes)} more than the budget of"
            f" {format_bytes(budget_bytes)}. Make a plan for that budget."
        )


def _refuse_other_rules(stored: StoredPlan, asked: PlanOptions) -> None:
    rules = LayerRules.of(stored.graph, asked.keep, asked.recompute).text
    is_plain = stored.plan is None and not asked.recompute  # in which all layers are kept
    if rules and rules != stored.proof["rules"] and not is_plain:
        raise PlanFileError(
            f"The plan of {stored.path} was made with {stored.proof['rules'] or 'nothing'} asked of"
            f" layers, and here it is {rules}. Make a plan with that."
        )


MADE_FOR: dict[str, Kind] = {
    "arguments": LIST,
    "ops": COUNT,
    "parts": OBJECT,
    **dict.fromkeys(("device_kind", "device", "tensorflow"), TEXT),
}
"""Fields of a plan file's `made_for`, which says for what step a plan was made."""

_COLUMNS = {"cost": NUMBER, "workspace_bytes": BYTES, "in_place": INDICES}
"""Fields of `Op` in a row of `costs`."""


_NAMES = {"arguments": "its arguments are", "ops": "its ops are", "device_kind": "its device is"}


def _made_for(traced: TracedStep) -> dict[str, Any]:
    device = devices.training_device()
    return {
        "arguments": [
            f"{tensor.dtype.name}{tensor.shape.as_list()}" for tensor in traced.argument_tensors()
        ],
        "ops": len(traced.graph),
        "parts": parts_of(traced),
        "device_kind": device.split(":")[0],
        "device": devices.describe(device),
        "tensorflow": tf.__version__,
    }


def _with_costs(path: Path, graph: DFGraph, costs: list[Any]) -> DFGraph:
    if len(costs) != len(graph):
        raise refusal(path, f"costs has {len(costs)} rows", f"one for each of the {len(graph)} ops")
    rows = []
    for k, row in enumerate(costs):
        if not isinstance(row, list) or not 2 <= len(row) <= 3:
            expected = "[cost, workspace, in_place], the last if there is any,"
            raise refusal(path, f"row {k} of costs is {shown(row)}", expected)
        facts = dict(zip(_COLUMNS, (*row, []), strict=False))
        for key, kind in _COLUMNS.items():
            field(facts, key, kind, f"{path}: row {k} of costs")
        rows.append(facts | {"cost": float(facts["cost"])})
    try:
        ops = tuple(replace(op, **row) for op, row in zip(graph.ops, rows, strict=True))
        return replace(graph, ops=ops)
    except GraphError as error:
        raise PlanFileError(f"{path}: its costs are not of this graph. {error}") from error


RECORD_VERSION = 2
"""The version of `rewrites` in a plan file. In version 1 a slice was a trace of its own, whose
graph is another."""


@dataclass(frozen=True, slots=True)
class StoredSlices:
    """The slices of a batch that a file's plan is for: `size` examples each, made by the rewrite of
    this name. `plain_bytes` is the plain peak of the step on the whole batch."""

    rewrite: str
    size: int
    plain_bytes: int


def record_of(record: Sequence[Applied], plain_bytes: int) -> dict[str, Any]:
    """The fields of a plan file by which a step is rewritten again."""
    if not record:
        return {}
    applied = [list(each) for each in record]
    facts = {"version": RECORD_VERSION, "applied": applied, "plain_bytes": plain_bytes}
    return {"rewrites": facts}


def slices_of(path: str | os.PathLike) -> StoredSlices | None:
    """The slices of a file's plan; None for a whole batch. Raises `PlanFileError` as `load`."""
    data = read_plan(path)
    found = data.get("rewrites")
    if found is None:
        if data.get("slices") is not None:
            raise PlanFileError(
                f"{path} is a plan in slices of version 1, and this is version {RECORD_VERSION},"
                " whose slices have other graphs. Make the plan again."
            )
        return None
    where = f"{path}: rewrites"
    version, plain_bytes = (
        int(field(found, key, COUNT, where)) for key in ("version", "plain_bytes")
    )
    applied = field(found, "applied", LIST, where)
    if version != RECORD_VERSION:
        raise refusal(where, f"version is {version}", f"{RECORD_VERSION}")
    pairs = [each for each in applied if isinstance(each, list) and len(each) == 2]
    if len(applied) != 1 or not pairs or not isinstance(pairs[0][1], int) or pairs[0][1] < 1:
        raise refusal(where, f"applied is {shown(applied)}", "[[name, examples of a slice]]")
    return StoredSlices(str(pairs[0][0]), pairs[0][1], plain_bytes)


def stored_plan(task: PlanTask) -> Planned | None:
    """The step under the plan of its file; None without one. Like any plan it is confirmed by the
    first real steps. Raises `PlanFileError` where a named file does not fit step or budget."""
    request, whole, other = task.request, task.traced, task.other_bytes
    traced = whole
    if not request.options.plan:
        return None
    path = path_of(request, traced)
    try:
        stored = load(path or request.options.plan, traced)
        if path is None and request.options.budget == "auto":
            budget = stored.budget_bytes + other
        else:
            budget = request.resolve(stored.plain_bytes + other, other)
        _refuse_above(stored, budget, other)
        _refuse_other_rules(stored, request.options)
    except (PlanFileError, PlanError) as error:
        if path is None:
            raise
        log.info("No plan was found for %r: %s", traced.graph.name, error)
        return None
    task = task.within(budget)
    if stored.split:
        task, traced = task.of_parts(stored.traced), stored.traced
    task.fetch_region()
    with task.clock.phase("building"):
        buffers = make_output_buffers(traced) if request.has_output_buffers else None
        run = (
            Replayed(traced, stored.plan, buffers) if stored.plan else unchanged(traced, task.specs)
        )
    report = task.report(
        stored.graph,
        stored.plain_bytes + other,
        result=stored.result(task.budget_bytes - other) if stored.plan else None,
        predicted_peak_bytes=stored.peak_bytes + other,
        origin=f"plan from {stored.path}",
    )
    plan = stored.plan or traced.plain_plan()
    found = Planned(traced, stored.graph, plan, report.result, run, report, stored.rise_bytes)
    found = found.reporting(notes=(*report.notes, f"The plan is from {stored.path}."))
    return found if stored.split is None else found.of_split(whole, stored.split)


def keep(path: Path, planned: Planned) -> None:
    """Writes a plan into its folder; where that fails, the step trains all the same."""
    if planned.plans_bodies:
        log.info("No file holds plans of bodies: %r is planned each time.", planned.report.name)
        return
    with forgiven(path.parent):
        save(path, planned)


def save(path: str | os.PathLike, planned: Planned) -> None:
    """Writes a planned step as a file, which counts the bytes of the step alone. Raises
    `PlanFileError` where a loop runs a body under a plan of its own, which no file holds."""
    if planned.plans_bodies:
        raise PlanFileError(
            f"{planned.report.name!r} has a loop whose body is planned, and no file holds plans of"
            " bodies: the step is planned each time."
        )
    micro, record = planned.report.micro_batches, planned.record
    split, planned = planned.split, planned.innermost
    report = planned.report
    other = report.memory.other_bytes
    write(
        path,
        planned.traced,
        planned.graph,
        planned.plan,
        {
            "unchanged": planned.result is None,
            "budget_bytes": report.budget_bytes - other,
            "peak_bytes": report.expected_peak_bytes - other,
            "plain_bytes": report.plain_peak_bytes - other,
            "rise_bytes": planned.rise_bytes,
            **(record_of(record, micro.plain_bytes) if micro else {}),
            **({"split": asdict(split)} if split else {}),
            **(_proof(planned.result) if planned.result else {}),
        },
    )
