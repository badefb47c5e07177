"""A new plan: measure the step, search for the cheapest plan within the budget, confirm it."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from checkmate.core.graph import DFGraph
from checkmate.core.replay import replay
from checkmate.tf2 import device as devices
from checkmate.tf2.costs.measured import with_costs, without_disproved
from checkmate.tf2.memory import known_steps
from checkmate.tf2.memory.budget import RESERVES, MemoryBudget
from checkmate.tf2.memory.plain_step import PlainStep, measured
from checkmate.tf2.planning.candidate import Found
from checkmate.tf2.planning.plan_search import PlanSearch
from checkmate.tf2.planning.planned import Planned, unchanged
from checkmate.tf2.planning.refusal import Refusal
from checkmate.tf2.planning.request import PlanTask
from checkmate.tf2.report import Report
from checkmate.units import format_bytes

log = logging.getLogger("checkmate")


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """A step with what it was measured to take.

    Attributes:
      graph: Its graph, with costs.
      piece_bytes: The most that the allocator has in one piece.
      predicted_bytes: The plain step's predicted peak, with all else that is in use.
      plain: What the plain step was measured to take.
      known: What was known of it before.
    """

    graph: DFGraph
    piece_bytes: int
    predicted_bytes: int
    plain: PlainStep
    known: known_steps.KnownStep

    def measured_bytes(self, other_bytes: int) -> int | None:
        """Returns the plain step's measured peak with other bytes in use; None where it was not
        measured."""
        return None if self.plain.peak_bytes is None else self.plain.peak_bytes + other_bytes

    def whole_bytes(self, other_bytes: int) -> int:
        """Returns the plain step's peak with other bytes in use, of which a budget can be a share.
        An allocator that does not count everything may count too little."""
        measured = self.measured_bytes(other_bytes)
        if measured is None:
            return self.predicted_bytes
        if devices.counts_everything(devices.training_device()):
            return measured
        return max(measured, self.predicted_bytes)


def measured_step(task: PlanTask) -> MeasuredStep:
    """Measures a step's ops, and the plain step; then the budget is known."""
    traced, options = task.traced, task.request.options
    other, piece = task.other_bytes, task.fetch_region()
    with task.clock.phase("measuring ops"), task.progress.phase("measuring ops"):
        graph = with_costs(traced, options.cost_model, on_progress=task.progress.advance)
    plain_peak = replay(graph, traced.plain_plan()).peak_bytes + other
    known = known_steps.load(traced) if task.is_main else known_steps.KnownStep()
    plain = _plain_step(task, plain_peak, known.plain)
    if plain.measured and not known.plain and task.is_main:
        known_steps.save(traced, known_steps.KnownStep(plain, known.footprints))
    if plain.peak_bytes is not None:
        graph = without_disproved(traced, graph, plain.peak_bytes)
    step = MeasuredStep(graph, piece, plain_peak, plain, known)
    if not task.budget_bytes:
        task.budget_bytes = task.request.resolve(step.whole_bytes(other), other)
    return step


def new_plan(task: PlanTask) -> Planned:
    """Returns the step measured, planned and confirmed; unchanged where it fits.

    Raises:
      InfeasibleBudgetError: No plan fits the budget, which is proven.
      NoPlanFoundError: None was found.
    """
    step = measured_step(task)
    graph, known = step.graph, step.known
    measured_peak = step.measured_bytes(task.other_bytes)
    memory = task.memory(task.budget_bytes)
    report = task.report(graph, memory, step.predicted_bytes, step.plain)
    if _fits_unchanged(memory, step.predicted_bytes, measured_peak):
        return _unchanged(task, graph, report)
    limit = memory.limit_bytes if measured_peak is None else min(memory.limit_bytes, measured_peak)
    search = PlanSearch(task, graph, memory, limit, step.piece_bytes, dict(known.footprints))
    planned = _searched(task, search, report)
    if task.is_main and known.footprints != search.footprints:
        plain = step.plain if step.plain.measured else None
        known_steps.save(task.traced, known_steps.KnownStep(plain, search.footprints))
    return planned


def _plain_step(task: PlanTask, predicted_bytes: int, known: PlainStep | None) -> PlainStep:
    """What the plain step takes, run for it where that is not known and safe; that of a smaller
    batch is not measured."""
    if not task.is_main:
        return PlainStep(why_not="only the step of the largest batch is")
    task.plain = task.plain or known
    if task.plain is None:
        phase = "measuring the plain step"
        with task.clock.phase(phase), task.progress.phase(phase):
            task.plain = measured(
                unchanged(task.traced, task.specs),
                task.traced,
                predicted_bytes=predicted_bytes,
                other_bytes=task.other_bytes,
                batch=task.batch,
            )
    return task.plain


def _fits_unchanged(memory: MemoryBudget, plain_peak: int, measured_peak: int | None) -> bool:
    """Whether the plain step fits by measurement; where it was not measured by prediction, with a
    reserve."""
    if measured_peak is not None:
        return measured_peak <= memory.peak_limit_bytes
    reserve = int(RESERVES.unconfirmed * max(0, memory.activation_budget_bytes))
    return plain_peak + reserve <= memory.limit_bytes


def _unchanged(task: PlanTask, graph: DFGraph, report: Report) -> Planned:
    peak = report.plain_measured_bytes
    report = replace(
        report,
        measured_peak_bytes=peak,
        predicted_peak_bytes=peak,
        notes=(*report.notes, *task.notes()),
    )
    run, plan = unchanged(task.traced, task.specs), task.traced.plain_plan()
    return Planned(task.traced, graph, plan, None, run, report, in_use_bytes=task.start_bytes)


def _searched(task: PlanTask, search: PlanSearch, report: Report) -> Planned:
    """The step under the plan that a search finds. Under budget="auto" it runs unchanged where none
    is found: what trains without a plan must not stop."""
    found = search.run()
    if found is None:
        refusal = Refusal(search)
        found = refusal.lowest_that_fits()
    if found is not None:
        return _found(task, search, found, report)
    error = refusal.error()
    search.forget()  # whoever keeps the error keeps this frame, too
    if task.request.options.budget != "auto":
        raise error
    search.notes.append(
        f"No plan fits the {format_bytes(task.budget_bytes)} found free, so the step runs"
        f" unchanged. {error}"
    )
    log.warning(search.notes[-1])
    report = replace(report, notes=(*report.notes, *search.notes))
    return _unchanged(task, search.graph, report)


def _found(task: PlanTask, search: PlanSearch, found: Found, report: Report) -> Planned:
    confirmed = found.confirmed
    report = replace(
        report,
        result=found.result,
        measured_peak_bytes=found.measured_bytes,
        predicted_peak_bytes=found.expected_bytes,
        steps_before=search.steps_run,
        notes=(*report.notes, *search.notes, *task.notes()),
    ).with_seconds(report.plain_seconds, confirmed.seconds if confirmed else None)
    if report.is_slower_than_predicted:
        log.warning("%r: %s", report.name, report.notes[-1])
    return Planned(
        task.traced,
        search.graph,
        found.plan,
        found.result,
        found.run,
        report,
        confirmed.function_bytes if confirmed else 0,
        task.start_bytes,
    )
