"""Checkpoint-all, checkpoint-last and the two sublinear schemes of Chen et al.

Method of the latter: some forward values (the checkpoints) are retained until their last use. The
others are freed when the forward pass leaves their segment, recomputed when the backward pass reads
them, and freed when it continues in another segment. Ops that may not run again are always
retained. Many segment lengths and thresholds are tried, and the cheapest plan within the budget is
the result.

Sources: Chen, Xu, Zhang and Guestrin, "Training Deep Nets with Sublinear Memory Cost" (2016):
section 4 for segments of equal length, algorithm 3 for the greedy ones. Checkmate (Jain et al.,
MLSys 2020, section 6.2 and appendix B) takes them from chains to graphs: checkpoints are
articulation points of the forward graph ("AP") or any op of its linear order ("linearized"), which
is the same on a chain. Its "AP sqrt(n)", "AP greedy", "linearized sqrt(n)" and "linearized greedy"
are one `form` each; the default tries both. Guarantee: the plans are legal. There is none on their
cost, and often no plan fits a tight budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal, TypeAlias

import numpy as np

from checkmate.core.graph import DFGraph
from checkmate.core.plan import Plan
from checkmate.core.schedule import complete, lower
from checkmate.solvers.baselines.recompute_on_demand import OnDemand, last_forward_use
from checkmate.solvers.search import Search

Form: TypeAlias = Literal["ap", "linearized"]
"""Candidates for checkpoints: articulation points of the forward graph, or all its ops."""

FORMS: tuple[Form, ...] = ("ap", "linearized")

MAX_EVALUATIONS = 1_000_000
"""The most evaluations of a plan of `CheckpointLast`."""


@dataclass(frozen=True, slots=True)
class CheckpointAll:
    name: str = "checkpoint_all"

    def run(self, search: Search) -> None:
        search.offer(Plan.keep_all(search.graph), by=self.name)


@dataclass(frozen=True, slots=True)
class CheckpointLast:
    """Only the latest value is retained from stage to stage; all others are recomputed. The number
    of evaluations grows with the square of the number of ops."""

    name: str = "checkpoint_last"

    def run(self, search: Search) -> None:
        n = len(search.graph)
        latest = np.eye(n, k=-1, dtype=bool)
        backward = np.array([op.is_backward for op in search.graph.ops])
        for S in (latest, latest | (np.tri(n, k=-1, dtype=bool) & backward)):
            if search.remaining_s:
                schedule = complete(search.graph, S)
                if search.remaining_s and schedule.R.sum() <= MAX_EVALUATIONS:
                    search.offer(lower(search.graph, schedule), by=self.name)


@dataclass(frozen=True, slots=True)
class ChenSqrtN:
    """Segments of equal length: every k-th candidate is a checkpoint, for several k."""

    form: Form | None = None
    name: str = "chen_sqrt_n"

    def run(self, search: Search) -> None:
        _offer_all(search, self.name, self.form, _equal_segments)


@dataclass(frozen=True, slots=True)
class ChenGreedy:
    """Segments of equal memory: a candidate becomes a checkpoint once the values since the last one
    exceed a threshold.

    Args:
      thresholds: Number of thresholds, from the largest single value to the sum of all in equal
        ratios.
    """

    form: Form | None = None
    thresholds: int = 16
    name: str = "chen_greedy"

    def run(self, search: Search) -> None:
        def segments(graph: DFGraph, candidates: Sequence[int]) -> Iterator[list[int]]:
            return _greedy_segments(graph, candidates, self.thresholds)

        _offer_all(search, self.name, self.form, segments)


Segments: TypeAlias = Callable[[DFGraph, Sequence[int]], Iterator[list[int]]]


def _offer_all(search: Search, name: str, only: Form | None, segments: Segments) -> None:
    tried = set()
    for form in (only,) if only else FORMS:
        for checkpoints in segments(search.graph, checkpoint_candidates(search.graph, form)):
            for crossing, steady in product((False, True), (True, False)):
                if search.out_of_time():
                    return
                order = checkpointed(search.graph, checkpoints, crossing=crossing, steady=steady)
                if order not in tried:
                    tried.add(order)
                    search.offer(Plan.from_order(search.graph, order), by=f"{name}:{form}")


def checkpoint_candidates(graph: DFGraph, form: Form) -> list[int]:
    """Candidates, ascending. Without articulation points the forward pass is one segment."""
    forward = [i for i, op in enumerate(graph.ops) if not op.is_backward]
    if form == "linearized":
        return forward
    import networkx as nx

    inside = set(forward)
    undirected = nx.Graph((d, i) for d, i in graph.edges if d in inside and i in inside)
    return sorted(nx.articulation_points(undirected))


def _equal_segments(graph: DFGraph, candidates: Sequence[int]) -> Iterator[list[int]]:
    n = len(candidates)
    steps = {max(1, each) for each in (math.isqrt(n), *(round(n ** (k / 16)) for k in range(17)))}
    for step in sorted(steps):
        yield list(candidates[step - 1 :: step])


def _greedy_segments(
    graph: DFGraph, candidates: Sequence[int], thresholds: int
) -> Iterator[list[int]]:
    size = graph.output_bytes
    forward = [i for i, op in enumerate(graph.ops) if not op.is_backward]
    total, largest = int(size[forward].sum()), max(1, int(size[forward].max(initial=0)))
    allowed = set(candidates)
    for threshold in np.geomspace(largest, max(total, largest), thresholds):
        checkpoints, since = [], 0
        for i in forward:
            since += int(size[i])
            if since > threshold and i in allowed:
                checkpoints.append(i)
                since = 0
        yield checkpoints


def checkpointed(
    graph: DFGraph, checkpoints: Sequence[int], *, crossing: bool, steady: bool
) -> tuple[int, ...]:
    """The order of evaluations that retains `checkpoints` and recomputes the other forward
    ops when the backward pass reads them.

    Args:
      checkpoints: Forward ops, ascending; each is the last of its segment.
      crossing: Also retain every value that is read after the end of its segment, so that a segment
        is recomputed from its own start. Otherwise a skip connection is recomputed from further
        back.
      steady: The backward pass stays in a segment until its last read of it, even if it reads an
        earlier one before.
    """
    segment = np.searchsorted(np.asarray(checkpoints, int), np.arange(len(graph)))
    forward = np.array([not op.is_backward for op in graph.ops])
    kept = set(checkpoints) | {
        i for i, op in enumerate(graph.ops) if not op.recomputable or op.is_backward
    }
    if crossing:
        kept.update(d for d, i in graph.edges if forward[i] and segment[i] > segment[d])
    while True:
        period = periods(graph, segment, kept, steady)
        order, expired = _order(graph, kept, segment, period)
        if not expired:
            return tuple(order)
        kept |= expired  # these ops cannot run again when they are read


def periods(
    graph: DFGraph, segment: np.ndarray, kept: set[int], steady: bool
) -> list[tuple[bool, int]]:
    """For each op, whether it is backward, and the segment in which the step is then."""
    reads = [
        max((int(segment[d]) for d in op.deps if d not in kept), default=-1) for op in graph.ops
    ]
    at = [reads[i] if op.is_backward else int(segment[i]) for i, op in enumerate(graph.ops)]
    backward = [i for i, op in enumerate(graph.ops) if op.is_backward]
    here = -1
    for i in reversed(backward) if steady else backward:
        here = max(here, at[i]) if steady else here if at[i] < 0 else at[i]
        at[i] = here
    return [(op.is_backward, at[i]) for i, op in enumerate(graph.ops)]


def _order(
    graph: DFGraph, kept: set[int], segment: np.ndarray, period: Sequence[tuple[bool, int]]
) -> tuple[list[int], set[int]]:
    """The order of evaluations, and the ops that run again although what they read was overwritten.

    When the step enters another segment, all values are freed but checkpoints, those that the
    forward pass still reads, and that segment's own.
    """
    read_until, walk = last_forward_use(graph), OnDemand(graph)
    for t in range(len(graph)):
        if t and period[t] != period[t - 1]:
            past = {i for i in walk.available - kept if read_until[i] < t}
            walk.drop(i for i in past if segment[i] != period[t][1])
        walk.run(t)
    return walk.order, walk.expired
