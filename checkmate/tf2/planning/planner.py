"""From a step and its shapes to the function that runs: trace it, measure its ops, and attempt to
bring it within the budget."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tensorflow as tf

from checkmate.core.graph import DFGraph
from checkmate.core.replay import replay
from checkmate.errors import InfeasibleBudgetError, NoPlanFoundError, PlanError, PlanFileError
from checkmate.progress import Progress
from checkmate.solvers.search import Solver, check_time_limit
from checkmate.solvers.solve import make_solver
from checkmate.tf2 import device as devices
from checkmate.tf2.costs.measured import CostModel, with_costs
from checkmate.tf2.execution.replay import Replayed
from checkmate.tf2.graph.trace import TracedStep, trace
from checkmate.tf2.memory import known_steps
from checkmate.tf2.memory.batch_area import make_output_buffers
from checkmate.tf2.memory.budget import UNCHECKED_RESERVE, MemoryBudget
from checkmate.tf2.memory.confirm import confirm, in_memory
from checkmate.tf2.memory.own_memory import give_own_memory
from checkmate.tf2.memory.pipeline import BATCHES_MADE, MOST_PLANS_ANEW, function_bytes
from checkmate.tf2.memory.plain_step import PlainStep, free_or_none, measured, safe_bytes
from checkmate.tf2.planning import plan_files
from checkmate.tf2.planning.plan_search import Found, PlanSearch
from checkmate.tf2.planning.planned import Clock, Planned, unchanged
from checkmate.tf2.planning.refusal import Refusal
from checkmate.tf2.report import Report
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
      kept: A file with the plan to run, or a folder where plans are looked up and left; None to
        plan anew.
      time_limit_s: See `plan_search.time_limit`.
      explains: Whether a refusal says what would fit, which takes some seconds to find out.
      has_rooms: Whether results lie in rooms that outlive a step (see `execute`): of the main step,
        unless its plan is replayed in another function.
      next_batches: How many further batches an input pipeline may make while the step runs, for
        which memory is left. From one on the step is planned anew where the pipeline comes to hold
        more; see `memory.pipeline`.
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

    def plan(
        self,
        specs: tuple[Any, ...],
        *,
        like: Planned | None = None,
        batch: Sequence[Any] = (),
        gone: int = 0,
    ) -> Planned:
        """Plans the step for these shapes; with `like`, under the same plan where it fits.

        Args:
          batch: Flattened values of these specs, where there are any: the plan is then confirmed on
            them.
          gone: Bytes in use that will not be once this plan is taken: what the function of the
            former one holds.
        """
        if self.kept:
            plan_files.make_folder(self.kept)
        clock = Clock()
        # What planning asked for is none of training's.
        with Progress(self.name, enabled=self.verbose) as progress:
            with clock.phase("tracing"), progress.phase("tracing"):
                traced = trace(
                    self.step, *specs, name=self.name, like=like.traced if like else None
                )
            if like is not None and (same := self._under_same_plan(traced, specs, like)):
                return same
            give_own_memory(traced.function.variables)
            work = _Work(
                self,
                traced,
                specs,
                clock,
                progress,
                in_memory(batch, tf.nest.flatten(specs)),
                gone,
                is_main=like is None,
            )
            try:
                planned = work.as_kept() or work.planned()
            finally:
                devices.forget_peak(devices.training_device())
        planned = replace(
            planned,
            report=replace(
                planned.report, seconds=dict(clock.seconds), cpu_seconds=dict(clock.cpu_seconds)
            ),
        )
        log.info("%s", planned.report)
        if like is None and not work.was_kept and (path := self.path_of(traced)):
            _keep(path, planned)
        return planned

    def with_more_in_use(
        self, planned: Planned, specs: tuple[Any, ...], batch: Sequence[tf.Tensor], more: int
    ) -> Planned:
        """A plan that counts what came to be in use since the step was planned, `more` bytes too
        much; the same one where there is none.

        Each time memory is left for one more batch that the pipeline may come to hold.
        """
        over = (
            f"{format_bytes(more)} more than the budget of {format_bytes(self.budget_bytes)} with"
            " what is in use now"
        )
        if self.next_batches >= BATCHES_MADE + MOST_PLANS_ANEW:
            log.warning(
                "%r would take %s, and was planned anew %d times: it is left as it is.",
                self.name,
                over,
                MOST_PLANS_ANEW,
            )
            return replace(planned, in_use_bytes=0)
        self.next_batches += 1
        log.info("%r would take %s: it is planned anew.", self.name, over)
        try:
            return self._planned_anew(specs, batch, gone=function_bytes(planned))
        except (InfeasibleBudgetError, NoPlanFoundError) as refusal:
            log.warning(
                "%r takes %s. It was within that when it was planned, and no other plan is. %s",
                self.name,
                over,
                refusal,
            )
            return replace(planned, in_use_bytes=0)

    def _planned_anew(
        self, specs: tuple[Any, ...], batch: Sequence[tf.Tensor], *, gone: int = 0
    ) -> Planned:
        """A plan that is made, whatever lies in the folder, and left there instead."""
        planned = replace(self, kept=None).plan(specs, batch=batch, gone=gone)
        if path := self.path_of(planned.traced):
            _keep(path, planned)
        return planned

    def path_of(self, traced: TracedStep) -> Path | None:
        """Where the folder `kept` has the plan of a step with these options; None without a
        folder."""
        return plan_files.path_in(self.kept, traced, self.asked) if self.kept else None

    @property
    def asked(self) -> tuple[Any, ...]:
        """The options that a plan in a folder is for."""
        solver = self.solver if isinstance(self.solver, str) else self.solver.name
        return (
            self.budget,
            solver,
            getattr(self.cost_model, "__qualname__", self.cost_model),
            self.time_limit_s,
        )

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

    def resolve(self, plain_peak_bytes: int, outside: int) -> int:
        """The budget in bytes. A share is one of what the step itself takes; what else is in use is
        there with any plan, and added."""
        if self.budget == "auto":
            return devices.auto_budget(devices.training_device())
        own = parse_bytes(self.budget, percent_of=plain_peak_bytes - outside)
        return own + outside if is_share(self.budget) else own


@dataclass(slots=True, eq=False)
class _Work:
    """The planning of one set of shapes.

    Attributes:
      batch: What steps are run on, None for made-up data.
      is_main: Of the largest batch, and not of a smaller one.
      was_kept: The plan was read from a file.
    """

    planner: Planner
    traced: TracedStep
    specs: tuple[Any, ...]
    clock: Clock
    progress: Progress
    batch: Sequence[tf.Tensor] | None
    gone: int
    is_main: bool
    in_use: int = field(init=False)
    was_kept: bool = False

    def __post_init__(self) -> None:
        gc.collect()  # models that nobody has any more hold their variables in cycles
        self.in_use = devices.bytes_in_use(devices.training_device())

    def memory(self, limit_bytes: int) -> MemoryBudget:
        """The kinds of bytes of a budget."""
        return MemoryBudget.of(
            self.traced,
            limit_bytes,
            in_use_bytes=self.in_use,
            has_batch=self.batch is not None,
            gone_bytes=self.gone,
            next_batches=self.planner.next_batches,
        )

    def planned(self) -> Planned:
        """A step that is measured, planned and confirmed."""
        planner, traced = self.planner, self.traced
        outside = self.memory(0).outside_bytes(traced)
        piece = self._make_room(outside)
        with self.clock.phase("measuring ops"), self.progress.phase("measuring ops"):
            graph = with_costs(traced, planner.cost_model, on_progress=self.progress.advance)
        plain_peak = replay(graph, traced.plain_plan()).peak_bytes + outside
        known = known_steps.load(traced) if self.is_main else known_steps.KnownStep()
        plain = self._plain(plain_peak, outside, known.plain)
        if plain.measured and not known.plain and self.is_main:
            known_steps.save(traced, known_steps.KnownStep(plain, known.footprints))
        of_share = plain_peak if plain.peak_bytes is None else plain.peak_bytes + outside
        if not devices.counts_everything(devices.training_device()):
            of_share = max(of_share, plain_peak)
        planner.budget_bytes = planner.budget_bytes or planner.resolve(of_share, outside)
        memory = self.memory(planner.budget_bytes)
        report = self._report(graph, memory, plain_peak, plain)
        if self._fits_as_it_is(memory, plain_peak, plain):
            return self._unchanged(graph, report, plain)
        most = (
            memory.limit_bytes
            if plain.peak_bytes is None
            else min(memory.limit_bytes, plain.peak_bytes + outside)
        )
        search = self._search(
            graph, memory, most, piece_bytes=piece, footprints=dict(known.footprints)
        )
        planned = self._searched(search, report, plain)
        if self.is_main and known.footprints != search.footprints:
            known_steps.save(
                traced, known_steps.KnownStep(plain if plain.measured else None, search.footprints)
            )
        return planned

    def _search(
        self, graph: DFGraph, memory: MemoryBudget, most_bytes: int, **known: Any
    ) -> PlanSearch:
        planner = self.planner
        return PlanSearch(
            self.traced,
            graph,
            memory,
            planner.solver,
            planner.time_limit_s,
            self.clock,
            self.progress,
            self.batch,
            most_bytes,
            has_rooms=planner.has_rooms and self.is_main,
            **known,
        )

    def _searched(self, search: PlanSearch, report: Report, plain: PlainStep) -> Planned:
        """The step under the plan that a search finds. Under budget="auto" it runs as it is where
        none is found: what trains without us trains with us."""
        found = search.run()
        if found is not None:
            return self._of(found, search, report)
        refusal = Refusal(
            search, self.planner.step, self.planner.name, self.specs, explains=self.planner.explains
        )
        found = refusal.lowest_that_fits()
        if found is not None:
            return self._of(found, search, report)
        error = refusal.error()
        search.forget()  # whoever keeps the error keeps this frame, too
        if self.planner.budget != "auto":
            raise error
        search.notes.append(
            f"No plan fits the {format_bytes(self.planner.budget_bytes)} found free, so the step"
            f" runs as it is. {error}"
        )
        log.warning(search.notes[-1])
        return self._unchanged(
            search.graph, replace(report, notes=(*report.notes, *search.notes)), plain
        )

    def as_kept(self) -> Planned | None:
        """The step under the plan of a file that was found; None without one."""
        planner, traced = self.planner, self.traced
        outside = self.memory(0).outside_bytes(traced)
        known = None
        if planner.kept and self.is_main:
            known = plan_files.find(
                planner.kept, traced, planner.asked, lambda known: self._accept(known, outside)
            )
        if known is None:
            return None
        self.was_kept = True
        self._make_room(outside)
        planner.plain = planner.plain or known.plain
        memory = self.memory(planner.budget_bytes)
        report = self._report(known.graph, memory, known.plain_peak_bytes + outside, known.plain)
        plan = known.plan or traced.plain_plan()
        with self.clock.phase("building"), self.progress.phase("building"):
            run = (
                Replayed(traced, plan, make_output_buffers(traced) if planner.has_rooms else None)
                if known.plan
                else unchanged(traced, self.specs)
            )
        peak = known.measured_peak_bytes and known.measured_peak_bytes + outside
        held = 0
        if not known.as_here and devices.allocator_reports(devices.training_device()):
            with self.clock.phase("confirming"), self.progress.phase("confirming"):
                confirmed = confirm(run, traced, steps=1, watch=False, batch=self.batch)
            counted = confirmed and confirmed.counted_bytes
            peak = counted and memory.peak(counted)
            held = confirmed.held_bytes if confirmed else 0
            if confirmed and (peak is None or peak > memory.limit_bytes):
                taken = peak or memory.limit_bytes + 1
                search = self._search(known.graph, memory, memory.limit_bytes)
                raise Refusal(
                    search,
                    planner.step,
                    planner.name,
                    self.specs,
                    explains=planner.explains,
                    taken_bytes=taken,
                ).error()
        result = known.result(memory.limit_bytes) if known.plan else None
        notes = (*report.notes, f"The plan is from {known.path}.", *self._notes())
        report = replace(report, result=result, measured_peak_bytes=peak, notes=notes).with_seconds(
            known.plain.seconds, known.step_seconds
        )
        return Planned(
            traced,
            known.graph,
            plan,
            result,
            run,
            report,
            held_bytes=held,
            in_use_bytes=self._start_bytes,
        )

    @property
    def _start_bytes(self) -> int:
        return self.memory(0).start_bytes - self.gone

    def _accept(self, known: plan_files.KeptPlan, outside: int) -> None:
        """Refuses a plan from a file that takes more than the budget. Files tell of the step alone,
        without what else is in memory."""
        planner = self.planner
        of_step = known.budget_bytes + outside
        plain = known.plain.peak_bytes or known.plain_peak_bytes
        budget = (
            of_step
            if known.named and planner.budget == "auto"
            else planner.resolve(plain + outside, outside)
        )
        plan_files.refuse_above(known, budget - outside)
        planner.budget_bytes = budget

    def _plain(self, predicted_bytes: int, outside: int, known: PlainStep | None) -> PlainStep:
        """What the plain step takes, run for it where that is not known and safe; of a smaller
        batch it is not looked at."""
        if not self.is_main:
            return PlainStep(why_not="only the step of the largest batch is")
        self.planner.plain = self.planner.plain or known
        if self.planner.plain is None:
            with (
                self.clock.phase("measuring the plain step"),
                self.progress.phase("measuring the plain step"),
            ):
                run = unchanged(self.traced, self.specs)
                self.planner.plain = measured(
                    run,
                    self.traced,
                    predicted_bytes=predicted_bytes,
                    outside=outside,
                    batch=self.batch,
                )
        return self.planner.plain

    def _fits_as_it_is(self, memory: MemoryBudget, plain_peak: int, plain: PlainStep) -> bool:
        """By measurement, and where that cannot be had by prediction, with a reserve."""
        if plain.peak_bytes is not None:
            return plain.peak_bytes + memory.outside_bytes(self.traced) <= memory.most_bytes
        return (
            plain_peak + int(UNCHECKED_RESERVE * max(0, memory.activation_bytes))
            <= memory.limit_bytes
        )

    def _unchanged(self, graph: DFGraph, report: Report, plain: PlainStep) -> Planned:
        peak = plain.peak_bytes and plain.peak_bytes + report.memory.outside_bytes(self.traced)
        report = replace(
            report,
            measured_peak_bytes=peak,
            predicted_peak_bytes=peak,
            notes=(*report.notes, *self._notes()),
        )
        run = unchanged(self.traced, self.specs)
        return Planned(
            self.traced,
            graph,
            self.traced.plain_plan(),
            None,
            run,
            report,
            in_use_bytes=self._start_bytes,
        )

    def _of(self, found: Found, search: PlanSearch, report: Report) -> Planned:
        report = replace(
            report,
            result=found.result,
            measured_peak_bytes=found.measured_bytes,
            predicted_peak_bytes=found.expected_bytes,
            steps_before=search.steps_run,
            notes=(*report.notes, *search.notes, *self._notes()),
        )
        seconds = found.confirmed.seconds if found.confirmed else None
        report = report.with_seconds(report.plain_seconds, seconds)
        if report.is_slower_than_predicted:
            log.warning("%r: %s", report.name, report.notes[-1])
        held = found.confirmed.held_bytes if found.confirmed else 0
        return Planned(
            self.traced,
            search.graph,
            found.result.plan,
            found.result,
            found.run,
            report,
            held,
            self._start_bytes,
        )

    def _notes(self) -> tuple[str, ...]:
        if devices.allocator_reports(devices.training_device()):
            return ()
        return (
            (
                "This device's allocator does not report what is in use: the peak is predicted, and"
                " the reserve stands in for confirming it."
            ),
        )

    def _report(
        self, graph: DFGraph, memory: MemoryBudget, plain_peak: int, plain: PlainStep
    ) -> Report:
        traced = self.traced
        return Report(
            name=self.planner.name,
            memory=memory,
            fixed_bytes=graph.fixed_bytes,
            outside_bytes=memory.outside_bytes(traced),
            plain_peak_bytes=plain_peak,
            plain_measured_bytes=(
                None
                if plain.peak_bytes is None
                else plain.peak_bytes + memory.outside_bytes(traced)
            ),
            plain_not_measured=plain.why_not,
            plain_seconds=plain.seconds,
            measured_peak_bytes=None,
            result=None,
            ops=len(graph),
            tensorflow_ops=len(traced.flat.graph.get_operations()),
            seconds={},
            notes=traced.notes,
            graph=graph,
            plain_plan=traced.plain_plan(),
        )

    def _make_room(self, outside: int) -> int:
        """Has the allocator hold what the step will need in one piece, before the ops that are
        measured cut its pool into small ones.

        Returns: Half of what an allocator with a cap has in one piece, which is all that it ever
          will; else a number that is larger than any.
        """
        device = devices.training_device()
        if devices.allocator_reports(device):
            plain = replay(self.traced.graph, self.traced.plain_plan()).peak_bytes + outside
            most = min(plain, self.planner.budget_bytes or self.planner.resolve(plain, outside))
            # Not touched before it is used, unlike a GPU's.
            if device.startswith("CPU") and devices.cap_bytes(device) is None:
                safe = safe_bytes(self.traced, plain, outside)
                most = (
                    safe if safe <= (free_or_none(device) or 0) else most
                ) + devices.UNSPLIT_BYTES
            made = devices.make_room(device, most - outside - self.traced.between_bytes)
            if made and devices.cap_bytes(device) is not None:
                return made // 2  # results get their memory from it, too
        return 2**62


def _keep(path: Path, planned: Planned) -> None:
    """Leaves a plan in its folder; a plan that cannot be left there trains all the same."""
    try:
        save(path, planned)
    except PlanFileError as error:
        log.warning("The plan of %r is not kept: %s", planned.report.name, error)


def save(path: str | os.PathLike, planned: Planned) -> None:
    """Writes a planned step as a file, for `kept` of another run; the bytes in it are those of the
    step alone."""
    report = planned.report
    measured = report.measured_peak_bytes and report.measured_peak_bytes - report.outside_bytes
    plan_files.save(
        path,
        planned.traced,
        planned.graph,
        planned.plan,
        unchanged=planned.result is None,
        budget_bytes=report.budget_bytes - report.outside_bytes,
        measured=measured,
        plain_measured_bytes=report.plain_measured_bytes
        and report.plain_measured_bytes - report.outside_bytes,
        plain_seconds=report.plain_seconds,
        step_seconds=report.step_seconds,
    )
