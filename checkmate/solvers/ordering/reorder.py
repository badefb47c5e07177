"""Reorder: plans that run ops in another order than the graph's, where that is cheaper.

    bound    what is proven for every order (`any_order`)
    greedy   the order that, op by op, adds least to what is in memory. Where it fits it costs
             nothing more, and is optimal
    exact    A* over the states of memory, where ops are few
    move     anneal over orders without recomputation, from the graph's own and from the greedy one;
             an order that fits is optimal, too
    solve    ask the solver in the graph's own order, for a plan to start from
    anneal   over orders and recomputations together, on two cores: first from where the moves
             ended, then from the best plan, once near to it and once hot; and each time ask the
             solver in the order of the best plan

A graph whose ops are renumbered in another legal order is a problem like any other: every solver
can be asked without change.

Guarantee: the plan is legal and within the budget. It costs no more than what the solver finds in
the graph's order in its share of the time. The bound covers any order.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from checkmate.core.graph import DFGraph
from checkmate.core.plan import Plan
from checkmate.solvers.annealing.annealer import (
    Annealer,
    AnnealingRun,
    AnnealingTask,
    in_background,
)
from checkmate.solvers.annealing.arrays import IN_ANY_ORDER
from checkmate.solvers.exact.a_star import Paths
from checkmate.solvers.ordering.any_order import raise_any_order_bound, renumbered
from checkmate.solvers.search import OPTIMALITY_TOLERANCE, Search, Solver

POLL_S = 0.005
"""Seconds between two looks at background tasks."""


@dataclass(frozen=True, slots=True)
class Reorder:
    """Runs a solver in the graph's own order and in better ones.

    Args:
      proposals: Per evictable op in the first round of annealing. Each further round has twice as
        many.
      rounds: Rounds of annealing at most. The search ends before when three in a row found nothing
        cheaper.
      states: Of A*, on graphs of at most 24 ops.
      moves: Temperatures of moves alone, in mean costs of an op. At 0.4 instead of 1.5 no order of
        `layered250` that fits is found (`tests/solvers/ordering/test_reorder.py`).
    """

    solver: Solver
    proposals: int = 4000
    rounds: int = 6
    states: int = 3000
    moves: tuple[float, float] = (1.5, 0.002)
    solve_share: float = 0.15
    anneal_share: float = 0.6
    seed: int = 0

    @property
    def name(self) -> str:
        return self.solver.name

    def run(self, search: Search) -> None:
        raise_any_order_bound(search, share=0.1)
        graph = search.graph
        orders = (range(len(graph)), greedy_order(graph))
        search.offer(Plan.from_order(graph, orders[1]), by="re-ordering")
        if not search.finished and len(graph) <= 24:
            Paths(search).advance(self.states)
        if search.finished:
            return
        annealers = self._load(search, orders)
        if not annealers:
            self._solve(search, orders[0], share=0.5)
            self._solve(search, orders[1], share=1.0)
            return
        hot, cold = self.moves
        moves = [
            AnnealingRun(order, self.proposals, hot, cold, IN_ANY_ORDER, only_move=True)
            for order in orders
        ]
        self._anneal(search, annealers, moves, share=0.2)
        self._solve(search, orders[0], share=self.solve_share)
        self._improve(search, annealers)

    def _load(self, search: Search, orders: Sequence[Sequence[int]]) -> list[Annealer]:
        """An annealer for each order; none where loading the compiled code takes half the time."""
        graph, budget = search.graph, search.budget_bytes
        loading = in_background(
            lambda: [
                Annealer(graph, budget, order, seed=self.seed + k) for k, order in enumerate(orders)
            ]
        )
        return loading.result(search.at_most(0.5 * search.remaining_s)) or []

    def _improve(self, search: Search, annealers: Sequence[Annealer]) -> None:
        """Anneals in rounds, and asks the solver in each better order that they find."""
        solved: list[int] = []
        stalls = 0
        for number in range(self.rounds):
            if search.finished or stalls == 3:
                return
            before = search.cost
            runs = self._runs(search, annealers, number)
            self._anneal(search, annealers, runs, share=self.anneal_share)
            order = list(dict.fromkeys(search.plan.computed if search.plan else runs[0].start))
            if order != solved:
                solved = order
                self._solve(search, order, share=self.solve_share)
            stalls = 0 if search.plan is None or search.cost < before else stalls + 1

    def _runs(
        self, search: Search, annealers: Sequence[Annealer], number: int
    ) -> list[AnnealingRun]:
        """One round. Temperatures are in mean costs of an op."""
        proposals, plan = self.proposals << number, search.plan
        if number and plan is not None:
            return [
                AnnealingRun(plan.computed, proposals, 0.15, 0.03, IN_ANY_ORDER),
                AnnealingRun(plan.computed, proposals, 3.0, 0.05, IN_ANY_ORDER, price=0.1),
            ]
        # Without a plan as hot as it takes to leave a place where nothing fits.
        hot, cold, price = (6.0, 0.3, 1.0) if number else (1.0, 0.05, 0.1)
        growth = 30.0 if plan is None else float("inf")
        return [
            AnnealingRun(annealer.current, proposals, hot, cold, IN_ANY_ORDER, price, growth)
            for annealer in annealers
        ]

    def _anneal(
        self,
        search: Search,
        annealers: Sequence[Annealer],
        runs: Sequence[AnnealingRun],
        *,
        share: float,
    ) -> None:
        """One run of each annealer, in parallel. Offers the best plan found."""
        tasks = [
            AnnealingTask(annealer, [run], lambda: search.remaining_s, share=share)
            for annealer, run in zip(annealers, runs, strict=True)
        ]
        goal = search.bound * (1 + OPTIMALITY_TOLERANCE)
        try:
            while any(task.busy for task in tasks):
                if not search.deterministic and min(task.found[0] for task in tasks) <= goal:
                    break
                tasks[0 if tasks[0].busy else 1].wait(POLL_S)
        finally:  # after Ctrl-C, too, what was found counts
            for task in tasks:
                task.stop()
            cost, order = min((task.found for task in tasks), key=lambda found: found[0])
            if order and cost < search.cost:
                search.offer(Plan.from_order(search.graph, order), by="re-ordering")
        for task in tasks:
            task.result()  # raises its error
        if not order:  # for the record of the lowest peak
            search.offer(Plan.from_order(search.graph, annealers[0].current), by="re-ordering")

    def _solve(self, search: Search, order: Sequence[int], *, share: float) -> None:
        if search.finished:
            return
        reordered = renumbered(search.graph, order)
        own = reordered.after is search.graph
        by = "" if own else ", re-ordered"
        offered: list[Plan] = []

        def offer(inner: Search) -> None:
            if inner.plan is not None and inner.plan not in offered[-1:]:
                offered.append(inner.plan)
                search.offer(reordered.expand(inner.plan), by=inner.found_by + by)

        inner = search.part(share, reordered.after, on_progress=offer)
        self.solver.run(inner)
        if own and not inner.infeasible:
            search.raise_bound(inner.bound, by=inner.proven_by)


def greedy_order(graph: DFGraph) -> list[int]:
    """A legal order of first evaluations: always the ready op that then leaves least in memory."""
    after: list[list[int]] = [[] for _ in graph.ops]
    for i, before in enumerate(graph.predecessors):
        for d in before:
            after[d].append(i)
    missing = [len(before) for before in graph.predecessors]
    kept = set(graph.outputs)
    unread = [len(users) + (i in kept) for i, users in enumerate(graph.users)]
    sizes = graph.output_bytes.tolist()
    growth = [
        size - sum(sizes[d] for d in graph.deps[i] if unread[d] == 1)
        for i, size in enumerate(sizes)
    ]
    ready = [(growth[i], i) for i, count in enumerate(missing) if not count]
    heapq.heapify(ready)
    order: dict[int, None] = {}
    while ready:
        grows, i = heapq.heappop(ready)
        if i in order or grows != growth[i]:
            continue
        order[i] = None
        for d in graph.deps[i]:
            unread[d] -= 1
            if unread[d] == 1 and d not in kept:
                (last,) = (u for u in graph.users[d] if u not in order)
                growth[last] -= sizes[d]
                if not missing[last]:
                    heapq.heappush(ready, (growth[last], last))
        for j in after[i]:
            missing[j] -= 1
            if not missing[j]:
                heapq.heappush(ready, (growth[j], j))
    return list(order)
