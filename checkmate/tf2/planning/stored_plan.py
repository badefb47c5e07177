"""Plans of planned steps as files: written by `save` and `store`, read by `stored_plan`."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from checkmate.core.cache import forgiven
from checkmate.tf2.execution.replay import Replayed
from checkmate.tf2.memory.batch_area import make_output_buffers
from checkmate.tf2.memory.confirm import confirm
from checkmate.tf2.planning import plan_files
from checkmate.tf2.planning.plan_search import PlanSearch
from checkmate.tf2.planning.planned import Planned, unchanged
from checkmate.tf2.planning.refusal import Refusal
from checkmate.tf2.planning.request import PlanTask


def stored_plan(task: PlanTask) -> Planned | None:
    """Returns the step under the plan of a file that is for it; None without one.

    Raises:
      PlanFileError: The file that was named does not fit the step or the budget.
      InfeasibleBudgetError: The plan takes more than the budget on this device.
      NoPlanFoundError: The same, where it is not proven that no plan fits.
    """
    request, traced = task.request, task.traced
    if not request.options.plan or not task.is_main:
        return None
    other = task.other_bytes
    stored = plan_files.find(
        request.options.plan, traced, request.options.key, lambda each: _accept(task, each, other)
    )
    if stored is None:
        return None
    task.fetch_region()
    task.plain = task.plain or stored.plain
    memory = task.memory(task.budget_bytes)
    report = task.report(stored.graph, memory, stored.plain_peak_bytes + other, stored.plain)
    plan = stored.plan or traced.plain_plan()
    with task.clock.phase("building"), task.progress.phase("building"):
        run = (
            Replayed(
                traced, plan, make_output_buffers(traced) if request.has_output_buffers else None
            )
            if stored.plan
            else unchanged(traced, task.specs)
        )
    result = stored.result(memory.limit_bytes) if stored.plan else None
    planned = Planned(
        traced, stored.graph, plan, result, run, report, in_use_bytes=task.start_bytes
    )
    peak = stored.measured_peak_bytes and stored.measured_peak_bytes + other
    if not stored.from_this_device and task.reports:
        planned, peak = _confirmed(task, planned)
    notes = (*report.notes, f"The plan is from {stored.path}.", *task.notes())
    report = replace(report, result=result, measured_peak_bytes=peak, notes=notes)
    return replace(planned, report=report.with_seconds(stored.plain.seconds, stored.step_seconds))


def _confirmed(task: PlanTask, planned: Planned) -> tuple[Planned, int | None]:
    """A plan from another device and its peak here, where the step can be run; refused where it
    takes more than the budget."""
    with task.clock.phase("confirming"), task.progress.phase("confirming"):
        confirmed = confirm(planned.run, task.traced, steps=1, watch=False, batch=task.batch)
    if confirmed is None:
        return planned, None
    memory, allocated = planned.report.memory, confirmed.allocated_bytes
    peak = None if allocated is None else memory.peak(allocated)
    if peak is None or peak > memory.limit_bytes:
        search = PlanSearch(task, planned.graph, memory, memory.limit_bytes)
        raise Refusal(search, taken_bytes=peak or memory.limit_bytes + 1).error()
    return replace(planned, function_bytes=confirmed.function_bytes), peak


def _accept(task: PlanTask, stored: plan_files.StoredPlan, other_bytes: int) -> None:
    """Refuses a plan from a file that takes more than the budget. Files count the bytes of the step
    alone."""
    request = task.request
    plain = stored.plain.peak_bytes or stored.plain_peak_bytes
    budget = (
        stored.budget_bytes + other_bytes
        if stored.is_named and request.options.budget == "auto"
        else request.resolve(plain + other_bytes, other_bytes)
    )
    plan_files.refuse_above(stored, budget - other_bytes)
    task.budget_bytes = budget


def store(path: Path, planned: Planned) -> None:
    """Writes a plan into its folder; where that fails, the step trains all the same."""
    with forgiven(path.parent):
        save(path, planned)


def save(path: str | os.PathLike, planned: Planned) -> None:
    """Writes a planned step as a file, for `plan` of another run; the file counts the bytes of the
    step alone."""
    micro = planned.report.micro_batches
    planned = planned.part or planned
    report = planned.report
    other = report.memory.other_bytes
    measured, plain = report.measured_peak_bytes, report.plain_measured_bytes
    plan_files.save(
        path,
        planned.traced,
        planned.graph,
        planned.plan,
        {
            "unchanged": planned.result is None,
            "budget_bytes": report.budget_bytes - other,
            "measured_peak_bytes": measured and measured - other,
            "plain_measured_bytes": plain and plain - other,
            "plain_seconds": report.plain_seconds,
            "step_seconds": report.step_seconds,
            "slices": {"size": micro.size, "plain_bytes": micro.plain_bytes} if micro else None,
        },
    )
