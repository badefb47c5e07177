"""Annealer: simulated annealing from a given order of evaluations, in rounds. The compiled part is `annealing`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from checkmate.core.graph import DFGraph
from checkmate.solvers.beside import Beside

HOT, WARM, COLD = 1.0, 0.3, 0.05
"""Temperatures in mean costs of an op: where a round begins from any order, where it begins from a good one, and where it ends."""

PRICE, PRICES = 10.0, (0.0001, 100.0)
"""What a byte above the budget at one position costs at first, in mean costs of a byte of an op over the number of ops, as values are held for
the longer the more ops there are (from a start within the budget: one mean cost, to stay near it); and how far the search may change that,
in mean costs of a byte."""

ROOM_PER_OP = 4
"""Repeated evaluations that an order has room for, per op."""

COMPILE_SECONDS = 30.0
"""Time that the first process ever may take to compile, on a busy machine."""


class Annealer:
    """Looks for cheap orders of evaluations within a budget.

    Args:
      graph: The problem.
      budget_bytes: The limit, which counts the fixed bytes.
      start: Ops in the order of their evaluations, with repeats, as in `Plan.from_order`; it may be over the budget.
      free_order: First evaluations may change places. Otherwise they and `start` come in stage form, and stay so: see `Timetable`.
      seed: Of the chances taken. The same arguments give the same answer as long as no round runs out of time.

    Attributes:
      best: The cheapest order within the budget so far, or None.
      best_cost: Its cost; infinity while there is none.
    """

    def __init__(self, graph: DFGraph, budget_bytes: int, start: Sequence[int], *, free_order: bool = False, seed: int = 0):
        from checkmate.solvers import annealing, evaluation_order

        if not annealing.anneal.signatures:
            forget_stale_code()
        self._kernel, self._state = annealing, evaluation_order
        self._graph, self._free_order, self._budget = graph, free_order, budget_bytes
        self._problem = evaluation_order.make_problem(graph)
        self._room = ROOM_PER_OP * len(graph) + 64
        self._best = np.full(len(start) + self._room + 1, -1, np.int64)
        self._best_cost = np.array([np.inf])
        self._random = np.array([(0x9E3779B97F4A7C15 * (seed + 1)) % 2**64 or 1], np.uint64)
        self._mean = graph.total_cost / len(graph) or 1.0
        unit = (graph.total_cost or 1.0) / max(1, int(graph.output_bytes.sum()))
        self._evaluated = 0
        self._order = self._state.make_order(graph, self._problem, start, budget_bytes, self._room)
        over = self._order.counts[self._state.OVERFLOW] > 0
        price = min(1.0, PRICE / len(graph)) if over else 1.0
        self._price = np.array([price * unit, PRICES[0] * unit, PRICES[1] * unit, 0.0, 0.0])
        self._anneal(1.0, 0, False)  # what is over the budget at the start is no answer; compiles where that was never done

    @property
    def best(self) -> list[int] | None:
        """The cheapest order within the budget so far."""
        return self._best[1 : 1 + self._best[0]].tolist() if self._best[0] > 0 else None

    @property
    def best_cost(self) -> float:
        """Its cost."""
        return float(self._best_cost[0])

    @property
    def evaluated(self) -> int:
        """Changes of the order so far, made or undone, after each of which cost and memory were exact."""
        return self._evaluated + int(self._order.counts[self._state.EVALUATED])

    def restart(self, start: Sequence[int]) -> None:
        """Goes on from another order, as far as there is room for it."""
        self._evaluated = self.evaluated
        self._order = self._state.make_order(self._graph, self._problem, start, self._budget, len(self._best) - 1 - len(start))

    def run(
        self,
        proposals: int,
        *,
        hot: float = HOT,
        cold: float = COLD,
        only_move: bool = False,
        remaining_s: Callable[[], float] = lambda: float("inf"),
    ) -> int:
        """One round: cools down from `hot` to `cold` in so many proposals, or faster where time is short.

        Args:
          only_move: Nothing is recomputed; the round ends with the first order within the budget.
          remaining_s: Seconds until it must end.

        Returns:
          Proposals made.
        """
        chunk = max(1, min(proposals // 32, 128 * max(1, 4000 // len(self._graph))))
        started, available, done = time.monotonic(), remaining_s(), 0
        while done < proposals and remaining_s() > 0 and not (only_move and self.best_cost < np.inf):
            progress = done / proposals
            if done and (spent := time.monotonic() - started) > available * progress:
                progress = min(1.0, spent / available)
            self._anneal(hot * (cold / hot) ** progress, min(chunk, proposals - done), only_move)
            done += chunk
        return done

    def _anneal(self, temperature: float, proposals: int, only_move: bool) -> None:
        self._kernel.anneal(
            self._problem, self._order, self._best, self._best_cost, self._random, self._price,
            temperature * self._mean, self._free_order, only_move, proposals,
        )  # fmt: skip


def load(
    graph: DFGraph, budget_bytes: int, start: Sequence[int], *, remaining_s: float, free_order: bool = False, seed: int = 0
) -> Annealer | None:
    """An annealer, or None where it is not there within so many seconds. Compiling may then go on, for the next who asks."""
    if remaining_s < COMPILE_SECONDS and not is_compiled():
        return None
    make = partial(Annealer, graph, budget_bytes, start, free_order=free_order, seed=seed)
    return Beside(make, may_be_cut_off=True).answer(remaining_s)


def is_compiled() -> bool:
    """Whether numba's cache holds all machine code of this version already: a call is then ready in a second."""
    changed = _last_change()
    cached = {code.name.partition("-")[0] for code in _cached("nbc") if code.stat().st_mtime >= changed}
    return _in_this_process() or len(cached) == len(_functions())


def _in_this_process() -> bool:
    return all(function.signatures for function in _functions())


def forget_stale_code() -> None:
    """Deletes machine code in numba's cache that is older than its sources. Numba itself looks at the file of `anneal` only, not at what that calls."""
    changed = _last_change()
    for code in [*_cached("nbi"), *_cached("nbc")]:
        if code.stat().st_mtime < changed:
            code.unlink(missing_ok=True)


def _last_change() -> float:
    from checkmate.solvers import annealing, evaluation_order

    return max(Path(file).stat().st_mtime for file in (annealing.__file__, evaluation_order.__file__))


def _functions() -> tuple[Any, ...]:
    """The compiled functions that are called from Python."""
    from checkmate.solvers import annealing, evaluation_order

    return annealing.anneal, evaluation_order.append


def _cached(ending: str) -> list[Path]:
    found: list[Path] = []
    for function in _functions():
        folder, name = function.stats.cache_path, f"{function.py_func.__module__.rpartition('.')[2]}.{function.py_func.__name__}"
        found.extend(Path(folder).glob(f"{name}-*.{ending}") if folder else ())
    return found
