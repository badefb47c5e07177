"""Plans of planned steps as files: written by `save` and `store`, read by `stored_plan`."""

from __future__ import annotations

import os
from pathlib import Path

from checkmate.core.cache import forgiven
from checkmate.tf2.execution.replay import Replayed
from checkmate.tf2.memory.batch_area import make_output_buffers
from checkmate.tf2.planning import plan_files
from checkmate.tf2.planning.request import Planned, PlanTask, unchanged
from checkmate.tf2.report import Report


def stored_plan(task: PlanTask) -> Planned | None:
    """Returns the step under the plan of a file that is for it; None without one. Like any plan it
    is confirmed by the first real steps.

    Raises:
      PlanFileError: The file that was named does not fit the step or the budget.
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
    memory = task.memory()
    with task.clock.phase("building"), task.progress.phase("building"):
        run = (
            Replayed(
                traced,
                stored.plan,
                make_output_buffers(traced) if request.has_output_buffers else None,
            )
            if stored.plan
            else unchanged(traced, task.specs)
        )
    report = Report(
        name=request.name,
        memory=memory,
        plain_peak_bytes=stored.plain_bytes + other,
        result=stored.result(memory.limit_bytes) if stored.plan else None,
        ops=len(stored.graph),
        tensorflow_ops=len(traced.flat.graph.get_operations()),
        seconds={},
        notes=(*traced.notes, f"The plan is from {stored.path}.", *task.notes()),
        predicted_peak_bytes=stored.peak_bytes + other,
        graph=stored.graph,
        plain_plan=traced.plain_plan(),
    )
    plan = stored.plan or traced.plain_plan()
    return Planned(traced, stored.graph, plan, report.result, run, report, stored.rise_bytes)


def _accept(task: PlanTask, stored: plan_files.StoredPlan, other_bytes: int) -> None:
    """Refuses a plan from a file that takes more than the budget. Files count the bytes of the step
    alone."""
    request = task.request
    budget = (
        stored.budget_bytes + other_bytes
        if stored.is_named and request.options.budget == "auto"
        else request.resolve(stored.plain_bytes + other_bytes, other_bytes)
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
    plan_files.save(
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
            "slices": {"size": micro.size, "plain_bytes": micro.plain_bytes} if micro else None,
        },
    )
