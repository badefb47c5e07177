"""Annealing in the background, from relaxed solutions and from the best plan in turn.

Repair is myopic, and can lose what the relaxation knows. Annealing from the
relaxed solution itself, which is over the budget, begins with all of it. Neither start is always
the better one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from checkmate.core.plan import Plan
from checkmate.solvers.annealing.annealer import (
    Annealer,
    AnnealingRun,
    AnnealingTask,
    in_background,
)
from checkmate.solvers.annealing.arrays import IN_STAGES, REPEATS_ANYWHERE
from checkmate.solvers.background import BackgroundTask
from checkmate.solvers.search import Search

PROPOSALS = 60
"""Proposals per evictable op of a run. Runs from the best plan double them with each round that
found nothing; while there is no plan, all runs have 8 times as many."""

FROM_RELAXED = (
    (0.05, IN_STAGES),
    (0.05, REPEATS_ANYWHERE),
    (0.3, IN_STAGES),
    (1.0, REPEATS_ANYWHERE),
)
"""First temperature and placement of the runs from a relaxed solution. Cold runs keep what it
knows. Warm ones reach plans that it is far from: in `python -m benchmarks solvers mobilenet` at f =
0.1 the plan costs +21.4 % without them, and +19.2 % with them."""


LOAD_AFTER_S = 0.3
"""Seconds of a search after which the compiled code is loaded: many end before, and loading keeps a
core busy for a second, or for fifteen where it is not compiled yet."""


class AnnealingLoop:
    """Rounds of annealing. Each has four runs from the relaxed solution, and two from the plan.

    Args:
      search: Its plans are taken as starts, and better ones offered to it by `collect`.
      rounds: At most, in a search that reads no clock. 0 for no annealing: the compiled code is not
        loaded then.

    Attributes:
      stalls: Rounds in a row that found nothing cheaper.
    """

    def __init__(self, search: Search, *, rounds: int, seed: int):
        self._search, self._most_rounds, self._seed = search, rounds, seed
        self._relaxed: Sequence[int] = ()
        self._making: BackgroundTask | None = None
        self._task: AnnealingTask | None = None
        self.rounds = self.stalls = 0

    def start_from(self, relaxed: Sequence[int]) -> None:
        """Sets the relaxed solution: ops in the order of their evaluations, in stage form."""
        self._relaxed, self.stalls = relaxed, 0

    def load(self) -> None:
        """Loads the compiled code in the background. With a clock, rounds then follow."""
        if self._making is None and self._most_rounds:
            search, seed = self._search, self._seed
            self._making = in_background(
                lambda: Annealer(search.graph, search.budget_bytes, seed=seed)
            )

    def collect(self) -> None:
        """Offers new plans, loads the annealer once there is a start and the search goes on, and
        begins the rounds once it is loaded."""
        search = self._search
        if self._relaxed and not search.deterministic and search.elapsed_s >= LOAD_AFTER_S:
            self.load()
        if self._task is not None:
            cost, order = self._task.found
            if order and cost < search.cost:
                search.offer(Plan.from_order(search.graph, order), by="annealing")
            if not self._task.busy:
                self._task.result()  # raises its error
        elif self._making is not None and not search.deterministic and not self._making.busy:
            annealer = self._making.result()
            self._task = self._begin(annealer, self._forever(annealer))

    def round(self) -> bool:
        """Makes one round and waits for it, for searches without a clock. False after the last."""
        self.load()
        if self._making is None or self.rounds >= self._most_rounds:
            return False
        annealer = self._making.result()
        self._task = self._begin(annealer, self._one_round(annealer))
        self._task.wait()
        self.collect()
        return True

    def stop(self) -> None:
        if self._task is not None:
            self._task.stop()
            self.collect()

    def _begin(self, annealer: Annealer, runs: Iterator[AnnealingRun]) -> AnnealingTask:
        return AnnealingTask(annealer, runs, lambda: self._search.remaining_s, share=0.1)

    def _forever(self, annealer: Annealer) -> Iterator[AnnealingRun]:
        while True:
            yield from self._one_round(annealer)

    def _one_round(self, annealer: Annealer) -> Iterator[AnnealingRun]:
        before = self._search.cost
        proposals = PROPOSALS * (8 if before == float("inf") else 1)
        if self._relaxed:
            for hot, placement in FROM_RELAXED:
                yield AnnealingRun(
                    self._relaxed, proposals, hot, 0.01, placement, annealer.first_price
                )
        if before < float("inf"):
            proposals <<= 1 + min(self.stalls, 6)
        if self.rounds % 4 == 0 or not self._best():
            plain, price = range(len(self._search.graph)), annealer.first_price
            placement = REPEATS_ANYWHERE if self.rounds % 8 else IN_STAGES
            yield AnnealingRun(plain, proposals, 1.0, 0.05, placement, price)
        if best := self._best():
            placement = REPEATS_ANYWHERE if self.rounds % 2 else IN_STAGES
            yield AnnealingRun(best, proposals, 0.05, 0.01, placement, price=1.0)
        self.rounds += 1
        better = min(self._found()[0], self._search.cost) < before
        self.stalls = 0 if better else self.stalls + 1

    def _found(self) -> tuple[float, Sequence[int]]:
        return self._task.found if self._task is not None else (float("inf"), [])

    def _best(self) -> Sequence[int]:
        """The best plan as an order of evaluations; empty where there is none."""
        (cost, order), plan = self._found(), self._search.plan
        return plan.computed if plan and cost >= self._search.cost else order
