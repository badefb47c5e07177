"""Finder: what "auto" does to find plans, with a timetable at work. Bounds are `snapshot`'s business.

settle   from a wish to a plan: repair what is over the budget, then hold again what fits
ask      another solver's plan, as it is and as a start
wish     what a relaxation wants, over the budget as it may be
improve  a round of annealing from the wish, where it is new or near, or every other time, and from the best plan, every other time where the wish is
         near, or from what is nearest to a plan; of ruin and recreate where a process has not loaded the annealer yet. Where a round in
         stages found nothing, the next one lets evaluations come again anywhere

Repair takes what is nearest at hand, and loses much of what the relaxation knew: with as many proposals, ResNet152 at f = 0.3 is annealed to
0.24 % above the bound of one snapshot from its wish, and to 0.41 % from the repaired plan (`pytest tests/solvers/test_snapshot.py -k wish`).
"""

from __future__ import annotations

import numpy as np

from checkmate.core.plan import Plan
from checkmate.solvers.annealer import IN_STAGES, PRICE, REPEATS_ANYWHERE, Annealer, Loading
from checkmate.solvers.beside import Beside
from checkmate.solvers.local_search import Moves, Repair, improve, trim
from checkmate.solvers.search import Search, Solver
from checkmate.solvers.timetable import Timetable, moves_of

GOOD_ENOUGH = 1e-4
"""The search ends when the plan is proven to be within this share of the cheapest."""

NEARLY = 5e-4
"""Share of the cost below which what is missing is worth little time."""

WORTH_THE_TIME = 1e-2
"""With a larger gap than this the search is more patient."""

PATIENCE = (2, 4)
"""Local search ends when so many rounds in a row, more when far, found nothing better."""

PLANLESS = 3
"""Doublings of a round's length while there is no plan."""

POLISH = 160
"""Work per op (see `Timetable.work`) for each repaired plan; 100,000 in all takes about half a second."""

WISHED, COLD_WISH, WARM_WISH = 400, (0.05, 0.01), (0.3, 0.01)
"""Least proposals per op of a round from a wish, and its temperatures, in mean costs of an op. Cold, what the relaxation knew is kept: while
the wish is new, or near. Warm, a wish that is far over the budget does not freeze into a dear plan."""

NEAR = 0.25
"""A wish that is over the budget by less than this share of it is near: it is annealed in every round, and cold."""

OTHERS_SHARE = 0.1
"""Share of the time for another solver's plan."""


class Finder:
    """The timetable at work, and the plans to start local search from.

    Args:
      search: The problem.
      proposals: Of annealing, per op in the first round. Each further round has twice as many.
      rounds: Rounds of annealing at most; without any, the annealer is not loaded.
      seed: Of local search.

    Attributes:
      timetable: Changed by nearly everything here.
    """

    def __init__(self, search: Search, *, proposals: int, rounds: int, seed: int):
        self.search = search
        self.timetable = Timetable(search.graph)
        self._proposals, self._rounds, self._seed = proposals, rounds, seed
        self._starts: list[tuple[float, Moves]] = []
        self._loading: Loading | None = None
        self._here: Annealer | None = None
        self._wish: list[int] = []
        self._wish_is_new = self._wish_is_near = False
        self._round, self._fruitless = 0, 0

    def settle(self, *, by: str) -> None:
        """Brings the timetable within the budget and offers it; offers it all the same where that fails, for the record."""
        if Repair(self.timetable, self.search.budget_bytes, self.out_of_time).run():
            trim(self.timetable, self.search.budget_bytes, out_of_time=self.out_of_time)
        self.offer(by=by)

    def offer(self, *, by: str) -> None:
        """Offers what the timetable is."""
        timeline = self.search.offer(self.timetable.plan(), by=by)
        if timeline.peak_bytes <= self.search.budget_bytes:
            self._starts.append((self.timetable.cost, self.timetable.moves()))

    def go_to_best(self) -> None:
        """Makes the timetable the cheapest plan that it has been, the plain step where it was none."""
        self.timetable.move_to(min(self._starts)[1] if self._starts else ())

    def ask(self, solver: Solver) -> None:
        """Another solver's bound, and its plan, as it is and as a start: repaired and trimmed."""
        search = self.search
        seconds = OTHERS_SHARE * search.remaining_s
        inner = Search(search.graph, search.budget_bytes, time_limit_s=seconds, deterministic=search.deterministic)
        solver.run(inner)
        search.raise_bound(inner.bound, by=inner.proven_by)
        if inner.plan is not None and inner.timeline is not None:
            better = search.timeline is None or inner.timeline.cost < search.timeline.cost
            search.offer(inner.plan, by=inner.found_by)
            if better and not self.finished():
                self.timetable.move_to(moves_of(inner.plan))
                self.settle(by=f"{inner.found_by}, trimmed")

    def wish(self) -> None:
        """What the timetable is now is where rounds begin."""
        self._wish, self._wish_is_new = self.timetable.evaluations(), True
        self._wish_is_near = self.timetable.peak_bytes <= (1 + NEAR) * self.search.budget_bytes

    def load(self) -> None:
        """Begins to load the annealer beside what comes next."""
        if self._rounds and self._loading is None:
            search, start = self.search, self.timetable.evaluations()
            self._loading = Loading(search.graph, search.budget_bytes, start, seed=self._seed)

    def improve(self, *, wait_s: float = 0.0, beside: Beside | None = None) -> bool:
        """One round of local search from the best plan, or what is nearest to one, each longer than the last.

        Args:
          wait_s: For the annealer. A search that reads no clock waits as long as it takes.
          beside: The work that this goes on beside: it ends with that, unless the search reads no clock.

        Returns:
          Whether there may be sense in another.
        """
        search = self.search
        annealer = self._annealer(search.remaining_s if search.deterministic else wait_s)
        patience = self._rounds if search.plan is None else PATIENCE[self.far()]
        if self._round >= self._rounds or self._fruitless >= patience:
            return False
        before, number, self._round = search.timeline.cost if search.timeline else np.inf, self._round, self._round + 1
        proposals = self._proposals << number + (PLANLESS if search.plan is None else 0)
        if annealer is not None:
            wished = bool(self._wish) and (self._wish_is_new or self._wish_is_near or number % 2) and self.missing() > NEARLY * search.bound
            if wished:
                self._anneal_wish(annealer, max(WISHED, proposals), beside)
            if not wished or not self._wish_is_near or number % 2:
                self._anneal(annealer, proposals * len(search.graph), beside)
        else:
            self.go_to_best()
            self.polish(proposals)
        self._fruitless = 0 if search.timeline is not None and search.timeline.cost < before else self._fruitless + 1
        return True

    def polish(self, work_per_op: int = POLISH) -> None:
        """Ruin and recreate on the timetable, where it is within the budget."""
        search = self.search
        if self.timetable.peak_bytes <= search.budget_bytes and not self.finished():
            work, seed = work_per_op * len(search.graph), self._seed + self._round
            improve(self.timetable, search.budget_bytes, work=work, seed=seed, out_of_time=self.out_of_time)
            self.offer(by="ruin and recreate")

    def missing(self) -> float:
        """What the best plan costs more than is proven to be needed."""
        return (self.search.timeline.cost if self.search.timeline else 2 * self.search.bound) - self.search.bound

    def far(self) -> bool:
        """Whether too much is missing to rest."""
        return self.missing() > WORTH_THE_TIME * self.search.bound

    def finished(self) -> bool:
        """Whether the gap is closed, or the time over."""
        search = self.search
        cost = search.timeline.cost if search.timeline else np.inf
        return bool(search.infeasible) or self.out_of_time() or cost <= search.bound * (1 + GOOD_ENOUGH)

    def out_of_time(self) -> bool:
        """Whether the time is over."""
        return self.search.remaining_s <= 0

    def _annealer(self, wait_s: float) -> Annealer | None:
        """The annealer, once it is loaded; rounds are counted anew then."""
        if self._here is None:
            self.load()
            self._here = self._loading.annealer(wait_s) if self._loading else None
            if self._here is not None:
                self._round = self._fruitless = 0
        return self._here

    def _anneal_wish(self, annealer: Annealer, proposals: int, beside: Beside | None) -> None:
        n = len(self.search.graph)
        then = COLD_WISH if self._wish_is_near else WARM_WISH
        for hot, cold in (COLD_WISH, then) if self._wish_is_new else (then,):
            annealer.restart(self._wish)
            annealer.run(proposals * n, hot=hot, cold=cold, price=PRICE / n, remaining_s=lambda: self._remaining_s(beside))
            self._offer_best(annealer)
        self._wish_is_new = False

    def _anneal(self, annealer: Annealer, proposals: int, beside: Beside | None) -> None:
        search = self.search
        if self._fruitless:
            annealer.freedom = IN_STAGES if annealer.freedom == REPEATS_ANYWHERE else REPEATS_ANYWHERE
        annealer.restart(search.plan.computed if search.plan is not None else self.timetable.evaluations())
        annealer.run(proposals, remaining_s=lambda: self._remaining_s(beside))
        self._offer_best(annealer)

    def _remaining_s(self, beside: Beside | None) -> float:
        late = beside is not None and not beside.is_alive() and not self.search.deterministic
        return 0.0 if late else self.search.remaining_s

    def _offer_best(self, annealer: Annealer) -> None:
        search = self.search
        if annealer.best is not None and (search.timeline is None or annealer.best_cost < search.timeline.cost):
            search.offer(Plan.from_order(search.graph, annealer.best), by="annealing")
