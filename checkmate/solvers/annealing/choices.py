"""Choices of the proposals: positions over the budget, values held there, places for an op.

This file imports numba: import it inside functions only.
"""

from __future__ import annotations

import numpy as np

from checkmate.solvers.annealing.arrays import (
    AFTER,
    BEFORE,
    BUDGET,
    DEPS,
    HOSTS,
    IN_PLACE,
    LENGTH,
    NEXT,
    NONE,
    OP,
    OVERFLOW,
    OVERWRITES,
    OVERWRITTEN_BY,
    PREVIOUS,
    REPEAT,
    USERS,
)
from checkmate.solvers.annealing.compile import inner
from checkmate.solvers.annealing.memory import end_of, latest


@inner
def draw(random, n):
    """A whole number from 0 to n - 1 (xorshift)."""
    x = random[0]
    x ^= x << np.uint64(13)
    x ^= x >> np.uint64(7)
    x ^= x << np.uint64(17)
    random[0] = x
    return np.int64(((x >> np.uint64(32)) * np.uint64(n)) >> np.uint64(32))


@inner
def chance(random, share):
    return draw(random, 1 << 30) < share * (1 << 30)


@inner
def full_position(order, random):
    """A random position over the budget; any position if there is none."""
    length = order.counts[LENGTH]
    if order.counts[OVERFLOW] > 0:
        for _ in range(8):
            p = draw(random, length)
            if order.memory[p] > order.counts[BUDGET]:
                return p
        return np.argmax(order.memory[:length])
    return draw(random, length)


@inner
def reads(problem, order, position, i):
    at = order.event[order.sequence[position], OP]
    found = False
    for k in range(problem.starts[DEPS, at], problem.starts[DEPS, at + 1]):
        found |= problem.links[k] == i
    return found


@inner
def could_overwrite(problem, order, position, i):
    """Whether the evaluation at a position would run in place if it were the last that reads the
    value of op i, and does not yet."""
    e = order.sequence[position]
    at = order.event[e, OP]
    for k in range(problem.starts[IN_PLACE, at], problem.starts[IN_PLACE, at + 1]):
        if problem.links[k] == i:
            return order.event[e, HOSTS] == 0
    return False


@inner
def held(problem, order, random, ops, position, tries):
    """An evaluation of one of the ops, held across a position, by chance: of several the one with
    most to gain.

    It is not read there, unless what reads it could run in place if it were not held any longer.
    """
    best, best_score = NONE, -1.0
    wanted = 1 + draw(random, 4)
    for _ in range(tries if len(ops) else 0):
        i = ops[draw(random, len(ops))]
        e = latest(order, i, position)
        if e < 0 or end_of(order, e) <= position:
            continue
        if reads(problem, order, position, i) and not could_overwrite(problem, order, position, i):
            continue
        score = problem.sizes[i] / (problem.costs[i] + 1e-30) * (1 + draw(random, 100))
        if score > best_score:
            best, best_score = e, score
        wanted -= 1
        if wanted == 0:
            break
    return best


@inner
def next_use(problem, order, e, position):
    """The first position after this one at which the value of evaluation e is read, or the end of
    the order."""
    i = order.event[e, OP]
    found = order.counts[LENGTH]
    for k in range(problem.starts[USERS, i], problem.starts[USERS, i + 1]):
        r = order.ends[problem.links[k], 1]
        while r >= 0 and order.position[r] > position:
            found = min(found, order.position[r])
            r = order.event[r, PREVIOUS]
    return found


@inner
def last_use(problem, order, e, position):
    """The last position before this one at which the value of evaluation e is made or read."""
    found = order.position[e]
    i = order.event[e, OP]
    for k in range(problem.starts[USERS, i], problem.starts[USERS, i + 1]):
        r = latest(order, problem.links[k], position)
        if r >= 0:
            found = max(found, order.position[r])
    return found


@inner
def sooner(problem, order, random, i, position, use):
    """A position at which op i may run again for a use: mostly right before it, else where an
    input is in memory for the last time."""
    first, many = problem.starts[DEPS, i], problem.starts[DEPS, i + 1] - problem.starts[DEPS, i]
    if many == 0 or draw(random, 2):
        return use
    at = end_of(order, latest(order, problem.links[first + draw(random, many)], use))
    return at if position < at < use else use


@inner
def place(order, i, position):
    """The position of a repeated evaluation of op i in the stage around a position, in stage form;
    NONE if it runs there already."""
    sequence, event = order.sequence, order.event
    p = position
    while p < order.counts[LENGTH] and event[sequence[p], REPEAT] >= 0:
        p += 1
    while p > 0 and event[sequence[p - 1], REPEAT] >= 0 and event[sequence[p - 1], OP] > i:
        p -= 1
    if p > 0 and event[sequence[p - 1], REPEAT] >= 0 and event[sequence[p - 1], OP] == i:
        return NONE
    return p


@inner
def window(problem, order, e):
    """The first and last position that an evaluation can shift to."""
    event, ends, links, starts = order.event, order.ends, problem.links, problem.starts
    i = event[e, OP]
    if event[e, REPEAT] >= 0:
        high = next_use(problem, order, e, order.position[e]) - 1
        if event[e, NEXT] >= 0:
            high = min(high, order.position[event[e, NEXT]] - 1)
        for k in range(starts[OVERWRITTEN_BY, i], starts[OVERWRITTEN_BY, i + 1]):
            high = min(high, order.position[ends[links[k], 0]] - 1)
        return order.position[event[e, PREVIOUS]] + 1, min(high, order.counts[LENGTH] - 1)
    low, high = 0, order.counts[LENGTH] - 1
    for relation in (DEPS, BEFORE, OVERWRITES):
        side = 1 if relation == OVERWRITES else 0
        for k in range(starts[relation, i], starts[relation, i + 1]):
            low = max(low, order.position[ends[links[k], side]] + 1)
    for relation in (USERS, AFTER, OVERWRITTEN_BY):
        for k in range(starts[relation, i], starts[relation, i + 1]):
            high = min(high, order.position[ends[links[k], 0]] - 1)
    if event[e, NEXT] >= 0:
        high = min(high, order.position[event[e, NEXT]] - 1)
    return low, high


@inner
def may_repeat(problem, order, i, position):
    """Whether op i may run again at a position: it is recomputable, has run, and nothing that it
    reads was overwritten before."""
    if not problem.recomputable[i] or order.position[order.ends[i, 0]] >= position:
        return False
    for k in range(problem.starts[OVERWRITTEN_BY, i], problem.starts[OVERWRITTEN_BY, i + 1]):
        if order.position[order.ends[problem.links[k], 0]] < position:
            return False
    return True


@inner
def relief(order, first, last, size):
    """The overflow that goes away when `size` bytes are not held at the positions from first to
    last."""
    budget, change = order.counts[BUDGET], 0
    least = (budget >> 7) + 1
    part = order.memory[first : max(first, last + 1)]
    for p in range(len(part)):
        before = part[p] - budget
        after = before - size
        change += max(before, 0) - max(after, 0) + least * (before > 0) - least * (after > 0)
    return change
