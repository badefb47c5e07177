"""PlanSearch: from a step's graph with costs to a function within the budget.

    solve -> plan -> what its ops ask the allocator for -> the simulated allocator: its peak --+
      ^                                                                                        |
      +-------------------------------- budget_loop.next_target <------------------------------+
    the cheapest plan within the budget -> built once -> confirmed by at most three steps

What ops ask for is expected from shapes and measured workspaces, and exact once a step was watched.
Where the confirming steps take something else than was predicted, the ops' footprints are learnt
from what was seen there, and the search goes on with these. Where nothing can be predicted (a step
with loops, an allocator that is not BFC) the judge's peak stands for the prediction, corrected by
what the confirming steps took.
"""

from __future__ import annotations

import gc
import logging
from dataclasses import dataclass, field

from checkmate.core.footprint import Footprint
from checkmate.core.graph import DFGraph
from checkmate.errors import InfeasibleBudgetError, NoPlanFoundError
from checkmate.solvers.result import SolveResult, SolveStatus
from checkmate.tf2 import device as devices
from checkmate.tf2.execution.replay import Replayed
from checkmate.tf2.memory.batch_area import make_output_buffers
from checkmate.tf2.memory.budget import MemoryBudget
from checkmate.tf2.memory.confirm import Confirmed, confirm
from checkmate.tf2.memory.prediction import Predictor
from checkmate.tf2.planning.budget_loop import Tried, next_target
from checkmate.tf2.planning.candidate import Candidate, Found
from checkmate.tf2.planning.request import ANY_SIZE, PlanTask
from checkmate.tf2.planning.solver_calls import SolverCalls
from checkmate.tf2.planning.tuning import TUNING
from checkmate.units import format_bytes

log = logging.getLogger("checkmate")


@dataclass(slots=True, eq=False)
class PlanSearch:
    """The search for the cheapest plan within a budget.

    Attributes:
      most_bytes: The highest peak of a plan, without a reserve: the budget, or the plain step's
        peak where that is lower.
      piece_bytes: The most that the allocator has in one piece, where it has a limit of its own.
      footprints: What the step's ops were seen to ask for before, in this process or another.
      steps_run: How many steps were run so far.
      candidates: The plans that were found.
      answers: (target, the plan that was found for it or None), in order.
    """

    task: PlanTask
    graph: DFGraph
    memory: MemoryBudget
    most_bytes: int
    piece_bytes: int = ANY_SIZE
    footprints: dict[str, Footprint] = field(default_factory=dict)
    solver: SolverCalls = field(init=False)
    steps_run: int = 0
    notes: list[str] = field(default_factory=list)
    candidates: list[Candidate] = field(default_factory=list)
    answers: list[tuple[int, Candidate | None]] = field(default_factory=list)
    _predictor: Predictor | None = None
    _correction: float = 1.0

    def __post_init__(self) -> None:
        task = self.task
        self.solver = SolverCalls(self.graph, task.request.options, task.clock, task.progress)

    def run(self) -> Found | None:
        """Returns the cheapest plan found within the budget, built and confirmed; None where there
        is none: `candidates` and `refusal` say why."""
        best: Found | None = None
        for _ in range(TUNING.max_built):
            candidate = self._best_on_paper()
            if candidate is None or (best is not None and not _pays(candidate.result, best.result)):
                break
            found = None  # releases a plan that was not taken before the next one is confirmed
            found = self.confirm(candidate)
            best = found or best
            if found is not None and found.confirmed is None:
                break
        self._collect_functions()
        return best

    @property
    def refusal(self) -> InfeasibleBudgetError | NoPlanFoundError | None:
        """Why the solver found no plan, the first time that it found none."""
        return self.solver.refusal

    @property
    def predictor(self) -> Predictor:
        """The predictor, which reads the allocator's state once the results' buffers are there."""
        if self._predictor is None:
            with self.task.clock.phase("predicting"):
                self._predictor = self._made_predictor()
        return self._predictor

    def _made_predictor(self) -> Predictor:
        task = self.task
        buffers = None
        if task.request.has_output_buffers and task.is_main:
            buffers = make_output_buffers(task.traced)
        predictor = Predictor(task.traced, self.graph, task.batch or (), buffers, self.footprints)
        self._refresh(predictor)
        if predictor.why_not and task.reports:
            self.notes.append(
                f"What a plan takes was tried and not predicted, as {predictor.why_not}."
            )
        return predictor

    def _refresh(self, predictor: Predictor) -> None:
        if self.task.reports:
            activations = max(0, self.memory.activation_budget_bytes) + devices.UNSPLIT_BYTES
            predictor.refresh(min(activations, self.piece_bytes))

    def forget(self) -> None:
        """Releases all memory of the device that the search refers to."""
        self._predictor = None
        self.candidates, self.answers = [], []

    def _collect_functions(self) -> None:
        """Releases the functions of plans that were built and not taken: they keep constants of
        their graphs in reference cycles."""
        if self.steps_run:
            gc.collect()

    @property
    def limit_bytes(self) -> int:
        """The highest peak that a plan may be expected to have."""
        return min(self.memory.peak_limit_bytes, self.most_bytes)

    def lowest(self) -> Candidate | None:
        """Returns the plan with the lowest expected peak: of the plan with the lowest peak by the
        judge, and of all that were tried."""
        if (curve := self.solver.curve) is not None:
            self._add(curve.smallest_bytes, curve.lowest)
        peaks = [(self.expected(each), each) for each in self.candidates]
        known = [(peak, each) for peak, each in peaks if peak is not None]
        return min(known, key=lambda pair: pair[0])[1] if known else None

    def expected(self, candidate: Candidate) -> int | None:
        """Returns the peak that a plan is expected to have in training, in the budget's terms; None
        where memory runs out."""
        if candidate.predicted_bytes is None:
            return None
        if candidate.measured_bytes is not None:
            return max(candidate.predicted_bytes, candidate.measured_bytes)
        fixed = self.memory.fixed_bytes
        return fixed + int(self._correction * (candidate.predicted_bytes - fixed))

    def _best_on_paper(self) -> Candidate | None:
        """The cheapest plan that is expected to be within the budget, once no further plan is worth
        asking for."""
        while (target := self._next_target()) is not None:
            if not self._ask(target):
                break
        within = [
            each
            for each in self.candidates
            if (peak := self.expected(each)) is not None and peak <= self.limit_bytes
        ]
        return min(within, key=lambda each: _cost(each.result), default=None)

    def _next_target(self) -> int | None:
        tried = [self._tried(*each) for each in self.answers]
        return next_target(self.limit_bytes, self.memory.fixed_bytes, tried, self.solver.count)

    def _tried(self, target: int, candidate: Candidate | None) -> Tried:
        other, reached = self.memory.other_bytes, self.solver.reached_bytes
        if candidate is None:
            return Tried(target, None, None, reached_bytes=reached and reached + other)
        asked = candidate.peak_bytes + other
        return Tried(target, asked, self.expected(candidate), bool(candidate.plan.recomputed))

    def _ask(self, target: int) -> bool:
        """Asks the solver for plans; False where the user interrupted it."""
        other = self.memory.other_bytes
        result, improving = self.solver.best(max(1, target - other))
        self._add(target, result)
        for each in improving:
            if each.peak_bytes and self.predictor.predicts and self._next_target() is not None:
                self._add(each.peak_bytes + other, each)
        return result is None or result.status is not SolveStatus.INTERRUPTED

    def _add(self, target: int, result: SolveResult | None) -> None:
        candidate = None
        if result is not None and result.plan is not None and result.peak_bytes is not None:
            candidate = next((each for each in self.candidates if each.plan == result.plan), None)
            if candidate is None:
                candidate = Candidate(result, result.plan, result.peak_bytes)
                self.candidates.append(candidate)
                self._predict(candidate)
        self.answers.append((target, candidate))
        expected = candidate and self.expected(candidate)
        log.info("planned for %s: expected to take %s", format_bytes(target), expected)

    def _predict(self, candidate: Candidate) -> None:
        if not self.predictor.predicts:
            candidate.predicted_bytes = candidate.peak_bytes + self.memory.other_bytes
            return
        with self.task.clock.phase("predicting"), self.task.progress.phase("predicting"):
            candidate.paper = candidate.paper or self.predictor.write(candidate.plan)
            allocated = self.predictor.peak_bytes(candidate.paper)
            candidate.predicted_bytes = None if allocated is None else self.memory.peak(allocated)

    def confirm(self, candidate: Candidate) -> Found | None:
        """Returns the function of a plan, confirmed; None where it takes more than the budget:
        later predictions count what was measured."""
        task, predictor = self.task, self.predictor
        with task.clock.phase("building"), task.progress.phase("building"):
            self._collect_functions()
            written = candidate.paper.written if candidate.paper else None
            run = Replayed(task.traced, candidate.plan, predictor.buffers, written)
        found = Found(candidate.result, candidate.plan, run, self.expected(candidate))
        if not task.reports:
            return found
        confirmed = self._confirmed(run)
        if confirmed is None:
            self.notes.append(
                "The step could not be run before training, so its memory is predicted and not"
                " measured."
            )
            return found
        self._learn(candidate, confirmed)
        expected, measured = self.expected(candidate), candidate.measured_bytes
        log.info("expected %s, measured %s of %s", expected, measured, self.memory.limit_bytes)
        if expected is None or expected > self.limit_bytes:
            return None
        return Found(candidate.result, candidate.plan, run, expected, measured, confirmed)

    def _confirmed(self, run: Replayed) -> Confirmed | None:
        task, predicts, known = self.task, self.predictor.predicts, bool(self.footprints)
        steps = 1 if known and predicts else TUNING.confirming_steps
        with task.clock.phase("confirming"), task.progress.phase("confirming"):
            watch = predicts and not known
            found = confirm(run, task.traced, steps=steps, watch=watch, batch=task.batch)
            self.steps_run += found.runs if found else 0
            return found

    def _learn(self, candidate: Candidate, confirmed: Confirmed) -> None:
        """Corrects the predictions of all plans by what confirming steps took."""
        memory = self.memory
        if confirmed.allocated_bytes is None:  # memory ran out
            candidate.measured_bytes = max(memory.limit_bytes, self.most_bytes) + 1
            return
        candidate.measured_bytes = measured = memory.peak(confirmed.allocated_bytes)
        if self.predictor.predicts and candidate.paper is not None:
            if confirmed.requests is not None:
                self.predictor.learn(candidate.paper, confirmed.requests)
            self._refresh(self.predictor)  # the function has constants in memory now
            for each in self.candidates:
                self._predict(each)
        fixed, predicted = memory.fixed_bytes, candidate.predicted_bytes
        if (
            predicted is None
            or measured <= predicted + TUNING.close_share * memory.activation_budget_bytes
        ):
            return
        self._correction = max(1.0, (measured - fixed) / max(1, predicted - fixed))
        if self.predictor.predicts:
            self.notes.append(
                f"The allocator gave out {format_bytes(measured - predicted)} more than predicted;"
                " further plans were corrected by that."
            )


def _cost(result: SolveResult) -> float:
    return float("inf") if result.cost is None else result.cost


def _pays(result: SolveResult, best: SolveResult) -> bool:
    """Whether a plan is so much cheaper than the best confirmed one that it is worth building."""
    return _cost(best) * (1 - TUNING.worth_share) > _cost(result)
