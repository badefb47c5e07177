"""The paper's approximation: the linear relaxation, rounded in two phases.

Method: the program's relaxation gives fractions for S. Phase one rounds S alone: at a threshold, or
at random. Phase two is forced: an op runs in a stage where its value is asked for and not retained,
back to front, so that every rounding is a legal schedule. The judge says which are within the
budget, and the cheapest counts. The relaxation is solved at the budget and somewhat below it, for
roundings that lose less memory.

Source: Checkmate (Jain et al., MLSys 2020), section 5, algorithm 2. Departures: many thresholds
rather than 1/2; at random, every other rounding draws one number per value instead of one per
entry, so that what is retained stays so from stage to stage; what may not run again is retained
instead. Guarantee: none on finding a plan. The bound is the value of `formulation.relax` without
integrality, which holds for every plan in the graph's order of first evaluations; it is told only
when the graph was not grouped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from checkmate.core.graph import DFGraph
from checkmate.core.schedule import Schedule, lower
from checkmate.solvers.backends.engines import solve_matrices
from checkmate.solvers.paper.coarsen import coarsen
from checkmate.solvers.paper.formulation import formulate, may_run
from checkmate.solvers.paper.lp_bound import LPBound
from checkmate.solvers.search import Search


@dataclass(frozen=True, slots=True)
class LPRounding:
    """Solves the relaxation and rounds it.

    Args:
      engine: "clp", "glop" or "pdlp".
      max_ops: Graphs with more ops are grouped into at most this many.
      epsilons: Shares of the memory that the relaxation is denied, one solution each.
      thresholds: How many thresholds are tried on each solution, 1/2 and quantiles of its
        fractions; 0 for randomized rounding alone.
      draws: How many random roundings are tried on each solution; 0 for deterministic rounding
        alone.
      seed: Of the random roundings.
    """

    engine: str = "clp"
    max_ops: int = 150
    epsilons: tuple[float, ...] = (0.0, 0.1, 0.2)
    thresholds: int = 19
    draws: int = 20
    seed: int = 0
    name: str = "lp_rounding"

    def run(self, search: Search) -> None:
        """Offers every rounding, and the relaxation's value as a bound."""
        coarse = coarsen(search.graph, max_ops=self.max_ops)
        if coarse.graph is search.graph:
            LPBound(self.engine, share=0.25, name=f"{self.name}: relaxation").run(search)
        if search.infeasible:
            return
        generator = np.random.default_rng(self.seed)
        memory = search.budget_bytes - coarse.graph.fixed_bytes
        for position, epsilon in enumerate(self.epsilons):
            program = formulate(
                coarse.graph, coarse.graph.fixed_bytes + int((1 - epsilon) * memory)
            )
            time_limit_s = search.remaining_s / (len(self.epsilons) - position)
            answer = solve_matrices(program.problem, engine=self.engine, time_limit_s=time_limit_s)
            if answer.x is None:
                continue
            for S in self._roundings(program.fractions(answer.x)[1], generator):
                if search.remaining_s == 0:
                    return
                search.offer(
                    coarse.expand(lower(coarse.graph, complete(coarse.graph, S))), by=self.name
                )

    def _roundings(
        self, fractions: np.ndarray, generator: np.random.Generator
    ) -> Iterator[np.ndarray]:
        """Phase one. Where no fraction is left, there is one rounding."""
        between = fractions[(fractions > 1e-6) & (fractions < 1 - 1e-6)]
        quantiles = (
            np.quantile(between, np.linspace(0, 1, self.thresholds))
            if len(between) and self.thresholds
            else []
        )
        for threshold in sorted({0.5, *quantiles}) if self.thresholds or not len(between) else ():
            yield fractions >= threshold
        # A number per entry and one per value (column of S), in turn.
        for k in range(self.draws if len(between) else 0):
            yield generator.random(fractions.shape[k % 2 :]) < fractions


def complete(graph: DFGraph, S: np.ndarray) -> Schedule:
    """Phase two: returns the schedule that retains what S says, and runs an op again where its
    value is asked for otherwise.

    From the last stage to the first, and in a stage from the last op to the first, so that each is
    looked at once. Values that S retains and nobody asks for are not retained; those that may not
    be computed again are retained whatever S says.
    """
    n, allowed = len(graph), may_run(graph)
    R, kept = np.eye(n, dtype=bool), np.zeros((n, n), bool)
    wanted = np.isin(np.arange(n), graph.outputs)
    for t in range(n - 1, -1, -1):
        wanted[t] = True
        for i in range(t, -1, -1):
            if not wanted[i]:
                continue
            if i == t or (allowed[t, i] and not S[t, i]):
                R[t, i] = True
                wanted[list(graph.deps[i])] = True
            else:
                kept[t, i] = True
        wanted = kept[t].copy()
    return Schedule(R, kept)
