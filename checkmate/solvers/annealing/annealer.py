"""Annealer: simulated annealing from a given order of evaluations, in rounds. The compiled part is
`annealing`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from checkmate.core.graph import DFGraph
from checkmate.solvers.background import Beside

IN_STAGES, REPEATS_ANYWHERE, IN_ANY_ORDER = range(3)
"""How freely evaluations are placed."""

HOT, WARM, COLD = 1.0, 0.3, 0.05
"""Temperatures in mean costs of an op: where a round begins from any order, where it begins from a
good one, and where it ends."""

PRICE, PRICES = 10.0, (0.0001, 100.0)
"""What a byte above the budget at one position costs at first, in mean costs of a byte of an op
over the number of ops, as values are held for the longer the more ops there are (from a start
within the budget: one mean cost, to stay near it); and how far the search may change that, in mean
costs of a byte."""

FASTEST, SHORTEST = 1.01, 300.0
"""The price rises by this factor at most every n / 2 proposals, n ops being evictable; but by the
other in a whole run at least, however short that is, where it begins anew: a run that ends before
anything fits is lost."""

ROOM_PER_OP = 4
"""Repeated evaluations that an order has room for, per op."""


class Annealer:
    """Looks for cheap orders of evaluations within a budget.

    Args:
      graph: The problem.
      budget_bytes: The limit, which counts the fixed bytes.
      start: Ops in the order of their evaluations, with repeats, as in `Plan.from_order`; it may be
        over the budget.
      freedom: How freely evaluations are placed. IN_STAGES, `start` comes in stage form, and stays
        so: see `Timetable`; otherwise repeated ones can stand anywhere, and with IN_ANY_ORDER first
        ones may change places, too.
      seed: Of the chances taken. The same arguments give the same answer as long as no round runs
        out of time.

    Attributes:
      freedom: As above; it may change between rounds.
      evictable: Ops that may run again and whose values have bytes, 1 at least: what there is to
        decide on.
      best: The cheapest order within the budget that it has come to since the start, or the last
        restart; None while there is none.
      best_cost: Its cost; infinity while there is none.
    """

    # What is over the budget at the start is no answer; compiles where that was never done.
    def __init__(
        self,
        graph: DFGraph,
        budget_bytes: int,
        start: Sequence[int],
        *,
        freedom: int = IN_STAGES,
        seed: int = 0,
    ):
        from checkmate.solvers.annealing import kernel, state
        from checkmate.solvers.annealing.compile import announce_compilation

        announce_compilation(kernel.anneal)
        self._kernel, self._state = kernel, state
        self._graph, self.freedom, self._budget = graph, freedom, budget_bytes
        self._problem = state.make_problem(graph)
        self._room = ROOM_PER_OP * len(graph) + 64
        self._best = np.full(len(start) + self._room + 1, -1, np.int64)
        self._best_cost = np.array([np.inf])
        self._random = np.array([(0x9E3779B97F4A7C15 * (seed + 1)) % 2**64 or 1], np.uint64)
        ops = self._problem.evictable
        self.evictable = max(1, len(ops))
        cost = float(graph.costs[ops].sum())
        self._mean = cost / self.evictable or 1.0
        unit = (cost or 1.0) / max(1, int(graph.output_bytes[ops].sum()))
        self._evaluated = 0
        self._order = self._state.make_order(graph, self._problem, start, budget_bytes, self._room)
        over = self._order.counts[self._state.OVERFLOW] > 0
        price = min(1.0, PRICE / self.evictable) if over else 1.0
        self._unit = unit
        self._price = np.array(
            [price * unit, PRICES[0] * unit, PRICES[1] * unit, FASTEST, 0.0, 0.0]
        )
        self._anneal(1.0, 0, False)

    @property
    def best(self) -> list[int] | None:
        """The cheapest order within the budget since the last start."""
        return self._best[1 : 1 + self._best[0]].tolist() if self._best[0] > 0 else None

    @property
    def best_cost(self) -> float:
        """Its cost."""
        return float(self._best_cost[0])

    @property
    def current(self) -> list[int]:
        """The order that it is at, within the budget or not."""
        order = self._order
        return order.event[
            order.sequence[: order.counts[self._state.LENGTH]], self._state.OP
        ].tolist()

    @property
    def evaluated(self) -> int:
        """Changes of the order so far, made or undone, after each of which cost and memory were
        exact."""
        return self._evaluated + int(self._order.counts[self._state.EVALUATED])

    def restart(self, start: Sequence[int]) -> None:
        """Goes on from another order, of any length."""
        self._evaluated = self.evaluated
        if (short := len(start) + self._room + 1 - len(self._best)) > 0:
            self._best = np.append(self._best, np.full(short, -1, np.int64))
        self._best[0], self._best_cost[0] = -1, np.inf
        self._order = self._state.make_order(
            self._graph, self._problem, start, self._budget, len(self._best) - 1 - len(start)
        )

    def run(
        self,
        proposals: int,
        *,
        hot: float = HOT,
        cold: float = COLD,
        price: float | None = None,
        growth: float = float("inf"),
        only_move: bool = False,
        remaining_s: Callable[[], float] = lambda: float("inf"),
    ) -> int:
        """One round: cools down from `hot` to `cold` in so many proposals, or faster where time is
        short.

        Args:
          price: Where the price of overflow begins, as in `PRICE`; where it is when left out.
          growth: How many times as high it may be at the end of the round. In a long round where
            nothing fits it would be at its largest soon after the start otherwise, and the search
            frozen before it has cooled down.
          only_move: Nothing is recomputed; the round ends with the first order within the budget.
          remaining_s: Seconds until it must end.

        Returns:
          Proposals made.
        """
        chunk = max(1, min(proposals // 32, 128 * max(1, 4000 // len(self._graph))))
        started, available, done = time.monotonic(), remaining_s(), 0
        if price is not None:
            self._price[self._kernel.PRICE] = price * self._unit
        while (
            done < proposals and remaining_s() > 0 and not (only_move and self.best_cost < np.inf)
        ):
            progress = done / proposals
            if done and (spent := time.monotonic() - started) > available * progress:
                progress = min(1.0, spent / available)
            looks = 2 * (done / progress if done else proposals) / self.evictable
            fastest = FASTEST if price is None else max(FASTEST, SHORTEST ** (1 / max(1.0, looks)))
            self._price[self._kernel.RISE] = min(fastest, growth ** (1 / max(1.0, looks)))
            self._anneal(hot * (cold / hot) ** progress, min(chunk, proposals - done), only_move)
            done += chunk
        return done

    def _anneal(self, temperature: float, proposals: int, only_move: bool) -> None:
        self._kernel.anneal(
            self._problem, self._order, self._best, self._best_cost, self._random, self._price,
            temperature * self._mean, self.freedom, only_move, proposals,
        )  # fmt: skip


class Loading:
    """An annealer in the making, beside other work: it takes a second, and some 15 where the
    machine code was never compiled.

    Args:
      graph, budget_bytes, start, freedom, seed: Those of the annealer.
    """

    # What was compiled by half is lost: the end of the process waits.
    def __init__(
        self,
        graph: DFGraph,
        budget_bytes: int,
        start: Sequence[int],
        *,
        freedom: int = IN_STAGES,
        seed: int = 0,
    ):
        def make() -> Annealer:
            return Annealer(graph, budget_bytes, start, freedom=freedom, seed=seed)

        self._making = Beside(make)

    def annealer(self, seconds: float) -> Annealer | None:
        """The annealer; None where it is not there within so many seconds."""
        return self._making.answer(seconds)
