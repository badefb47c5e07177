"""The paper's method: its integer program, given to a solver package.

Method: first the baselines, which cost next to nothing. Then `formulation.relax`, which is small
and bounds the cost of every plan; its solution, read as a schedule, is often within the budget
already. Then `formulation.formulate`, begun from the cheapest plan known. A graph with more than
`max_ops` ops is grouped first (`coarsen`).

Source: Checkmate (Jain et al., MLSys 2020), section 4. Starting from the relaxation is not in the
paper. Guarantee: without grouping, and given the time, the cheapest plan of the program's space:
for the partitioned one the cheapest frontier-advancing plan in which no op runs twice in one stage.
The bound told to the search is the relaxation's, which holds for every plan in the graph's order of
first evaluations; the program's own would not. For the same reason only the relaxation can prove
that there is no plan. With grouping neither is told.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from checkmate.core.plan import Plan
from checkmate.core.schedule import Schedule, lower
from checkmate.solvers.backends.engines import solve_matrices
from checkmate.solvers.backends.matrices import AnswerStatus
from checkmate.solvers.baselines.chen import ChenGreedy, ChenSqrtN
from checkmate.solvers.paper.coarsen import Coarse, coarsen
from checkmate.solvers.paper.formulation import DOES_NOT_FIT, Formulation, formulate, relax
from checkmate.solvers.search import Search

ENGINE_TOLERANCE = 5e-7
"""Engines meet rows and bounds to about 1e-6 or better; a bound is told to the search lowered by
this share."""
# An engine's x may break the budget by its tolerance; then it is asked again for a little less.
TRIES = 3


@dataclass(frozen=True, slots=True)
class MILP:
    """Solves the paper's program.

    Args:
      engine: "cbc", "scip", "highs", "cp_sat" or "scipy".
      partitioned: Whether the program is the one of frontier-advancing stages. The other is there
        to compare with: its optimum can be cheaper, as an op runs for the first time in any stage,
        but it is out of reach beyond some ten ops.
      max_ops: Graphs with more ops are grouped into at most this many.
      relaxation_share: Share of the time that the relaxation may take.
    """

    engine: str = "cbc"
    partitioned: bool = True
    max_ops: int = 80
    relaxation_share: float = 0.4

    @property
    def name(self) -> str:
        """The engine, after "milp_"."""
        return f"milp_{self.engine}{'' if self.partitioned else '_unpartitioned'}"

    def run(self, search: Search) -> None:
        """Offers what the baselines, the relaxation and the program find, one after the other."""
        coarse = coarsen(search.graph, max_ops=self.max_ops)
        inner = Search(coarse.graph, search.budget_bytes, time_limit_s=search.remaining_s)
        for baseline in (ChenSqrtN(), ChenGreedy()):
            baseline.run(inner)
        if inner.plan is not None:
            search.offer(coarse.expand(inner.plan), by=f"{self.name}: {inner.found_by}")
        self._relaxation(search, coarse, inner)
        if search.optimal or search.infeasible or inner.optimal:
            return
        budget_bytes = search.budget_bytes
        for _ in range(TRIES):
            program = formulate(coarse.graph, budget_bytes, partitioned=self.partitioned)
            plan = self._solve(program, 0.95 * search.remaining_s, _start(program, inner))
            if plan is None:
                return
            over = _offer(search, coarse, inner, plan, by=self.name)
            if over <= 0:
                return
            budget_bytes -= 2 * over

    def _relaxation(self, search: Search, coarse: Coarse, inner: Search) -> None:
        relaxation = relax(coarse.graph, search.budget_bytes)
        answer = solve_matrices(
            relaxation.problem,
            engine=self.engine,
            time_limit_s=self.relaxation_share * search.remaining_s,
        )
        # CP-SAT rounds what is not whole: no proof.
        exact = coarse.graph is search.graph and self.engine != "cp_sat"
        if answer.status is AnswerStatus.INFEASIBLE and exact:
            search.prove_infeasible(DOES_NOT_FIT)
            return
        inner.raise_bound(relaxation.cost(answer.bound) * (1 - ENGINE_TOLERANCE), by=self.name)
        if exact:
            search.raise_bound(inner.bound, by=f"{self.name}: relaxation")
        if answer.x is not None:
            _offer(
                search,
                coarse,
                inner,
                lower(coarse.graph, relaxation.schedule(answer.x)),
                by=f"{self.name}: relaxation",
            )

    def _solve(
        self, program: Formulation, time_limit_s: float, start: np.ndarray | None
    ) -> Plan | None:
        answer = solve_matrices(
            program.problem, engine=self.engine, time_limit_s=time_limit_s, start=start
        )
        return None if answer.x is None else lower(program.graph, program.schedule(answer.x))


def _offer(search: Search, coarse: Coarse, inner: Search, plan: Plan, *, by: str) -> int:
    """Offers a coarse plan to both searches; returns by how many bytes it exceeds the budget of the
    coarse one."""
    search.offer(coarse.expand(plan), by=by)
    return inner.offer(plan, by=by).peak_bytes - inner.budget_bytes


def _start(program: Formulation, inner: Search) -> np.ndarray | None:
    """The best plan so far as a vector of `program`, where it has that form and fits."""
    schedule = Schedule.from_plan(program.graph, inner.plan) if inner.plan is not None else None
    if schedule is None:
        return None
    x = program.solution(schedule)
    return x if program.problem.violation(x) < ENGINE_TOLERANCE else None
