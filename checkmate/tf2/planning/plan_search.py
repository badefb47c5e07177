"""PlanSearch: from a step's graph with costs to the cheapest plan within the budget, on paper.

    solve -> plan -> what its ops ask the allocator for -> the simulated allocator: its peak --+
      ^                                                                                        |
      +-------------------------------- budget_loop.next_target <------------------------------+

Where nothing can be predicted (an allocator that is not BFC) the judge's peak stands for the
prediction.
"""

from __future__ import annotations

import contextlib
import logging
import time
from dataclasses import dataclass, field

from checkmate.core.graph import DFGraph
from checkmate.core.plan import Plan
from checkmate.errors import CheckmateError, InfeasibleBudgetError, NoPlanFoundError
from checkmate.solvers.auto.solver import Auto
from checkmate.solvers.curve import Curve, solve_curve
from checkmate.solvers.result import SolveResult, SolveStatus
from checkmate.solvers.search import Solver
from checkmate.solvers.solve import solve
from checkmate.tf2 import device as devices
from checkmate.tf2.costs.measured import Costs
from checkmate.tf2.execution.replay import OutputBuffers, Written
from checkmate.tf2.memory.budget import MemoryBudget
from checkmate.tf2.memory.prediction import Predictor
from checkmate.tf2.memory.probe import make_output_buffers
from checkmate.tf2.options import PlanOptions
from checkmate.tf2.planning.budget_loop import TUNING, Attempt, could_save, next_target
from checkmate.tf2.planning.request import Clock, PlanTask
from checkmate.units import format_bytes

log = logging.getLogger("checkmate")


def time_limit(asked_s: float | None, graph: DFGraph) -> float:
    return max(TUNING.min_time_s, TUNING.time_per_op_s * len(graph)) if asked_s is None else asked_s


@dataclass(slots=True, eq=False)
class SolverCalls:
    """The calls of the solver, the first refusal, and the lowest peak that the last call without a
    plan reached, if known."""

    graph: DFGraph
    options: PlanOptions
    clock: Clock
    count: int = 0
    refusal: InfeasibleBudgetError | NoPlanFoundError | None = None
    reached_bytes: int | None = None
    _curve: Curve | None = None

    @property
    def name(self) -> str:
        solver = self.options.solver
        return solver if isinstance(solver, str) else solver.name

    @property
    def time_limit_s(self) -> float:
        """Of the next call: those after the first have half the seconds, unless the user set
        them."""
        asked = self.options.time_limit_s
        seconds = time_limit(asked, self.graph)
        return seconds / 2 if self.count > 1 and asked is None else seconds

    @property
    def _solver(self) -> str | Solver:
        """The default solver ends a search that no longer pays, unless the user set seconds or
        costs are no seconds."""
        asked = self.options
        ends = asked.solver == "auto" and asked.time_limit_s is None and asked.cost_model != "unit"
        return Auto(steps=TUNING.steps) if ends else asked.solver

    def best(self, budget_bytes: int) -> SolveResult | None:
        self.count += 1
        limit_s = self.time_limit_s
        with self.clock.phase("solving", limit_s=limit_s):
            try:
                return solve(
                    self.graph,
                    budget_bytes,
                    solver=self._solver,
                    time_limit_s=limit_s,
                    keep=self.options.keep,
                    recompute=self.options.recompute,
                    on_progress=self.clock.progress.improved,
                )
            except (InfeasibleBudgetError, NoPlanFoundError) as error:
                self.refusal = self.refusal or error
                self.reached_bytes = getattr(error, "best_peak_bytes", None)
                return None

    @property
    def curve(self) -> Curve | None:
        """The search for the smallest budget that has a plan, made once; None where it fails."""
        if self._curve is None:
            limit_s = TUNING.lowest_plan_s
            phase = self.clock.phase("looking for what would fit", limit_s=limit_s)
            with contextlib.suppress(CheckmateError), phase:
                self._curve = solve_curve(
                    self.graph,
                    ["100%"],
                    solver=self.options.solver,
                    time_limit_s=limit_s,
                    find_smallest=True,
                    keep=self.options.keep,
                    recompute=self.options.recompute,
                )
        return self._curve


@dataclass(slots=True, eq=False)
class Candidate:
    """A plan that the solver found. `expected_bytes` is its peak in training, in the budget's
    terms: by the simulated allocator or the judge, corrected by real steps; None where memory runs
    out. `rise_bytes` is the same above the bytes in use when a step begins."""

    result: SolveResult
    plan: Plan
    peak_bytes: int
    expected_bytes: int | None = None
    rise_bytes: int = 0
    written: Written | None = None


@dataclass(slots=True, eq=False)
class PlanSearch:
    """The search for the cheapest plan within a budget. `piece_bytes` is the allocator's largest
    piece, where it has a limit of its own; `tried` are the calls of the solver, in order."""

    task: PlanTask
    costs: Costs
    piece_bytes: int
    solver: SolverCalls = field(init=False)
    notes: list[str] = field(default_factory=list)
    candidates: list[Candidate] = field(default_factory=list)
    tried: list[Attempt] = field(default_factory=list)
    _predictor: Predictor | None = None
    _seconds: float = 0.0  # what the last plan took to find and predict

    def __post_init__(self) -> None:
        task = self.task
        self.solver = SolverCalls(self.graph, task.request.options, task.clock)

    @property
    def graph(self) -> DFGraph:
        return self.costs.graph

    @property
    def memory(self) -> MemoryBudget:
        return self.task.memory

    def run(self) -> Candidate | None:
        """The cheapest plan expected to be within the budget, once no further plan is worth a call;
        None without one: `candidates` and `solver.refusal` tell why."""
        while (target := self._next_target()) is not None:
            if not self._ask(target):
                break
        return self.cheapest()

    def cheapest(self) -> Candidate | None:
        within = (each for each in self.candidates if self._fits(each))
        return min(within, key=lambda each: _cost(each.result), default=None)

    @property
    def predictor(self) -> Predictor:
        """Made on first use: it reads the allocator's state, in which the results' buffers must
        be."""
        if self._predictor is None:
            with self.task.clock.phase("predicting"):
                self._predictor = self._made_predictor()
        return self._predictor

    @property
    def limit_bytes(self) -> int:
        return self.memory.peak_limit_bytes

    @property
    def excess_bytes(self) -> int:
        """By how much the lowest plan found so far is above the limit; 0 without any."""
        known = (each.expected_bytes for each in self.candidates)
        return max(0, min((each for each in known if each), default=0) - self.limit_bytes)

    def lowest(self) -> Candidate | None:
        """The plan with the lowest expected peak, of those found and the one lowest by the
        judge."""
        if (curve := self.solver.curve) is not None:
            self._add(curve.smallest_bytes, curve.lowest)
        known = [each for each in self.candidates if each.expected_bytes is not None]
        return min(known, key=lambda each: each.expected_bytes or 0, default=None)

    def pause(self) -> None:
        """Frees the results' buffers, which are made again on use."""
        self._predictor = None

    def forget(self) -> None:
        self.pause()
        self.candidates = []

    def _made_predictor(self) -> Predictor:
        task = self.task
        buffers: OutputBuffers | None = None
        if task.request.has_output_buffers:
            make = OutputBuffers if task.paper_bytes else make_output_buffers
            buffers = make(task.traced)
        costs, batch = self.costs, task.batch or ()
        found = Predictor(task.traced, costs.graph, batch, costs.footprints, buffers)
        if task.paper_bytes:
            found.empty()
        elif task.reports:
            activations = max(0, self.memory.activation_budget_bytes) + devices.UNSPLIT_BYTES
            found.refresh(min(activations, self.piece_bytes))
            if found.why_not:
                self.notes.append(
                    f"The allocator is not simulated: {found.why_not} Peaks are by the bytes"
                    " that ops ask for."
                )
        return found

    def _fits(self, candidate: Candidate) -> bool:
        return candidate.expected_bytes is not None and candidate.expected_bytes <= self.limit_bytes

    def _next_target(self) -> int | None:
        target = next_target(self.limit_bytes, self.memory.fixed_bytes, self.tried)
        return target if self._pays() else None

    def _pays(self) -> bool:
        """Whether another call of the solver is expected to last no longer than a cheaper plan
        could save in many steps. Costs that are no seconds do not tell."""
        found, cost_model = self.cheapest(), self.task.request.options.cost_model
        if found is None or found.expected_bytes is None or cost_model == "unit":
            return True
        plain = self.task.traced.plain_peak_bytes(self.graph)
        saved = could_save(
            _cost(found.result),
            self.graph.total_cost,
            [_cost(each.result) for each in self.candidates if not self._fits(each)],
            self.limit_bytes - found.expected_bytes,
            plain - found.peak_bytes,
        )
        return TUNING.steps * saved > self._seconds

    def _ask(self, target: int) -> bool:
        """False where the user interrupted the solver."""
        started = time.perf_counter()
        result = self.solver.best(max(1, target - self.memory.other_bytes))
        self._add(target, result)
        self._seconds = time.perf_counter() - started
        return result is None or result.status is not SolveStatus.INTERRUPTED

    def _add(self, target: int, result: SolveResult | None) -> None:
        other, reached = self.memory.other_bytes, self.solver.reached_bytes
        attempt = Attempt(target, None, None, reached_bytes=reached and reached + other)
        if result is not None and result.plan is not None and result.peak_bytes is not None:
            found = next((each for each in self.candidates if each.plan == result.plan), None)
            if found is None:
                found = Candidate(result, result.plan, result.peak_bytes)
                self.candidates.append(found)
                self._predict(found)
            asked, recomputes = found.peak_bytes + other, bool(found.plan.recomputed)
            attempt = Attempt(target, asked, found.expected_bytes, recomputes)
        self.tried.append(attempt)
        log.info("planned for %s: expected to take %s", format_bytes(target), attempt.peak_bytes)

    def _predict(self, candidate: Candidate) -> None:
        memory, traced = self.memory, self.task.traced
        allocated: int | None = candidate.peak_bytes + memory.other_bytes
        candidate.rise_bytes = candidate.peak_bytes - traced.between_bytes
        if self.predictor.predicts:
            with self.task.clock.phase("predicting"):
                paper = self.predictor.write(candidate.plan)
                peak = self.predictor.peak(paper)
            candidate.written = paper.written
            allocated = None if peak is None else memory.peak(peak.bytes)
            candidate.rise_bytes = peak.rise_bytes if peak else 0
        if allocated is not None:
            more = int((self.task.request.correction - 1) * candidate.rise_bytes)
            candidate.expected_bytes = allocated + more
            candidate.rise_bytes += more


def _cost(result: SolveResult) -> float:
    return float("inf") if result.cost is None else result.cost
