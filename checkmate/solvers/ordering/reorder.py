"""Reorder: plans that run ops in another order than the graph's, where that is cheaper.

    bound    what is proven for every order (`any_order`)
    greedy   the order that, op by op, adds least to what is in memory; when it fits it costs
             nothing more, and is optimal
    exact    the cheapest path through the states of memory, where ops are few: nothing is left to
             do when it ends
    move     anneal over orders without recomputation, from the graph's own and the greedy one; an
             order that fits is optimal, too
    ask      the solver in the graph's own order: its plan is one to start from, its bound says what
             re-ordering gains
    anneal   over orders and recomputations together, on two cores: from what the moves reached, and
             then from the best plan so far, one nearby and one hot, which leaves it behind; while
             there is none, from where they are, as hot as it takes to leave a place where nothing
             fits
    ask      the solver again, in the order of the best plan

A graph whose ops are renumbered in another legal order is a problem like any other. So every solver
can be asked, as it is. Where the annealer is not there in half of the time, the solver is asked in
the graph's order and in the greedy one.

Guarantee: the plan is legal and within the budget; it costs no more than what the solver finds in
the graph's order in its share of the time. The bound covers any order.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace

from checkmate.core.graph import DFGraph
from checkmate.core.plan import Compute, Free, Plan
from checkmate.solvers.annealing.annealer import IN_ANY_ORDER, Annealer, Loading
from checkmate.solvers.auto.primal import TICK
from checkmate.solvers.auto.rounds import Leg, Round
from checkmate.solvers.exact.a_star import Paths
from checkmate.solvers.ordering.any_order import raise_any_order_bound
from checkmate.solvers.search import OPTIMALITY_TOLERANCE, Search, Solver

BOUND, MOVE, ASK, FIRST, ANNEAL = 0.1, 0.2, 0.15, 0.6, 0.6
"""Shares of the time that is left: for the bound, for moves alone, for the solver in an order, and
for the first and any other round of annealing."""

LOAD = 0.5
"""Share of the time to wait for the annealer."""

FEW_OPS, STATES = 24, 3000
"""Ops up to which states are searched, and how many."""

MOVING = (1.5, 0.002)
"""Temperatures of moves alone, in mean costs of an op. Overflow is all that counts there. At 0.4,
an order of `layered250` that fits is not found."""

ANNEALING, AGAIN, ANEW, PLANLESS = (1.0, 0.05), (0.15, 0.03), (3.0, 0.05), (6.0, 0.3)
"""Temperatures of the first round of annealing; of later ones from the best plan, near to it, and
away from it; and of those while there is none."""

PRICE, PLANLESS_PRICE, GROWTH = 0.1, 1.0, 30.0
"""Price of overflow (see `annealer`) where those rounds begin; later ones go on with what it was.
How many times as high it may be at the end of a round that begins without a plan; from a plan on it
may rise and fall as fast as it can, which takes the search across the border again and again."""

PATIENCE = 3
"""It ends when so many rounds in a row found nothing cheaper than the best plan."""


@dataclass(frozen=True, slots=True)
class Reorder:
    """Runs a solver in the graph's own order and in better ones.

    Args:
      solver: Asked for plans in a given order.
      proposals: Proposals per evictable op in the first round of annealing. Each further round has
        twice as many.
      rounds: Rounds of annealing at most.
      seed: Of the chances taken.
    """

    solver: Solver
    proposals: int = 4000
    rounds: int = 6
    seed: int = 0

    @property
    def name(self) -> str:
        """The solver's own."""
        return self.solver.name

    def run(self, search: Search) -> None:
        """Offers plans and bounds until they meet, or the rounds or the time are over."""
        raise_any_order_bound(search, share=BOUND)
        greedy = greedy_order(search.graph)
        search.offer(Plan.from_order(search.graph, greedy), by="re-ordering")
        if not _finished(search) and len(search.graph) <= FEW_OPS:
            Paths(search).advance(STATES)
        if _finished(search):
            return
        orders = (range(len(greedy)), greedy)
        loading = Loading(
            search.graph, search.budget_bytes, orders[0], freedom=IN_ANY_ORDER, seed=self.seed
        )
        first = loading.annealer(search.at_most(LOAD * search.remaining_s))
        if first is None:
            self._ask(search, orders[0], share=0.5)
            self._ask(search, greedy, share=1.0)
            return
        annealers = [
            first,
            Annealer(
                search.graph, search.budget_bytes, greedy, freedom=IN_ANY_ORDER, seed=self.seed + 1
            ),
        ]
        self._anneal(
            search,
            annealers,
            [_leg(order, self.proposals, MOVING, only_move=True) for order in orders],
            share=MOVE,
        )
        self._ask(search, orders[0], share=ASK)
        self._improve(search, annealers)

    def _improve(self, search: Search, annealers: Sequence[Annealer]) -> None:
        """Anneals in rounds, each twice as long as the one before, and asks the solver in each
        better order that they find."""
        asked: list[int] = []
        waiting = PATIENCE
        for number in range(self.rounds):
            if _finished(search) or not waiting:
                return
            before = search.timeline.cost if search.timeline else float("inf")
            self._anneal(
                search,
                annealers,
                self._legs(search, annealers, number),
                share=ANNEAL if number else FIRST,
            )
            order = list(
                dict.fromkeys(search.plan.computed if search.plan else annealers[0].current)
            )
            if order != asked:
                asked = order
                self._ask(search, order, share=ASK)
            waiting = (
                PATIENCE
                if search.timeline is None or search.timeline.cost < before
                else waiting - 1
            )

    def _legs(self, search: Search, annealers: Sequence[Annealer], number: int) -> list[Leg]:
        """How the annealers go on: from where moves alone or the last round left them, or from the
        best plan, one nearby and one anew."""
        proposals, plan = self.proposals << number, search.plan
        growth = GROWTH if plan is None else float("inf")
        if number and plan is not None:
            ways: tuple[tuple[tuple[float, float], float | None], ...] = (
                (AGAIN, None),
                (ANEW, PRICE),
            )
            return [
                _leg(plan.computed, proposals, temperatures, price=price)
                for temperatures, price in ways
            ]
        temperatures, price = (PLANLESS, PLANLESS_PRICE) if number else (ANNEALING, PRICE)
        return [
            _leg(annealer.current, proposals, temperatures, price=price, growth=growth)
            for annealer in annealers
        ]

    def _anneal(
        self, search: Search, annealers: Sequence[Annealer], legs: Sequence[Leg], *, share: float
    ) -> None:
        """A round of each annealer, side by side, within this share of the time that is left.
        Offers the best of what they find."""
        rounds = [
            Round(annealer, [leg], lambda: search.remaining_s, longest=share)
            for annealer, leg in zip(annealers, legs, strict=True)
        ]
        try:
            for one in rounds:
                while one.busy and (
                    search.deterministic
                    or min(other.found[0] for other in rounds)
                    > search.bound * (1 + OPTIMALITY_TOLERANCE)
                ):
                    one.wait(TICK)
        finally:  # after Ctrl-C, too, what was found counts
            for one in rounds:
                one.stop()
            cost, order = min((one.found for one in rounds), key=lambda found: found[0])
            if order and (search.timeline is None or cost < search.timeline.cost):
                search.offer(Plan.from_order(search.graph, order), by="re-ordering")
        for one in rounds:
            one.answer(0.0)  # raises what it raised
        if not order:  # for the record of the lowest peak
            search.offer(Plan.from_order(search.graph, annealers[0].current), by="re-ordering")

    def _ask(self, search: Search, order: Sequence[int], *, share: float) -> None:
        """Has the solver look for plans whose first evaluations come in this order, and offers what
        it finds."""
        if _finished(search):
            return
        order = list(order)
        own = order == list(range(len(order)))
        by = "" if own else ", re-ordered"
        told: list[Plan] = []

        def pass_on(inner: Search) -> None:
            if inner.plan is not None and inner.plan not in told[-1:]:
                told.append(inner.plan)
                search.offer(in_numbers_of(inner.plan, order), by=inner.found_by + by)

        graph = search.graph if own else renumbered(search.graph, order)
        inner = Search(
            graph,
            search.budget_bytes,
            time_limit_s=share * search.remaining_s,
            deterministic=search.deterministic,
            on_progress=pass_on,
        )
        self.solver.run(inner)
        if own and not inner.infeasible:
            search.raise_bound(inner.bound, by=inner.proven_by)


def _leg(
    start: Sequence[int],
    proposals: int,
    temperatures: tuple[float, float],
    *,
    price: float | None = None,
    growth: float = float("inf"),
    only_move: bool = False,
) -> Leg:
    hot, cold = temperatures
    return Leg(start, 0.0, proposals, hot, cold, price, IN_ANY_ORDER, growth, only_move)


def greedy_order(graph: DFGraph) -> list[int]:
    """Returns a legal order of first evaluations: of the ops that can run, always the one that then
    leaves least in memory."""
    before = [{*op.deps, *op.control_deps, *op.overwrites} for op in graph.ops]
    after: list[list[int]] = [[] for _ in before]
    for i, ops in enumerate(before):
        for d in ops:
            after[d].append(i)
    missing = [len(ops) for ops in before]
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


def renumbered(graph: DFGraph, order: Sequence[int]) -> DFGraph:
    """Returns the same graph with op order[k] as op k. Raises `GraphError` where an op comes before
    one it must follow."""
    number = {old: new for new, old in enumerate(order)}

    def names(ops: Sequence[int]) -> tuple[int, ...]:
        return tuple(sorted(number[d] for d in ops))

    ops = tuple(
        replace(
            op,
            deps=names(op.deps),
            control_deps=names(op.control_deps),
            overwrites=names(op.overwrites),
            in_place=names(op.in_place),
        )
        for op in (graph.ops[old] for old in order)
    )
    return DFGraph(ops, names(graph.outputs), graph.fixed_bytes, graph.name)


def in_numbers_of(plan: Plan, order: Sequence[int]) -> Plan:
    """Returns a plan of a renumbered graph in the numbers of the original one."""
    return Plan(
        tuple(
            Compute(order[step.op]) if isinstance(step, Compute) else Free(order[step.op])
            for step in plan.steps
        )
    )


def _finished(search: Search) -> bool:
    return search.optimal or bool(search.infeasible) or search.remaining_s <= 0
