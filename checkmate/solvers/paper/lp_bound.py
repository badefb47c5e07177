"""A bound and no plan: the linear relaxation of what every plan must satisfy.

Method: `formulation.relax` without integrality. Its optimum is at most the cost of any plan within
the budget, and what the engine says of it is not believed: the bound is computed from the
multipliers that it ends with (`MatrixProblem.dual_bound`), so that an engine of low accuracy, or
PDLP or GLOP out of time, gives a weaker bound but never a wrong one. CLP out of time gives none.

Source: Checkmate (Jain et al., MLSys 2020), section 5, which starts its rounding from such a
relaxation. Guarantee: the bound holds for every plan in the graph's order of first evaluations,
however often and in whatever order it recomputes. It has about n^2 columns. Halfway between floor
and plain peak, on one core: VGG16 (74 ops) 0.4 s with CLP, 0.7 s with GLOP, 1.2 s with PDLP;
MobileNet (180 ops) 1.6 s with CLP. Where writing down so many columns would take a fifth of the
time, it tells nothing: 700 ops in 5 s, 2,400 in 60.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from checkmate.solvers.backends.engines import solve_matrices
from checkmate.solvers.backends.matrices import AnswerStatus
from checkmate.solvers.paper.formulation import DOES_NOT_FIT, relax
from checkmate.solvers.search import Search

SECONDS, HANDING_OVER = 2e-6, 0.2
"""What it takes per column to write the program down, or to hand it to an engine and back, and the
share of the time that this may take."""


@dataclass(frozen=True, slots=True)
class LPBound:
    """Solves the relaxation.

    Args:
      engine: "clp", "glop" or "pdlp".
      share: Share of the time that it may take.
    """

    engine: str = "clp"
    share: float = 1.0
    name: str = "lp_bound"

    makes_plans: ClassVar[bool] = False

    def run(self, search: Search) -> None:
        """Tells the relaxation's value, or that there is no plan."""
        handing_over_s = SECONDS * len(search.graph) ** 2
        if handing_over_s > HANDING_OVER * search.remaining_s:
            return  # no engine would come to an end in what is left
        relaxation = relax(search.graph, search.budget_bytes)
        seconds = max(0.0, self.share * search.remaining_s - handing_over_s)
        answer = solve_matrices(relaxation.problem, engine=self.engine, time_limit_s=seconds)
        if answer.status is AnswerStatus.INFEASIBLE:
            search.prove_infeasible(DOES_NOT_FIT)
        else:
            search.raise_bound(relaxation.cost(answer.bound), by=self.name)
