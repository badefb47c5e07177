"""Rounds: annealing in a thread of its own, so that it goes on while HiGHS works on another core
and Python prepares what is next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from checkmate.solvers.annealing.annealer import Annealer
from checkmate.solvers.auto.crossing import Generation
from checkmate.solvers.background import Beside

LONGEST = 0.1
"""`longest`, where nothing else is said: of the time that is left, as rounds go on one after the
other."""


@dataclass(frozen=True, slots=True)
class Leg:
    """A part of a round.

    Args:
      start: Ops in the order of their evaluations, within the budget or not; None to cross two of
        the generation, if it has two.
      start_cost: Where an earlier leg of the round found a plan that costs less, it begins from
        that instead.
      proposals: Per evictable op.
      hot, cold, price, growth, only_move: See `Annealer.run`.
      freedom: That of the annealer.
    """

    start: Sequence[int] | None
    start_cost: float
    proposals: int
    hot: float
    cold: float
    price: float | None
    freedom: int
    growth: float = float("inf")
    only_move: bool = False


class Round(Beside):
    """Some legs, one after the other.

    Args:
      annealer: Nobody else's until the round is over.
      legs: At least one.
      remaining_s: Seconds that are left to the search.
      generation: What legs come to is added there. Nobody else's until the round is over.
      longest: Share of the time that is left for one leg at most: it cools down sooner then.

    Attributes:
      found: The cheapest order within the budget that the annealer has seen, and its cost; it
        changes while the round is under way.
      complete: Whether it is over and made all its proposals.
    """

    def __init__(
        self,
        annealer: Annealer,
        legs: Sequence[Leg],
        remaining_s: Callable[[], float],
        *,
        generation: Generation | None = None,
        longest: float = LONGEST,
    ):
        self._annealer, self._legs, self._search_s, self._generation, self._longest = (
            annealer,
            legs,
            remaining_s,
            generation,
            longest,
        )
        self._stopped = False
        self.found: tuple[float, list[int]] = (float("inf"), [])
        self.complete = False
        super().__init__(self._make, may_be_cut_off=True)

    def stop(self) -> None:
        """Ends it, in milliseconds."""
        self._stopped = True
        self.wait()

    def _make(self) -> None:
        annealer, complete = self._annealer, True
        for leg in self._legs:
            until = (1 - self._longest) * self._search_s()
            cost, order = self.found
            start = order if order and cost < leg.start_cost else leg.start
            if start is None:
                if self._generation is None or len(self._generation) < 2:
                    continue
                start = self._generation.cross()
            annealer.freedom = leg.freedom
            annealer.restart(start)
            proposals = leg.proposals * annealer.evictable
            made = annealer.run(
                proposals,
                hot=leg.hot,
                cold=leg.cold,
                price=leg.price,
                growth=leg.growth,
                only_move=leg.only_move,
                remaining_s=lambda: self._remaining_s(until),  # noqa: B023
            )
            complete &= made >= proposals
            self._remaining_s(0.0)
            if self._generation is not None and annealer.best is not None:
                self._generation.add(annealer.best_cost, annealer.best)
        self.complete = complete

    def _remaining_s(self, until: float) -> float:
        """Seconds until so many are left to the search; none when stopped. On the way, tells what
        was found."""
        if self._annealer.best_cost < self.found[0]:
            self.found = (self._annealer.best_cost, self._annealer.best or [])
        return 0.0 if self._stopped else max(0.0, self._search_s() - until)
