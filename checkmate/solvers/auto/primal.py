"""Finder: what "auto" does to find plans, with a timetable at work. Bounds are `snapshot`'s
business.

settle   from a wish to a plan: repair what is over the budget, then hold again what fits
ask      another solver's plan, as it is and as a start
wish     what a relaxation wants, over the budget as it may be
improve  a round of annealing: from the wish, a few times, and from the best plan, or what is
         nearest to one, as long as few runs came to a plan; then what they came to is crossed
         (`crossing`), until all is alike and others come in. Where a round in stages found nothing,
         the next one lets evaluations come again anywhere. Ruin and recreate where a process has
         not loaded the annealer yet
go_on    rounds of annealing beside other work, one after the other, without waiting for them
         (`rounds`)

Repair takes what is nearest at hand, and loses much of what the relaxation knew: with as many
proposals, ResNet152 at f = 0.3 is annealed nearer to the bound of one snapshot from its wish than
from the repaired plan (`pytest tests/solvers/auto/test_solver.py -k wish`).
"""

from __future__ import annotations

import time

from checkmate.core.plan import Plan
from checkmate.solvers.annealing.annealer import (
    COLD,
    HOT,
    IN_STAGES,
    PRICE,
    REPEATS_ANYWHERE,
    Annealer,
    Loading,
)
from checkmate.solvers.auto.crossing import SIZE, Generation
from checkmate.solvers.auto.rounds import Leg, Round
from checkmate.solvers.background import Beside
from checkmate.solvers.local.repair import Repair, improve, trim
from checkmate.solvers.local.stage_plan import Moves, Timetable, moves_of
from checkmate.solvers.search import Search, Solver

GOOD_ENOUGH = 1e-4
"""The search ends when the plan is proven to be within this share of the cheapest."""

NEARLY = 5e-4
"""Share of the cost below which what is missing is worth little time."""

WORTH_THE_TIME = 1e-2
"""With a larger gap than this the search is more patient."""

PATIENCE = (2, 4)
"""Local search ends when so many rounds in a row, more when far, found nothing better."""

GENERATION = 2
"""Rounds that a generation of crossed plans counts as, once it is over."""

PLANLESS = 3
"""Doublings of a round's length while there is no plan."""

POLISH = 160
"""Work per op (see `Timetable.work`) for each repaired plan; 100,000 in all takes about half a
second."""

WISHED, RESTARTS = 30, 4
"""Proposals per evictable op of an annealing from a wish, or from what was crossed, and how often
it begins anew from the wish in a round: chance decides more than length."""

COLD_WISH, WARM_WISH = (0.05, 0.01), (1.0, 0.01)
"""Temperatures of annealing from a wish, in mean costs of an op. Cold, what the relaxation knew is
kept: where the wish is near, and once where it is new. Warm, a wish that is far over the budget
does not freeze into a dear plan."""

NEAR = 0.25
"""A wish that is over the budget by less than this share of it, fixed bytes left out, is near: it
is annealed cold."""

ENOUGH, CROSSINGS = 8, 8
"""Plans that are enough to cross (see `crossing`), and how often that is done in a round, once as
many runs as a generation has members were made anew: each time for annealing in stages, and for
annealing with repeated evaluations anywhere."""

TICK, NOW_AND_THEN = 0.005, 0.2
"""Seconds between two looks at a round, and between two offers of what it has found so far."""

OTHERS_SHARE = 0.1
"""Share of the time for another solver's plan."""


class Finder:
    """The timetable at work, and the plans to start local search from.

    Args:
      search: The problem.
      proposals: Of annealing, per evictable op in the first round from a plan. Each further one has
        twice as many.
      rounds: Rounds of annealing at most that nothing else goes on beside; without any, the
        annealer is not loaded.
      seed: Of local search.

    Attributes:
      timetable: Changed by nearly everything here.
      stuck: The fullest stages of what was not brought within the budget.
    """

    def __init__(self, search: Search, *, proposals: int, rounds: int, seed: int):
        self.search = search
        self.timetable = Timetable(search.graph)
        self.stuck: set[int] = set()
        self._proposals, self._rounds, self._seed = proposals, rounds, seed
        self._starts: list[tuple[float, Moves]] = []
        self._loading: Loading | None = None
        self._here: Annealer | None = None
        self._wish: list[int] = []
        self._wish_is_new = self._wish_is_near = False
        self._generation = Generation(len(search.graph), search.graph.total_cost, seed)
        self._fresh, self._is_long = 0, False
        self._running: Round | None = None
        self._told = 0.0
        self._freedom, self._cost_before, self._was_complete = IN_STAGES, float("inf"), True
        self._rounds_begun = self._rounds_made = self._fruitless = 0

    def settle(self, *, by: str) -> None:
        """Brings the timetable within the budget and offers it; offers it all the same where that
        fails, for the record."""
        if Repair(self.timetable, self.search.budget_bytes, self.out_of_time).run():
            trim(self.timetable, self.search.budget_bytes, out_of_time=self.out_of_time)
        else:
            self.stuck.add(int(self.timetable.bytes_in[: len(self.search.graph)].argmax()))
        self.offer(by=by)

    def offer(self, *, by: str) -> None:
        """Offers what the timetable is."""
        timeline = self.search.offer(self.timetable.plan(), by=by)
        if timeline.peak_bytes <= self.search.budget_bytes:
            self._starts.append((self.timetable.cost, self.timetable.moves()))

    def go_to_best(self) -> None:
        """Makes the timetable the cheapest plan that it has been, the plain step where it was
        none."""
        self.timetable.move_to(min(self._starts)[1] if self._starts else ())

    def ask(self, solver: Solver) -> None:
        """Another solver's bound, and its plan, as it is and as a start: repaired and trimmed."""
        search = self.search
        seconds = OTHERS_SHARE * search.remaining_s
        inner = Search(
            search.graph,
            search.budget_bytes,
            time_limit_s=seconds,
            deterministic=search.deterministic,
        )
        solver.run(inner)
        search.raise_bound(inner.bound, by=inner.proven_by)
        if inner.plan is not None and inner.timeline is not None:
            better = search.timeline is None or inner.timeline.cost < search.timeline.cost
            search.offer(inner.plan, by=inner.found_by)
            if better and not self.finished():
                self.timetable.move_to(moves_of(inner.plan.computed))
                self.settle(by=f"{inner.found_by}, trimmed")

    def wish(self) -> None:
        """What the timetable is now is where rounds begin."""
        self._wish, self._wish_is_new = self.timetable.evaluations(), True
        fixed = self.search.graph.fixed_bytes
        self._wish_is_near = self.timetable.peak_bytes - fixed <= (1 + NEAR) * (
            self.search.budget_bytes - fixed
        )

    def load(self) -> None:
        """Begins to load the annealer beside what comes next."""
        if self._rounds and self._loading is None:
            search, start = self.search, self.timetable.evaluations()
            self._loading = Loading(search.graph, search.budget_bytes, start, seed=self._seed)

    def improve(self, *, wait_s: float = 0.0, beside: Beside | None = None) -> bool:
        """Goes on with a round of local search until that is done, or the work beside it.

        Args:
          wait_s: For the annealer. A search that reads no clock waits as long as it takes, and for
            the whole round, too.
          beside: The work that this goes on beside.

        Returns:
          Whether there may be sense in more.
        """
        search = self.search
        self.load()
        if self._annealer(search.remaining_s if search.deterministic else wait_s) is None:
            return self._ruin_and_recreate()
        self._collect()
        if self._running is None and (beside is None or search.deterministic) and self._is_enough():
            return False
        self.go_on()
        while self._running is not None and not self.out_of_time():
            if not search.deterministic and (
                self.finished() or (beside is not None and not beside.busy)
            ):
                break
            self._running.wait(TICK)
            self._collect()
        return True

    def go_on(self) -> None:
        """Takes what annealing has found, and sees to it that a round is under way: beside other
        work it costs nothing, however little comes of it."""
        self._collect()
        annealer, search = self._annealer(0.0), self.search
        if annealer is not None and self._running is None and not self.finished():
            self._cost_before = self._best_cost
            self._running = Round(
                annealer,
                self._legs(annealer),
                lambda: search.remaining_s,
                generation=self._generation,
            )
            self._rounds_begun += 1

    def stop(self) -> None:
        """Ends the round that is under way, and takes what it has found."""
        if self._running is not None:
            self._running.stop()
        self._collect()

    def polish(self, work_per_op: int = POLISH) -> None:
        """Ruin and recreate on the timetable, where it is within the budget."""
        search = self.search
        if self.timetable.peak_bytes <= search.budget_bytes and not self.finished():
            work, seed = work_per_op * len(search.graph), self._seed + self._rounds_made
            improve(
                self.timetable,
                search.budget_bytes,
                work=work,
                seed=seed,
                out_of_time=self.out_of_time,
            )
            self.offer(by="ruin and recreate")

    def missing(self) -> float:
        """What the best plan costs more than is proven to be needed."""
        return (
            self.search.timeline.cost if self.search.timeline else 2 * self.search.bound
        ) - self.search.bound

    def far(self) -> bool:
        """Whether too much is missing to rest."""
        return self.missing() > WORTH_THE_TIME * self.search.bound

    def finished(self) -> bool:
        """Whether the gap is closed, or the time over."""
        search = self.search
        return (
            bool(search.infeasible)
            or self.out_of_time()
            or self._best_cost <= search.bound * (1 + GOOD_ENOUGH)
        )

    def out_of_time(self) -> bool:
        """Whether the time is over."""
        return self.search.remaining_s <= 0

    @property
    def has_annealer(self) -> bool:
        """Whether it is loaded."""
        return self._here is not None

    def _annealer(self, wait_s: float) -> Annealer | None:
        """The annealer, once it is loaded; rounds are counted anew then."""
        if self._here is None and self._loading is not None:
            self._here = self._loading.annealer(wait_s)
            if self._here is not None:
                self._rounds_made = self._rounds_begun = self._fruitless = 0
        return self._here

    def _ruin_and_recreate(self) -> bool:
        """A round of that. Returns whether there was any."""
        if self._is_enough():
            return False
        before, self._rounds_made = self._best_cost, self._rounds_made + 1
        self.go_to_best()
        self.polish(self._proposals << self._rounds_made - 1)
        self._fruitless = 0 if self._best_cost < before else self._fruitless + 1
        return True

    @property
    def _best_cost(self) -> float:
        return self.search.timeline.cost if self.search.timeline else float("inf")

    def _is_enough(self) -> bool:
        """Whether there were as many rounds as there may be, or so many in a row that found
        nothing."""
        patience = self._rounds if self.search.plan is None else PATIENCE[self.far()]
        return self._rounds_made >= self._rounds or (
            self._fruitless >= patience and self._was_complete
        )

    def _legs(self, annealer: Annealer) -> list[Leg]:
        """What the next round is made of: runs from the wish or a plan, until a generation has had
        enough of them, and crossings."""
        search, odd = self.search, self._rounds_begun % 2
        more = PLANLESS if search.plan is None else 0
        each, price = WISHED << more, PRICE / annealer.evictable
        if self._fruitless:
            self._freedom = IN_STAGES if self._freedom == REPEATS_ANYWHERE else REPEATS_ANYWHERE
        new, self._wish_is_new = self._wish_is_new, False
        if new or self._generation.is_over:
            self._generation.renew()
            self._fresh = 0
        grown_up = self._fresh >= SIZE and len(self._generation) >= ENOUGH
        legs: list[Leg] = []
        if wished := bool(self._wish) and not grown_up and self.missing() > NEARLY * search.bound:
            temperatures = [
                COLD_WISH if self._wish_is_near or (new and not k) else WARM_WISH
                for k in range(RESTARTS)
            ]
            freedoms = (
                (self._freedom, self._freedom)
                if self._wish_is_near
                else (IN_STAGES, REPEATS_ANYWHERE)
            )
            legs += [
                Leg(self._wish, 0.0, each, *pair, price, freedoms[k % 2])
                for k, pair in enumerate(temperatures)
            ]
        self._is_long = len(self._generation) < ENOUGH and (
            not wished or not self._wish_is_near or bool(odd)
        )
        if self._is_long:
            start = (
                search.plan.computed if search.plan is not None else self.timetable.evaluations()
            )
            proposals = self._proposals << min(self._rounds_made, self._rounds) + more
            if wished and self._wish_is_near:
                proposals = min(proposals, RESTARTS * each)
            legs.append(Leg(start, self._cost_before, proposals, HOT, COLD, None, self._freedom))
        self._fresh += len(legs)
        if len(self._generation) >= ENOUGH:
            crossing = [
                Leg(None, 0.0, each, *COLD_WISH, price, freedom)
                for freedom in (IN_STAGES, REPEATS_ANYWHERE)
            ]
            legs += crossing * (CROSSINGS if grown_up else RESTARTS // 2)
        return legs

    def _collect(self) -> None:
        """Offers what annealing has found: where a clock is read now and then, at once where that
        is the first plan or ends the search."""
        search, running = self.search, self._running
        if running is None:
            return
        over = not running.busy
        cost, order = running.found
        urgent = (
            search.plan is None
            or cost <= search.bound * (1 + GOOD_ENOUGH)
            or self._told + NOW_AND_THEN < time.monotonic()
        )
        if order and cost < self._best_cost and (over or (urgent and not search.deterministic)):
            search.offer(Plan.from_order(search.graph, order), by="annealing")
            self._told = time.monotonic()
        if over:
            running.answer(0.0)  # raises what it raised
            self._running, self._was_complete = None, running.complete
            counted = GENERATION if self._generation.is_over else int(self._is_long)
            self._rounds_made += counted * running.complete
            self._fruitless = 0 if cost < self._cost_before else self._fruitless + counted
