"""DTR as a planner: the simulator runs dynamic rematerialization on the graph, and the run is the
plan.

An online method does not look ahead, so its plan for a larger budget can cost more. The solver
therefore runs DTR within a fixed ladder of budgets, from the graph's floor up to the budget asked
for, and the cheapest plan that fits is the answer: a larger budget then costs no more, as long as
there is time for all of them.

Source: Kirisame et al., "Dynamic Tensor Rematerialization" (ICLR 2021); its section 5 and appendix
E.3 propose it for static models. Where ops may run in place, the simulator counts both input
and value, and `replay` less. So the ladder goes on above the budget, by what one op can save.

Guarantee: the plans are legal. There is none on their cost, and none that a plan is found.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from checkmate.core.plan import Plan
from checkmate.core.replay import floor
from checkmate.dtr.heuristic import Heuristic
from checkmate.dtr.program import Program
from checkmate.dtr.simulator import simulate
from checkmate.solvers.search import Search

OVERHEAD_LIMIT = 10.0
"""Runs that cost more than this many times the plain step are given up."""


@dataclass(frozen=True, slots=True)
class DTR:
    """Plans by simulating DTR.

    Args:
      heuristic: The score that chooses what to evict, or several: each is tried. Names are those of
        `checkmate.dtr.heuristic.HEURISTICS`.
      budgets: How many budgets the ladder has, evenly from the floor to the plain step's peak.
        Those above the one asked for, and what running in place can save, are left out.
    """

    heuristic: str | Heuristic | tuple[str | Heuristic, ...] = ("dtr_eq", "msps")
    budgets: int = 32
    name: str = "dtr"

    def run(self, search: Search) -> None:
        program = Program.from_graph(search.graph)
        heuristics = self.heuristic if isinstance(self.heuristic, tuple) else (self.heuristic,)
        for budget_bytes in self._budgets(search, program.plain_peak_bytes):
            for heuristic in heuristics:
                if search.out_of_time():
                    return
                run = simulate(
                    program,
                    budget_bytes,
                    heuristic=heuristic,
                    overhead_limit=OVERHEAD_LIMIT,
                    out_of_time=search.out_of_time,
                )
                if run.plan is not None:
                    # A value is freed after its last use, not when memory is needed: this takes
                    # no more memory, and leaves out evaluations that nothing reads.
                    search.offer(
                        Plan.from_order(search.graph, run.plan.computed),
                        by=f"{self.name}: {run.heuristic}",
                    )

    def _budgets(self, search: Search, peak_bytes: int) -> Iterator[int]:
        lowest = max(1, floor(search.graph).bytes)
        steps = range(self.budgets, -1, -1)
        saved = max((op.output_bytes for op in search.graph.ops if op.in_place), default=0)
        ladder = dict.fromkeys(
            lowest + (peak_bytes + saved - lowest) * k // self.budgets for k in steps
        )
        return (
            budget_bytes for budget_bytes in ladder if budget_bytes <= search.budget_bytes + saved
        )
