"""A bound without a plan: the linear relaxation of the rows that every plan satisfies.

Method: `formulation.relax` without integrality. Its optimum is at most the cost of any plan within
the budget. The bound is computed from the engine's multipliers (`MatrixProblem.dual_bound`), so
that an engine of low accuracy, or PDLP or GLOP out of time, gives a weaker bound but never a wrong
one. CLP out of time gives none.

Source: Checkmate (Jain et al., MLSys 2020), section 5, which starts its rounding from such a
relaxation. Guarantee: the bound holds for every plan in the graph's order of first evaluations,
however often and in whatever order it recomputes. The relaxation has about n^2 columns. If building
them takes more than a fifth of the time, there is no bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from checkmate.solvers.backends.engines import solve_matrices
from checkmate.solvers.backends.matrices import AnswerStatus
from checkmate.solvers.paper.formulation import DOES_NOT_FIT, relax
from checkmate.solvers.search import Search

SECONDS, HANDING_OVER = 2e-6, 0.2
"""Seconds per column to build the program and pass it to an engine and back, and the largest share
of the time for that."""


@dataclass(frozen=True, slots=True)
class LPBound:
    """Solves the relaxation.

    Args:
      engine: "clp", "glop" or "pdlp".
      share: Share of the time for the relaxation.
    """

    engine: str = "clp"
    share: float = 1.0
    name: str = "lp_bound"

    makes_plans: ClassVar[bool] = False

    def run(self, search: Search) -> None:
        handing_over_s = SECONDS * len(search.graph) ** 2
        if handing_over_s > HANDING_OVER * search.remaining_s:
            return  # the rest would not suffice for any engine
        relaxation = relax(search.graph, search.budget_bytes)
        seconds = max(0.0, self.share * search.remaining_s - handing_over_s)
        answer = solve_matrices(relaxation.problem, engine=self.engine, time_limit_s=seconds)
        if answer.status is AnswerStatus.INFEASIBLE:
            search.prove_infeasible(DOES_NOT_FIT)
        else:
            search.raise_bound(relaxation.cost(answer.bound), by=self.name)
