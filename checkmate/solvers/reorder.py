"""Reorder: plans that run ops in another order than the graph's, where that is cheaper.

    bound    what is proven for every order (`any_order`)
    move     anneal over orders without recomputation; an order that fits costs nothing more, and is optimal
    ask      the solver in the graph's own order: its plan is one to start from, its bound says what re-ordering gains
    anneal   over orders and recomputations together, from what the moves reached and then from the best plan so far
    ask      the solver again, in the order of the best plan

A graph whose ops are renumbered in another legal order is a problem like any other. So every solver can be asked, as it is.

Guarantee: the plan is legal and within the budget; it costs no more than what the solver finds in the graph's order in its share of the
time. The bound covers any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from checkmate.core.graph import DFGraph
from checkmate.core.plan import Compute, Free, Plan
from checkmate.solvers.annealer import WARM, Annealer
from checkmate.solvers.any_order import raise_any_order_bound
from checkmate.solvers.search import Search, Solver

SHARES = (0.1, 0.15, 0.75)
"""Shares of the time that is left, for moves alone, for the solver in an order, and for annealing."""


@dataclass(frozen=True, slots=True)
class Reorder:
    """Runs a solver in the graph's own order and in better ones.

    Args:
      solver: Asked for plans in a given order.
      proposals: Proposals per op in the first round of annealing. Each further round has twice as many.
      rounds: Rounds of annealing at most.
      seed: Of the chances taken.
    """

    solver: Solver
    proposals: int = 400
    rounds: int = 8
    seed: int = 0

    @property
    def name(self) -> str:
        """The solver's own."""
        return self.solver.name

    def run(self, search: Search) -> None:
        """Offers plans and bounds until they meet, or the rounds or the time are over."""
        graph = search.graph
        raise_any_order_bound(search)
        if _finished(search):
            return
        annealer = Annealer(graph, search.budget_bytes, range(len(graph)), free_order=True, seed=self.seed)
        self._round(search, annealer, 0, only_move=True, share=SHARES[0])
        if not _finished(search):
            self._ask(search, range(len(graph)))
        best_order: list[int] = []
        waiting = 2
        for number in range(self.rounds):
            if _finished(search) or not waiting:
                return
            if number and search.plan is not None:  # the first round goes on from the order that moves alone found
                annealer.restart(search.plan.computed)
            before = search.timeline.cost if search.timeline else float("inf")
            self._round(search, annealer, number, share=SHARES[2])
            order = _first_evaluations(search.plan) if search.plan else []
            if order != best_order and not _finished(search):
                best_order = order
                self._ask(search, order)
            waiting = 2 if search.timeline and search.timeline.cost < before else waiting - 1

    def _round(self, search: Search, annealer: Annealer, number: int, *, share: float, only_move: bool = False) -> None:
        stop = search.remaining_s * (1 - share)
        proposals = self.proposals * len(search.graph) << number
        annealer.run(proposals, hot=WARM, only_move=only_move, remaining_s=lambda: max(0.0, search.remaining_s - stop))
        if annealer.best is not None and (search.timeline is None or annealer.best_cost < search.timeline.cost):
            search.offer(Plan.from_order(search.graph, annealer.best), by="re-ordering")

    def _ask(self, search: Search, order: Sequence[int]) -> None:
        """Has the solver look for plans whose first evaluations come in this order, and offers what it finds."""
        order = list(order)
        own = order == list(range(len(order)))
        by = "" if own else ", re-ordered"
        told: list[Plan] = []

        def pass_on(inner: Search) -> None:
            if inner.plan is not None and inner.plan not in told[-1:]:
                told.append(inner.plan)
                search.offer(in_numbers_of(inner.plan, order), by=inner.found_by + by)

        graph = search.graph if own else renumbered(search.graph, order)
        limit = SHARES[1] * search.remaining_s
        inner = Search(graph, search.budget_bytes, time_limit_s=limit, on_progress=pass_on)
        self.solver.run(inner)
        if own and not inner.infeasible:
            search.raise_bound(inner.bound, by=inner.proven_by)


def renumbered(graph: DFGraph, order: Sequence[int]) -> DFGraph:
    """Returns the same graph with op order[k] as op k. Raises `GraphError` where an op comes before one it must follow."""
    number = {old: new for new, old in enumerate(order)}

    def names(ops: Sequence[int]) -> tuple[int, ...]:
        return tuple(sorted(number[d] for d in ops))

    ops = tuple(
        replace(op, deps=names(op.deps), control_deps=names(op.control_deps), overwrites=names(op.overwrites))
        for op in (graph.ops[old] for old in order)
    )
    return DFGraph(ops, names(graph.outputs), graph.fixed_bytes, graph.name)


def in_numbers_of(plan: Plan, order: Sequence[int]) -> Plan:
    """Returns a plan of a renumbered graph in the numbers of the original one."""
    return Plan(tuple(Compute(order[step.op]) if isinstance(step, Compute) else Free(order[step.op]) for step in plan.steps))


def _first_evaluations(plan: Plan) -> list[int]:
    return list(dict.fromkeys(plan.computed))


def _finished(search: Search) -> bool:
    return search.optimal or bool(search.infeasible) or search.remaining_s <= 0
