"""Crossing: plans that each are cheap in their own way, put together anew, for annealing to mend.

Annealing from one wish comes to another plan each time: one run finds what is best for some blocks
of a network, the next for others, and none what is best for all. So what runs came to is kept, and
two of them are crossed: in a part of the stages, or for a part of the ops, the child recomputes
what one does, and elsewhere what the other does. That is a legal order always (see `Timetable`),
and only where the parts meet is it over the budget or dear; a short and cold annealing mends that.
When all that is kept is alike, most of it is forgotten, and others come in.

Source: crossover and local search in turn is what memetic algorithms do (Moscato, 1989). What it
brings: `pytest tests/solvers/auto/test_crossing.py` anneals ResNet152, a tenth of the way from
floor to peak, as often from crossed plans as from those that are crossed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from checkmate.solvers.local.stage_plan import Moves, in_stage_form, moves_of

SIZE, KEPT = 24, 6
"""Plans that are kept at most, and from one generation to the next. Few are alike soon; of many it
takes long until what is good meets."""

ALIKE, REFUSED = 5e-3, 48
"""A generation is over when the dearest costs less than this share of the recomputed cost more than
the cheapest, or when so many in a row were refused."""

SAME = 1e-9
"""Plans whose costs differ by no more than this share are taken for the same."""

LEAST, MOST = 0.05, 0.5
"""Share of the stages, or of the ops, in which anything runs again, that the child has from one of
the two."""


class Generation:
    """The cheapest plans that annealing came to, as orders of evaluations in which first ones come
    in the graph's order.

    Args:
      n: Number of ops.
      plain_cost: What they cost without recomputation.
      seed: Of the chances taken.
    """

    def __init__(self, n: int, plain_cost: float, seed: int):
        self._n, self._plain_cost, self._random = n, plain_cost, random.Random(seed)
        self._kept: list[tuple[float, Moves]] = []
        self._refused = 0

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, cost: float, order: Sequence[int]) -> None:
        """Keeps an order, unless there is one of that cost already, or there are many and all are
        cheaper."""
        known = any(abs(cost - other) <= SAME * cost for other, _ in self._kept)
        if known or (len(self) == SIZE and cost > self._kept[-1][0]):
            self._refused += 1
            return
        self._refused = 0
        self._kept.append((cost, moves_of(order)))
        self._kept.sort()
        del self._kept[SIZE:]

    @property
    def is_over(self) -> bool:
        """Whether nothing is to be expected of more crossing."""
        if len(self) < SIZE:
            return self._refused >= REFUSED
        cheapest, dearest = self._kept[0][0], self._kept[-1][0]
        return self._refused >= REFUSED or dearest - cheapest < ALIKE * (
            cheapest - self._plain_cost
        )

    def renew(self) -> None:
        """Begins the next one, with the cheapest few."""
        del self._kept[KEPT:]
        self._refused = 0

    def cross(self) -> list[int]:
        """An order, in stage form, out of two of at least two."""
        (_, one), (_, other) = self._random.sample(self._kept, 2)
        axis = self._random.randrange(2)  # ops, or stages
        numbers = sorted({move[axis] for move in (*one, *other)})
        first = self._random.randrange(len(numbers) or 1)
        many = round(self._random.uniform(LEAST, MOST) * len(numbers))
        part = {numbers[(first + k) % len(numbers)] for k in range(many)}
        again: list[list[int]] = [[] for _ in range(self._n + 1)]
        for moves, inside in ((one, True), (other, False)):
            for move in moves:
                if (move[axis] in part) == inside:
                    again[move[1]].append(move[0])
        return in_stage_form([sorted(ops) for ops in again])
