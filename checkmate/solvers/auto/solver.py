"""The default solver: bounds from a relaxation, plans from its solutions, improved by annealing.

    greedy    evict from the plain step until it fits, where ops are not many
    exact     a slice of A* over the states of memory: proves the optimum where few values compete
    others    without a plan: the baselines and dynamic rematerialization, trimmed
    relax     solve the relaxation with one snapshot at the plain step's peak, as a linear and as an
              integer program. Each solution is lifted to a plan in stage form. Where it is within
              the budget it is optimal, with the bound as its certificate. Where it overflows it is
              repaired and annealed, and the next relaxation has one more snapshot there
    improve   rounds of annealing, in the background from the first relaxation on

The search ends when the plan is proven to be within `gap` of the cheapest, or so close that the
search has lasted longer than it can still save in `steps` runs of the plan. While there is no plan
it uses all of its time. With a plan it ends before, when relaxations and rounds of annealing have
both stopped to help.

A larger budget costs no more wherever plans are proven; between two searches that end with a gap it
can, by a part of that gap (`curve` mends that for many budgets at once). With `solve(...,
deterministic=True)` effort is counted in nodes, states and rounds, and the same graph and budget
give the same plan on every machine.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from checkmate.solvers.auto.annealing_loop import AnnealingLoop
from checkmate.solvers.auto.bounds import RelaxedSolution, solve_integer, solve_linear
from checkmate.solvers.auto.relaxation import Relaxation
from checkmate.solvers.backends import scipy
from checkmate.solvers.background import BackgroundTask
from checkmate.solvers.baselines.chen import ChenGreedy
from checkmate.solvers.baselines.dtr import DTR
from checkmate.solvers.baselines.revolve import Revolve
from checkmate.solvers.exact.a_star import Paths
from checkmate.solvers.local.repair import Repair, lift, trim
from checkmate.solvers.local.stage_plan import StagePlan, moves_of
from checkmate.solvers.search import Search, Solver

POLL_S = 0.005
"""Seconds between two looks at background tasks."""


@dataclass(frozen=True, slots=True)
class Auto:
    """Finds plans and bounds, with all that the module's text names.

    Args:
      gap: The search ends when the plan is proven to be within this share of the cheapest.
      steps: How often the plan will run, where costs are seconds: the search ends when what a
        cheaper plan could save in these runs is no more than the time that the search has lasted.
        Infinity where costs are not seconds, or a search always pays.
      greedy_ops: Ops up to which greedy repair of the plain step comes first. Its time grows faster
        than the graph: 0.3 s at 500 ops, 5 s at 2,000.
      exact_share: Share of the time for each slice of A*. MLPs of up to 120 ops at half of
        their peak are solved in 0.2 s there, and not at all by the rest.
      variables: Of a relaxation at most. Beyond, linear programs take more time than they are
        worth.
      states: Of A*, where its first slice proves about as much as the relaxation.
      nodes: Branch-and-bound nodes of an integer program at most.
      snapshots_per_round: Added at a time, while the plan is more than 1 % above the bound. One at
        a time gives `resnet50` a bound of +17.7 instead of +18.4 % (`Auto(snapshots_per_round=1)`
        at f = 0.1, 15 s).
      max_stalls: Relaxations, and rounds of annealing, that may fail to help in a row.
      rounds: Rounds of annealing at most, in a search that reads no clock; 0 for no annealing.
    """

    gap: float = 1e-4
    steps: float = math.inf
    greedy_ops: int = 500
    states: int = 100_000
    exact_share: float = 0.3
    variables: int = 16000
    nodes: int = 200
    snapshots_per_round: int = 4
    max_stalls: int = 3
    rounds: int = 20
    seed: int = 0

    name = "auto"

    def run(self, search: Search) -> None:
        _Run(self, search).run()


class _Run:
    def __init__(self, options: Auto, search: Search):
        self.options, self.search = options, search
        self.stages = StagePlan(search.graph)
        self.plain_bytes = self.stages.stage_bytes[: len(search.graph)].copy()
        self.annealing = AnnealingLoop(search, rounds=options.rounds, seed=options.seed)

    def run(self) -> None:
        try:
            for part in (self._greedy, self._relax, self._others, self._improve):
                if self._finished():
                    return
                part()
        finally:
            self.annealing.stop()

    def _greedy(self) -> None:
        if len(self.search.graph) <= self.options.greedy_ops:
            self._repair(by="greedy")

    def _exact(self) -> None:
        """A* over the states of memory, where that proves about as much as the relaxation did."""
        paths, total = Paths(self.search), self.search.graph.total_cost
        paths.advance(100, share=self.options.exact_share)
        if paths.bound - total >= (self.search.bound - total) / 2:
            paths.advance(self.options.states, share=self.options.exact_share)

    def _others(self) -> None:
        for solver in (ChenGreedy(), DTR(budgets=4), Revolve()):
            if self.search.plan is None and not self._finished():
                self._ask(solver)

    def _relax(self) -> None:
        """Adds snapshots one by one, each where the last solution overflows most."""
        self._call(scipy.load, np.inf)
        snapshots, before, stalls = [int(self.plain_bytes.argmax())], None, 0
        while stalls <= self.options.max_stalls and not self._finished():
            relaxation = Relaxation(self.search.graph, self.search.budget_bytes, snapshots)
            if before is not None:
                if relaxation.size > self.options.variables:
                    return
                relaxation.adopt_cuts(before)
            gap = self._gap_cost()
            over = self._solve(relaxation)
            if over is None or self._finished():
                return
            stalls = 0 if self._gap_cost() < 0.98 * gap else stalls + 1
            if before is None:
                self._exact()
            limit = (
                self.options.snapshots_per_round
                if self._gap_cost() > 0.01 * self.search.bound
                else 1
            )
            more = worst_overflows(over, snapshots, limit) or worst_overflows(
                self._best_bytes(), snapshots, limit
            )
            if not more:
                return
            snapshots, before = sorted([*snapshots, *more]), relaxation

    def _solve(self, relaxation: Relaxation) -> np.ndarray | None:
        """Solves both programs. Returns the overflow of each stage of the last lifted solution."""
        over = None
        for call in (self._linear, self._integer):
            solution = call(relaxation)
            if solution is None or self._finished():
                return over
            found = self._learn(relaxation, solution)
            over = over if found is None else found
            if self._finished():
                return over
        return over

    def _linear(self, relaxation: Relaxation) -> RelaxedSolution | None:
        seconds = self.search.at_most(self.search.remaining_s / 4)
        return self._call(lambda: solve_linear(relaxation, seconds=seconds), seconds)

    def _integer(self, relaxation: Relaxation) -> RelaxedSolution | None:
        seconds, nodes = self.search.at_most(self.search.remaining_s / 2), self.options.nodes
        return self._call(lambda: solve_integer(relaxation, seconds=seconds, nodes=nodes), seconds)

    def _learn(self, relaxation: Relaxation, solution: RelaxedSolution) -> np.ndarray | None:
        """Reports the bound, lifts the solution, and offers it, repaired where it overflows."""
        search, label = self.search, relaxation.label
        if np.isinf(solution.bound):
            search.prove_infeasible(relaxation.why_infeasible())
            return None
        search.raise_bound(solution.bound, by=label)
        if solution.dropped is None:
            return None
        self.stages.move_to(())
        lift(self.stages, relaxation.snapshots, solution.dropped)
        over = self.stages.stage_bytes[: len(search.graph)] - float(search.budget_bytes)
        if self.stages.peak_bytes > search.budget_bytes:
            self.annealing.start_from(self.stages.evaluations())
        if self.stages.cost < search.cost:
            self._repair(by=f"{label}, lifted")
        if search.deterministic and not self._finished():
            self.annealing.round()
        return over

    def _improve(self) -> None:
        """Anneals until `max_stalls` rounds in a row found nothing; without a plan, until the
        end."""
        self.annealing.load()
        while not self._finished() and (
            self.search.plan is None or self.annealing.stalls <= self.options.max_stalls
        ):
            if self.search.deterministic or not self.options.rounds:
                if not self.annealing.round():
                    return
            else:
                time.sleep(POLL_S)
                self.annealing.collect()

    def _repair(self, *, by: str) -> None:
        """Offers the stage plan, brought within the budget as far as possible."""
        budget = self.search.budget_bytes
        if Repair(self.stages, budget, self.search.out_of_time).run():
            trim(self.stages, budget, out_of_time=self.search.out_of_time)
        self.search.offer(self.stages.plan(), by=by)

    def _ask(self, solver: Solver) -> None:
        search = self.search
        inner = search.part(0.1)
        solver.run(inner)
        search.raise_bound(inner.bound, by=inner.proven_by)
        if inner.plan is not None:
            search.offer(inner.plan, by=inner.found_by)
            self.stages.move_to(moves_of(inner.plan.computed))
            self._repair(by=f"{inner.found_by}, trimmed")

    def _best_bytes(self) -> np.ndarray:
        """(n,) bytes of each stage of the best plan, above the least of them."""
        plan = self.search.plan
        self.stages.move_to(moves_of(plan.computed) if plan else ())
        used = self.stages.stage_bytes[:-1].astype(float)
        return used - used.min()

    def _call(self, work: Any, seconds: float) -> Any:
        """Runs work in the background; None where it is late, or the search ends before."""
        task = BackgroundTask(work)
        late = self.search.at_most(1.1 * seconds + 1)
        while task.busy and late > 0 and (self.search.deterministic or not self._finished()):
            task.wait(POLL_S)
            self.annealing.collect()
            late -= POLL_S
        return None if task.busy else task.result()

    def _gap_cost(self) -> float:
        """The cost of the best plan above the bound; the bound itself where there is no plan."""
        return min(self.search.cost, 2 * self.search.bound) - self.search.bound

    def _finished(self) -> bool:
        search, options = self.search, self.options
        proven = search.cost <= search.bound * (1 + options.gap)
        return bool(search.infeasible) or search.out_of_time() or proven or self._has_paid()

    def _has_paid(self) -> bool:
        """Whether the search has lasted longer than it can still save in all steps."""
        search = self.search
        saves_s = (search.cost - search.bound) * self.options.steps
        return not search.deterministic and saves_s <= search.elapsed_s


def worst_overflows(overflow: np.ndarray, chosen: Sequence[int], limit: int) -> list[int]:
    """The stages that overflow most, the worst first, at most `limit`.

    Args:
      overflow: (n,) bytes above the budget of each stage. Only stages above zero are returned.
      chosen: Stages to keep a distance from: a 40th of all stages, where several are returned. The
        relaxations of neighbours say much the same.
    """
    left, found = overflow.copy(), list[int]()
    distance = len(left) // 40 if limit > 1 else 0
    for t in chosen:
        left[max(0, t - distance) : t + distance + 1] = 0
    while len(found) < limit and left.max(initial=0) > 0:
        t = int(left.argmax())
        found.append(t)
        left[max(0, t - distance) : t + distance + 1] = 0
    return found
