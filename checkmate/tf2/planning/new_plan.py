"""new_plan(): the plan of one traced function: a step, or a piece of one.

costs and footprints of ops that run alone -> the plain step's peak -> the budget -> search -> the
function. No step runs, nor an op that has state.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from checkmate.core.graph import DFGraph
from checkmate.core.replay import floor
from checkmate.errors import InfeasibleBudgetError, NoPlanFoundError
from checkmate.solvers.layer_rules import LayerRules
from checkmate.tf2 import device as devices
from checkmate.tf2.costs.measured import Costs, costs_of, in_parts
from checkmate.tf2.execution.replay import OutputBuffers, Replayed
from checkmate.tf2.graph.trace import TracedStep
from checkmate.tf2.memory.budget import RESERVES
from checkmate.tf2.memory.prediction import Predictor
from checkmate.tf2.planning import store
from checkmate.tf2.planning.budget_loop import TUNING
from checkmate.tf2.planning.plan_search import Candidate, PlanSearch
from checkmate.tf2.planning.planned_bodies import (
    of_step,
    planned_bodies,
    with_planned,
)
from checkmate.tf2.planning.refusal import Refusal, needed_bytes
from checkmate.tf2.planning.request import Clock, Planned, PlanRequest, PlanTask, unchanged
from checkmate.tf2.report import Report
from checkmate.tf2.rewrites.split import Split, Splits
from checkmate.units import format_bytes

log = logging.getLogger("checkmate")

CLOSE = 0.95
"""Ops are not split further where that has not brought down the floor to this share of it."""

MOST_TRIES = 3
"""How often bodies are planned at most, for ever less, until the step with them fits."""

Form = TypeVar("Form")


def measured(task: PlanTask) -> tuple[Costs, int]:
    """The costs of a step, and the plain step's predicted peak with all else that is in use."""
    clock = task.clock
    with clock.phase("measuring ops"):
        costs = costs_of(
            task.traced, task.request.options.cost_model, on_progress=clock.progress.advance
        )
    with clock.phase("predicting"):
        plain = Predictor(task.traced, costs.graph, (), costs.footprints).plain_peak_bytes()
    memory = task.memory
    return costs, plain - memory.batch_bytes + memory.resident_bytes + memory.next_batch_bytes


def with_budget(task: PlanTask, plain_peak_bytes: int) -> PlanTask:
    """The task with its budget in bytes, which may be a share of the plain step's peak."""
    known = task.budget_bytes or task.request.resolve(plain_peak_bytes, task.other_bytes)
    return task.within(known)


def planned_alone(
    request: PlanRequest,
    traced: TracedStep,
    specs: tuple[Any, ...],
    values: Sequence[Any] = (),
    *,
    released_bytes: int,
    budget_bytes: int = 0,
) -> Planned:
    """A part of a planning, under the plan of its file or a new one, for what is in use now. The
    report has its own seconds."""
    with request.showing() as progress:
        clock = Clock(progress)
        task = PlanTask.of(
            request,
            traced,
            specs,
            clock,
            values,
            released_bytes=released_bytes,
            budget_bytes=budget_bytes,
        )
        try:
            planned = store.stored_plan(task) or new_plan(task)
        finally:
            devices.forget_peak(devices.training_device())
    return planned.reporting(seconds=clock.seconds)


def new_plan(task: PlanTask) -> Planned:
    """The step with the cheapest plan expected to be within the budget; unchanged where it fits.
    Raises `InfeasibleBudgetError` where no plan fits, which is proven, and `NoPlanFoundError`."""
    piece = task.fetch_region()
    costs, plain_peak = measured(task)
    task, asked = with_budget(task, plain_peak), task.request.options
    LayerRules.of(costs.graph, asked.keep, asked.recompute)  # names of no layer are refused
    report = task.report(costs.graph, plain_peak)
    # Planned anew, a step is not compiled as a whole, since XLA may take more than is predicted.
    is_planned = asked.recompute or (task.request.anew and asked.jit_compile is True)
    if not is_planned and needs_unchanged(task, costs, plain_peak) <= task.budget_bytes:
        return _unchanged(task, costs, report)
    found = _with_planned_bodies(task, costs, piece, report)
    return found or _searched(task, _best(task, costs, piece), report)


def _with_planned_bodies(
    task: PlanTask, costs: Costs, piece_bytes: int, report: Report
) -> Planned | None:
    """The step whose loops that train run bodies under plans of their own. Where the step is then
    predicted to take too much, the bodies are planned for less. None without such loops."""
    tried, less_bytes = None, 0
    for _ in range(MOST_TRIES):
        bodies = planned_bodies(task, costs, new_plan, less_bytes)
        if not bodies:
            break
        within, here, plain = with_planned(task, costs, bodies)
        forms = _best(within, here, piece_bytes)
        tried = bodies, within, forms, replace(report, graph=plain)
        excess = forms[0].search.excess_bytes
        left_bytes = min(each.left_bytes for each in bodies)
        if forms[0].found or not excess or left_bytes < 0:
            break
        less_bytes += left_bytes + excess
        forms[0].search.pause()
    if tried is None:
        return None
    bodies, within, forms, report = tried
    return of_step(_searched(within, forms, report), task, bodies)


def needs_unchanged(task: PlanTask, costs: Costs, plain_peak_bytes: int) -> int:
    """The budget within which the step is sure to stay as it was written."""
    memory = task.memory
    plain_rise = plain_peak_bytes - memory.fixed_bytes
    corrected = plain_peak_bytes + int((task.request.correction - 1) * plain_rise)
    largest = max(op.output_bytes for op in costs.graph.ops)
    share = TUNING.paper_spread if task.paper_bytes else TUNING.plain_spread
    spread = max(int(share * plain_rise), TUNING.plain_values * largest)
    reserve = memory.reserve_bytes if task.reports else RESERVES.not_simulated * plain_rise
    return corrected + int(max(spread, reserve))


def _unchanged(task: PlanTask, costs: Costs, report: Report) -> Planned:
    run, plan = unchanged(task.traced, task.specs), task.traced.plain_plan()
    rise = report.plain_peak_bytes - task.memory.resident_bytes - task.memory.next_batch_bytes
    return Planned(task.traced, costs.graph, plan, None, run, report, rise)


@dataclass(slots=True, eq=False)
class Tried:
    """A search for a plan of the step as it was written, or of one whose largest ops are split."""

    search: PlanSearch
    split: Split | None = None
    found: Candidate | None = None

    @property
    def cost(self) -> float:
        cost = self.found.result.cost if self.found else None
        return math.inf if cost is None else cost


def _best(task: PlanTask, costs: Costs, piece_bytes: int) -> list[Tried]:
    """The search that found the cheapest plan; where none was found, the one of the step as it was
    written, and the one that needs least. Ops are split where they need much of the room, and where
    that may be cheaper than to compute again."""
    asked = task.request.options
    whole = Tried(PlanSearch(task, costs, piece_bytes))
    room = task.memory.activation_budget_bytes

    def parts() -> Iterator[Tried]:
        for split, traced in _splits(task, room) if asked.split.kinds else ():
            part = task.of_parts(traced)
            with task.clock.phase("measuring ops"):
                found = in_parts(traced, costs, task.traced, asked.cost_model)
            yield Tried(PlanSearch(part, found, piece_bytes), split)

    def cost(tried: Tried) -> float:
        _run(tried)
        tried.search.pause()
        return tried.cost

    tried = cheapest_first(room, whole, parts(), lambda each: each.search.graph, cost)
    if tried[0].found:
        return tried[:1]
    least = min(tried, key=lambda each: floor(each.search.graph).bytes)
    return [whole] if least is whole else [whole, least]


def cheapest_first(
    room_bytes: int,
    whole: Form,
    parts: Iterator[Form],
    graph_of: Callable[[Form], DFGraph],
    cost: Callable[[Form], float],
) -> list[Form]:
    """The forms of a step that were tried, the one of least cost first: as it was written, and with
    its largest ops in ever smaller parts. `cost` plans one; the cost is infinite without a plan.

    Ops are split first where one needs much of the room that the budget leaves beyond fixed bytes,
    and else where that may be cheaper than to compute again; not into smaller parts than that
    helps.
    """
    graph = graph_of(whole)

    def is_large(needed_bytes: int) -> bool:
        return needed_bytes - graph.fixed_bytes > TUNING.split_share * room_bytes

    needed = floor(graph).bytes
    large = is_large(needed)
    tried = [] if large else [(cost(whole), whole)]
    least = tried[0][0] if tried else math.inf
    enough = (1 + TUNING.split_worth) * graph.total_cost
    for part in parts if least > enough else ():
        tried.append((cost(part), part))
        before, least = least, min(least, tried[-1][0])
        needed, last = floor(graph_of(part)).bytes, needed
        if least == math.inf:
            if needed > CLOSE * last:
                break  # what needs most has not become smaller
        elif least == before or least <= enough or not is_large(needed):
            break
    if not tried or (large and least > enough):
        tried.append((cost(whole), whole))
    return [form for _, form in sorted(tried, key=lambda each: each[0])]


def _splits(task: PlanTask, room_bytes: int) -> Iterator[tuple[Split, TracedStep]]:
    with task.clock.phase("splitting"):
        found = Splits(task.traced, task.request.options.split).within(room_bytes)
    while True:
        with task.clock.phase("splitting"):
            split = next(found, None)
        if split is None:
            return
        yield split


def _floor_with_sums(task: PlanTask) -> int | None:
    """The least bytes with which a plan may do where sums are split, too, those in use by others
    included; None where sums may be split, or where no refusal is to be explained."""
    asked = task.request
    if not asked.explains or asked.options.rounding or "tiles" not in asked.options.split.kinds:
        return None
    split = replace(asked.options.split, sums=True, tried=False)
    room, least = task.memory.activation_budget_bytes, None
    with task.clock.phase("splitting"):
        for _, traced in Splits(task.traced, split).within(room):
            least = floor(traced.graph).bytes + task.memory.other_bytes
            if least <= task.budget_bytes:
                break
    return least


def _run(tried: Tried) -> Tried:
    search = tried.search
    if floor(search.graph).bytes + search.memory.other_bytes <= search.task.budget_bytes:
        tried.found = search.run()
    return tried


def _searched(task: PlanTask, forms: Sequence[Tried], report: Report) -> Planned:
    """The step under the plan of a search; raises the refusal that asks for least without one.
    Under budget="auto" it runs unchanged then: what trains without a plan must not stop."""
    refusals: list[InfeasibleBudgetError | NoPlanFoundError] = []
    notes: list[str] = []
    rounded = None if forms[0].found else _floor_with_sums(task)
    for tried in forms:
        search, found = tried.search, tried.found
        if found is None:
            refusal = Refusal(search, rounded)  # has looked for the plan with the lowest peak
            found = search.cheapest()
        if found is not None:
            planned = _built(search, found, report)
            return planned.of_split(task.traced, tried.split) if tried.split else planned
        refusals.append(refusal.error())
        notes += search.notes
        search.forget()  # whoever keeps the error keeps this frame, too
    error = min(refusals, key=needed_bytes)
    if task.request.options.budget != "auto":
        raise error
    note = (
        f"No plan fits the {format_bytes(task.budget_bytes)} found free, so the step runs"
        f" unchanged. {error}"
    )
    log.warning(note)
    notes = list(dict.fromkeys([*report.notes, *notes, note]))
    return _unchanged(task, forms[0].search.costs, replace(report, notes=tuple(notes)))


def _built(search: PlanSearch, found: Candidate, report: Report) -> Planned:
    task = search.task
    assert found.expected_bytes is not None  # it is within the budget
    with task.clock.phase("building"):
        buffers: OutputBuffers | None = search.predictor.buffers
        run = Replayed(task.traced, found.plan, buffers, found.written)
    report = replace(
        report,
        result=found.result,
        graph=search.graph,
        plain_plan=task.traced.plain_plan(),
        memory=task.memory,
        plain_graph=report.graph,
        predicted_peak_bytes=found.expected_bytes,
        notes=(*report.notes, *search.notes),
    )
    return Planned(
        task.traced, search.graph, found.plan, found.result, run, report, found.rise_bytes
    )
