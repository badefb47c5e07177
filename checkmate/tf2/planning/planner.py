"""Planner: from a step and its shapes to the function that runs within the budget, on paper.

trace -> costs and footprints of ops that run alone -> the plain step's peak -> the budget -> search
-> the function. No step runs, nor an op that has state.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tensorflow as tf

from checkmate.core.replay import replay
from checkmate.errors import InfeasibleBudgetError, NoPlanFoundError, PlanError
from checkmate.solvers.layer_rules import LayerRules
from checkmate.tf2 import device as devices
from checkmate.tf2.costs.measured import Costs, costs_of
from checkmate.tf2.execution.replay import Replayed, output_buffers_bytes
from checkmate.tf2.execution.results import OutputBuffers
from checkmate.tf2.graph.trace import TracedStep, trace
from checkmate.tf2.memory.budget import RESERVES
from checkmate.tf2.memory.garbage import only_new_garbage
from checkmate.tf2.memory.prediction import Predictor
from checkmate.tf2.planning import store
from checkmate.tf2.planning.budget_loop import TUNING
from checkmate.tf2.planning.plan_search import Candidate, PlanSearch
from checkmate.tf2.planning.refusal import Refusal
from checkmate.tf2.planning.request import Clock, Planned, PlanRequest, PlanTask, Reason, unchanged
from checkmate.tf2.report import Report
from checkmate.units import format_bytes

log = logging.getLogger("checkmate")

MAX_PLANS_ANEW = 3
"""How often a step is planned anew at most; a warning follows."""


@dataclass(slots=True, eq=False)
class Planner:
    """Plans a step for the shapes that come. The budget in bytes is known once the first shapes are
    planned; `plans_anew` counts plannings after that."""

    request: PlanRequest
    budget_bytes: int = 0
    plans_anew: int = 0

    def plan(
        self,
        specs: tuple[Any, ...],
        *,
        like: Planned | None = None,
        batch: Sequence[Any] = (),
        traced: TracedStep | None = None,
        released_bytes: int = 0,
    ) -> Planned:
        """Plans the step for these shapes; with `like`, under the same plan where it fits. `batch`
        has flattened values of these specs in memory, if there are any; `released_bytes` are in use
        and released once this plan is taken."""
        request = self.request
        if request.options.plan:
            store.prepare(request.options.plan)
        with only_new_garbage(), request.showing() as progress:
            clock = Clock(progress)
            with clock.phase("tracing"):
                traced = traced or trace(
                    request.step, *specs, name=request.name, like=like.traced if like else None
                )
            if like is not None and (same := self._under_same_plan(traced, specs, like)):
                return same
            task = PlanTask.of(
                request,
                traced,
                specs,
                clock,
                batch,
                released_bytes=released_bytes,
                is_main=like is None,
                budget_bytes=self.budget_bytes,
            )
            try:
                stored = store.stored_plan(task)
                planned = stored or new_plan(task)
                if not request.whole:
                    progress.done(planned.report.in_a_line())
            finally:  # training's peak is counted without what planning ran
                devices.forget_peak(devices.training_device())
        self.budget_bytes = planned.report.budget_bytes
        report = replace(planned.report, seconds=clock.seconds, cpu_seconds=clock.cpu_seconds)
        planned = replace(planned, report=report)
        log.info("%s", planned.report)
        if like is None and stored is None and (path := self.path_of(traced)):
            store.keep(path, planned)
        return planned

    def anew(
        self,
        planned: Planned,
        specs: tuple[Any, ...],
        batch: Sequence[tf.Tensor],
        reason: Reason,
    ) -> Planned:
        """A plan for the memory of real steps, and for what is in use now; the same plan where no
        other is found, or none that is cheaper for steps below the prediction."""
        why, correction = reason.sentence, reason.correction
        if self.plans_anew >= MAX_PLANS_ANEW:
            log.warning("%s It was planned anew %d times: its plan stays.", why, self.plans_anew)
            return planned
        self.plans_anew += 1
        before = self.request
        self.request = replace(
            before,
            correction=before.correction * correction,
            # For what a pipeline comes to hold.
            next_batches=before.next_batches + bool(before.next_batches and correction >= 1),
        )
        log.info("%s It is planned anew.", why)
        # The folder's plan is the one that is replaced.
        options = replace(self.request.options, plan=None)
        asked = replace(self.request, options=options, anew=reason)
        try:
            found = replace(self, request=asked).plan(
                specs,
                batch=batch,
                traced=planned.traced,
                released_bytes=output_buffers_bytes(planned.run),
            )
        except (InfeasibleBudgetError, NoPlanFoundError) as refusal:
            log.warning("%s No other plan is within the budget. %s", why, refusal)
            return planned
        if correction < 1 and found.cost > (1 - TUNING.worth_share) * planned.cost:
            return planned
        if path := self.path_of(found.traced):
            store.keep(path, found)
        return found

    def path_of(self, traced: TracedStep) -> Path | None:
        return store.path_of(self.request, traced)

    def _under_same_plan(
        self, traced: TracedStep, specs: tuple[Any, ...], main: Planned
    ) -> Planned | None:
        """The main plan on a smaller batch's graph, when the two graphs differ in sizes only."""
        if main.result is None:
            return replace(main, traced=traced, graph=traced.graph, run=unchanged(traced, specs))
        if [op.deps for op in traced.graph.ops] != [op.deps for op in main.graph.ops]:
            return None
        try:
            if replay(traced.graph, main.plan).peak_bytes > self.budget_bytes:
                return None
        except PlanError:
            return None
        return replace(main, traced=traced, graph=traced.graph, run=Replayed(traced, main.plan))


def measured(task: PlanTask) -> tuple[Costs, int]:
    """The costs of a step, and the plain step's predicted peak with all else that is in use."""
    clock = task.clock
    with clock.phase("measuring ops"):
        costs = costs_of(
            task.traced, task.request.options.cost_model, on_progress=clock.progress.advance
        )
    with clock.phase("predicting"):
        plain = Predictor(task.traced, costs.graph, (), costs.footprints).plain_peak_bytes()
    start = task.start
    return costs, plain - start.batch_bytes + start.resident_bytes + start.next_batch_bytes


def with_budget(task: PlanTask, plain_peak_bytes: int) -> PlanTask:
    """The task with its budget in bytes, which may be a share of the plain step's peak."""
    known = task.budget_bytes or task.request.resolve(plain_peak_bytes, task.other_bytes)
    return task.within(known)


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
    search = PlanSearch(task, costs.graph, task.memory, piece, costs.footprints)
    return _searched(task, search, costs, report)


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
    report = replace(report, notes=(*report.notes, *task.notes()))
    run, plan = unchanged(task.traced, task.specs), task.traced.plain_plan()
    rise = report.plain_peak_bytes - task.start.resident_bytes - task.start.next_batch_bytes
    return Planned(task.traced, costs.graph, plan, None, run, report, rise)


def _searched(task: PlanTask, search: PlanSearch, costs: Costs, report: Report) -> Planned:
    """The step under the plan of a search. Under budget="auto" it runs unchanged without one: what
    trains without a plan must not stop."""
    found = search.run()
    if found is None:
        refusal = Refusal(search)  # has looked for the plan with the lowest peak
        found = search.cheapest()
    if found is not None:
        return _built(task, search, found, report)
    error = refusal.error()
    search.forget()  # whoever keeps the error keeps this frame, too
    if task.request.options.budget != "auto":
        raise error
    note = (
        f"No plan fits the {format_bytes(task.budget_bytes)} found free, so the step runs"
        f" unchanged. {error}"
    )
    log.warning(note)
    return _unchanged(task, costs, replace(report, notes=(*report.notes, *search.notes, note)))


def _built(task: PlanTask, search: PlanSearch, found: Candidate, report: Report) -> Planned:
    with task.clock.phase("building"):
        buffers: OutputBuffers | None = search.predictor.buffers
        run = Replayed(task.traced, found.plan, buffers, found.written)
    report = replace(
        report,
        result=found.result,
        predicted_peak_bytes=found.expected_bytes,
        notes=(*report.notes, *search.notes, *task.notes()),
    )
    return Planned(
        task.traced, search.graph, found.plan, found.result, run, report, found.rise_bytes
    )
