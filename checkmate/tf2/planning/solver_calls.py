"""Calls of the solver for plans of one graph."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from checkmate.core.graph import DFGraph
from checkmate.errors import CheckmateError, InfeasibleBudgetError, NoPlanFoundError
from checkmate.solvers.auto.solver import Auto
from checkmate.solvers.curve import Curve, solve_curve
from checkmate.solvers.result import SolveResult
from checkmate.solvers.search import Solver
from checkmate.solvers.solve import solve
from checkmate.tf2.options import PlanOptions
from checkmate.tf2.planning.budget_loop import TUNING
from checkmate.tf2.planning.request import Clock


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
