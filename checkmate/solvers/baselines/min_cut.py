"""The method of PyTorch's `activation_memory_budget`: a knapsack chooses the ops that may run
again, a minimum cut the values that are saved for them.

Method: for a share of the activations (the forward values that backward ops read), a knapsack
chooses the ops that do not run again: it maximizes their cost within that share of the bytes. A
minimum cut between those values and the reads of the backward pass gives the saved values with the
fewest bytes from which the others can be computed. In the backward pass each other op runs at most
once more, when it is first read, and its value stays until its last use. Shares from 0 to 1 are
tried, and the cheapest plan within the budget is the result.

Source: PyTorch's min-cut partitioner and its `activation_memory_budget` with the solver "dp"
(torch/_functorch/partitioners.py and config.py, 2.5 and later), written from its documentation.
There the user gives the share of saved activations, not a peak. Guarantee: the cut has the fewest
bytes. There is none on peak or cost, as memory during recomputation is ignored.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from checkmate.core.graph import DFGraph
from checkmate.core.plan import Plan
from checkmate.solvers.baselines.recompute_on_demand import OnDemand, last_forward_use
from checkmate.solvers.search import Search

BUCKETS = 1000
"""Knapsack weights are rounded up to 1 / `BUCKETS` of their sum."""

UNITS = 2**30
"""All forward values together are half of this many units of flow: SciPy's flows are 32-bit
integers."""


@dataclass(frozen=True, slots=True)
class MinCut:
    """Tries a number of shares of the activations, from 0 to 1."""

    shares: int = 21
    name: str = "min_cut"

    def run(self, search: Search) -> None:
        graph, tried = search.graph, set()
        for share in np.linspace(1, 0, self.shares):
            if search.out_of_time():
                return
            saved = cut(graph, never_again(graph, float(share)))
            if saved not in tried:
                tried.add(saved)
                order = recompute_once(graph, saved)
                if order is not None:
                    search.offer(Plan.from_order(graph, order), by=f"{self.name} at {share:.0%}")


def activations(graph: DFGraph) -> list[int]:
    return [
        i
        for i, op in enumerate(graph.ops)
        if not op.is_backward and any(graph.ops[j].is_backward for j in graph.users[i])
    ]


def never_again(graph: DFGraph, share: float) -> frozenset[int]:
    """The solution of the knapsack: the activations of highest cost within this share of
    their bytes, and the ops that may run only once."""
    items = activations(graph)
    once = frozenset(
        i for i, op in enumerate(graph.ops) if not op.is_backward and not op.recomputable
    )
    total = int(graph.output_bytes[items].sum())
    if not total:
        return once | frozenset(items)
    weights = np.ceil(graph.output_bytes[items] / total * BUCKETS).astype(int)
    left = int(share * BUCKETS) if share < 1 else int(weights.sum())
    best = np.zeros(left + 1)
    included = np.zeros((len(items), left + 1), bool)
    for k, (i, weight) in enumerate(zip(items, weights, strict=True)):
        with_it = np.full(left + 1, -np.inf)
        with_it[weight:] = best[: left + 1 - weight] + graph.costs[i] if weight <= left else -np.inf
        included[k] = with_it > best
        best = np.maximum(best, with_it)
    chosen = set(once)
    for k in range(len(items) - 1, -1, -1):
        if included[k, left]:
            chosen.add(items[k])
            left -= int(weights[k])
    return frozenset(chosen)


def cut(graph: DFGraph, never: Iterable[int]) -> frozenset[int]:
    """The values of fewest bytes that separate the ops that never run again from the
    backward pass. An op that reads nothing is a source only if it never runs again."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    never, n = set(never), len(graph)
    forward = [i for i, op in enumerate(graph.ops) if not op.is_backward]
    scale = UNITS / 2 / max(1, int(graph.output_bytes[forward].sum()))
    source, sink, unlimited = 2 * n, 2 * n + 1, UNITS
    capacity: dict[tuple[int, int], int] = {}
    for i in forward:  # a value is an edge from its op's entry i to its exit n + i
        capacity[i, n + i] = max(1, int(graph.output_bytes[i] * scale))
        if i in never:
            capacity[source, i] = unlimited
        for j in graph.users[i]:
            capacity[n + i, sink if graph.ops[j].is_backward else j] = unlimited
    # Ops that never run again are not recomputed for others: paths through their entries do not
    # count.
    capacity = {
        edge: units
        for edge, units in capacity.items()
        if not (edge[1] in never and edge[0] != source)
    }
    rows, columns = zip(*capacity, strict=True) if capacity else ((), ())
    network = csr_matrix(
        (np.array(list(capacity.values()), np.int32), (rows, columns)), shape=(2 * n + 2, 2 * n + 2)
    )
    residual = network - maximum_flow(network, source, sink).flow
    residual.data[residual.data < 0] = 0
    residual.eliminate_zeros()
    reached = set(breadth_first_order(residual, source, return_predecessors=False).tolist())
    return frozenset(i for i in forward if i in reached and n + i not in reached)


def recompute_once(graph: DFGraph, saved: Iterable[int]) -> list[int] | None:
    """The order that keeps `saved` until the backward pass, and recomputes other forward ops when
    it first reads them; None if an op would run again that may not, or reads overwritten values."""
    ops, saved, read_until = graph.ops, set(saved), last_forward_use(graph)
    walk, turned = OnDemand(graph), False
    for t, op in enumerate(ops):
        if op.is_backward and not turned:
            turned = True
            stays = saved | {
                i
                for i in range(t)
                if not ops[i].recomputable or ops[i].is_backward or read_until[i] >= t
            }
            walk.drop(walk.available - stays)
        walk.run(t)
    return None if walk.expired else walk.order
