"""new_plan(): the plan of one traced function: a step, or a piece of one.

costs and footprints of ops that run alone -> the plain step's peak -> the budget -> search -> the
function. No step runs, nor an op that has state.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from checkmate.solvers.layer_rules import LayerRules
from checkmate.tf2 import device as devices
from checkmate.tf2.costs.measured import Costs, costs_of
from checkmate.tf2.execution.replay import OutputBuffers, Replayed
from checkmate.tf2.graph.trace import TracedStep
from checkmate.tf2.memory.budget import RESERVES
from checkmate.tf2.memory.prediction import Predictor
from checkmate.tf2.planning import store
from checkmate.tf2.planning.budget_loop import TUNING
from checkmate.tf2.planning.plan_search import Candidate, PlanSearch
from checkmate.tf2.planning.refusal import Refusal
from checkmate.tf2.planning.request import Clock, Planned, PlanRequest, PlanTask, unchanged
from checkmate.tf2.report import Report
from checkmate.units import format_bytes

log = logging.getLogger("checkmate")


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
    if fits_unchanged(task, costs, plain_peak) and not asked.recompute:
        return _unchanged(task, costs, report)
    return _searched(PlanSearch(task, costs, piece), report)


def fits_unchanged(task: PlanTask, costs: Costs, plain_peak_bytes: int) -> bool:
    """Whether the step is sure to stay within the budget as it was written."""
    memory = task.memory
    plain_rise = plain_peak_bytes - memory.fixed_bytes
    corrected = plain_peak_bytes + int((task.request.correction - 1) * plain_rise)
    largest = max(op.output_bytes for op in costs.graph.ops)
    share = TUNING.paper_spread if task.paper_bytes else TUNING.plain_spread
    spread = max(int(share * plain_rise), TUNING.plain_values * largest)
    reserve = memory.reserve_bytes if task.reports else RESERVES.not_simulated * plain_rise
    return corrected + max(spread, reserve) <= memory.limit_bytes


def _unchanged(task: PlanTask, costs: Costs, report: Report) -> Planned:
    run, plan = unchanged(task.traced, task.specs), task.traced.plain_plan()
    rise = report.plain_peak_bytes - task.memory.resident_bytes - task.memory.next_batch_bytes
    return Planned(task.traced, costs.graph, plan, None, run, report, rise)


def _searched(search: PlanSearch, report: Report) -> Planned:
    """The step under the plan of a search. Under budget="auto" it runs unchanged without one: what
    trains without a plan must not stop."""
    task = search.task
    found = search.run()
    if found is None:
        refusal = Refusal(search)  # has looked for the plan with the lowest peak
        found = search.cheapest()
    if found is not None:
        return _built(search, found, report)
    error = refusal.error()
    search.forget()  # whoever keeps the error keeps this frame, too
    if task.request.options.budget != "auto":
        raise error
    note = (
        f"No plan fits the {format_bytes(task.budget_bytes)} found free, so the step runs"
        f" unchanged. {error}"
    )
    log.warning(note)
    return _unchanged(
        task, search.costs, replace(report, notes=(*report.notes, *search.notes, note))
    )


def _built(search: PlanSearch, found: Candidate, report: Report) -> Planned:
    task = search.task
    assert found.expected_bytes is not None  # it is within the budget
    with task.clock.phase("building"):
        buffers: OutputBuffers | None = search.predictor.buffers
        run = Replayed(task.traced, found.plan, buffers, found.written)
    report = replace(
        report,
        result=found.result,
        predicted_peak_bytes=found.expected_bytes,
        notes=(*report.notes, *search.notes),
    )
    return Planned(
        task.traced, search.graph, found.plan, found.result, run, report, found.rise_bytes
    )
