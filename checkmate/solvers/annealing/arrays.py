"""An order of evaluations, and the graph, as arrays: what compiled functions work on.

Two tuples of arrays, as numba caches functions on those: `Problem` never changes, `Order` does. An
evaluation has a number that it keeps while positions move; `event[e]` is its row.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from checkmate.core.graph import DFGraph

IN_STAGES, REPEATS_ANYWHERE, IN_ANY_ORDER = range(3)
"""Placements of evaluations by the move set.

IN_STAGES: recomputations stand in stage form (see `StagePlan`), as those of the start must.
REPEATS_ANYWHERE: recomputations stand anywhere. IN_ANY_ORDER: first evaluations move, too.
"""


DEPS, USERS, BEFORE, AFTER, OVERWRITES, OVERWRITTEN_BY, IN_PLACE, REUSED_BY = range(8)
"""Rows of `Problem.starts`: eight relations between ops, each with its reverse."""

OP, PREVIOUS, NEXT, LAST, REPEAT, HOSTS = range(6)
"""Columns of `Order.event`: op, the op's evaluations before and after it, the last evaluation that
reads its value (itself when none does, END when it is kept to the end), its place in
`Order.repeats` (-1 for the op's first evaluation), and how many of its in_place deps it reads last:
where there is one, it runs in place, and its value counts for nothing at its own position."""

LENGTH, FREE, REPEATS, OVERFLOW, BUDGET, KEPT, CHANGES = range(7)
"""Entries of `Order.counts`: evaluations, unused rows, repeated evaluations, bytes above the budget
summed over positions, the budget, bytes in use after the last evaluation, and entries of the
journal."""

INSERTED, REMOVED, SHIFTED = range(3)

PRICE, LEAST, MOST, RISE, SEEN, FITTED = range(6)
"""Entries of `price`: cost of one byte above the budget at one position, its least and its largest
value, the factor by which it rises every n / 2 proposals, n ops being evictable, when less than 10
% of them left the order within the budget (and twice as fast it falls when more than 30 % did),
proposals since it was last looked at, and how many of those left the order within the budget."""

STACK_SIZE = 64
"""Largest number of evaluations that one step of a proposal adds or removes."""

END = -2
NONE = -1


class Problem(NamedTuple):
    """A graph as arrays: op i is related to `links[starts[relation, i] : starts[relation, i + 1]]`.

    `sized` are the ops whose value has bytes, `evictable` those of them that may run again.
    """

    starts: np.ndarray
    links: np.ndarray
    sizes: np.ndarray
    workspaces: np.ndarray
    costs: np.ndarray
    recomputable: np.ndarray
    sized: np.ndarray
    evictable: np.ndarray
    is_output: np.ndarray


class Order(NamedTuple):
    """The state; see the module's constants for columns and entries.

    `sequence` and `memory` are indexed by position, `position` and `event` by evaluation, `ends` by
    op; `stacks` are scratch memory.
    """

    sequence: np.ndarray
    memory: np.ndarray
    position: np.ndarray
    event: np.ndarray
    ends: np.ndarray
    repeats: np.ndarray
    free: np.ndarray
    journal: np.ndarray
    counts: np.ndarray
    cost: np.ndarray
    stacks: np.ndarray


def make_problem(graph: DFGraph) -> Problem:
    n = len(graph)
    forward = [
        graph.deps,
        [op.control_deps for op in graph.ops],
        [op.overwrites for op in graph.ops],
        graph.in_place,
    ]
    starts = np.zeros((2 * len(forward), n + 1), np.int64)
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
    # The graph's own are read-only, another type to numba.
    sizes, workspaces, costs, recomputable = (np.array(array) for array in arrays)
    sized = np.flatnonzero(sizes)
    evictable = sized[recomputable[sized]]
    return Problem(
        starts,
        np.array(links or [0], np.int64),
        sizes,
        workspaces,
        costs,
        recomputable,
        sized,
        evictable,
        is_output,
    )


def empty_order(graph: DFGraph, budget_bytes: int, capacity: int) -> Order:
    n = len(graph)
    count = np.zeros(7, np.int64)
    count[FREE], count[BUDGET] = capacity, budget_bytes - graph.fixed_bytes
    return Order(
        np.zeros(capacity, np.int64),
        np.zeros(capacity, np.int64),
        np.zeros(capacity, np.int64),
        np.full((capacity, 6), NONE, np.int64),
        np.full((n, 2), NONE, np.int64),
        np.zeros(capacity, np.int64),
        np.arange(capacity)[::-1].copy(),
        np.zeros((4096, 3), np.int64),
        count,
        np.zeros(1),
        np.zeros((2, STACK_SIZE), np.int64),
    )
