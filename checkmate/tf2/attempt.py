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
from dataclasses import dataclass, field
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
from checkmate.tf2.refusal import explained
from checkmate.tf2.report import Report
from checkmate.tf2.trace import TracedStep
from checkmate.units import format_bytes

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
varies by more, and the values within a loop come and go: the second share there, but no more than so many bytes."""

MOST_LOST = 0.25
"""Share of the resident bytes that the allocator is believed to lose on them at most, by chunks that it did not split."""

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
    """

    traced: TracedStep
    graph: DFGraph
    plan: Plan
    result: SolveResult | None
    run: Callable[..., Any] = field(repr=False)
    report: Report = field(repr=False)
    on_made_up: bool = False
    held_bytes: int = 0


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
      outside: What the allocator lost on what is resident (see `outside_bytes`); the budget is for that, too.
      batch: What the step is checked on, None for made-up data.
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
    has_rooms: bool = True
    rooms: Rooms | None = None
    notes: list[str] = field(default_factory=list)
    _curve: Curve | None = field(default=None, init=False)

    def as_it_is(self, plain_peak_bytes: int) -> Planned | None:
        """The step unchanged, when it fits: by prediction with the reserve, and by measurement where that can be had."""
        if plain_peak_bytes + self.reserve > self.planner.budget_bytes:
            return None
        run = unchanged(self.traced, self.specs)
        trial = self.on_trial(run)
        if trial and trial.most_bytes > self.planner.budget_bytes:
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
            run, held = self.built(result.plan)
            trial = self.on_trial(run, held)
            planned = self.planned(result, result.plan, run, plain_peak_bytes, trial, reserve=budget - target)
            if trial is None:
                return planned
            measured = trial.most_bytes
            log.info("planned for %s: predicted %s, measured %s", *map(format_bytes, (target, result.peak_bytes, measured)))
            if measured <= budget - spare_bytes(room):
                best, too_low = min((planned, best or planned), key=lambda each: each.result.cost), target
                if self._is_cramped or not result.plan.recomputed or budget - measured <= UNUSED_SHARE * room:
                    break
            else:
                misses += 1
                missed.append(target)
                lowest = (measured, result.plan) if lowest is None or measured < lowest[0] else lowest
                close = planned if measured == lowest[0] <= budget else close
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
        return measured_bytes + spare_bytes(room)

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
            measured_peak_bytes=trial and trial.most_bytes,
            usual_peak_bytes=trial and trial.usual_bytes,
            reserve_bytes=reserve,
            result=result,
            ops=len(self.graph),
            tensorflow_ops=len(self.traced.function.graph.get_operations()),
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
        lowest_measured = lowest and lowest[0]
        if error is None or lowest is not None:  # a plan that was run counts for more than one that was not found
            error = NoPlanFoundError("", best_peak_bytes=lowest_measured)
        if self.planner.explains:
            if lowest is not None and not self._is_cramped:
                trial = self.on_trial(*self.built(lowest[1]), wholly=True)
                if trial and trial.most_bytes < WHOLLY:  # else memory ran out, and no more is known
                    lowest_measured = max(lowest[0], trial.most_bytes)
            with self.progress.phase("looking for what would fit"):
                error = explained(error, self, lowest_measured)
        if self.planner.budget == "auto":
            self.notes.append(f"No plan fits the {format_bytes(self.planner.budget_bytes)} found free, so the step runs as it is. {error}")
            log.warning(self.notes[-1])
            return self.planned(None, self.traced.plain_plan(), unchanged(self.traced, self.specs), plain_peak_bytes, None)
        raise error from None


def outside_bytes(traced: TracedStep) -> int:
    """Returns what the allocator lost on what the step counts as resident: what is in use beyond that.

    Where that is too much for a loss, there are other tensors in the process. They are not the step's, and nothing can be said.
    """
    device = devices.training_device()
    if not devices.allocator_reports(device):
        return 0
    gc.collect()  # models that nobody has any more hold their variables in cycles
    beyond = devices.bytes_in_use(device) - traced.before_bytes
    return beyond if 0 < beyond <= MOST_LOST * traced.graph.fixed_bytes else 0


def time_limit(asked_s: float | None, graph: DFGraph) -> float:
    """Returns the seconds that the solver may take for a plan of a graph: those that were asked for, or what suits its size."""
    return max(LEAST_TIME_S, TIME_PER_OP_S * len(graph)) if asked_s is None else asked_s


def spare_bytes(room: float) -> int:
    """Returns how much of the bytes that a budget leaves for activations a checked plan leaves unused."""
    return int(max(SPARE_SHARE * room, min(SMALL_SPARE_SHARE * room, SPARE_BYTES)))


def reserve_bytes(room: int) -> int:
    """Returns how much of the bytes that a budget leaves for activations the first plan leaves unused."""
    return int(reserve_share() * max(0, room))


def reserve_share() -> float:
    """Returns the share of what a budget leaves for activations that the first plan leaves unused."""
    return ALLOCATOR_RESERVE if devices.allocator_reports(devices.training_device()) else UNCHECKED_RESERVE


def unchanged(traced: TracedStep, specs: tuple[Any, ...]) -> Callable[..., Any]:
    """Returns the step as it was traced, on flattened arguments."""
    return lambda *flat: traced.function(*tf.nest.pack_sequence_as(specs, flat))
