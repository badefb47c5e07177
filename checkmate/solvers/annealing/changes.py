"""Changes of an order of evaluations, made and undone in microseconds.

**Any** list of ops in which every op stands after the first evaluation of what it needs is a legal
plan: each evaluation reads the latest evaluation of its inputs before it (`Plan.from_order`). So
three changes reach every plan: `insert` an evaluation, `remove` a repeated one, and `shift` a first
one. Each of them changes the lifetime of the value itself and of its inputs only. Changes are noted
in a journal and undone from it.

This file imports numba: import it inside functions only.
"""

from __future__ import annotations

from checkmate.solvers.annealing.arrays import (
    BUDGET,
    CHANGES,
    END,
    EVALUATED,
    FREE,
    HOSTS,
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
)
from checkmate.solvers.annealing.compile import entry, inner
from checkmate.solvers.annealing.memory import (
    attach,
    detach,
    end_of,
    excess,
    held_across,
    hold,
    last_reader,
    latest,
    move_down,
    move_up,
    set_last,
    set_memory,
)


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
    """Takes away a repeated evaluation; who read its value reads the one before, which is held
    until there."""
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


@entry
def append(problem, order, evaluations):
    """Inserts a list of ops at the end, one after the other."""
    for i in evaluations:
        insert(problem, order, i, order.counts[LENGTH])
        order.counts[CHANGES] = 0
