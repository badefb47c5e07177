"""Simulated annealing over orders of evaluations, compiled by numba: exact memory, changed in microseconds.

**Any** list of ops in which every op stands after the first evaluation of what it needs is a legal plan: each evaluation reads the
latest evaluation of its inputs before it, and a value lives from its evaluation to the last one that reads it
(`Plan.from_order`). So three changes reach every plan: `insert` an evaluation, `remove` a repeated one, and `shift` a first one. Each of
them changes the lifetime of the value itself and of its inputs only. `memory[p]` is kept for every position p by adding a
value's bytes to, or taking them from, one range of positions; the overflow follows along. Changes are noted in a journal and undone from it.

A state may be over the budget. Its energy is its cost plus a price for the overflow; the price follows the search, so that it keeps crossing
the border of what fits. The proposals:

    evict    drop a value that is held across a full position, and run its op again before the next use, with those of its inputs
             that are gone by then
    release  take repeated evaluations back, and evict where that made it overflow
    slide    run a repeated evaluation before another use
    move     shift a first evaluation, away from a full position where there is one, and drag its inputs or readers along

The last one only where the order of first evaluations is free. Where it is not, the state stays in stage form: between two first
evaluations come repeated ones in index order, as in a `Timetable`.

The state is two tuples of arrays, as numba caches functions on those: `Problem` is what never changes, `Order` what does. An evaluation has a
number that it keeps while positions move; `event[e]` is its row.

This file imports numba: import it inside functions only. The first process ever to call `anneal` compiles for 10 to 20 seconds; later ones
load machine code from numba's cache. That cache sees changes of this file only, which is why all that is compiled stands in one file.

Source: simulated annealing for rematerialization with re-ordering is FastSA's idea ("A fast heuristic to optimize time-space tradeoff for large
models", NeurIPS 2023); moves, prices and the incremental memory are our own. Guarantee: none on the cost. What comes out is legal by
construction and within the budget by exact count; the judge has the last word all the same.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from checkmate.core.graph import DFGraph

DEPS, USERS, BEFORE, AFTER, OVERWRITES, OVERWRITTEN_BY = range(6)
"""Rows of `Problem.starts`: six relations between ops, each with its reverse."""

OP, POSITION, PREVIOUS, NEXT, LAST, REPEAT = range(6)
"""Columns of `Order.event`: op, position, the op's evaluations before and after it, the last evaluation that reads its value (itself when
none does, END when it is kept to the end), and its place in `Order.repeats` (-1 for the op's first evaluation)."""

LENGTH, FREE, REPEATS, OVERFLOW, BUDGET, KEPT, CHANGES, EVALUATED = range(8)
"""Entries of `Order.counts`: evaluations, unused rows, repeated evaluations, bytes above the budget summed over positions, the budget, bytes in
use after the last evaluation, entries of the journal, changes made and undone so far."""

INSERTED, REMOVED, SHIFTED = range(3)
"""Kinds of journal entries."""

TOGETHER = 64
"""Most evaluations that one eviction adds."""

DRAGGED = 16
"""Most evaluations that follow one that moves."""

MANY_CHANGES = 1024
"""A proposal with so many changes goes no further; the journal has room for more."""

END = -2
NONE = -1


class Problem(NamedTuple):
    """A graph as arrays: op i is related to `links[starts[relation, i] : starts[relation, i + 1]]`."""

    starts: np.ndarray
    links: np.ndarray
    sizes: np.ndarray
    workspaces: np.ndarray
    costs: np.ndarray
    recomputable: np.ndarray
    is_output: np.ndarray


class Order(NamedTuple):
    """The state; see the module's constants for columns and entries. `sequence` and `memory` go by position, `event` by evaluation, `ends` by op."""

    sequence: np.ndarray
    memory: np.ndarray
    event: np.ndarray
    ends: np.ndarray
    repeats: np.ndarray
    free: np.ndarray
    journal: np.ndarray
    counts: np.ndarray
    cost: np.ndarray


def make_problem(graph: DFGraph) -> Problem:
    """Returns the graph as arrays."""
    n = len(graph)
    forward = [[op.deps for op in graph.ops], [op.control_deps for op in graph.ops], [op.overwrites for op in graph.ops]]
    starts = np.zeros((6, n + 1), np.int64)
    links: list[int] = []
    for number, table in enumerate(forward):
        reverse: list[list[int]] = [[] for _ in range(n)]
        for i, others in enumerate(table):
            for d in others:
                reverse[d].append(i)
        for relation, rows in ((2 * number, table), (2 * number + 1, reverse)):
            starts[relation, 0] = len(links)
            for i, row in enumerate(rows):
                links.extend(row)
                starts[relation, i + 1] = len(links)
    is_output = np.zeros(n, np.bool_)
    is_output[list(graph.outputs)] = True
    arrays = (graph.output_bytes, graph.workspace_bytes, graph.costs, graph.recomputable)
    sizes, workspaces, costs, recomputable = (np.array(array) for array in arrays)  # the graph's own are read-only, another type to numba
    return Problem(starts, np.array(links or [0], np.int64), sizes, workspaces, costs, recomputable, is_output)


def make_order(graph: DFGraph, problem: Problem, evaluations, budget_bytes: int, room: int) -> Order:
    """Returns the state for a list of evaluations, with room for so many more."""
    n, capacity = len(graph), len(evaluations) + room
    count = np.zeros(8, np.int64)
    count[FREE], count[BUDGET], count[KEPT] = capacity, budget_bytes, graph.fixed_bytes
    order = Order(
        np.zeros(capacity, np.int64), np.zeros(capacity, np.int64), np.full((capacity, 6), NONE, np.int64), np.full((n, 2), NONE, np.int64),
        np.zeros(capacity, np.int64), np.arange(capacity)[::-1].copy(), np.zeros((4096, 3), np.int64), count, np.zeros(1),
    )  # fmt: skip
    append(problem, order, np.array(evaluations, np.int64))
    return order


inner = njit(nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)  # type: ignore[call-overload]
"""For functions that compiled ones call: without the parts that let Python call them, they compile in half the time."""


@inner
def excess(size, budget):
    """What a position counts for in the overflow: the bytes above the budget and a fixed share of it, so that a little too much is still felt."""
    return size - budget + (budget >> 7) + 1 if size > budget else 0


@inner
def hold(memory, count, first, last, size):
    """Adds `size` bytes at the positions from first to last, both included."""
    budget, change = count[BUDGET], 0
    for p in range(first, last + 1):
        before = memory[p]
        after = before + size
        memory[p] = after
        change += excess(after, budget) - excess(before, budget)
    count[OVERFLOW] += change


@inner
def end_of(order, e):
    """The last position at which the value of evaluation e is in memory; the order's length when it is kept to the end."""
    last = order.event[e, LAST]
    return order.counts[LENGTH] if last == END else order.event[last, POSITION]


@inner
def latest(order, i, position):
    """The latest evaluation of op i before a position, or NONE."""
    e = order.ends[i, 1]
    while e >= 0 and order.event[e, POSITION] >= position:
        e = order.event[e, PREVIOUS]
    return e


@inner
def last_reader(problem, order, e, skip):
    """The evaluation that reads the value of evaluation e last, `skip` not counted; e itself when none does, END when it is kept."""
    event = order.event
    i, following = event[e, OP], event[e, NEXT]
    limit = order.counts[LENGTH]
    if following >= 0:
        limit = event[following, POSITION]
    elif problem.is_output[i]:
        return END
    found = e
    for k in range(problem.starts[USERS, i], problem.starts[USERS, i + 1]):
        r = latest(order, problem.links[k], limit)
        if r == skip and r >= 0:
            r = event[r, PREVIOUS]
        if r >= 0 and event[r, POSITION] > event[found, POSITION]:
            found = r
    return found


@inner
def attach(problem, order, e):
    """Lets evaluation e read its inputs: they are held until there."""
    position = order.event[e, POSITION]
    for k in range(problem.starts[DEPS, order.event[e, OP]], problem.starts[DEPS, order.event[e, OP] + 1]):
        d = problem.links[k]
        g = latest(order, d, position)
        end = end_of(order, g)
        if end < position:
            order.event[g, LAST] = e
            hold(order.memory, order.counts, end + 1, position, problem.sizes[d])


@inner
def detach(problem, order, e):
    """Takes `attach` back."""
    position = order.event[e, POSITION]
    for k in range(problem.starts[DEPS, order.event[e, OP]], problem.starts[DEPS, order.event[e, OP] + 1]):
        d = problem.links[k]
        g = latest(order, d, position)
        if order.event[g, LAST] == e:
            order.event[g, LAST] = last_reader(problem, order, g, e)
            hold(order.memory, order.counts, end_of(order, g) + 1, position, -problem.sizes[d])


@inner
def held_across(problem, order, position):
    """Bytes of the values in memory right before a position and needed at it or later."""
    if position == order.counts[LENGTH]:
        return order.counts[KEPT]
    i = order.event[order.sequence[position], OP]
    return order.memory[position] - problem.sizes[i] - problem.workspaces[i]


@inner
def set_memory(order, position, size):
    """Sets the bytes at a position whose content counted for nothing before."""
    order.memory[position] = size
    order.counts[OVERFLOW] += excess(size, order.counts[BUDGET])


@inner
def insert(problem, order, i, position):
    """Evaluates op i at a position; what was there and later moves up by one. Returns the evaluation.

    All inputs of i must have run before. Where the op itself has not, nothing may read it yet: the order is being built.
    """
    sequence, memory, event, count = order.sequence, order.memory, order.event, order.counts
    size = problem.sizes[i]
    across = held_across(problem, order, position)
    for p in range(count[LENGTH], position, -1):
        sequence[p] = sequence[p - 1]
        memory[p] = memory[p - 1]
        event[sequence[p], POSITION] = p
    count[LENGTH] += 1
    count[FREE] -= 1
    e = order.free[count[FREE]]
    before = latest(order, i, position)
    after = order.ends[i, 0] if before < 0 else event[before, NEXT]
    sequence[position] = e
    event[e, OP], event[e, POSITION], event[e, PREVIOUS], event[e, NEXT], event[e, LAST] = i, position, before, after, e
    if after >= 0:
        event[after, PREVIOUS] = e
    else:
        order.ends[i, 1] = e
    if before < 0:
        order.ends[i, 0] = e
        event[e, REPEAT] = NONE
        if problem.is_output[i]:
            event[e, LAST] = END
            count[KEPT] += size
        set_memory(order, position, across + size + problem.workspaces[i])
    else:
        event[before, NEXT] = e
        event[e, REPEAT] = count[REPEATS]
        order.repeats[count[REPEATS]] = e
        count[REPEATS] += 1
        if end_of(order, before) > position:  # it was held until here and is held no more
            event[e, LAST] = event[before, LAST]
            event[before, LAST] = last_reader(problem, order, before, NONE)
            set_memory(order, position, across + problem.workspaces[i])
            hold(memory, count, end_of(order, before) + 1, position - 1, -size)
        else:
            set_memory(order, position, across + size + problem.workspaces[i])
    attach(problem, order, e)
    order.cost[0] += problem.costs[i]
    note(order, INSERTED, e, 0)
    return e


@inner
def remove(problem, order, e):
    """Takes away a repeated evaluation; who read its value reads the one before, which is held until there."""
    sequence, memory, event, count = order.sequence, order.memory, order.event, order.counts
    i, position = event[e, OP], event[e, POSITION]
    before, after, last, place = event[e, PREVIOUS], event[e, NEXT], event[e, LAST], event[e, REPEAT]
    detach(problem, order, e)
    event[before, NEXT] = after
    if after >= 0:
        event[after, PREVIOUS] = before
    else:
        order.ends[i, 1] = before
    if last != e:
        held_until = end_of(order, before)
        event[before, LAST] = last
        hold(memory, count, held_until + 1, position - 1, problem.sizes[i])
    count[OVERFLOW] -= excess(memory[position], count[BUDGET])
    count[LENGTH] -= 1
    for p in range(position, count[LENGTH]):
        sequence[p] = sequence[p + 1]
        memory[p] = memory[p + 1]
        event[sequence[p], POSITION] = p
    count[REPEATS] -= 1
    moved = order.repeats[count[REPEATS]]
    order.repeats[place] = moved
    event[moved, REPEAT] = place
    order.free[count[FREE]] = e
    count[FREE] += 1
    order.cost[0] -= problem.costs[i]
    note(order, REMOVED, i, position)


@inner
def shift(problem, order, e, target):
    """Moves an op's first evaluation to a position within `window`."""
    sequence, memory, event, count = order.sequence, order.memory, order.event, order.counts
    i, position = event[e, OP], event[e, POSITION]
    detach(problem, order, e)
    size = problem.sizes[i]
    longer = size if event[e, LAST] != e else 0  # a value that is read is held from the new position on
    count[OVERFLOW] -= excess(memory[position], count[BUDGET])
    if target < position:
        across = held_across(problem, order, target)
        for p in range(position, target, -1):
            sequence[p] = sequence[p - 1]
            memory[p] = memory[p - 1]
            event[sequence[p], POSITION] = p
        hold(memory, count, target + 1, position, longer)
    else:
        across = held_across(problem, order, target + 1) - longer
        for p in range(position, target):
            sequence[p] = sequence[p + 1]
            memory[p] = memory[p + 1]
            event[sequence[p], POSITION] = p
        hold(memory, count, position, target - 1, -longer)
    sequence[target] = e
    event[e, POSITION] = target
    set_memory(order, target, across + size + problem.workspaces[i])
    attach(problem, order, e)
    note(order, SHIFTED, e, position)


@inner
def window(problem, order, e):
    """The first and last position that an op's first evaluation can shift to."""
    event, ends, links, starts = order.event, order.ends, problem.links, problem.starts
    i = event[e, OP]
    low, high = 0, order.counts[LENGTH] - 1
    for relation in (DEPS, BEFORE, OVERWRITES):
        side = 1 if relation == OVERWRITES else 0
        for k in range(starts[relation, i], starts[relation, i + 1]):
            low = max(low, event[ends[links[k], side], POSITION] + 1)
    for relation in (USERS, AFTER, OVERWRITTEN_BY):
        for k in range(starts[relation, i], starts[relation, i + 1]):
            high = min(high, event[ends[links[k], 0], POSITION] - 1)
    if event[e, NEXT] >= 0:
        high = min(high, event[event[e, NEXT], POSITION] - 1)
    return low, high


@inner
def may_repeat(problem, order, i, position):
    """Whether op i may run again at a position: it is recomputable, has run, and nothing that it reads was overwritten before."""
    if not problem.recomputable[i] or order.event[order.ends[i, 0], POSITION] >= position:
        return False
    for k in range(problem.starts[OVERWRITTEN_BY, i], problem.starts[OVERWRITTEN_BY, i + 1]):
        if order.event[order.ends[problem.links[k], 0], POSITION] < position:
            return False
    return True


@inner
def note(order, kind, subject, position):
    """Writes a change to the journal."""
    row = order.journal[order.counts[CHANGES]]
    row[0], row[1], row[2] = kind, subject, position
    order.counts[CHANGES] += 1
    order.counts[EVALUATED] += 1


@inner
def undo(problem, order):
    """Takes all changes in the journal back and empties it."""
    changes = order.counts[CHANGES]
    for k in range(changes - 1, -1, -1):
        kind, subject, position = order.journal[k]
        order.counts[CHANGES] = changes  # the reverse changes are noted behind, and forgotten
        if kind == INSERTED:
            remove(problem, order, subject)
        elif kind == REMOVED:
            insert(problem, order, subject, position)
        else:
            shift(problem, order, subject, position)
    order.counts[CHANGES] = 0


@njit(cache=True, nogil=True)
def append(problem, order, evaluations):
    """Inserts a list of ops at the end, one after the other."""
    for i in evaluations:
        insert(problem, order, i, order.counts[LENGTH])
        order.counts[CHANGES] = 0


@inner
def draw(random, n):
    """A whole number from 0 to n - 1 (xorshift)."""
    x = random[0]
    x ^= x << np.uint64(13)
    x ^= x >> np.uint64(7)
    x ^= x << np.uint64(17)
    random[0] = x
    return np.int64((x >> np.uint64(11)) % np.uint64(n))


@inner
def chance(random, share):
    """True in this share of the cases."""
    return draw(random, 1 << 30) < share * (1 << 30)


@inner
def full_position(order, random):
    """A position over the budget by chance, any position when there is none."""
    length = order.counts[LENGTH]
    if order.counts[OVERFLOW] > 0:
        for _ in range(8):
            p = draw(random, length)
            if order.memory[p] > order.counts[BUDGET]:
                return p
        return np.argmax(order.memory[:length])
    return draw(random, length)


@inner
def next_use(problem, order, e, position):
    """The first position after this one at which the value of evaluation e is read, or the end of the order."""
    i = order.event[e, OP]
    found = order.counts[LENGTH]
    for k in range(problem.starts[USERS, i], problem.starts[USERS, i + 1]):
        r = order.ends[problem.links[k], 1]
        while r >= 0 and order.event[r, POSITION] > position:
            found = min(found, order.event[r, POSITION])
            r = order.event[r, PREVIOUS]
    return found


@inner
def held(problem, order, random, position, tries):
    """An evaluation whose value is held across a position and not read there, by chance: of several the one with most to gain."""
    best, best_score = NONE, -1.0
    n = len(problem.sizes)
    wanted = 1 + draw(random, 4)
    for _ in range(tries):
        i = draw(random, n)
        if problem.sizes[i] == 0:
            continue
        e = latest(order, i, position)
        if e < 0 or end_of(order, e) <= position:
            continue
        at = order.event[order.sequence[position], OP]
        read = False
        for k in range(problem.starts[DEPS, at], problem.starts[DEPS, at + 1]):
            read |= problem.links[k] == i
        if read:
            continue
        score = problem.sizes[i] / (problem.costs[i] + 1e-30) * (1 + draw(random, 100))
        if score > best_score:
            best, best_score = e, score
        wanted -= 1
        if wanted == 0:
            break
    return best


@inner
def place(order, i, position):
    """Where stage form puts a repeated evaluation of op i in the stage around a position; NONE where it runs there already."""
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
def run_again(problem, order, random, i, position, since, free_order):
    """Runs op i before a position, with those of its inputs that are gone by then and not better held; False where it may not.

    Held instead of recomputed are inputs that were in memory at position `since` or later, or are small, or by chance.
    """
    count = order.counts
    members = np.empty(TOGETHER, np.int64)
    members[0] = i
    many, looked = 1, 0
    rule, room = draw(random, 3), 1 << draw(random, 1 + draw(random, 7))
    while looked < many:
        j = members[looked]
        looked += 1
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
    if count[FREE] < many or count[CHANGES] + many > MANY_CHANGES:
        return False
    members = np.sort(members[:many])
    for j in members:
        at = position if free_order else place(order, j, position)
        if at < 0 or not may_repeat(problem, order, j, at):
            if j == i:
                return False
            continue
        insert(problem, order, j, at)
        position += 1
    return True


@inner
def release(problem, order, e):
    """Takes back a repeated evaluation, and those of its inputs that nobody reads then."""
    stack = np.empty(TOGETHER, np.int64)
    stack[0] = e
    many = 1
    while many:
        many -= 1
        e = stack[many]
        if order.event[e, REPEAT] < 0 or order.counts[CHANGES] > MANY_CHANGES:
            continue
        i, position = order.event[e, OP], order.event[e, POSITION]
        remove(problem, order, e)
        for k in range(problem.starts[DEPS, i], problem.starts[DEPS, i + 1]):
            g = latest(order, problem.links[k], position)
            if order.event[g, LAST] == g and order.event[g, REPEAT] >= 0 and many < TOGETHER:
                known = False
                for m in range(many):
                    known |= stack[m] == g
                if not known:
                    stack[many] = g
                    many += 1


@inner
def evict(problem, order, random, free_order):
    """Drops a value held across a full position until its next use."""
    position = full_position(order, random)
    e = held(problem, order, random, position, 48)
    if e < 0 or not problem.recomputable[order.event[e, OP]]:
        return
    use = next_use(problem, order, e, position)
    done = run_again(problem, order, random, order.event[e, OP], use, position, free_order)
    if done and order.event[e, LAST] == e and order.event[e, REPEAT] >= 0:
        release(problem, order, e)


@inner
def slide(problem, order, random, free_order):
    """Runs a repeated evaluation before another use of its value."""
    e = order.repeats[draw(random, order.counts[REPEATS])]
    i, before = order.event[e, OP], order.event[e, PREVIOUS]
    remove(problem, order, e)
    since = order.event[before, POSITION]
    until = min(end_of(order, before), order.counts[LENGTH])
    if until > since:
        p = since + draw(random, until - since)
        run_again(problem, order, random, i, next_use(problem, order, before, p), p, free_order)


@inner
def move(problem, order, random):
    """Shifts a first evaluation, and drags inputs behind it when it goes down, readers when it goes up."""
    event = order.event
    p = full_position(order, random)
    e, target = NONE, NONE
    way = draw(random, 4)
    if way < 2:
        g = held(problem, order, random, p, 24)
        if g >= 0 and way == 0:
            e = g  # make it after the full position
        elif g >= 0:
            e = event[g, LAST]  # read it for the last time before
    if e < 0 or event[e, REPEAT] >= 0:
        e = order.ends[draw(random, len(problem.sizes)), 0]
        way = 2
    low, high = window(problem, order, e)
    at = event[e, POSITION]
    if way == 0 and high > p:
        target = high if chance(random, 0.5) else p + 1 + draw(random, high - p)
    elif way == 1 and low <= p:
        target = low if chance(random, 0.5) else low + draw(random, p - low + 1)
    elif chance(random, 0.5):
        reach = 1 << draw(random, 9)
        target = max(low, min(high, at - reach + draw(random, 2 * reach + 1)))
    else:
        target = high if chance(random, 0.6) else low
    if target == at:
        return
    shift(problem, order, e, target)
    relation = DEPS if target > at else USERS
    stack = np.empty(TOGETHER, np.int64)
    stack[0] = e
    many = 1
    dragged = 1 + (draw(random, 2) * DRAGGED >> draw(random, 4))
    while many and order.counts[CHANGES] < dragged:
        many -= 1
        i = event[stack[many], OP]
        for k in range(problem.starts[relation, i], problem.starts[relation, i + 1]):
            if draw(random, 2):
                continue
            other = order.ends[problem.links[k], 0]
            low, high = window(problem, order, other)
            to = high if relation == DEPS else low
            if (to > event[other, POSITION]) if relation == DEPS else (to < event[other, POSITION]):
                shift(problem, order, other, to)
                if many < TOGETHER:
                    stack[many] = other
                    many += 1


@inner
def propose(problem, order, random, free_order, only_move):
    """Changes the order by one of the moves."""
    if free_order and (only_move or chance(random, 0.4)):
        move(problem, order, random)
        return
    repeats = order.counts[REPEATS]
    u = draw(random, 100)
    if repeats == 0 or u > 95 or (u < 50 and order.counts[OVERFLOW] > 0):
        evict(problem, order, random, free_order)
    elif u < 80:
        for _ in range(1 + (u % 3 == 0) * (1 + draw(random, 3))):
            if order.counts[REPEATS] > 0:
                release(problem, order, order.repeats[draw(random, order.counts[REPEATS])])
        tries = draw(random, 5)
        while order.counts[OVERFLOW] > 0 and tries > 0:
            evict(problem, order, random, free_order)
            tries -= 1
    else:
        slide(problem, order, random, free_order)


@njit(cache=True, nogil=True)
def anneal(problem, order, best, best_cost, random, price, temperature, free_order, only_move, proposals):
    """Makes so many proposals and keeps the cheapest order within the budget in `best`.

    Args:
      best: (capacity + 1,) int64: the number of evaluations, or -1, and the ops in order. Changed in place.
      best_cost: (1,) its cost. Changed in place.
      random: (1,) uint64, not zero. Changed in place.
      price: (3,) cost of one byte above the budget at one position, its least and its largest value. Changed in place.
      temperature: In the unit of costs.
      free_order: First evaluations may change their order.
      only_move: Nothing is recomputed.
    """
    count, event = order.counts, order.event
    order.cost[0] = 0.0
    for p in range(count[LENGTH]):
        order.cost[0] += problem.costs[event[order.sequence[p], OP]]
    within = 0
    for k in range(proposals):
        cost, overflow = order.cost[0], count[OVERFLOW]
        count[CHANGES] = 0
        propose(problem, order, random, free_order, only_move)
        worse = order.cost[0] - cost + price[0] * (count[OVERFLOW] - overflow)
        if worse > 0 and not chance(random, np.exp(-worse / temperature)):
            undo(problem, order)
            order.cost[0] = cost
        elif count[OVERFLOW] == 0 and order.cost[0] < best_cost[0] * (1 - 1e-12):
            best_cost[0] = order.cost[0]
            best[0] = count[LENGTH]
            for p in range(count[LENGTH]):
                best[p + 1] = event[order.sequence[p], OP]
        within += count[OVERFLOW] == 0
        if k % 128 == 127:
            if within > 38:
                price[0] = max(price[0] * 0.98, price[1])
            elif within < 13:
                price[0] = min(price[0] * 1.02, price[2])
            within = 0
