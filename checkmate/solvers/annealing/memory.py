"""The memory of an order of evaluations, kept exact for every position while the order changes.

A value is in memory from its evaluation to the last one that reads it. `Order.memory[p]` changes by
adding a value's bytes to, or taking them from, one range of positions; the overflow follows along.

This file imports numba: import it inside functions only.
"""

from __future__ import annotations

from checkmate.solvers.annealing.arrays import (
    BUDGET,
    DEPS,
    END,
    HOSTS,
    IN_PLACE,
    KEPT,
    LAST,
    LENGTH,
    NEXT,
    OP,
    OVERFLOW,
    PREVIOUS,
    USERS,
)
from checkmate.solvers.annealing.compile import inner


@inner
def excess(size, budget):
    """What a position counts for in the overflow: the bytes above the budget and a fixed share of
    it, so that a little too much is still felt."""
    return size - budget + (budget >> 7) + 1 if size > budget else 0


@inner
def hold(order, first, last, size):
    """Adds `size` bytes at the positions from first to last, both included."""
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
    """Moves what stands at the positions from first to last up by one; what is said about position
    `first` is void then."""
    sequence, memory, position = order.sequence, order.memory, order.position
    for p in range(last, first - 1, -1):
        e = sequence[p]
        sequence[p + 1] = e
        position[e] = p + 1
        memory[p + 1] = memory[p]


@inner
def move_down(order, first, last):
    """Moves what stands at the positions from first to last down by one; what is said about
    position `last` is void then."""
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
    """Lets evaluation e read its inputs: they are held until there."""
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
    """Takes `attach` back."""
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
