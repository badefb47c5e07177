"""Simulated annealing over orders of evaluations: its runs. The compiled part is `kernel`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from checkmate.core.graph import DFGraph
from checkmate.solvers.annealing.arrays import (
    IN_STAGES,
    LENGTH,
    OP,
    OVERFLOW,
    PRICE,
    RISE,
    empty_order,
    make_problem,
)
from checkmate.solvers.background import BackgroundTask

LOWEST_PRICE, HIGHEST_PRICE = 1e-4, 100.0
"""Limits of the price of overflow, in mean costs of a byte."""

PRICE_RISE, SHORT_RUN_RISE = 1.01, 300.0
"""The price rises by the first factor at most every n / 2 proposals, n being the evictable ops. In
a run with a price of its own it may rise by the second factor in all: 30 proposals per op find no
plan for `resnet50` at f = 0.1 otherwise (`tests/solvers/annealing/test_annealer.py`)."""


@dataclass(frozen=True, slots=True)
class AnnealingRun:
    """One run of simulated annealing.

    Attributes:
      start: Ops in the order of their evaluations, as in `Plan.from_order`. It may need more than
        the budget.
      proposals: Per evictable op.
      hot: Temperature at the beginning, in mean costs of an op.
      price: Price of overflow at the beginning, in mean costs of a byte; None goes on with that of
        the run before.
      growth: The price rises by this factor at most in the whole run. Where nothing fits it would
        be at its highest soon after the beginning otherwise, and the search would freeze.
      only_move: Nothing is recomputed, and the run ends with the first order within the budget.
    """

    start: Sequence[int]
    proposals: int
    hot: float = 1.0
    cold: float = 0.05
    placement: int = IN_STAGES
    price: float | None = None
    growth: float = float("inf")
    only_move: bool = False


class Annealer:
    """Looks for cheap orders of evaluations within a budget.

    The first one in a process loads the compiled code, which takes a second, or compiles it, which
    takes some 15 seconds, once per machine.

    Args:
      seed: Of the random numbers. The same arguments and runs give the same orders, as long as no
        run ends early for lack of time.

    Attributes:
      evictable: Number of ops that may run again and whose values have bytes, at least 1.
    """

    def __init__(
        self,
        graph: DFGraph,
        budget_bytes: int,
        start: Sequence[int] | None = None,
        *,
        seed: int = 0,
    ):
        from checkmate.solvers.annealing import kernel, memory
        from checkmate.solvers.annealing.compile import announce_compilation

        announce_compilation(kernel.anneal)
        self._compiled, self._append = kernel.anneal, memory.append
        self._graph, self._budget = graph, budget_bytes
        self._problem = make_problem(graph)
        self._random = np.array([(0x9E3779B97F4A7C15 * (seed + 1)) % 2**64 or 1], np.uint64)
        ops = self._problem.evictable
        self.evictable = max(1, len(ops))
        cost = float(graph.costs[ops].sum()) or 1.0
        self._mean_cost = cost / self.evictable
        self._unit = cost / max(1, int(graph.output_bytes[ops].sum()))
        self._best_cost = np.array([np.inf])
        self._start_from(range(len(graph)) if start is None else start)
        price = self.first_price if self._order.counts[OVERFLOW] else 1.0
        self._price = self._unit * np.array([price, LOWEST_PRICE, HIGHEST_PRICE, 0, 0, 0])
        self._anneal(AnnealingRun((), 0), 1.0, 0)  # compiles

    @property
    def first_price(self) -> float:
        """The usual price of overflow for a start above the budget, in mean costs of a byte. A
        value is retained for longer where ops are many."""
        return min(1.0, 10.0 / self.evictable)

    @property
    def best(self) -> list[int] | None:
        """The cheapest order within the budget since the last start; None where there is none."""
        return self._best[1 : 1 + self._best[0]].tolist() if self._best[0] > 0 else None

    @property
    def best_cost(self) -> float:
        return float(self._best_cost[0])

    @property
    def current(self) -> list[int]:
        order = self._order
        return order.event[order.sequence[: order.counts[LENGTH]], OP].tolist()

    @property
    def memory(self) -> np.ndarray:
        """(evaluations,) bytes in use at each of them, fixed bytes included."""
        length = self._order.counts[LENGTH]
        return self._order.memory[:length] + self._graph.fixed_bytes

    def run(self, run: AnnealingRun, seconds_left: Callable[[], float] = lambda: np.inf) -> bool:
        """Makes one run from its start; cools faster where time is short. False if it was cut
        short."""
        self._start_from(run.start)
        if run.price is not None:
            self._price[PRICE] = run.price * self._unit
        proposals = run.proposals * self.evictable
        chunk = max(1, min(proposals // 32, 128 * max(1, 4000 // len(self._graph))))
        started, available, done = time.monotonic(), seconds_left(), 0
        while done < proposals and seconds_left() > 0:
            if run.only_move and self.best_cost < np.inf:
                break
            spent = time.monotonic() - started
            progress = min(1.0, max(done / proposals, spent / available if done else 0.0))
            price_changes = max(1.0, 2 * (done / progress if done else proposals) / self.evictable)
            rise = PRICE_RISE
            if run.price is not None:
                rise = max(rise, SHORT_RUN_RISE ** (1 / price_changes))
            self._price[RISE] = min(rise, run.growth ** (1 / price_changes))
            temperature = run.hot * (run.cold / run.hot) ** progress
            self._anneal(run, temperature, min(chunk, proposals - done))
            done += chunk
        return done >= proposals

    def _start_from(self, start: Sequence[int]) -> None:
        room = 4 * len(self._graph) + 64  # recomputations that the order can grow by
        self._best = np.full(len(start) + room + 1, -1, np.int64)
        self._best_cost[0] = np.inf
        self._order = empty_order(self._graph, self._budget, len(start) + room)
        self._append(self._problem, self._order, np.array(start, np.int64))

    def _anneal(self, run: AnnealingRun, temperature: float, proposals: int) -> None:
        state = self._problem, self._order, self._best, self._best_cost, self._random, self._price
        hot = temperature * self._mean_cost
        self._compiled(*state, hot, run.placement, run.only_move, proposals)


def in_background(make: Callable[[], Any]) -> BackgroundTask:
    """Makes annealers in a background task, as the first one may have to be compiled."""
    use = "Waiting for the annealer's code, which is compiled once on a machine, in some 15 s."
    return BackgroundTask(make, use=use)


class AnnealingTask(BackgroundTask):
    """Runs one after another, in a thread.

    Args:
      annealer: For this task alone until it ends.
      runs: Taken one by one. A run begins with the cheapest order of the task instead of its own
        start where it has no start.
      share: Of the seconds left, for one run at most.

    Attributes:
      found: Cost of the cheapest order within the budget so far, and the order. It changes while
        the task is busy.
    """

    def __init__(
        self,
        annealer: Annealer,
        runs: Iterable[AnnealingRun],
        seconds_left: Callable[[], float],
        *,
        share: float,
    ):
        self._annealer, self._runs = annealer, runs
        self._seconds_left, self._share, self._stopped = seconds_left, share, False
        self.found: tuple[float, list[int]] = (float("inf"), [])
        super().__init__(self._run_all, must_end=False)

    def stop(self) -> None:
        self._stopped = True
        self.wait()

    def _run_all(self) -> None:
        for run in self._runs:
            if self._stopped:
                return
            end = (1 - self._share) * self._seconds_left()
            self._annealer.run(run, lambda: self._left_until(end))  # noqa: B023
            self._left_until(0.0)

    def _left_until(self, end: float) -> float:
        """Seconds until the search has `end` seconds left; 0 once stopped. Notes what was found."""
        if self._annealer.best_cost < self.found[0]:
            self.found = (self._annealer.best_cost, self._annealer.best or [])
        return 0.0 if self._stopped else max(0.0, self._seconds_left() - end)
