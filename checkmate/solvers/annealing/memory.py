"""An order of evaluations and its memory, which stays exact while the order changes.

A value is in memory from its evaluation to the last one that reads it. `Order.memory[p]` changes by
adding a value's bytes to, or subtracting them from, one range of positions; the overflow follows.

**Any** list of ops in which every op stands after the first evaluation of what it needs is a legal
plan: each evaluation reads the latest evaluation of its inputs before it (`Plan.from_order`). So
three changes reach every plan: `insert` an evaluation, `remove` a repeated one, and `shift` a first
one. Each changes the lifetime of the value itself and of its inputs only, within microseconds.
Changes are noted in a journal, from which they are undone.

This file imports numba: import it inside functions only.
"""

from __future__ import annotations

from checkmate.solvers.annealing.arrays import (
    BUDGET,
    CHANGES,
    DEPS,
    END,
    FREE,
    HOSTS,
    IN_PLACE,
    INSERTED,
    KEPT,
    LAST,
    LENGTH,
    NEXT,
    NONE,
    OP,
    OVERFLOW,
    PREVIOUS,
    REMOVED,
    REPEAT,
    REPEATS,
    SHIFTED,
    USERS,
)
from checkmate.solvers.annealing.compile import entry, inner


@inner
def excess(size, budget):
    """A position's part of the overflow: bytes above the budget, and a fixed share of it, so that a
    small excess still counts."""
    return size - budget + (budget >> 7) + 1 if size > budget else 0


@inner
def hold(order, first, last, size):
    if last < first:
        return
    budget, change = order.counts[BUDGET], 0
    least = (budget >> 7) + 1
    part = order.memory[first : last + 1]
    for p in range(len(part)):  # without branches, so that it is compiled to vector instructions
        before = part[p] - budget
        after = before + size
        part[p] += size
        change += max(after, 0) - max(before, 0) + least * (after > 0) - least * (before > 0)
    order.counts[OVERFLOW] += change


@inner
def move_up(order, first, last):
    """Shifts the positions from first to last up by one, which leaves `first` undefined."""
    sequence, memory, position = order.sequence, order.memory, order.position
    for p in range(last, first - 1, -1):
        e = sequence[p]
        sequence[p + 1] = e
        position[e] = p + 1
        memory[p + 1] = memory[p]


@inner
def move_down(order, first, last):
    """Shifts the positions from first to last down by one, which leaves `last` undefined."""
    sequence, memory, position = order.sequence, order.memory, order.position
    for p in range(first, last + 1):
        e = sequence[p]
        sequence[p - 1] = e
        position[e] = p - 1
        memory[p - 1] = memory[p]


@inner
def end_of(order, e):
    """The last position at which the value of evaluation e is in memory; the order's length when it
    is kept to the end."""
    last = order.event[e, LAST]
    return order.counts[LENGTH] if last == END else order.position[last]


@inner
def latest(order, i, position):
    """The latest evaluation of op i before a position, or NONE."""
    e = order.ends[i, 1]
    while e >= 0 and order.position[e] >= position:
        e = order.event[e, PREVIOUS]
    return e


@inner
def last_reader(problem, order, e, skip):
    """The evaluation that reads the value of evaluation e last, `skip` not counted; e itself when
    none does, END when it is kept."""
    event = order.event
    i, following = event[e, OP], event[e, NEXT]
    limit = order.counts[LENGTH]
    if following >= 0:
        limit = order.position[following]
    elif problem.is_output[i]:
        return END
    found = e
    for k in range(problem.starts[USERS, i], problem.starts[USERS, i + 1]):
        r = latest(order, problem.links[k], limit)
        if r == skip and r >= 0:
            r = event[r, PREVIOUS]
        if r >= 0 and order.position[r] > order.position[found]:
            found = r
    return found


@inner
def set_last(problem, order, e, last):
    """Makes an evaluation the last that reads the value of evaluation e: where that ends or begins
    its running in place, its memory follows."""
    event = order.event
    i = event[e, OP]
    for reader, more in ((event[e, LAST], -1), (last, 1)):
        if reader == e or reader < 0:
            continue
        j = event[reader, OP]
        for k in range(problem.starts[IN_PLACE, j], problem.starts[IN_PLACE, j + 1]):
            if problem.links[k] == i:
                event[reader, HOSTS] += more
                if event[reader, HOSTS] == max(more, 0):
                    hold(
                        order,
                        order.position[reader],
                        order.position[reader],
                        -more * problem.sizes[j],
                    )
    event[e, LAST] = last


@inner
def attach(problem, order, e):
    """Evaluation e reads its inputs, whose values are held until there."""
    position = order.position[e]
    for k in range(
        problem.starts[DEPS, order.event[e, OP]], problem.starts[DEPS, order.event[e, OP] + 1]
    ):
        d = problem.links[k]
        g = latest(order, d, position)
        end = end_of(order, g)
        if end < position:
            set_last(problem, order, g, e)
            hold(order, end + 1, position, problem.sizes[d])


@inner
def detach(problem, order, e):
    position = order.position[e]
    for k in range(
        problem.starts[DEPS, order.event[e, OP]], problem.starts[DEPS, order.event[e, OP] + 1]
    ):
        d = problem.links[k]
        g = latest(order, d, position)
        if order.event[g, LAST] == e:
            set_last(problem, order, g, last_reader(problem, order, g, e))
            hold(order, end_of(order, g) + 1, position, -problem.sizes[d])


@inner
def held_across(problem, order, position):
    """Bytes of the values in memory right before a position and needed at it or later."""
    if position == order.counts[LENGTH]:
        return order.counts[KEPT]
    e = order.sequence[position]
    i = order.event[e, OP]
    size = 0 if order.event[e, HOSTS] > 0 else problem.sizes[i]
    return order.memory[position] - size - problem.workspaces[i]


@inner
def set_memory(order, position, size):
    """Sets the bytes at a position whose content counted for nothing before."""
    order.memory[position] = size
    order.counts[OVERFLOW] += excess(size, order.counts[BUDGET])


@inner
def insert(problem, order, i, position):
    """Evaluates op i at a position; what was there and later moves up by one. Returns the
    evaluation.

    All inputs of i must have run before. Where the op itself has not, nothing may read it yet: the
    order is being built.
    """
    event, count = order.event, order.counts
    size = problem.sizes[i]
    across = held_across(problem, order, position)
    move_up(order, position, count[LENGTH] - 1)
    count[LENGTH] += 1
    count[FREE] -= 1
    e = order.free[count[FREE]]
    before = latest(order, i, position)
    after = order.ends[i, 0] if before < 0 else event[before, NEXT]
    order.sequence[position], order.position[e] = e, position
    event[e, OP], event[e, PREVIOUS], event[e, NEXT] = i, before, after
    event[e, LAST], event[e, HOSTS] = e, 0
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
            event[e, LAST] = event[before, LAST]  # that reads a value of op i last, as before
            event[before, LAST] = before
            set_last(problem, order, before, last_reader(problem, order, before, NONE))
            set_memory(order, position, across + problem.workspaces[i])
            hold(order, end_of(order, before) + 1, position - 1, -size)
        else:
            set_memory(order, position, across + size + problem.workspaces[i])
    attach(problem, order, e)
    order.cost[0] += problem.costs[i]
    note(order, INSERTED, e, 0)
    return e


@inner
def remove(problem, order, e):
    """Removes a repeated evaluation; its readers read the one before, which is held until there."""
    event, count = order.event, order.counts
    i, position = event[e, OP], order.position[e]
    before, after = event[e, PREVIOUS], event[e, NEXT]
    last, place = event[e, LAST], event[e, REPEAT]
    detach(problem, order, e)
    event[before, NEXT] = after
    if after >= 0:
        event[after, PREVIOUS] = before
    else:
        order.ends[i, 1] = before
    if last != e:
        held_until = end_of(order, before)
        set_last(problem, order, before, before)
        event[before, LAST] = last  # that reads a value of op i last, as before
        hold(order, held_until + 1, position - 1, problem.sizes[i])
    count[OVERFLOW] -= excess(order.memory[position], count[BUDGET])
    move_down(order, position + 1, count[LENGTH] - 1)
    count[LENGTH] -= 1
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
    event, count = order.event, order.counts
    i, position = event[e, OP], order.position[e]
    detach(problem, order, e)
    size = problem.sizes[i]
    # A value that is read is held from the new position on.
    longer = size if event[e, LAST] != e else 0
    count[OVERFLOW] -= excess(order.memory[position], count[BUDGET])
    if target < position:
        across = held_across(problem, order, target)
        move_up(order, target, position - 1)
        hold(order, target + 1, position, longer)
    else:
        across = held_across(problem, order, target + 1) - longer
        move_down(order, position + 1, target)
        hold(order, position, target - 1, -longer)
    order.sequence[target], order.position[e] = e, target
    set_memory(order, target, across + size + problem.workspaces[i])
    attach(problem, order, e)
    note(order, SHIFTED, e, position)


@inner
def note(order, kind, subject, position):
    row = order.journal[order.counts[CHANGES]]
    row[0], row[1], row[2] = kind, subject, position
    order.counts[CHANGES] += 1


@inner
def undo(problem, order):
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


@entry
def append(problem, order, evaluations):
    for i in evaluations:
        insert(problem, order, i, order.counts[LENGTH])
        order.counts[CHANGES] = 0
