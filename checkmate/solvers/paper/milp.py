"""The paper's method: its integer program, solved by a solver package.

Method: first the baselines, which are fast. Then `formulation.relax`, which is small and bounds the
cost of every plan; its solution, as a schedule, is often within the budget. Then
`formulation.formulate`, started from the cheapest plan so far. A graph with more than `max_ops` ops
is grouped first (`coarsen`).

Source: Checkmate (Jain et al., MLSys 2020), section 4. Starting from the relaxation is not in the
paper. Guarantee: without grouping, and with enough time, the cheapest plan of the program's space:
for the partitioned program the cheapest frontier-advancing plan in which no op runs twice in one
stage. The reported bound is the relaxation's, which holds for every plan in the graph's order of
first evaluations; the program's own bound does not. For the same reason only the relaxation can
prove that there is no plan. With grouping there is neither bound nor proof.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from checkmate.core.expansion import Expansion
from checkmate.core.plan import Plan
from checkmate.core.schedule import Schedule, lower
from checkmate.solvers.backends.engines import solve_matrices
from checkmate.solvers.backends.matrices import AnswerStatus
from checkmate.solvers.baselines.chen import ChenGreedy, ChenSqrtN
from checkmate.solvers.paper.coarsen import coarsen
from checkmate.solvers.paper.formulation import DOES_NOT_FIT, Formulation, formulate, relax
from checkmate.solvers.search import Search

ENGINE_TOLERANCE = 5e-7
"""Engines satisfy rows and bounds to about 1e-6 or better; reported bounds are lowered by this
share."""

TRIES = 3
"""An engine's x may exceed the budget by its tolerance. Then the program is solved again, this many
times in all, for a budget that is a little smaller."""


@dataclass(frozen=True, slots=True)
class MILP:
    """Solves the paper's program.

    Args:
      engine: "cbc", "scip", "highs" or "cp_sat".
      partitioned: Whether the program is the one of frontier-advancing stages. The other one is for
        comparison: its optimum can be cheaper, as an op may run for the first time in any stage,
        but engines solve it for about ten ops at most.
      max_ops: Graphs with more ops are grouped into at most this many.
    """

    engine: str = "cbc"
    partitioned: bool = True
    max_ops: int = 80
    relaxation_share: float = 0.4

    @property
    def name(self) -> str:
        return f"milp:{self.engine}{'' if self.partitioned else ' unpartitioned'}"

    def run(self, search: Search) -> None:
        coarse = coarsen(search.graph, max_ops=self.max_ops)
        inner = search.part(1.0, coarse.after)
        for baseline in (ChenSqrtN(), ChenGreedy()):
            baseline.run(inner)
        if inner.plan is not None:
            search.offer(coarse.expand(inner.plan), by=f"{self.name}: {inner.found_by}")
        self._relaxation(search, coarse, inner)
        if search.optimal or search.infeasible or inner.optimal:
            return
        budget_bytes = search.budget_bytes
        for _ in range(TRIES):
            program = formulate(coarse.after, budget_bytes, partitioned=self.partitioned)
            plan = self._solve(program, 0.95 * search.remaining_s, _start(program, inner))
            if plan is None:
                return
            over = _offer(search, coarse, inner, plan, by=self.name)
            if over <= 0:
                return
            budget_bytes -= 2 * over

    def _relaxation(self, search: Search, coarse: Expansion, inner: Search) -> None:
        relaxation = relax(coarse.after, search.budget_bytes)
        answer = solve_matrices(
            relaxation.problem,
            engine=self.engine,
            time_limit_s=self.relaxation_share * search.remaining_s,
        )
        # CP-SAT rounds coefficients, so its answers prove nothing.
        exact = coarse.after is search.graph and self.engine != "cp_sat"
        if answer.status is AnswerStatus.INFEASIBLE and exact:
            search.prove_infeasible(DOES_NOT_FIT)
            return
        inner.raise_bound(relaxation.cost(answer.bound) * (1 - ENGINE_TOLERANCE), by=self.name)
        if exact:
            search.raise_bound(inner.bound, by=f"{self.name}: relaxation")
        if answer.x is not None:
            plan = lower(coarse.after, relaxation.schedule(answer.x))
            _offer(search, coarse, inner, plan, by=f"{self.name}: relaxation")

    def _solve(
        self, program: Formulation, time_limit_s: float, start: np.ndarray | None
    ) -> Plan | None:
        answer = solve_matrices(
            program.problem, engine=self.engine, time_limit_s=time_limit_s, start=start
        )
        return None if answer.x is None else lower(program.graph, program.schedule(answer.x))


def _offer(search: Search, coarse: Expansion, inner: Search, plan: Plan, *, by: str) -> int:
    """Offers a coarse plan to both searches. Returns its bytes above the budget."""
    search.offer(coarse.expand(plan), by=by)
    return inner.offer(plan, by=by).peak_bytes - inner.budget_bytes


def _start(program: Formulation, inner: Search) -> np.ndarray | None:
    """The best plan so far as a vector of `program`, if it has that form and fits."""
    schedule = Schedule.from_plan(program.graph, inner.plan) if inner.plan is not None else None
    if schedule is None:
        return None
    x = program.solution(schedule)
    return x if program.problem.violation(x) < ENGINE_TOLERANCE else None
