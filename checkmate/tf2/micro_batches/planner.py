"""MicroBatchPlanner: plans a step whose batch runs in slices.

the step ── SlicedStep ──► functions: before, each slice, after ── PiecePlanner ──► a plan for each
── joined ──► one planned step
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from checkmate.core.replay import replay
from checkmate.errors import PlanError, PlanFileError, TraceError
from checkmate.tf2 import device as devices
from checkmate.tf2.graph.trace import TracedStep, trace
from checkmate.tf2.memory.available import free_or_none
from checkmate.tf2.memory.garbage import only_new_garbage
from checkmate.tf2.micro_batches.accumulated_step import AccumulatedStep
from checkmate.tf2.micro_batches.choice import Choice
from checkmate.tf2.micro_batches.pieces import PiecePlanner
from checkmate.tf2.micro_batches.sliced_run import PlainFigures, added, joined
from checkmate.tf2.micro_batches.sliced_step import SlicedStep
from checkmate.tf2.micro_batches.slices import Slices, examples_of
from checkmate.tf2.planning import store
from checkmate.tf2.planning.planner import Planner, measured, with_budget
from checkmate.tf2.planning.request import Clock, Planned, PlanRequest, PlanTask
from checkmate.units import Bytes, is_share

log = logging.getLogger("checkmate")

LOOKING = "looking at slices"
"""The phase of planning in slices, with all numbers of slices that were looked at."""


def planner_of(request: PlanRequest) -> Planner:
    return Planner(request) if request.options.micro_batches == 1 else MicroBatchPlanner(request)


@dataclass(slots=True, eq=False)
class MicroBatchPlanner(Planner):
    """Plans a step in the number of slices that is asked for, or in the one of least cost."""

    def plan(
        self,
        specs: tuple[Any, ...],
        *,
        like: Planned | None = None,
        batch: Sequence[Any] = (),
        traced: TracedStep | None = None,
        released_bytes: int = 0,
    ) -> Planned:
        """Plans the step for these shapes; with `like`, in slices of the same size; see
        `Planner.plan`."""
        request = self.request
        if like is None and request.options.plan:
            store.prepare(request.options.plan)
        with only_new_garbage():
            if like is not None:
                return self._smaller(specs, like, batch)
            with request.showing() as progress:
                inner = replace(self, request=replace(request, progress=progress))
                task, plain = _measured(inner._task(specs, batch, traced, released_bytes))
                path = self.path_of(task.traced)
                with task.clock.phase(LOOKING):
                    stored = inner._stored(task, plain, path)
                    planned = stored or inner._new(task, plain)
                planned = _timed(planned, task.clock)
                if not request.whole:
                    progress.done(planned.report.in_a_line())
            self.budget_bytes = planned.report.budget_bytes
            log.info("%s", planned.report)
            if path and stored is None:
                store.keep(path, planned)
            return planned

    def _task(
        self,
        specs: tuple[Any, ...],
        batch: Sequence[Any],
        traced: TracedStep | None = None,
        released_bytes: int = 0,
    ) -> PlanTask:
        request = self.request
        clock = Clock(request.progress)
        with clock.phase("tracing"):
            traced = traced or trace(request.step, *specs, name=request.name)
        return PlanTask.of(
            request,
            traced,
            specs,
            clock,
            batch,
            released_bytes=released_bytes,
            budget_bytes=self.budget_bytes,
        )

    def _new(self, task: PlanTask, plain: PlainFigures) -> Planned:
        count = self.request.options.micro_batches
        if count == "auto":
            return Choice(task, plain, lambda budget: _unsplit(task, budget=budget)).run()
        slices = Slices.of(examples_of(task.specs), int(count))
        return _unsplit(task) if slices.count == 1 else _in_slices(task, slices, plain)

    def _stored(self, task: PlanTask, plain: PlainFigures, path: Path | None) -> Planned | None:
        """The step under the plan of a file that is for it; None without one. A budget that is a
        share is one of the plain step's bytes when the plan was made, since those differ a little
        from process to process."""
        named = path or self.request.options.plan
        if not named or not Path(named).exists():
            return None
        other = task.other_bytes
        try:
            found = store.slices_of(named)
            examples, asked = examples_of(task.specs), self.request.options.micro_batches
            if found is None and asked == "auto":
                return _unsplit(task, named)
            slices = Slices(examples, found.size if found else examples)
            if found is None or found.size >= examples or asked not in ("auto", slices.count):
                made_for = f"slices of {found.size} examples" if found else "a whole batch"
                raise PlanFileError(
                    f"The plan of {named} is for {made_for}, and a batch of {examples} in {asked}"
                    " micro-batches was asked for. Make a plan for that."
                )
            if is_share(self.request.options.budget):
                task = task.within(self.request.resolve(found.plain_bytes + other, other))
            return _in_slices(task, slices, plain, named)
        except (PlanFileError, PlanError):
            if path is None:
                raise
            return None

    def _smaller(self, specs: tuple[Any, ...], like: Planned, batch: Sequence[Any]) -> Planned:
        """A smaller batch, in slices of the size of the larger one's."""
        request, micro = self.request, like.report.micro_batches
        options = replace(request.options, plan=None, budget=self.budget_bytes)
        request = replace(request, options=options, has_output_buffers=False)
        if micro is None:
            return Planner(request, self.budget_bytes).plan(specs, like=like, batch=batch)
        task = replace(self, request=request)._task(specs, batch)
        slices = Slices(examples_of(specs), micro.size)
        peak = replay(task.traced.graph, task.traced.plain_plan()).peak_bytes + task.other_bytes
        plain = PlainFigures(peak, peak - task.other_bytes, None)
        try:
            return _unsplit(task) if slices.count == 1 else _in_slices(task, slices, plain)
        except TraceError:  # such slices do not go together
            return _unsplit(task)


def _timed(planned: Planned, clock: Clock) -> Planned:
    """The step whose report has the seconds of all that was done for it: of its own plans, and of
    all else that was looked at or made."""
    report, times = planned.report, []
    for whole, own in (
        (clock.seconds, report.seconds),
        (clock.cpu_seconds, report.cpu_seconds),
    ):
        rest = max(0.0, whole.pop(LOOKING) - sum(own.values()))
        times.append({**added([whole, own]), LOOKING: rest})
    seconds, cpu_seconds = times
    return replace(planned, report=replace(report, seconds=seconds, cpu_seconds=cpu_seconds))


def _measured(task: PlanTask) -> tuple[PlanTask, PlainFigures]:
    """The task with its budget, and the figures of the plain step, whose ops are measured where the
    budget is a share of its peak, or where it fits on the device."""
    other = task.other_bytes
    peak, cost = replay(task.traced.graph, task.traced.plain_plan()).peak_bytes + other, None
    free = free_or_none(devices.training_device())
    if is_share(task.request.options.budget) or (free is not None and peak <= free):
        costs, peak = measured(task)
        cost = costs.graph.total_cost
    return with_budget(task, peak), PlainFigures(peak, peak - other, cost)


def _unsplit(task: PlanTask, file: Any = None, budget: Bytes | None = None) -> Planned:
    """The step without micro-batches; with a file, under the plan that is in it."""
    options = replace(task.request.options, plan=file)
    if budget is None and file is None and options.budget != "auto":
        budget = task.budget_bytes
    if budget is not None:
        options = replace(options, budget=budget)
    planner = Planner(replace(task.request, options=options), task.budget_bytes)
    return planner.plan(
        task.specs, batch=task.batch or (), traced=task.traced, released_bytes=task.released_bytes
    )


def _in_slices(task: PlanTask, slices: Slices, plain: PlainFigures, file: Any = None) -> Planned:
    """The step in these slices; with a file, under the plan that is in it."""
    step = _sliced(task, slices)
    return joined(task, PiecePlanner(task, step).plan(slices, file), plain)


def _sliced(task: PlanTask, slices: Slices) -> SlicedStep | AccumulatedStep:
    """The step, whose slices are batches of their own where it cannot be split exactly."""
    request = task.request
    step = SlicedStep(task.traced, request.scratch)
    if step.binding is None:
        return step
    reason = step.binding.sentence
    if request.options.micro_batches == "auto":
        raise TraceError(f"{request.name!r} is not split: {reason}")
    try:
        accumulated = AccumulatedStep(
            request.step, task.specs, request.name, reason, request.scratch
        )
    except TraceError as error:
        raise TraceError(
            f"{request.name!r} cannot run in slices: {reason} Nor can each slice be a batch of its"
            f" own: {error}"
        ) from error
    log.warning(accumulated.note)
    return accumulated
