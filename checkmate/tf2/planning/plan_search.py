"""PlanSearch: from a step's graph with costs to a function within the budget.

    solve ──► plan ──► what its ops ask the allocator for ──► the allocator's twin: its peak ──┐
      ▲                                                                                        │ budget_loop.next_target
      └────────────────────────────────────────────────────────────────────────────────────────┘
    the cheapest within the budget ──► built once ──► confirmed by at most three steps

What ops ask for is expected from shapes and measured workspaces, and exact once a step was watched.
Where the confirming steps take something else than was predicted, the ops' footprints are learnt
from what was seen there, and the search goes on with these. Where nothing can be predicted (a step
with loops, an allocator that is not BFC) the judge's peak stands for the prediction, corrected by
what the confirming steps took.
"""

from __future__ import annotations

import contextlib
import gc
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import tensorflow as tf

from checkmate.core.footprint import Footprint
from checkmate.core.graph import DFGraph
from checkmate.core.plan import Plan
from checkmate.core.replay import MemoryTimeline
from checkmate.errors import CheckmateError, InfeasibleBudgetError, NoPlanFoundError
from checkmate.progress import Progress
from checkmate.solvers.curve import Curve, solve_curve
from checkmate.solvers.result import SolveResult, SolveStatus
from checkmate.solvers.search import Search, Solver
from checkmate.solvers.solve import solve
from checkmate.tf2 import device as devices
from checkmate.tf2.execution.replay import Replayed
from checkmate.tf2.graph.trace import TracedStep
from checkmate.tf2.memory.batch_area import make_output_buffers
from checkmate.tf2.memory.budget import MemoryBudget
from checkmate.tf2.memory.confirm import Confirmed, confirm
from checkmate.tf2.memory.prediction import PlanOnPaper, Predictor
from checkmate.tf2.planning.budget_loop import CLOSE_SHARE, Tried, next_target
from checkmate.tf2.planning.planned import Clock
from checkmate.units import format_bytes

log = logging.getLogger("checkmate")

BUILT = 6
"""How many plans are built and confirmed at most."""

STEPS = 3
"""How many steps confirm a plan: a warm-up, one to be timed, one to be watched. One does where the
footprints of its ops were seen in another."""

LEAST_TIME_S, TIME_PER_OP_S = 2.0, 0.002
"""How long the solver may take for a plan where nobody says: at least so many seconds, and so many
for each op of the graph."""

WORTH = 0.005
"""Share of its cost by which another plan must be cheaper to be built after one was confirmed."""

ALIKE = 3
"""How many of the plans that a solver found on its way to the cheapest one are looked at, too: the
allocator may lose less on one of them."""

LOOK_FOR_S = 0.3
"""Seconds for each budget that is tried in search of the smallest one that has a plan."""


@dataclass(slots=True, eq=False)
class Candidate:
    """A plan that the solver found.

    Attributes:
      predicted_bytes: Its peak in the budget's terms, by the twin of the allocator or by the judge;
        None where memory runs out.
      measured_bytes: Its peak in the confirming steps.
    """

    result: SolveResult
    paper: PlanOnPaper | None = None
    predicted_bytes: int | None = None
    measured_bytes: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """A function within the budget.

    Attributes:
      expected_bytes: The peak that it is expected to have in training, in the budget's terms.
      measured_bytes: That of the confirming steps; None where it was not run.
      confirmed: What was found in them.
    """

    result: SolveResult
    run: Callable[..., Any] = field(repr=False)
    expected_bytes: int
    measured_bytes: int | None
    confirmed: Confirmed | None


@dataclass(slots=True, eq=False)
class PlanSearch:
    """The way from a graph with costs to a function within the budget.

    Attributes:
      memory: What the budget is for.
      batch: What plans are confirmed on, None for made-up data.
      most_bytes: No plan is taken that takes more: the budget, or the plain step's peak where that
        is lower.
      has_rooms: Whether results lie in rooms that outlive a step; see `execute`.
      piece_bytes: The most that the allocator has in one piece, where it has a cap of its own.
      footprints: What the step's ops were seen to ask for before, in this process or another.
      steps_run: How many steps were run so far.
      asks: How often the solver was asked.
      candidates: The plans that were found.
      answers: (target, the plan that was found for it or None), in order.
    """

    traced: TracedStep
    graph: DFGraph
    memory: MemoryBudget
    solver: str | Solver
    asked_time_s: float | None
    clock: Clock
    progress: Progress
    batch: Sequence[tf.Tensor] | None
    most_bytes: int
    has_rooms: bool = True
    piece_bytes: int = 2**62
    footprints: dict[str, Footprint] = field(default_factory=dict)
    steps_run: int = 0
    asks: int = 0
    notes: list[str] = field(default_factory=list)
    candidates: list[Candidate] = field(default_factory=list)
    answers: list[tuple[int, Candidate | None]] = field(default_factory=list)
    refusal: InfeasibleBudgetError | NoPlanFoundError | None = None
    _predictor: Predictor | None = None
    _correction: float = 1.0
    _curve: Curve | None = None

    def run(self) -> Found | None:
        """Returns the cheapest plan found within the budget, built and confirmed; None where none
        is: `candidates` and `refusal` tell why."""
        best: Found | None = None
        for _ in range(BUILT):
            candidate = self._best_on_paper()
            if candidate is None or (
                best is not None and best.result.cost * (1 - WORTH) <= candidate.result.cost
            ):
                break
            found = (
                None  # a plan that is not wanted is not in memory while the next one is confirmed
            )
            found = self.confirm(candidate)
            best = found or best
            if found is not None and found.confirmed is None:
                break
        self._forget_functions()
        return best

    @property
    def predictor(self) -> Predictor:
        """The predictor, which looks at the allocator once results have their rooms."""
        if self._predictor is None:
            with self.clock.phase("predicting"):
                self._make_predictor()
        assert self._predictor is not None
        return self._predictor

    def _make_predictor(self) -> None:
        rooms = make_output_buffers(self.traced) if self.has_rooms else None
        self._predictor = Predictor(
            self.traced, self.graph, self.batch or (), rooms, self.footprints
        )
        self._look()
        if self._predictor.why_not and self.can_measure:
            self.notes.append(
                f"What a plan takes was tried and not predicted, as {self._predictor.why_not}."
            )

    def forget(self) -> None:
        """Lets go of all memory of the device that the search holds."""
        self._predictor = None
        self.candidates, self.answers = [], []

    def _forget_functions(self) -> None:
        """Those of plans that were built and not taken: they hold constants of their graphs, and
        those that TensorFlow folded, in cycles."""
        if self.steps_run:
            gc.collect()

    @property
    def can_measure(self) -> bool:
        """True where the allocator reports what is in use."""
        return devices.allocator_reports(devices.training_device())

    @property
    def outside_bytes(self) -> int:
        """What of the budget the graph does not count."""
        return self.memory.outside_bytes(self.traced)

    @property
    def limit_bytes(self) -> int:
        """The highest peak that a plan may be expected to have."""
        return min(self.memory.most_bytes, self.most_bytes)

    @property
    def time_limit_s(self) -> float:
        """The seconds that the solver may take for a plan: for those after the first half of them,
        unless somebody asked for so many."""
        seconds = time_limit(self.asked_time_s, self.graph)
        return seconds / 2 if self.asks > 1 and self.asked_time_s is None else seconds

    @property
    def curve(self) -> Curve | None:
        """The search for the lowest budget that has a plan, made once; None where it fails."""
        if self._curve is None:
            with (
                contextlib.suppress(CheckmateError),
                self.progress.phase("looking for what would fit"),
            ):
                self._curve = solve_curve(
                    self.graph,
                    ["100%"],
                    solver=self.solver,
                    time_limit_s=4 * LOOK_FOR_S,
                    find_smallest=True,
                )
        return self._curve

    def lowest(self) -> Candidate | None:
        """Returns the plan that is predicted to take least: of that with the lowest peak by the
        judge, and of all that were tried."""
        if self.curve is not None:
            self._add(self.curve.smallest_bytes, self.curve.lowest)
        return min(
            (each for each in self.candidates if self.expected(each) is not None),
            key=self.expected,
            default=None,
        )

    def expected(self, candidate: Candidate) -> int | None:
        """Returns the peak that a plan is expected to have in training, in the budget's terms; None
        where memory runs out."""
        if candidate.predicted_bytes is None:
            return None
        if candidate.measured_bytes is not None:
            return max(candidate.predicted_bytes, candidate.measured_bytes)
        fixed = self.memory.fixed_bytes
        return fixed + int(self._correction * (candidate.predicted_bytes - fixed))

    def _look(self) -> None:
        assert self._predictor is not None
        if self.can_measure:
            self._predictor.look(
                min(max(0, self.memory.activation_bytes) + devices.UNSPLIT_BYTES, self.piece_bytes)
            )

    def _best_on_paper(self) -> Candidate | None:
        """The cheapest plan that is expected to be within the budget, once no further one is worth
        asking for."""
        limit = self.limit_bytes
        while (target := self._next_target()) is not None:
            if not self._ask(target):
                break
        within = [
            each
            for each in self.candidates
            if (peak := self.expected(each)) is not None and peak <= limit
        ]
        return min(within, key=lambda each: each.result.cost, default=None)

    def _next_target(self) -> int | None:
        return next_target(
            self.limit_bytes,
            self.memory.fixed_bytes,
            [self._tried(*each) for each in self.answers],
            self.asks,
        )

    def _tried(self, target: int, candidate: Candidate | None) -> Tried:
        if candidate is None:
            return Tried(target, None, None)
        asked = candidate.result.peak_bytes + self.outside_bytes
        return Tried(
            target, asked, self.expected(candidate), bool(candidate.result.plan.recomputed)
        )

    def _ask(self, target: int) -> bool:
        """Asks the solver for plans; False where whoever interrupted it does not want another
        one."""
        self.asks += 1
        better: list[tuple[Plan, MemoryTimeline]] = []  # each than all before

        def on_progress(search: Search) -> None:
            self.progress.improved(search)
            if (
                search.plan is not None
                and search.timeline is not None
                and (not better or better[-1][0] is not search.plan)
            ):
                better.append((search.plan, search.timeline))

        with self.clock.phase("solving"), self.progress.phase("solving"):
            try:
                result = solve(
                    self.graph,
                    max(1, target - self.outside_bytes),
                    solver=self.solver,
                    time_limit_s=self.time_limit_s,
                    on_progress=on_progress,
                )
            except (InfeasibleBudgetError, NoPlanFoundError) as error:
                self.refusal = self.refusal or error
                self._add(target, None)
                return True
        self._add(target, result)
        for plan, timeline in better[-1 - ALIKE : -1]:
            if self.predictor.predicts and self._next_target() is not None:
                alike = replace(result, status=SolveStatus.FEASIBLE, plan=plan, timeline=timeline)
                self._add(timeline.peak_bytes + self.outside_bytes, alike)
        return result.status is not SolveStatus.INTERRUPTED

    def _add(self, target: int, result: SolveResult | None) -> None:
        candidate = None
        if result is not None:
            candidate = next(
                (each for each in self.candidates if each.result.plan == result.plan), None
            )
            if candidate is None:
                candidate = Candidate(result)
                self.candidates.append(candidate)
                self._predict(candidate)
        self.answers.append((target, candidate))
        log.info(
            "planned for %s: expected to take %s",
            format_bytes(target),
            candidate and self.expected(candidate),
        )

    def _predict(self, candidate: Candidate) -> None:
        if not self.predictor.predicts:
            candidate.predicted_bytes = candidate.result.peak_bytes + self.outside_bytes
            return
        with self.clock.phase("predicting"), self.progress.phase("predicting"):
            candidate.paper = candidate.paper or self.predictor.write(candidate.result.plan)
            counted = self.predictor.peak_bytes(candidate.paper)
            candidate.predicted_bytes = None if counted is None else self.memory.peak(counted)

    def confirm(self, candidate: Candidate) -> Found | None:
        """The function of a plan, confirmed; None where it takes more than the budget, and more is
        known from then on."""
        predictor, result = self.predictor, candidate.result
        with self.clock.phase("building"), self.progress.phase("building"):
            self._forget_functions()
            written = candidate.paper.written if candidate.paper else None
            run = Replayed(self.traced, result.plan, predictor.buffers, written)
        if not self.can_measure:
            return Found(result, run, self.expected(candidate), None, None)
        known = bool(self.footprints)
        steps = 1 if known and predictor.predicts else STEPS
        with self.clock.phase("confirming"), self.progress.phase("confirming"):
            confirmed = confirm(
                run,
                self.traced,
                steps=steps,
                watch=predictor.predicts and not known,
                batch=self.batch,
            )
            self.steps_run += steps
        if confirmed is None:
            self.notes.append(
                "The step could not be run before training, so its memory is predicted and not"
                " measured."
            )
            return Found(result, run, self.expected(candidate), None, None)
        self._learn(candidate, confirmed)
        expected = self.expected(candidate)
        log.info(
            "expected %s, measured %s of %s",
            expected,
            candidate.measured_bytes,
            self.memory.limit_bytes,
        )
        if expected is None or expected > self.limit_bytes:
            return None
        return Found(result, run, expected, candidate.measured_bytes, confirmed)

    def _learn(self, candidate: Candidate, confirmed: Confirmed) -> None:
        """Takes what confirming steps showed into account, for all plans."""
        if confirmed.counted_bytes is None:  # memory ran out
            candidate.measured_bytes = max(self.memory.limit_bytes, self.most_bytes) + 1
            return
        candidate.measured_bytes = self.memory.peak(confirmed.counted_bytes)
        if self.predictor.predicts and candidate.paper is not None:
            if confirmed.requests is not None:
                self.predictor.learn(candidate.paper, confirmed.requests)
            self._look()  # the function has constants in memory now
            for each in self.candidates:
                self._predict(each)
        fixed, predicted = self.memory.fixed_bytes, candidate.predicted_bytes
        if (
            predicted is not None
            and candidate.measured_bytes > predicted + CLOSE_SHARE * self.memory.activation_bytes
        ):
            self._correction = max(
                1.0, (candidate.measured_bytes - fixed) / max(1, predicted - fixed)
            )
            if self.predictor.predicts:
                more = format_bytes(candidate.measured_bytes - predicted)
                self.notes.append(
                    f"The allocator gave out {more} more than predicted; further plans were"
                    " corrected by that."
                )


def time_limit(asked_s: float | None, graph: DFGraph) -> float:
    """Returns the seconds that the solver may take for a plan of a graph: those that were asked
    for, or what suits its size."""
    return max(LEAST_TIME_S, TIME_PER_OP_S * len(graph)) if asked_s is None else asked_s
