"""Attempt: from a measured graph to a function within the budget, by plans that are made, run on trial, and made again.

The judge counts the bytes that ops ask for; the allocator adds rounding and fragmentation of its own. So a plan is first made
for the budget less a reserve, and where the allocator reports it is then run on trial and made again for
a corrected budget until what was measured is within the limit. The step's variables are put back as they were.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from checkmate.core.graph import DFGraph
from checkmate.core.plan import Plan
from checkmate.errors import CheckmateError, InfeasibleBudgetError, NoPlanFoundError
from checkmate.progress import Progress
from checkmate.solvers.curve import Curve, solve_curve
from checkmate.solvers.result import SolveResult, SolveStatus
from checkmate.solvers.solve import solve
from checkmate.tf2 import device as devices
from checkmate.tf2.check import Trial, on_trial
from checkmate.tf2.execute import Replayed, Rooms
from checkmate.tf2.memory.pipeline import BATCHES_MADE, bytes_ahead
from checkmate.tf2.memory.plain_step import LONG_S, PlainStep, compared_seconds, measured
from checkmate.tf2.refusal import explained, on_paper
from checkmate.tf2.report import Report
from checkmate.tf2.trace import TracedStep
from checkmate.units import format_bytes, shown_bytes

if TYPE_CHECKING:
    from checkmate.tf2.planning import Planner

log = logging.getLogger("checkmate")

ALLOCATOR_RESERVE = 0.05
"""Share of what the budget leaves for activations that the first plan does not use: what the allocator is expected to lose."""

UNCHECKED_RESERVE = 0.2
"""The same where the allocator does not report, so that no second plan can make good what the first got wrong."""

CRAMPED_RESERVE = 0.25
"""The same where the pool ends soon after the budget, and the first plan that is within it with something to spare is taken: some of
TensorFlow's kernels do not look whether they got memory, and end the process."""

CRAMPED = 1.25
"""Times the budget: in a pool that may not become larger, holes can be missing."""

CHECK_ROUNDS = 6
"""How many plans are made at most to come close to the budget once one is within it, or to find one at all."""

MOST_ROUNDS = 9
"""How many plans are made at most while those that were found took more than the budget."""

SPARE_SHARE, SMALL_SPARE_SHARE, SPARE_BYTES = 0.02, 0.1, 64 * 2**10
"""Share of what the budget leaves for activations that a checked plan leaves unused, as where a batch lies in memory varies. In a small pool that
varies by more: the second share there, but no more than so many bytes."""

LOOP_SPARE_SHARE = 0.05
"""The first of these shares for a step with loops: TensorFlow gives the values within them back at any time. With
0.02, two of seven runs of an LSTM net were over budgets of 45 and 46 MiB that their trials had kept, by up to 1.5 %."""

AIM_BELOW = 0.035
"""Share of what the budget leaves for activations by which the next plan shall measure lower than the budget."""

UNUSED_SHARE = 0.06
"""Share of what the budget leaves for activations that a plan with recomputations may leave unused without another one being tried."""

NEAR = 0.1
"""Share of what the budget leaves for activations: a plan with less to spare may need more on a batch that lies elsewhere in memory."""

LEAST_TIME_S = 2.0
"""How long the solver may take for a plan where nobody says: at least so many seconds, and `TIME_PER_OP_S` for each op of the graph."""

TIME_PER_OP_S = 0.002

LOOK_FOR_S = 0.3
"""Seconds for each budget that is tried in search of the smallest one that has a plan."""

WHOLLY = 2**62
"""Bytes that no step takes: a trial that may take as much ends only when all is known."""

HIGHER, HIGHER_PEAKS = 1.15, 2
"""In search of the plan that takes least: by which factor the peak on paper is raised, and how often at most."""

DOUBT = 0.03
"""Share of the plain step's time by which a plan may seem to be slower than predicted before its time is measured with more care."""

SMALLEST_CORRECTION = 0.02
"""Share of what the budget leaves for activations by which the next plan differs at least."""


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """A step for one set of shapes, ready to run.

    Attributes:
      run: Takes the flattened arguments and returns what the step returns.
      result: The solver's judged answer, or None where the step runs as it is.
      on_made_up: Checked on made-up data, with little to spare: see `Planner.confirmed`.
      held_bytes: What `run` holds in the device's memory for as long as it lives, built and run: constants of its graph, and folded ones.
      in_use_bytes: What was in use on the device when planning began, with a batch of the step; 0 where the allocator does not report.
    """

    traced: TracedStep
    graph: DFGraph
    plan: Plan
    result: SolveResult | None
    run: Callable[..., Any] = field(repr=False)
    report: Report = field(repr=False)
    on_made_up: bool = False
    held_bytes: int = 0
    in_use_bytes: int = 0


class Clock:
    """Seconds per phase; a phase that comes again adds up."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Adds the time that the block takes."""
        started = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started


@dataclass(slots=True, eq=False)
class Attempt:
    """The way from a measured graph to a function within the budget.

    Attributes:
      outside: What else is in use (see `outside_bytes`), and the batches that a pipeline may make meanwhile; the budget is for that, too.
      batch: What the step is checked on, None for made-up data.
      plain: What the plain step was measured to take, None before that.
      has_rooms: Whether results lie in rooms that outlive a step; see `execute`.
      rooms: Those rooms, once there are plans: the same for all of them.
    """

    planner: Planner
    traced: TracedStep
    graph: DFGraph
    specs: tuple[Any, ...]
    clock: Clock
    progress: Progress
    outside: int
    batch: Sequence[tf.Tensor] | None = None
    plain: PlainStep | None = None
    has_rooms: bool = True
    rooms: Rooms | None = None
    notes: list[str] = field(default_factory=list)
    _curve: Curve | None = field(default=None, init=False)

    def as_it_is(self, plain_peak_bytes: int) -> Planned | None:
        """The step unchanged, when it fits: by measurement, and where that cannot be had by prediction with the reserve."""
        if (self.plain_measured_bytes or plain_peak_bytes + self.reserve) > self.planner.budget_bytes:
            return None
        run = unchanged(self.traced, self.specs)
        trial = self.on_trial(run)
        if trial and trial.most_bytes > self.planner.budget_bytes:
            if self.plain_measured_bytes:  # on batches that lie elsewhere each time it takes more
                self.plain = replace(self.plain, peak_bytes=max(self.plain.peak_bytes, trial.most_bytes - self.outside))
            return None
        return self.planned(None, self.traced.plain_plan(), run, plain_peak_bytes, trial)

    def within_budget(self, plain_peak_bytes: int) -> Planned:
        """The cheapest plan whose peak is within the budget: as measured, or where that cannot be, as predicted with the reserve."""
        budget, fixed = self.planner.budget_bytes, self.graph.fixed_bytes + self.outside
        room = budget - fixed
        most = budget - self.outside
        target = most - max(self.reserve, int(CRAMPED_RESERVE * room) if self._is_cramped else 0)  # what the solver is asked for
        too_low = 0  # the target at which there is no plan, or one that could use more
        missed = [most + 1]  # the targets whose plans took too much
        best: Planned | None = None
        close: Planned | None = None  # within the budget, with less to spare than we like: better than none
        refusal: InfeasibleBudgetError | NoPlanFoundError | None = None
        lowest: tuple[int, Plan] | None = None  # of those, what the one that took least took, as far as it was measured
        misses = 0
        known: dict[Plan, int] = {}  # plans that were run -> what they took: none is run twice
        for number in range(MOST_ROUNDS):
            if number >= CHECK_ROUNDS and (best or not misses):
                break
            run = planned = None  # a plan that is not wanted is not in memory while the next one is on trial
            try:
                result = self._solve(target)
            except (InfeasibleBudgetError, NoPlanFoundError) as error:
                refusal, too_low = refusal or error, target
                if not self._can_measure:
                    break
                target = (target + min(missed)) // 2
                continue
            if result.plan in known:
                measured = known[result.plan]
            else:
                run, held = self.built(result.plan)
                trial = self.on_trial(run, held)
                planned = self.planned(result, result.plan, run, plain_peak_bytes, trial, reserve=budget - target)
                if trial is None:
                    return planned
                measured = trial.most_bytes
                if self.is_above_plain(trial):
                    measured = max(measured, budget + 1)  # no plan: the step takes less as it is
                known[result.plan] = measured
            log.info("planned for %s: predicted %s, measured %s", *map(format_bytes, (target, result.peak_bytes, measured)))
            if measured <= budget - self.spare(room):
                best, too_low = min((each for each in (planned, best) if each), key=lambda each: each.result.cost), target
                if self._is_cramped or not result.plan.recomputed or budget - measured <= UNUSED_SHARE * room:
                    break
            else:
                misses += 1
                missed.append(target)
                lowest = (measured, result.plan) if lowest is None or measured < lowest[0] else lowest
                close = planned if planned and measured == lowest[0] <= budget else close
            if result.status is SolveStatus.INTERRUPTED:  # whoever interrupts does not want another round
                break
            # What the allocator adds grows with what is allocated, and differs by some percent from plan to plan: each miss makes us aim lower.
            # A step that is too small would measure the same again.
            dynamic = result.peak_bytes - self.graph.fixed_bytes
            aim = 1 - AIM_BELOW * max(1, misses)
            target = self.graph.fixed_bytes + int(dynamic * aim * room / max(1, measured - fixed))
            step = int(SMALLEST_CORRECTION * room)
            target = min(max(target, too_low + step), min(missed) - step, most)
            if not too_low < target < min(missed):
                # What the allocator loses differs so much that a plan for more can take less: where nothing was tried yet, one may do.
                above = sorted(each for each in missed if each > too_low)
                gap, target = max((b - a, (a + b) // 2) for a, b in pairwise([*above, above[-1]]))
                if not best or gap < 2 * step:
                    break
        run = planned = None  # nor while the lowest is measured for a refusal
        return best or close or self._refused(refusal, lowest, plain_peak_bytes)

    def measure_plain(self, predicted_bytes: int) -> None:
        """Runs the plain step for what it takes, once and where that is safe."""
        if self.plain is None:
            with self.clock.phase("measuring the plain step"), self.progress.phase("measuring the plain step"):
                run = unchanged(self.traced, self.specs)
                self.plain = measured(run, self.traced, predicted_bytes=predicted_bytes, outside=self.outside, batch=self.batch)

    @property
    def plain_measured_bytes(self) -> int | None:
        """The plain step's measured peak in the budget's terms; None where it was not measured."""
        return self.plain.peak_bytes + self.outside if self.plain and self.plain.measured else None

    def shared_bytes(self, predicted_bytes: int) -> int:
        """What a budget in percent is a share of: the plain step's measured peak, unless the allocator leaves some of it out; else the predicted one."""
        measured = self.plain_measured_bytes or predicted_bytes
        return measured if devices.counts_everything(devices.training_device()) else max(measured, predicted_bytes)

    def is_above_plain(self, trial: Trial) -> bool:
        """True for what takes more than the plain step does."""
        return self.plain_measured_bytes is not None and trial.most_bytes > self.plain_measured_bytes

    def timed(self, planned: Planned) -> Planned:
        """The same with the plan's time beside the plain step's in the report.

        Both were measured when they were run for their peaks. Where the plan seems to be slower than its kernels, the two are run by turns, and
        that is believed: other work on the machine may have come between. With them runs the plain step in the order of its plan, which tells
        what it costs that a plan has TensorFlow run one op at a time.
        """
        if planned.result is None:
            return planned
        report = planned.report.with_seconds(planned.report.plain_seconds, planned.report.step_seconds)
        in_training = self.planner.next_batches > BATCHES_MADE  # planned anew: the plain step would take more than the budget
        if (
            report.is_slower_than(report.predicted_slowdown + DOUBT)
            and not in_training
            and max(report.plain_seconds, report.step_seconds) <= LONG_S
        ):
            with self.clock.phase("timing"), self.progress.phase("timing"):
                steps = [unchanged(self.traced, self.specs), planned.run, Replayed(self.traced, self.traced.plain_plan())]
                found = compared_seconds(steps, self.traced, self.batch)
            report = planned.report.with_seconds(*found) if found else planned.report
        if report.is_slower_than_predicted:
            log.warning("%r: %s", report.name, report.notes[-1])
        return replace(planned, report=report)

    @property
    def _can_measure(self) -> bool:
        return devices.allocator_reports(devices.training_device())

    @property
    def _is_cramped(self) -> bool:
        cap = devices.cap_bytes(devices.training_device())
        return cap is not None and cap < CRAMPED * self.planner.budget_bytes

    @property
    def reserve_share(self) -> float:
        """Share of what the budget leaves for activations that the first plan does not use."""
        return reserve_share()

    @property
    def reserve(self) -> int:
        """Bytes of the budget that the first plan does not use."""
        return reserve_bytes(self.planner.budget_bytes - self.outside - self.graph.fixed_bytes)

    def with_spare(self, measured_bytes: int) -> int:
        """A budget of which a plan that took so much leaves enough unused."""
        room = (measured_bytes - self.outside - self.graph.fixed_bytes) / (1 - SMALL_SPARE_SHARE)
        return measured_bytes + self.spare(room)

    def spare(self, room: float) -> int:
        """How much of the bytes that a budget leaves for activations a checked plan leaves unused."""
        return spare_bytes(room, LOOP_SPARE_SHARE if self.traced.has_loops else SPARE_SHARE)

    @property
    def time_limit_s(self) -> float:
        """The seconds that the solver may take for a plan."""
        return time_limit(self.planner.time_limit_s, self.graph)

    def _solve(self, budget_bytes: int) -> SolveResult:
        with self.clock.phase("solving"), self.progress.phase("solving"):
            try:
                return solve(
                    self.graph,
                    max(1, budget_bytes),
                    solver=self.planner.solver,
                    time_limit_s=self.time_limit_s,
                    on_progress=self.progress.improved,
                )
            except NoPlanFoundError:
                # A search that found none here may have found one for another budget that needs no more than this one.
                if self.curve is None or (known := self.curve.within(budget_bytes)) is None:
                    raise
                return known

    @property
    def curve(self) -> Curve | None:
        """The search for the lowest budget that has a plan, made once; None where it fails, or nobody wants to wait for it."""
        if self._curve is None and self.planner.explains:
            with contextlib.suppress(CheckmateError):
                self._curve = solve_curve(self.graph, ["100%"], solver=self.planner.solver, time_limit_s=4 * LOOK_FOR_S, find_smallest=True)
        return self._curve

    def built(self, plan: Plan) -> tuple[Callable[..., Any], int]:
        """The function that runs a plan, and what it holds in memory by being there."""
        with self.clock.phase("building"), self.progress.phase("building"):
            gc.collect()  # functions of earlier plans hold constants of their graphs, and those that TensorFlow folded, in cycles
            self._take_rooms()
            before = devices.bytes_in_use(devices.training_device())
            run = Replayed(self.traced, plan, self.rooms)
            return run, max(0, devices.bytes_in_use(devices.training_device()) - before)

    def _take_rooms(self) -> None:
        if self.has_rooms and self.rooms is None:
            try:
                self.rooms = Rooms(self.traced)
            except tf.errors.ResourceExhaustedError:
                self.has_rooms = False  # and the trial tells how much memory is missing

    def on_trial(self, run: Callable[..., Any], held: int = 0, *, wholly: bool = False) -> Trial | None:
        """What the step really takes in the budget's terms, or None where nobody can tell; its function holds `held` bytes from the start.

        Of a step that takes more than the budget not all is known, unless it is `wholly` looked at.
        """
        if not self._can_measure:
            return None
        with self.clock.phase("checking"), self.progress.phase("checking against the allocator"):
            gc.collect()  # nothing that was built for an earlier plan is measured with this one
            enough = WHOLLY if wholly else self.planner.budget_bytes - self.outside - held
            found = on_trial(run, self.traced, devices.training_device(), enough=enough, batch=self.batch)
        if found is None:
            self.notes.append("The step could not be run on trial, so its memory is predicted and not measured.")
            return None
        return found.beside(self.outside, held)

    def planned(
        self,
        result: SolveResult | None,
        plan: Plan,
        run: Callable[..., Any],
        plain_peak_bytes: int,
        trial: Trial | None,
        *,
        reserve: int = 0,
    ) -> Planned:
        """The end of the way: the function with all that is known of it."""
        notes = (*self.traced.notes, *self.notes)
        if not self._can_measure:
            notes += (
                "This device's allocator does not report what is in use: the peak is predicted, and the reserve stands in for checking it.",
            )
        report = Report(
            name=self.planner.name,
            budget_bytes=self.planner.budget_bytes,
            fixed_bytes=self.graph.fixed_bytes,
            outside_bytes=self.outside,
            plain_peak_bytes=plain_peak_bytes,
            plain_measured_bytes=self.plain_measured_bytes,
            plain_not_measured=self.plain.why_not if self.plain else "",
            plain_seconds=self.plain and self.plain.seconds,
            step_seconds=trial and trial.seconds,
            next_batch_bytes=bytes_ahead(self.traced, self.planner.next_batches),
            measured_peak_bytes=trial and trial.most_bytes,
            usual_peak_bytes=trial and trial.usual_bytes,
            reserve_bytes=reserve,
            result=result,
            ops=len(self.graph),
            tensorflow_ops=len(self.traced.flat.graph.get_operations()),
            seconds=dict(self.clock.seconds),
            notes=notes,
            graph=self.graph,
            plain_plan=self.traced.plain_plan(),
        )
        room = report.budget_bytes - self.graph.fixed_bytes - self.outside
        near = trial is not None and report.budget_bytes - trial.most_bytes < NEAR * room
        held = trial.held_bytes if trial else 0
        return Planned(self.traced, self.graph, plan, result, run, report, on_made_up=near and self.batch is None, held_bytes=held)

    def _refused(
        self, error: InfeasibleBudgetError | NoPlanFoundError | None, lowest: tuple[int, Plan] | None, plain_peak_bytes: int
    ) -> Planned:
        """Raises the refusal in the user's terms; under budget="auto" the step runs as it is: what trains without us trains with us."""
        measured, smallest = lowest and lowest[0], None
        if error is None or lowest is not None:  # a plan that was run counts for more than one that was not found
            error = NoPlanFoundError("", best_peak_bytes=measured)
        if self.planner.explains:
            if self.curve and self._can_measure and not self._is_cramped:
                planned = self._of_lowest_peak(plain_peak_bytes)
                found = planned.report.measured_peak_bytes
                if found and found <= self.planner.budget_bytes:
                    return planned
                measured = measured and (found or measured)
                smallest = found and self.with_spare(found)
            smallest = smallest or on_paper(self, measured)
            with self.progress.phase("looking for what would fit"):
                error = explained(error, self, measured, smallest and shown_bytes(smallest))
        if self.planner.budget == "auto":
            self.notes.append(f"No plan fits the {format_bytes(self.planner.budget_bytes)} found free, so the step runs as it is. {error}")
            log.warning(self.notes[-1])
            return self.planned(None, self.traced.plain_plan(), unchanged(self.traced, self.specs), plain_peak_bytes, None)
        raise error from None

    def _of_lowest_peak(self, plain_peak_bytes: int) -> Planned:
        """The step under the plan that was measured to take least: of that with the lowest peak on paper, and of some with higher ones.

        The less memory a plan has, the more the allocator may lose. A plan takes at least its peak on paper, which is where this ends.
        """
        least, target = self._run_wholly(self.curve.lowest, plain_peak_bytes), self.curve.smallest_bytes
        for _ in range(HIGHER_PEAKS):
            target = int(HIGHER * target)
            taken = least.report.measured_peak_bytes
            if taken is None or target + self.outside >= taken:
                break
            if (result := self._solve(target)).plan == least.plan:
                break
            found = self._run_wholly(result, plain_peak_bytes)
            least = min(least, found, key=lambda each: each.report.measured_peak_bytes or WHOLLY)
        return least

    def _run_wholly(self, result: SolveResult, plain_peak_bytes: int) -> Planned:
        """The step under a plan that was run to the end on trial."""
        run, held = self.built(result.plan)
        trial = self.on_trial(run, held, wholly=True)
        if trial and (trial.most_bytes >= WHOLLY or self.is_above_plain(trial)):
            trial = None  # memory ran out, and no more is known; or the step takes less as it is
        return self.planned(result, result.plan, run, plain_peak_bytes, trial)


def outside_bytes(traced: TracedStep) -> int:
    """Returns what is in use on the device beyond what the step counts as resident.

    That is what an input pipeline holds, other tensors of the process, and what the allocator lost on all of them by chunks that it did not split.
    """
    device = devices.training_device()
    if not devices.allocator_reports(device):
        return 0
    gc.collect()  # models that nobody has any more hold their variables in cycles
    return max(0, devices.bytes_in_use(device) - traced.before_bytes)


def time_limit(asked_s: float | None, graph: DFGraph) -> float:
    """Returns the seconds that the solver may take for a plan of a graph: those that were asked for, or what suits its size."""
    return max(LEAST_TIME_S, TIME_PER_OP_S * len(graph)) if asked_s is None else asked_s


def spare_bytes(room: float, share: float = SPARE_SHARE) -> int:
    """Returns how much of the bytes that a budget leaves for activations a checked plan leaves unused: a share, and more where they are few."""
    return int(max(share * room, min(SMALL_SPARE_SHARE * room, SPARE_BYTES)))


def reserve_bytes(room: int) -> int:
    """Returns how much of the bytes that a budget leaves for activations the first plan leaves unused."""
    return int(reserve_share() * max(0, room))


def reserve_share() -> float:
    """Returns the share of what a budget leaves for activations that the first plan leaves unused."""
    return ALLOCATOR_RESERVE if devices.allocator_reports(devices.training_device()) else UNCHECKED_RESERVE


def unchanged(traced: TracedStep, specs: tuple[Any, ...]) -> Callable[..., Any]:
    """Returns the step as it was traced, on flattened arguments."""
    return lambda *flat: traced.function(*tf.nest.pack_sequence_as(specs, flat))
