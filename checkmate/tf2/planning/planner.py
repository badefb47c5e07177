"""Planner: from a step and its shapes to the function that runs within the budget, on paper.

trace -> the step, and the ways to write it otherwise -> for each that may be the cheapest, a plan
of each of its pieces (`new_plan`) -> the function. No step runs, nor an op that has state.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from checkmate.core.replay import replay
from checkmate.errors import InfeasibleBudgetError, NoPlanFoundError, PlanError, TraceError
from checkmate.tf2 import device as devices
from checkmate.tf2.execution.replay import Replayed, output_buffers_bytes
from checkmate.tf2.graph.trace import TracedStep, trace
from checkmate.tf2.planning import store
from checkmate.tf2.planning.budget_loop import TUNING
from checkmate.tf2.planning.clustering import compiled, like_whole
from checkmate.tf2.planning.new_plan import new_plan
from checkmate.tf2.planning.request import Clock, Planned, PlanRequest, PlanTask, Reason, unchanged
from checkmate.tf2.planning.rewriting import LOOKING, Rewriting
from checkmate.tf2.planning.sliced_steps import added
from checkmate.tf2.report import Clusters
from checkmate.tf2.rewrites.slices import Slices, examples_of

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
        """Plans the step for these shapes; with `like`, under the same plan where it fits, or in
        slices of the same size. `batch` has flattened values of these specs in memory, if there are
        any; `released_bytes` are in use and released once this plan is taken."""
        request = self.request
        if like is not None:  # no plan is stored for a smaller batch, nor do its results stay
            options = replace(request.options, plan=None)
            request = replace(request, options=options, has_output_buffers=False)
        elif request.options.plan:
            store.prepare(request.options.plan)
        with only_new_garbage(), request.showing() as progress:
            clock = Clock(progress)
            with clock.phase("tracing"):
                main = like if like and not like.in_slices else None
                same = main.traced if main else None
                traced = traced or trace(request.step, *specs, name=request.name, like=same)
            if main and (planned := self._under_same_plan(traced, specs, main)):
                return planned
            task = PlanTask.of(
                request,
                traced,
                specs,
                clock,
                batch,
                released_bytes=released_bytes,
                budget_bytes=self.budget_bytes,
            )
            path = store.path_of(request, traced)
            try:
                if like is not None and like.in_slices:
                    return self._in_slices_of(like, task)
                if request.options.micro_batches == 1 or like is not None:
                    stored = store.stored_plan(task)
                    planned = stored or new_plan(task)
                else:
                    rewriting = Rewriting.of(replace(request, progress=progress), task)
                    with clock.phase(LOOKING):
                        stored = rewriting.stored(path)
                        planned = stored or rewriting.new()
                planned = compiled(task, planned)
                if not request.whole:
                    progress.done(planned.report.in_a_line())
            finally:  # training's peak is counted without what planning ran
                devices.forget_peak(devices.training_device())
        self.budget_bytes = planned.report.budget_bytes
        planned = _timed(planned, clock)
        log.info("%s", planned.report)
        if stored is None and path:
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
        options, clusters = self.request.options, planned.report.clusters
        if correction > 1 and clusters and clusters.calls != 0:
            # What XLA took says nothing of TensorFlow's own kernels. A step that was compiled as a
            # whole is planned; one of which parts were runs without XLA.
            correction = 1.0
            options = replace(options, jit_compile=clusters.calls is None)
        if self.plans_anew >= MAX_PLANS_ANEW:
            log.warning("%s It was planned anew %d times: its plan stays.", why, self.plans_anew)
            return planned
        self.plans_anew += 1
        before = self.request
        self.request = replace(
            before,
            options=options,
            correction=before.correction * correction,
            # For what a pipeline comes to hold.
            next_batches=before.next_batches + bool(before.next_batches and correction >= 1),
        )
        log.info("%s It is planned anew.", why)
        # The folder's plan is the one that is replaced.
        options = replace(options, plan=None)
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
        if path := store.path_of(self.request, found.traced):
            store.keep(path, found)
        if options.jit_compile is not before.options.jit_compile:
            why_not = "with parts compiled, a step took more than the budget"
            return found.reporting(clusters=Clusters(0, why_not=why_not))
        return found

    def _under_same_plan(
        self, traced: TracedStep, specs: tuple[Any, ...], main: Planned
    ) -> Planned | None:
        """The main plan on a smaller batch's graph, when the two graphs differ in sizes only."""
        if main.result is None:
            run = like_whole(unchanged(traced, specs), main.run)
            return replace(main, traced=traced, graph=traced.graph, run=run)
        if main.part:  # its largest ops are split, or bodies of its loops planned
            return None
        if [op.deps for op in traced.graph.ops] != [op.deps for op in main.graph.ops]:
            return None
        try:
            if replay(traced.graph, main.plan).peak_bytes > self.budget_bytes:
                return None
        except PlanError:
            return None
        same = replace(main, traced=traced, graph=traced.graph, run=Replayed(traced, main.plan))
        return same.reporting(clusters=None)

    def _in_slices_of(self, like: Planned, task: PlanTask) -> Planned:
        """A smaller batch, in slices of the size of the larger one's."""
        micro = like.report.micro_batches
        assert micro is not None
        options = replace(task.request.options, budget=self.budget_bytes)
        request = replace(task.request, options=options)
        rewriting = Rewriting.of(request, replace(task, request=request), measures=False)
        slices = Slices(examples_of(task.specs), micro.size)
        try:
            return rewriting.at(slices)
        except TraceError:  # such slices do not go together
            return rewriting.unsplit()


def _timed(planned: Planned, clock: Clock) -> Planned:
    """The step whose report has the seconds of all that was done for it: of its own plans, and of
    all else that was looked at or made."""
    seconds, own = clock.seconds, planned.report.seconds
    if LOOKING in seconds:
        rest = max(0.0, seconds.pop(LOOKING) - sum(own.values()))
        seconds = {**added([seconds, own]), LOOKING: rest}
    return planned.reporting(seconds=seconds)


@contextmanager
def only_new_garbage() -> Iterator[None]:
    """Collects garbage, leaves all other objects out of collections until the end of the block, and
    collects in it only where asked to.

    Planning asks after each function that it runs and drops. A process that has TensorFlow and a
    model has half a million objects, and to look at all of them takes longer than to trace a small
    step. Older objects that become garbage in the block are collected after it. A program that uses
    `gc.freeze` itself is left as it is.
    """
    gc.collect()
    if gc.get_freeze_count():
        yield
        return
    was_enabled = gc.isenabled()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()
