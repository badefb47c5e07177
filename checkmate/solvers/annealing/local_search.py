"""Greedy repair and simulated annealing alone, in the graph's order of first evaluations."""

from __future__ import annotations

from dataclasses import dataclass

from checkmate.core.plan import Plan
from checkmate.solvers.annealing.annealer import Annealer, AnnealingRun, in_background
from checkmate.solvers.local.repair import Repair, trim
from checkmate.solvers.local.stage_plan import StagePlan
from checkmate.solvers.search import Search


@dataclass(frozen=True, slots=True)
class LocalSearch:
    """Finds plans by greedy repair and simulated annealing. It proves nothing.

    Args:
      proposals: Per evictable op in the first round. Each further round has twice as many.
      rounds: At most. The search ends before when two in a row found nothing cheaper.
    """

    proposals: int = 400
    rounds: int = 8
    seed: int = 0

    name = "local_search"

    def run(self, search: Search) -> None:
        stages = StagePlan(search.graph)
        Repair(stages, search.budget_bytes, search.out_of_time).run()
        trim(stages, search.budget_bytes, out_of_time=search.out_of_time)
        search.offer(stages.plan(), by="greedy")
        start = stages.evaluations()
        making = in_background(
            lambda: Annealer(search.graph, search.budget_bytes, start, seed=self.seed)
        )
        annealer = making.result(search.at_most(search.remaining_s))
        stalls, best_cost = 0, float("inf")
        for number in range(self.rounds if annealer else 0):
            hot = 0.3 if number else 1.0  # a good start is not to be lost
            run = AnnealingRun(start, self.proposals << number, hot=hot)
            annealer.run(run, lambda: search.remaining_s)
            stalls += 1
            if annealer.best is not None and annealer.best_cost < best_cost:
                start, best_cost, stalls = annealer.best, annealer.best_cost, 0
                search.offer(Plan.from_order(search.graph, start), by="annealing")
            if search.optimal or search.out_of_time() or stalls == 2:
                return
