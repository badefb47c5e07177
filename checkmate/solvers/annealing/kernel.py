"""Simulated annealing over orders of evaluations, compiled by numba.

A state may be over the budget. Its energy is its cost plus a price for the overflow. The price
begins low, so that the cheapest ways to save memory are taken first, rises slowly until states fit,
and then keeps the search crossing the border of what fits. `proposals` has the ways to change it.

This file imports numba: import it inside functions only. The first call of `anneal` compiles it,
for some 15 seconds; later processes load machine code from numba's cache (see `compile`).

Source: simulated annealing for rematerialization with re-ordering is FastSA's idea ("A fast
heuristic to optimize time-space tradeoff for large models", NeurIPS 2023); moves, prices and the
incremental memory are our own. Guarantee: none on the cost. What comes out is legal by construction
and within the budget by exact count; the judge has the last word all the same.
"""

from __future__ import annotations

import numpy as np

from checkmate.solvers.annealing.arrays import (
    CHANGES,
    FITTED,
    IN_ANY_ORDER,
    LEAST,
    LENGTH,
    MOST,
    OP,
    OVERFLOW,
    PRICE,
    REPEATS,
    RISE,
    SEEN,
)
from checkmate.solvers.annealing.choices import chance, draw
from checkmate.solvers.annealing.compile import entry, inner
from checkmate.solvers.annealing.memory import undo
from checkmate.solvers.annealing.proposals import energy, evict, move, release, slide


@inner
def propose(problem, order, random, placement, only_move, price, ceiling):
    if placement == IN_ANY_ORDER and (only_move or chance(random, 0.4)):
        move(problem, order, random)
        return
    repeats = order.counts[REPEATS]
    u = draw(random, 100)
    if repeats == 0 or u > 95 or (u < 50 and order.counts[OVERFLOW] > 0):
        evict(problem, order, random, placement, price, ceiling)
    elif u < 80:
        for _ in range(1 + (u % 3 == 0) * (1 + draw(random, 3))):
            if order.counts[REPEATS] > 0:
                release(problem, order, order.repeats[draw(random, order.counts[REPEATS])])
        tries = draw(random, 5)
        while order.counts[OVERFLOW] > 0 and tries > 0:
            evict(problem, order, random, placement, price, ceiling)
            tries -= 1
    else:
        slide(problem, order, random, placement, price, ceiling)


@entry
def anneal(
    problem, order, best, best_cost, random, price, temperature, placement, only_move, proposals
):
    """Makes this many proposals and keeps the cheapest order within the budget in `best`.

    Args:
      best: (capacity + 1,) int64: the number of evaluations, or -1, and the ops in order. Changed
        in place, like the next three.
      best_cost: (1,) its cost.
      random: (1,) uint64, not zero.
      price: (6,) see `PRICE`; unchanged if `only_move`.
      temperature: In the unit of costs.
    """
    count, event = order.counts, order.event
    order.cost[0] = 0.0
    for p in range(count[LENGTH]):
        order.cost[0] += problem.costs[event[order.sequence[p], OP]]
    for _ in range(proposals):
        before = energy(order, price)
        cost = order.cost[0]
        ceiling = before - temperature * np.log(1.0 - draw(random, 1 << 30) / (1 << 30))
        count[CHANGES] = 0
        propose(problem, order, random, placement, only_move, price, ceiling)
        if energy(order, price) > ceiling:
            undo(problem, order)
            order.cost[0] = cost
        elif count[OVERFLOW] == 0 and order.cost[0] < best_cost[0] * (1 - 1e-12):
            best_cost[0] = order.cost[0]
            best[0] = count[LENGTH]
            for p in range(count[LENGTH]):
                best[p + 1] = event[order.sequence[p], OP]
        price[SEEN] += 1
        price[FITTED] += count[OVERFLOW] == 0
        if not only_move and price[SEEN] >= max(64, len(problem.evictable) >> 1):
            if price[FITTED] > 0.3 * price[SEEN]:
                price[PRICE] = max(price[PRICE] / price[RISE] ** 2, price[LEAST])
            elif price[FITTED] < 0.1 * price[SEEN]:
                price[PRICE] = min(price[PRICE] * price[RISE], price[MOST])
            price[SEEN] = price[FITTED] = 0.0
