"""Revolve: the binomial checkpointing of Griewank and Walther, extended from chains to graphs.

Method: the forward pass is cut into steps at checkpoint places (articulation points of the forward
graph, or any op of its linear order). With s states in memory at a time, step k is reversed from
the nearest state before it, and states on the way are stored by the binomial rule, so that a chain
of l equal steps costs the fewest evaluations that s states allow. The state at a place is every
value that the forward pass reads across it: one value on a chain, several with skip connections.
Several s are tried, and the cheapest plan within the budget is the result.

Source: Griewank and Walther, "Algorithm 799: revolve" (ACM TOMS 26, 2000). The optimal splits are
computed by its recursion, not its closed form. Guarantee: the fewest step evaluations on a chain of
equal steps with s states. There is none on a graph's cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from checkmate.core.graph import DFGraph
from checkmate.core.plan import Plan
from checkmate.solvers.baselines.chen import FORMS, checkpoint_candidates, periods
from checkmate.solvers.baselines.recompute_on_demand import OnDemand, last_forward_use
from checkmate.solvers.search import Search

STATES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 48, 64)

MAX_RUNS = 12.0
"""A number of states with which forward steps run more often than this, on average, is skipped."""


@dataclass(frozen=True, slots=True)
class Revolve:
    """Offers the binomial plan for many numbers of states in memory."""

    name: str = "revolve"

    def run(self, search: Search) -> None:
        for places in {tuple(checkpoint_candidates(search.graph, form)): form for form in FORMS}:
            steps = len(places) + 1
            evaluations, split = advances(steps, max(STATES))
            for s in STATES:
                if search.out_of_time() or s > steps:
                    break
                if evaluations[steps, s] <= MAX_RUNS * steps:
                    order = revolved(search.graph, places, held_states(steps, s, split))
                    if order is not None:
                        search.offer(
                            Plan.from_order(search.graph, order), by=f"{self.name} with {s} states"
                        )


def advances(steps: int, states: int) -> tuple[np.ndarray, np.ndarray]:
    """The number of step evaluations to reverse l steps with s states, the start included,
    and the first place to store a state at: two arrays (steps + 1, states + 1), by [l, s]. The
    first pass counts too."""
    cost = np.zeros((steps + 1, states + 1))
    split = np.zeros((steps + 1, states + 1), int)
    for length in range(2, steps + 1):
        cost[length, 1] = length * (length - 1) / 2
        for s in range(2, states + 1):
            ahead = np.arange(1, length)
            totals = ahead + cost[length - ahead, s - 1] + cost[ahead, s]
            best = int(totals.argmin())
            cost[length, s], split[length, s] = totals[best], ahead[best]
    return cost, split


def held_states(steps: int, states: int, split: np.ndarray) -> list[frozenset[int]]:
    """For each step k the places whose states are in memory when it is reversed, without the start.
    Place p is before step p."""
    held: list[frozenset[int]] = [frozenset()] * steps
    stack = [(0, steps, states, frozenset[int]())]
    while stack:
        start, end, s, here = stack.pop()
        if end - start == 1:
            held[start] = here
        elif s == 1:
            held[start:end] = [here] * (end - start)
        else:
            middle = start + int(split[end - start, s])
            stack += [(middle, end, s - 1, here | {middle}), (start, middle, s, here)]
    return held


def revolved(
    graph: DFGraph, places: Sequence[int], held: Sequence[frozenset[int]]
) -> list[int] | None:
    """The order of evaluations that keeps the states `held[k]` in memory while the backward pass is
    at step k; None if an op would run again after what it reads was overwritten. Op `places[p - 1]`
    is the last before place p."""
    ops, n = graph.ops, len(graph)
    step = np.searchsorted(np.asarray(places, int), np.arange(n))
    read_until = last_forward_use(graph)
    crossing = [int(step[j]) if j >= 0 else -1 for j in read_until]
    states = [i for i in range(n) if not ops[i].is_backward and crossing[i] > step[i]]
    kept = {i for i, op in enumerate(ops) if not op.recomputable or op.is_backward}
    period = periods(graph, step, kept, steady=True)

    def belongs(i: int, k: int) -> bool:
        """Whether the value of op i is one of step k, of its start, or of the states held for
        it."""
        return i in kept or step[i] == k or any(step[i] < p <= crossing[i] for p in (k, *held[k]))

    walk = OnDemand(graph)
    for t, op in enumerate(ops):
        backward, k = period[t]
        to_hold = []
        if backward and k >= 0 and (t == 0 or period[t] != period[t - 1]):
            walk.drop(i for i in walk.available if read_until[i] < t and not belongs(i, k))
            to_hold = [
                i for i in states if i < t and any(step[i] < p <= crossing[i] for p in held[k])
            ]
        again = walk.run(t, also=to_hold)
        if backward and k >= 0:
            walk.drop(i for i in again if not belongs(i, k) and i not in op.deps)
    return None if walk.expired else walk.order
