"""Planner: from a step and its shapes to the function that runs within the budget."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tensorflow as tf

from checkmate.core.replay import replay
from checkmate.errors import InfeasibleBudgetError, NoPlanFoundError, PlanError
from checkmate.progress import Progress
from checkmate.tf2 import device as devices
from checkmate.tf2.execution.replay import Replayed
from checkmate.tf2.graph.trace import TracedStep, trace
from checkmate.tf2.memory.confirm import in_memory
from checkmate.tf2.memory.garbage import only_new_garbage
from checkmate.tf2.memory.own_memory import give_own_memory
from checkmate.tf2.memory.pipeline import BATCHES_MADE
from checkmate.tf2.memory.plain_step import PlainStep
from checkmate.tf2.planning import plan_files
from checkmate.tf2.planning.in_use import function_bytes
from checkmate.tf2.planning.new_plan import new_plan
from checkmate.tf2.planning.planned import Clock, Planned, unchanged
from checkmate.tf2.planning.request import PlanRequest, PlanTask
from checkmate.tf2.planning.stored_plan import store, stored_plan
from checkmate.units import format_bytes

log = logging.getLogger("checkmate")

PHASES = {
    "tracing": 1,
    "measuring ops": 2,
    "measuring the plain step": 3,
    "solving": 4,
    "predicting": 4,
    "building": 5,
    "confirming": 5,
}
"""The phases of planning -> their numbers, as progress shows them. Where confirming finds that a
plan takes too much, solving follows again."""

MAX_PLANS_ANEW = 3
"""How often a step is planned anew at most because more is in use; a warning follows."""


@dataclass(slots=True, eq=False)
class Planner:
    """Plans a step for the shapes that come.

    Attributes:
      budget_bytes: The budget in bytes, known once the first shapes are planned.
      plain: What the plain step was measured to take, known then, too.
    """

    request: PlanRequest
    budget_bytes: int = 0
    plain: PlainStep | None = None

    def plan(
        self,
        specs: tuple[Any, ...],
        *,
        like: Planned | None = None,
        batch: Sequence[Any] = (),
        released_bytes: int = 0,
    ) -> Planned:
        """Plans the step for these shapes; with `like`, under the same plan where it fits.

        Args:
          batch: Flattened values of these specs, where there are any: the plan is then confirmed on
            them.
          released_bytes: Bytes in use that are released once this plan is taken: what the function
            of the former plan has in memory.
        """
        request, clock = self.request, Clock()
        if request.options.plan:
            plan_files.prepare(request.options.plan)
        showing = Progress(request.name, PHASES, enabled=request.options.verbose)
        with only_new_garbage(), showing as progress:
            with clock.phase("tracing"), progress.phase("tracing"):
                traced = trace(
                    request.step, *specs, name=request.name, like=like.traced if like else None
                )
            if like is not None and (same := self._under_same_plan(traced, specs, like)):
                return same
            give_own_memory(traced.variables)
            values = in_memory(batch, tf.nest.flatten(specs))
            task = PlanTask(
                request, traced, specs, clock, progress, values, released_bytes, like is None,
                self.budget_bytes, self.plain,
            )  # fmt: skip
            try:
                stored = stored_plan(task)
                planned = stored or new_plan(task)
                progress.done(planned.report.in_a_line())
            finally:  # training's peak is counted without what planning ran
                devices.forget_peak(devices.training_device())
        self.budget_bytes, self.plain = task.budget_bytes, task.plain
        report = replace(
            planned.report, seconds=dict(clock.seconds), cpu_seconds=dict(clock.cpu_seconds)
        )
        planned = replace(planned, report=report)
        log.info("%s", planned.report)
        if like is None and stored is None and (path := self.path_of(traced)):
            store(path, planned)
        return planned

    def with_more_in_use(
        self, planned: Planned, specs: tuple[Any, ...], batch: Sequence[tf.Tensor], excess: int
    ) -> Planned:
        """Returns a plan that counts what came to be in use since the step was planned, `excess`
        bytes too much; the same plan where no other is found.

        Each time, memory is set aside for one more batch that the pipeline may come to hold.
        """
        name, made = self.request.name, self.request.next_batches
        over = (
            f"{format_bytes(excess)} more than the budget of {format_bytes(self.budget_bytes)} with"
            " what is in use now"
        )
        if made >= BATCHES_MADE + MAX_PLANS_ANEW:
            log.warning(
                "%r would take %s, and was planned anew %d times: its plan stays.",
                name,
                over,
                MAX_PLANS_ANEW,
            )
            return replace(planned, in_use_bytes=0)
        self.request = replace(self.request, next_batches=made + 1)
        log.info("%r would take %s: it is planned anew.", name, over)
        try:
            return self._planned_anew(specs, batch, function_bytes(planned))
        except (InfeasibleBudgetError, NoPlanFoundError) as refusal:
            log.warning(
                "%r takes %s. It was within that when it was planned, and no other plan is. %s",
                name,
                over,
                refusal,
            )
            return replace(planned, in_use_bytes=0)

    def _planned_anew(
        self, specs: tuple[Any, ...], batch: Sequence[tf.Tensor], released_bytes: int
    ) -> Planned:
        """A new plan, stored in the folder in place of the one there."""
        options = replace(self.request.options, plan=None)
        planner = replace(self, request=replace(self.request, options=options))
        planned = planner.plan(specs, batch=batch, released_bytes=released_bytes)
        if path := self.path_of(planned.traced):
            store(path, planned)
        return planned

    def path_of(self, traced: TracedStep) -> Path | None:
        """Where the folder of `plan` has the plan of a step; None without a folder."""
        return self.request.path_of(traced)

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
