"""Simulated annealing over orders of evaluations, compiled by numba.

A state may be over the budget. Its energy is its cost plus a price for the overflow. The price
begins low, so that the cheapest ways to save memory are taken first, rises slowly until states fit,
and then keeps the search crossing the border of what fits. The ways to change it:

    evict    drop a value that is held across a full position, and run its op again before the next
             use, with those of its inputs that are gone by then; or one that is read there and held
             longer, so that what reads it runs in place
    release  take repeated evaluations back, and evict where that made it overflow
    slide    run a repeated evaluation before another use
    move     shift an evaluation, away from a full position where there is one, and drag its inputs
             or readers along

Placement says where evaluations may stand: in stages, where between two first evaluations come
repeated ones in index order, as in a `StagePlan`; with repeated evaluations anywhere; or with the
last proposal, too, which changes the order. Where repeated evaluations can be anywhere, an op also
runs again long before the use, while an input is in memory for the last time: holding one value
then takes the place of holding its inputs.

How much energy a proposal may add is drawn before it is made. So what an eviction costs is known to
be too much, most of the time, before anything is changed: the overflow that goes away with the
value is counted first, and op after op that must run again is paid from it.

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
    DEPS,
    FITTED,
    FREE,
    IN_ANY_ORDER,
    IN_STAGES,
    LAST,
    LEAST,
    LENGTH,
    MOST,
    NONE,
    OP,
    OVERFLOW,
    PREVIOUS,
    PRICE,
    REPEAT,
    REPEATS,
    RISE,
    SEEN,
    STACK_SIZE,
    USERS,
)
from checkmate.solvers.annealing.choices import (
    chance,
    draw,
    full_position,
    held,
    last_use,
    may_repeat,
    next_use,
    place,
    reads,
    relief,
    sooner,
    window,
)
from checkmate.solvers.annealing.compile import entry, inner
from checkmate.solvers.annealing.memory import end_of, insert, latest, remove, shift, undo

MAX_DRAGGED = 16

MAX_CHANGES = 1024
"""Changes at which a proposal ends; the journal has room for more."""


@inner
def sort(numbers, many):
    for k in range(1, many):
        p = k
        while p > 0 and numbers[p - 1] > numbers[p]:
            numbers[p - 1], numbers[p] = numbers[p], numbers[p - 1]
            p -= 1


@inner
def run_again(problem, order, random, i, position, since, placement, affordable):
    """Runs op i before a position, with those of its inputs that are gone by then and not better
    held; False where it may not.

    Held instead of recomputed are inputs that were in memory at position `since` or later, or are
    small, or by chance. Nothing is done when all that would run again costs more than what is
    affordable.
    """
    count = order.counts
    members = order.stacks[0]
    members[0] = i
    many, expanded = 1, 0
    affordable -= problem.costs[i]
    rule, room = draw(random, 3), 1 << draw(random, 1 + draw(random, 7))
    while expanded < many and affordable >= 0:
        j = members[expanded]
        expanded += 1
        for k in range(problem.starts[DEPS, j], problem.starts[DEPS, j + 1]):
            d = problem.links[k]
            e = latest(order, d, position)
            until = end_of(order, e)
            known = until >= position
            for m in range(many):
                known |= members[m] == d
            if known or not may_repeat(problem, order, d, position):
                continue
            if rule == 0:
                kept = until >= since
            elif rule == 1:
                kept = 2 * problem.sizes[d] <= problem.sizes[i]
            else:
                kept = draw(random, 2) == 0
            if not kept and many < room:
                members[many] = d
                many += 1
                affordable -= problem.costs[d]
    if affordable < 0 or count[FREE] < many or count[CHANGES] + many > MAX_CHANGES:
        return False
    sort(members, many)
    for k in range(many):
        j = members[k]
        at = place(order, j, position) if placement == IN_STAGES else position
        if at < 0 or not may_repeat(problem, order, j, at):
            if j == i:
                return False
            continue
        insert(problem, order, j, at)
        position += 1
    return True


@inner
def release(problem, order, e):
    """Removes a repeated evaluation, and those of its inputs that nothing reads then."""
    stack = order.stacks[1]
    stack[0] = e
    many = 1
    while many:
        many -= 1
        e = stack[many]
        if order.event[e, REPEAT] < 0 or order.counts[CHANGES] > MAX_CHANGES:
            continue
        i, position = order.event[e, OP], order.position[e]
        remove(problem, order, e)
        for k in range(problem.starts[DEPS, i], problem.starts[DEPS, i + 1]):
            g = latest(order, problem.links[k], position)
            if order.event[g, LAST] == g and order.event[g, REPEAT] >= 0 and many < STACK_SIZE:
                known = False
                for m in range(many):
                    known |= stack[m] == g
                if not known:
                    stack[many] = g
                    many += 1


@inner
def release_unread(problem, order, i):
    """Removes one evaluation of each input that ran again for op i alone and is read no more."""
    event = order.event
    for k in range(problem.starts[DEPS, i], problem.starts[DEPS, i + 1]):
        g = order.ends[problem.links[k], 1]
        while g >= 0 and not (event[g, REPEAT] >= 0 and event[g, LAST] == g):
            g = event[g, PREVIOUS]
        if g >= 0:
            release(problem, order, g)


@inner
def relocate(problem, order, e, target):
    """Moves an evaluation to a position within its `window`; it keeps its number."""
    if order.event[e, REPEAT] < 0:
        shift(problem, order, e, target)
    else:
        i = order.event[e, OP]
        remove(problem, order, e)
        insert(problem, order, i, target)


@inner
def energy(order, price):
    return order.cost[0] + price[PRICE] * order.counts[OVERFLOW]


@inner
def evict(problem, order, random, placement, price, ceiling):
    """Drops a value held across a full position until its next use, where the energy can stay below
    the ceiling."""
    position = full_position(order, random)
    e = held(problem, order, random, problem.evictable, position, 48)
    if e < 0:
        return
    i, since = order.event[e, OP], last_use(problem, order, e, position)
    use = next_use(problem, order, e, position)
    # Read here for the last time then, so that what reads it runs in place.
    overwritten = reads(problem, order, position, i)
    if overwritten:
        since = position
    if placement != IN_STAGES:
        use = sooner(problem, order, random, i, position, use)
    affordable = ceiling - energy(order, price)
    # It goes away altogether, and what it reads with it.
    if order.event[e, REPEAT] >= 0 and since == order.position[e]:
        affordable += problem.costs[i] + price[PRICE] * order.counts[OVERFLOW]
    else:
        last = min(use, order.counts[LENGTH]) - 1
        affordable += price[PRICE] * relief(order, since + 1, last, problem.sizes[i])
        if overwritten:
            affordable += price[PRICE] * relief(
                order, position, position, problem.sizes[order.event[order.sequence[position], OP]]
            )
    done = run_again(problem, order, random, i, use, position, placement, affordable)
    if done and order.event[e, LAST] == e and order.event[e, REPEAT] >= 0:
        release(problem, order, e)


@inner
def slide(problem, order, random, placement, price, ceiling):
    """Runs a repeated evaluation before another use of its value."""
    e = order.repeats[draw(random, order.counts[REPEATS])]
    i, before = order.event[e, OP], order.event[e, PREVIOUS]
    remove(problem, order, e)
    since = order.position[before]
    until = min(end_of(order, before), order.counts[LENGTH])
    if until > since:
        p = since + draw(random, until - since)
        affordable = ceiling - order.cost[0]
        use = next_use(problem, order, before, p)
        if placement != IN_STAGES:
            use = sooner(problem, order, random, i, p, use)
        run_again(problem, order, random, i, use, p, placement, affordable)


@inner
def move(problem, order, random):
    """Shifts an evaluation, away from a full position where there is one, and drags inputs behind
    it when it goes down, readers when it goes up."""
    event = order.event
    p = full_position(order, random)
    e, target = NONE, NONE
    way = draw(random, 4)
    g = held(problem, order, random, problem.sized, p, 24) if way < 2 else NONE
    if g >= 0:  # make it after the full position, or read it for the last time before
        e = g if way == 0 else event[g, LAST]
    if e < 0:
        e = order.sequence[draw(random, order.counts[LENGTH])]
        way = 2
    low, high = window(problem, order, e)
    at = order.position[e]
    if way == 0 and high > p:
        target = high if chance(random, 0.5) else p + 1 + draw(random, high - p)
    elif way == 1 and low <= p:
        target = low if chance(random, 0.5) else low + draw(random, p - low + 1)
    elif chance(random, 0.5):
        reach = 1 << draw(random, 9)
        target = max(low, min(high, at - reach + draw(random, 2 * reach + 1)))
    else:
        target = high if chance(random, 0.6) else low
    if target == at or high < low:
        return
    relocate(problem, order, e, target)
    relation = DEPS if target > at else USERS
    stack = order.stacks[1]
    stack[0] = e
    many = 1
    dragged = 1 + (draw(random, 2) * MAX_DRAGGED >> draw(random, 4))
    while many and order.counts[CHANGES] < dragged:
        many -= 1
        f = stack[many]
        i = event[f, OP]
        for k in range(problem.starts[relation, i], problem.starts[relation, i + 1]):
            if draw(random, 2):
                continue
            d = problem.links[k]
            other = latest(order, d, order.position[f]) if relation == DEPS else order.ends[d, 0]
            low, high = window(problem, order, other)
            to = high if relation == DEPS else low
            if (to > order.position[other]) if relation == DEPS else (to < order.position[other]):
                relocate(problem, order, other, to)
                if many < STACK_SIZE:
                    stack[many] = other
                    many += 1
    release_unread(problem, order, event[e, OP])


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
