"""From a step and its shapes to the function that runs: trace it, measure its ops, and attempt to bring it within the budget."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tensorflow as tf

from checkmate.core.memory import replay
from checkmate.errors import InfeasibleBudgetError, NoPlanFoundError, PlanError, PlanFileError
from checkmate.progress import Progress
from checkmate.solvers.search import Solver, check_time_limit
from checkmate.solvers.solve import make_solver
from checkmate.tf2 import device as devices
from checkmate.tf2 import plan_files
from checkmate.tf2.attempt import Attempt, Clock, Planned, outside_bytes, unchanged
from checkmate.tf2.check import Trial, in_memory, on_trial
from checkmate.tf2.execute import Replayed
from checkmate.tf2.memory.own_memory import give_own_memory
from checkmate.tf2.memory.pipeline import BATCHES_MADE, MOST_PLANS_ANEW, argument_bytes, bytes_ahead, function_bytes
from checkmate.tf2.memory.plain_step import PlainStep, free_or_none, safe_bytes
from checkmate.tf2.profile import CostModel, with_costs
from checkmate.tf2.refusal import explained
from checkmate.tf2.trace import TracedStep, trace
from checkmate.units import Bytes, format_bytes, is_share, parse_bytes

log = logging.getLogger("checkmate")


def check_asked(budget: Bytes, solver: str | Solver, time_limit_s: float | None) -> None:
    """Refuses what cannot be read, before anything is traced."""
    make_solver(solver)
    if budget != "auto":
        parse_bytes(budget, percent_of=1 << 40)
    if time_limit_s is not None:
        check_time_limit(time_limit_s)


@dataclass(slots=True, eq=False)
class Planner:
    """What was asked for, independent of shapes.

    Attributes:
      kept: A file with the plan to run, or a folder where plans are looked up and left; None to plan anew.
      time_limit_s: See `attempt.time_limit`.
      explains: Whether a refusal says what would fit, which takes some seconds to find out.
      has_rooms: Whether results lie in rooms that outlive a step (see `execute`): of the main step, unless its plan is replayed in another function.
      next_batches: How many further batches an input pipeline may make while the step runs, for which memory is left. From one on the step is
        planned anew where the pipeline comes to hold more; see `memory.pipeline`.
      budget_bytes: The budget in bytes, known once the first shapes are planned.
      plain: What the plain step was measured to take, known then, too.
    """

    step: Callable
    name: str
    budget: Bytes
    solver: str | Solver
    cost_model: str | CostModel
    time_limit_s: float | None
    verbose: bool
    kept: str | os.PathLike | None = None
    explains: bool = True
    has_rooms: bool = True
    next_batches: int = 0
    budget_bytes: int = 0
    plain: PlainStep | None = None

    def plan(self, specs: tuple[Any, ...], *, like: Planned | None = None, batch: Sequence[Any] = (), gone: int = 0) -> Planned:
        """Plans the step for these shapes; with `like`, under the same plan where it fits.

        Args:
          batch: Flattened values of these specs, where there are any: the plan is then checked as it will run on them.
          gone: Bytes in use that will not be once this plan is taken: what the function of the former one holds.
        """
        if self.kept:
            plan_files.make_folder(self.kept)
        clock = Clock()
        with Progress(self.name, enabled=self.verbose) as progress:
            with clock.phase("tracing"), progress.phase("tracing"):
                traced = trace(self.step, *specs, name=self.name, like=like.traced if like else None)
            if like is not None and (same := self._under_same_plan(traced, specs, like)):
                return same
            give_own_memory(traced.function.variables)
            there = in_memory(batch, tf.nest.flatten(specs))
            outside = max(0, outside_bytes(traced) - gone) + bytes_ahead(traced, self.next_batches)
            at_first = devices.bytes_in_use(devices.training_device()) - gone + (0 if there else argument_bytes(traced))
            if (
                self.kept
                and like is None
                and (known := plan_files.find(self.kept, traced, self._asked, lambda known: self._accept(known, outside)))
            ):
                return replace(self._as_kept(known, traced, specs, clock, outside, there), in_use_bytes=at_first)
            self._make_room(traced, outside)
            with clock.phase("measuring ops"), progress.phase("measuring ops"):
                graph = with_costs(traced, self.cost_model, on_progress=progress.advance)
            plain_peak = replay(graph, traced.plain_plan()).peak_bytes + outside
            has_rooms = self.has_rooms and like is None
            attempt = Attempt(self, traced, graph, specs, clock, progress, outside, there, self._measured(like), has_rooms)
            attempt.measure_plain(plain_peak)
            self.plain = self.plain or attempt.plain
            self.budget_bytes = self.budget_bytes or self._resolve(attempt.shared_bytes(plain_peak), outside)
            planned = attempt.timed(attempt.as_it_is(plain_peak) or attempt.within_budget(plain_peak))
        gc.collect()  # plans that were tried and not taken hold memory, in cycles; the step is promised what it was checked with
        devices.forget_peak(devices.training_device())
        # Of several plans that were tried it need not be the last one.
        planned = replace(planned, report=replace(planned.report, seconds=dict(clock.seconds)), in_use_bytes=at_first)
        log.info("%s", planned.report)
        if like is None and (path := self.path_of(traced)):
            _keep(path, planned)
        return planned

    def _measured(self, like: Planned | None) -> PlainStep | None:
        """What is known of the plain step before it is run: of the main one what an earlier plan was made with, of smaller batches nothing."""
        return self.plain if like is None else PlainStep(why_not="only the step of the largest batch is")

    def confirmed(self, planned: Planned, specs: tuple[Any, ...], batch: Sequence[tf.Tensor]) -> Planned:
        """A plan that was checked on made-up data, checked on a batch before it trains; one made with that at hand where it needs too much.

        A batch of the user's lies elsewhere in memory than ours did, and may leave holes that the step's larger tensors do not fit. Where no
        other plan is found, a warning says by how much this one is over: training has begun, and small is the difference.
        """
        there = in_memory(batch, tf.nest.flatten(specs))
        if there is None:
            return planned
        gc.collect()
        outside, held = planned.report.outside_bytes, planned.held_bytes
        enough = self.budget_bytes - outside - held
        found = on_trial(planned.run, planned.traced, devices.training_device(), enough=enough, batch=there)
        devices.forget_peak(devices.training_device())
        trial = found and found.beside(outside, held)
        if trial and trial.most_bytes > self.budget_bytes:
            over = f"{format_bytes(trial.most_bytes)} on the first batch, of {format_bytes(self.budget_bytes)}"
            log.info("%r takes %s: it is planned anew.", self.name, over)
            try:
                return self._planned_anew(specs, batch)
            except (InfeasibleBudgetError, NoPlanFoundError) as refusal:
                log.warning("%r takes %s. It was within that on trial, and no other plan is. %s", self.name, over, refusal)
        if trial:
            peaks = {"measured_peak_bytes": trial.most_bytes, "usual_peak_bytes": trial.usual_bytes}
            planned = replace(planned, report=replace(planned.report, **peaks))
        return replace(planned, on_made_up=False)

    def with_more_in_use(self, planned: Planned, specs: tuple[Any, ...], batch: Sequence[tf.Tensor], more: int) -> Planned:
        """A plan that counts what came to be in use since the step was planned, `more` bytes too much; the same one where there is none.

        Each time memory is left for one more batch that the pipeline may come to hold.
        """
        over = f"{format_bytes(more)} more than the budget of {format_bytes(self.budget_bytes)} with what is in use now"
        if self.next_batches >= BATCHES_MADE + MOST_PLANS_ANEW:
            log.warning("%r would take %s, and was planned anew %d times: it is left as it is.", self.name, over, MOST_PLANS_ANEW)
            return replace(planned, in_use_bytes=0)
        self.next_batches += 1
        log.info("%r would take %s: it is planned anew.", self.name, over)
        try:
            return self._planned_anew(specs, batch, gone=function_bytes(planned))
        except (InfeasibleBudgetError, NoPlanFoundError) as refusal:
            log.warning("%r takes %s. It was within that when it was planned, and no other plan is. %s", self.name, over, refusal)
            return replace(planned, in_use_bytes=0)

    def _planned_anew(self, specs: tuple[Any, ...], batch: Sequence[tf.Tensor], *, gone: int = 0) -> Planned:
        """A plan that is made, whatever lies in the folder, and left there instead."""
        planned = replace(self, kept=None).plan(specs, batch=batch, gone=gone)
        if path := self.path_of(planned.traced):
            _keep(path, planned)
        return planned

    def path_of(self, traced: TracedStep) -> Path | None:
        """Where the folder `kept` has the plan of a step with these options; None without a folder."""
        return plan_files.path_in(self.kept, traced, self._asked) if self.kept else None

    @property
    def _asked(self) -> tuple[Any, ...]:
        solver = self.solver if isinstance(self.solver, str) else self.solver.name
        return self.budget, solver, getattr(self.cost_model, "__qualname__", self.cost_model), self.time_limit_s

    def _accept(self, known: plan_files.KeptPlan, outside: int) -> None:
        """Refuses a plan from a file that takes more than the budget. Files tell of the step alone, without what else is in memory."""
        of_step = known.budget_bytes + outside
        plain = known.plain.peak_bytes or known.plain_peak_bytes
        budget = of_step if known.named and self.budget == "auto" else self._resolve(plain + outside, outside)
        plan_files.refuse_above(known, budget - outside)
        self.budget_bytes = budget

    def _as_kept(
        self,
        known: plan_files.KeptPlan,
        traced: TracedStep,
        specs: tuple[Any, ...],
        clock: Clock,
        outside: int,
        batch: Sequence[tf.Tensor] | None,
    ) -> Planned:
        """The step under a plan from a file; it is run to be measured where it was not on a device like this."""
        self._make_room(traced, outside)
        attempt = Attempt(
            self, traced, known.graph, specs, clock, Progress(self.name, enabled=False), outside, batch, known.plain, self.has_rooms
        )
        self.plain = self.plain or known.plain
        attempt.notes.append(f"The plan is from {known.path}.")
        plan = known.plan or traced.plain_plan()
        run, held = attempt.built(plan) if known.plan else (unchanged(traced, specs), 0)
        result = known.result(self.budget_bytes) if known.plan else None
        if known.as_here:
            peak = known.measured_peak_bytes
            trial = peak and Trial(peak, peak, held).beside(outside, 0)
        else:
            trial = attempt.on_trial(run, held)
        if trial and (trial.most_bytes > self.budget_bytes or (known.plan and attempt.is_above_plain(trial))):
            raise explained(NoPlanFoundError("", best_peak_bytes=trial.most_bytes), attempt, trial.most_bytes, None)
        planned = attempt.planned(result, plan, run, known.plain_peak_bytes + outside, trial)
        planned = replace(planned, report=planned.report.with_seconds(known.plain.seconds, known.step_seconds, known.serial_seconds))
        return replace(planned, on_made_up=planned.on_made_up and not known.named)  # whoever names a file wants that plan

    def _under_same_plan(self, traced: TracedStep, specs: tuple[Any, ...], main: Planned) -> Planned | None:
        """The main plan on a smaller batch's graph, when the two graphs differ in sizes only."""
        if main.result is None:
            return replace(main, traced=traced, graph=traced.graph, run=unchanged(traced, specs), on_made_up=False)
        if [op.deps for op in traced.graph.ops] != [op.deps for op in main.graph.ops]:
            return None
        try:
            if replay(traced.graph, main.plan).peak_bytes > self.budget_bytes:
                return None
        except PlanError:
            return None
        return replace(main, traced=traced, graph=traced.graph, run=Replayed(traced, main.plan), on_made_up=False)

    def _make_room(self, traced: TracedStep, outside: int) -> None:
        """Has the allocator hold what the step will need in one piece, before the ops that are measured cut its pool into small ones."""
        device = devices.training_device()
        if devices.allocator_reports(device):
            plain = replay(traced.graph, traced.plain_plan()).peak_bytes + outside
            most = min(plain, self.budget_bytes or self._resolve(plain, outside))
            if device.startswith("CPU") and devices.cap_bytes(device) is None:  # not touched before it is used, unlike a GPU's
                safe = safe_bytes(traced, plain, outside)
                most = (safe if safe <= (free_or_none(device) or 0) else most) + devices.UNSPLIT_BYTES
            devices.make_room(device, most - outside - traced.between_bytes)

    def _resolve(self, plain_peak_bytes: int, outside: int) -> int:
        """The budget in bytes. A share is one of what the step itself takes; what else is in use is there with any plan, and added."""
        if self.budget == "auto":
            return devices.auto_budget(devices.training_device())
        own = parse_bytes(self.budget, percent_of=plain_peak_bytes - outside)
        return own + outside if is_share(self.budget) else own


def _keep(path: Path, planned: Planned) -> None:
    """Leaves a plan in its folder; a plan that cannot be left there trains all the same."""
    try:
        save(path, planned)
    except PlanFileError as error:
        log.warning("The plan of %r is not kept: %s", planned.report.name, error)


def save(path: str | os.PathLike, planned: Planned) -> None:
    """Writes a planned step as a file, for `kept` of another run; the bytes in it are those of the step alone."""
    report = planned.report
    measured = report.measured_peak_bytes and report.measured_peak_bytes - report.outside_bytes
    plan_files.save(
        path, planned.traced, planned.graph, planned.plan,
        unchanged=planned.result is None, budget_bytes=report.budget_bytes - report.outside_bytes, measured=measured,
        plain_measured_bytes=report.plain_measured_bytes and report.plain_measured_bytes - report.outside_bytes,
        plain_seconds=report.plain_seconds, plain_serial_seconds=report.plain_serial_seconds, step_seconds=report.step_seconds,
    )  # fmt: skip
