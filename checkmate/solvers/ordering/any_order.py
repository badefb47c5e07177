"""Bounds that hold in whatever order ops run: the snapshot relaxation of what must come before, and
after, a moment.

**Theorem.** Let v be an op and X the ops that v depends on, v itself, and those that depend on v,
directly or not. In every legal plan, in whatever order, the first evaluations of the ones come
before that of v and those of the others after it. So the plan, with only its evaluations of X
counted, satisfies the snapshot relaxation of the graph cut down to X, with one snapshot at v (see
`relaxation`), and pays for the other ops at least once. The optimum of that relaxation plus the
cost of the other ops is a lower bound for the cost of all plans.

*Proof.* Of the order, the proof there uses only on which side of v first evaluations lie. Leaving
out values that are in memory makes row (5) weaker, leaving out inputs outside of X drops rows (2).
All that v may overwrite is in X; where only ops outside of X read it later, the relaxation
overwrites it for nothing, which makes (5) weaker. []

In a training step nearly every forward op comes before the loss and most backward ops after it: the
bound is then close to that for the graph's own order. Where many ops could run side by side it is
weak, and often no more than the cost of running every op once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from checkmate.core.expansion import Expansion
from checkmate.core.graph import DFGraph
from checkmate.solvers.auto.bounds import solve_integer
from checkmate.solvers.auto.relaxation import Relaxation
from checkmate.solvers.search import Search

MOMENTS = 12

MAX_OPS = 3000
"""Graphs with more ops are left alone: the table of what depends on what would be too large."""

SECONDS = 1.0


def raise_any_order_bound(search: Search, *, share: float = 0.2) -> None:
    """Raises the search's bound for plans in any order, within this share of the time that is
    left."""
    graph, stop = search.graph, search.remaining_s * (1 - share)
    if len(graph) > MAX_OPS:
        return
    depends = _dependence(graph)
    for v in _telling_moments(graph, search.budget_bytes, depends):
        if search.remaining_s <= stop or search.optimal:
            return
        part, moment = comparable(graph, v, depends)
        relaxation = Relaxation(part, search.budget_bytes, [moment])
        found = solve_integer(relaxation, seconds=search.at_most(SECONDS), nodes=200)
        if np.isinf(found.bound):
            name = graph.ops[v].name
            why = (
                f"in whatever order ops run, what must be in memory when op {v} {name!r} runs does"
                " not fit."
            )
            search.prove_infeasible(why, any_order=True)
            return
        search.raise_bound(
            found.bound + graph.total_cost - part.total_cost,
            by="one moment, any order",
            any_order=True,
        )


def comparable(graph: DFGraph, v: int, depends: np.ndarray | None = None) -> tuple[DFGraph, int]:
    """The subgraph of the ops that must precede or follow op v, with v's index in it."""
    depends = _dependence(graph) if depends is None else depends
    kept = [*np.flatnonzero(depends[v]).tolist(), v, *np.flatnonzero(depends[:, v]).tolist()]
    return renumbered(graph, kept).after, kept.index(v)


def renumbered(graph: DFGraph, order: Sequence[int]) -> Expansion:
    """The graph made of these ops alone, op order[k] being op k. `GraphError` where an op precedes
    one it must follow."""
    if [*order] == [*range(len(graph))]:
        return Expansion.one_to_one(graph, graph, order)
    number = {old: new for new, old in enumerate(order)}

    def inside(ops: Sequence[int]) -> tuple[int, ...]:
        return tuple(sorted(number[d] for d in ops if d in number))

    ops = tuple(
        replace(
            op,
            deps=inside(op.deps),
            control_deps=inside(op.control_deps),
            overwrites=inside(op.overwrites),
            in_place=inside(op.in_place),
        )
        for op in (graph.ops[old] for old in order)
    )
    after = DFGraph(ops, inside(graph.outputs), graph.fixed_bytes, graph.name)
    return Expansion.one_to_one(graph, after, order)


def _dependence(graph: DFGraph) -> np.ndarray:
    """(n, n) bool: [j, i] says that op j cannot run for the first time before op i has."""
    depends = np.zeros((len(graph), len(graph)), bool)
    for j, before in enumerate(graph.predecessors):
        for i in before:
            depends[j] |= depends[i]
            depends[j, i] = True
    return depends


def _telling_moments(graph: DFGraph, budget_bytes: int, depends: np.ndarray) -> list[int]:
    """The ops at which most must be in memory or be recomputed later, some distance apart; none
    where that fits."""
    n = len(graph)
    # [v, i]: op i comes before op v, and its value is read by v or later.
    needed = np.zeros((n, n), bool)
    for i in range(n):
        for u in graph.users[i]:
            needed[:, i] |= depends[u]
            needed[u, i] = True
        if i in graph.outputs:
            needed[:, i] = True
    needed &= depends
    total = (
        needed @ graph.output_bytes.astype(float)
        + graph.output_bytes
        + graph.workspace_bytes
        + graph.fixed_bytes
    )
    moments: list[int] = []
    for v in np.argsort(-total, kind="stable").tolist():
        if total[v] <= budget_bytes or len(moments) == MOMENTS:
            break
        if all(abs(v - other) > n // 50 for other in moments):
            moments.append(v)
    return moments
