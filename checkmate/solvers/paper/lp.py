"""The linear relaxation: a bound, and the paper's approximation, which rounds it.

Bound: `formulation.relax` without integrality. Its optimum is at most the cost of any plan within
the budget, in the graph's order of first evaluations, however often and in whatever order it
recomputes. The bound is computed from CLP's multipliers (`MatrixProblem.dual_bound`), so that its
tolerances give a weaker bound but never a wrong one; out of time it gives none. The relaxation has
about n^2 columns; if building them takes more than a fifth of the time, there is no bound.

Rounding: the program's relaxation gives fractions for S. Phase one rounds S alone: at a threshold,
or at random. Phase two follows from S: from the last stage to the first, an op runs if its value is
needed and not retained, so that every rounding is a legal schedule. `replay` checks which are
within the budget, and the cheapest one is the result. The relaxation is solved at the budget and
below it, as roundings need more memory than the relaxation. Guarantee: none on finding a plan. The
bound is reported only if the graph was not grouped.

Source: Checkmate (Jain et al., MLSys 2020), section 5, algorithm 2. Departures: many thresholds
instead of 1/2; every other random rounding draws one number per value instead of one per entry, so
that a value stays retained from stage to stage; ops that may not run again are retained.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from checkmate.core.schedule import complete, lower
from checkmate.solvers.backends.engines import solve_matrices
from checkmate.solvers.backends.matrices import AnswerStatus
from checkmate.solvers.paper.coarsen import coarsen
from checkmate.solvers.paper.formulation import DOES_NOT_FIT, formulate, relax
from checkmate.solvers.search import Search

SECONDS, HANDING_OVER = 2e-6, 0.2
"""Seconds per column to build the program and pass it to CLP and back, and the largest share
of the time for that."""


def raise_relaxation_bound(search: Search, *, share: float = 1.0) -> None:
    """Solves the relaxation in a share of the time that is left, and reports its bound."""
    handing_over_s = SECONDS * len(search.graph) ** 2
    if handing_over_s > HANDING_OVER * search.remaining_s:
        return  # the rest would not suffice
    relaxation = relax(search.graph, search.budget_bytes)
    seconds = max(0.0, share * search.remaining_s - handing_over_s)
    answer = solve_matrices(relaxation.problem, engine="clp", time_limit_s=seconds)
    if answer.status is AnswerStatus.INFEASIBLE:
        search.prove_infeasible(DOES_NOT_FIT)
    else:
        search.raise_bound(relaxation.cost(answer.bound), by="linear relaxation")


@dataclass(frozen=True, slots=True)
class LPRounding:
    """Solves the relaxation and rounds it.

    Args:
      max_ops: Graphs with more ops are grouped into at most this many.
      epsilons: Shares of the memory that the relaxation may not use, one solution each.
      thresholds: Number of thresholds tried on each solution, 1/2 and quantiles of its fractions; 0
        for randomized rounding alone.
      draws: Number of random roundings of each solution; 0 for deterministic rounding alone.
    """

    max_ops: int = 150
    epsilons: tuple[float, ...] = (0.0, 0.1, 0.2)
    thresholds: int = 19
    draws: int = 20
    seed: int = 0
    name: str = "lp_rounding"

    def run(self, search: Search) -> None:
        coarse = coarsen(search.graph, max_ops=self.max_ops)
        if coarse.after is search.graph:
            raise_relaxation_bound(search, share=0.25)
        if search.infeasible:
            return
        generator = np.random.default_rng(self.seed)
        memory = search.budget_bytes - coarse.after.fixed_bytes
        for position, epsilon in enumerate(self.epsilons):
            program = formulate(
                coarse.after, coarse.after.fixed_bytes + int((1 - epsilon) * memory)
            )
            time_limit_s = search.remaining_s / (len(self.epsilons) - position)
            answer = solve_matrices(program.problem, engine="clp", time_limit_s=time_limit_s)
            if answer.x is None:
                continue
            for S in self._roundings(program.fractions(answer.x)[1], generator):
                if search.out_of_time():
                    return
                search.offer(
                    coarse.expand(lower(coarse.after, complete(coarse.after, S))), by=self.name
                )

    def _roundings(
        self, fractions: np.ndarray, generator: np.random.Generator
    ) -> Iterator[np.ndarray]:
        """Phase one. A solution without fractions has one rounding."""
        inside = fractions[(fractions > 1e-6) & (fractions < 1 - 1e-6)]
        quantiles = (
            np.quantile(inside, np.linspace(0, 1, self.thresholds))
            if len(inside) and self.thresholds
            else []
        )
        for threshold in sorted({0.5, *quantiles}) if self.thresholds or not len(inside) else ():
            yield fractions >= threshold
        # A number per entry and one per value (column of S), in turn.
        for k in range(self.draws if len(inside) else 0):
            yield generator.random(fractions.shape[k % 2 :]) < fractions
