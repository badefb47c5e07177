"""Groups the ops of a large graph, for methods that are quadratic in the number of ops.

Method: adjacent groups in the graph's order are merged, two by two, always the pair that makes the
smallest group (its share of the cost plus its share of the bytes that leave it), until few enough
are left. So groups are intervals of the order, and first evaluations keep their order. Forward and
backward ops share a group only if nothing else is left to merge.

A group becomes in the coarse graph:
  * a *body*: the members that may run again. Its value has the bytes that leave the group, its cost
    is the sum of theirs, and its workspace is what the group's first run needs besides, replayed op
    by op;
  * before it, and read by it, a *kept* value: the members that may run only once, are outputs, or
    must not run again after an op of the same group overwrote what they read. So a body runs again
    only while they are in memory. Small ones (batch statistics) count as fixed bytes instead.
A group of kept members alone is one op that may not run again, with its outputs kept in the same
way. Rules on the order of ops are carried over. A group whose members run in place over others of
the group has less workspace. A group runs in place over another only if both are single ops.

Guarantee: every plan of the coarse graph expands to a legal plan of the fine one with no higher
peak: a member is in memory only while the value of its group is, and running a body again computes
no more than the group's first run did. Its cost is at most the coarse plan's plus that of ops whose
values count as fixed bytes, which run once.
Where the guarantee ends: the values of a group are computed and freed together, so a bound on the
coarse graph does not hold for the fine one, and a budget can be too small for the coarse graph
alone. `python -m benchmarks solvers vgg16 unet mobilenet transformer12 resnet50 --shares
0.5,0.3,0.2 --solvers auto,grouped:160,grouped:80,grouped:40` measures what grouping costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np

from checkmate.core.expansion import Expansion
from checkmate.core.graph import DFGraph
from checkmate.core.op import Op
from checkmate.core.replay import plain_peak

SMALL_SHARE = 0.01
"""Kept values count as fixed bytes, smallest first, up to this share of the plain step's peak above
its fixed bytes."""

MIXED = 10.0
"""Weight of a group with forward and backward ops; all others weigh at most 2."""


def coarsen(graph: DFGraph, *, max_ops: int) -> Expansion:
    """Groups `graph` into a coarse graph of at most `max_ops` ops (two at least). A graph that is
    small enough does not change."""
    n = len(graph)
    if n <= max_ops:
        return Expansion.one_to_one(graph, graph, range(n))
    groups, target = [range(i, i + 1) for i in range(n)], max_ops
    while True:
        groups = _merge(graph, groups, target)
        coarse = _build(graph, groups)
        excess = len(coarse.after) - max_ops  # kept values are ops too
        if excess <= 0 or target == 1:
            return coarse
        target = max(1, target - (excess + 1) // 2)


def _merge(graph: DFGraph, groups: Sequence[range], target: int) -> list[range]:
    n = len(graph)
    last_use = np.array(graph.last_use)
    size = graph.output_bytes / max(1, int(graph.output_bytes.sum()))
    cost = np.concatenate([[0.0], np.cumsum(graph.costs / (graph.total_cost or 1.0))])
    backward = np.concatenate([[0], np.cumsum([op.is_backward for op in graph.ops])])

    def weight(left: range, right: range) -> float:
        start, stop = left.start, right.stop
        leaving = size[start:stop] @ (last_use[start:stop] >= stop)
        mixed = 0 < backward[stop] - backward[start] < stop - start
        return cost[stop] - cost[start] + leaving + MIXED * mixed

    groups = list(groups)
    weights = [weight(*pair) for pair in pairwise(groups)]
    while len(groups) > min(target, n):
        k = int(np.argmin(weights))
        groups[k : k + 2] = [range(groups[k].start, groups[k + 1].stop)]
        del weights[k]
        for pair in (k - 1, k):
            if 0 <= pair < len(weights):
                weights[pair] = weight(groups[pair], groups[pair + 1])
    return groups


class _Partition:
    """A partition of a graph into intervals, and the coarse ops that it becomes.

    Attributes:
      kept: The ops that run once whatever happens to their group.
      kept_members: For each group the members outside of its body.
      small: The groups whose kept values count as fixed bytes.
      runs_in: Fine op -> the coarse op whose first evaluation runs it.
      held_by: Fine op -> the coarse op whose value contains its value; fixed bytes have none.
    """

    def __init__(self, graph: DFGraph, groups: Sequence[range]):
        self.graph, self.groups = graph, groups
        self.last_use = graph.last_use
        self.kept = _kept(graph, groups)
        self.bodies = [_body(graph, group, self.kept) for group in groups]
        pairs = zip(groups, self.bodies, strict=True)
        self.kept_members = [tuple(i for i in group if i not in body) for group, body in pairs]
        self.kept_bytes = [int(graph.output_bytes[list(each)].sum()) for each in self.kept_members]
        self.small = _small(graph, self.kept_bytes)
        self.runs_in: dict[int, int] = {}
        self.held_by: dict[int, int] = {}
        count = 0
        for g, group in enumerate(groups):
            if self.has_kept_value(g):
                self.held_by.update(dict.fromkeys(self.kept_members[g], count))
                count += 1
            self.runs_in.update(dict.fromkeys(group, count))
            self.held_by.update(dict.fromkeys(self.bodies[g], count))
            count += 1

    def has_kept_value(self, g: int) -> bool:
        return bool(self.kept_bytes[g]) and g not in self.small

    def kept_op(self, g: int) -> Op:
        return Op(
            f"kept{g}",
            cost=sum(self.graph.ops[i].cost for i in self.kept_members[g]),
            output_bytes=self.kept_bytes[g],
            is_backward=self.graph.ops[self.groups[g].stop - 1].is_backward,
            recomputable=False,
        )

    def body_op(self, g: int) -> Op:
        graph, ops, group, members = self.graph, self.graph.ops, self.groups[g], self.bodies[g]
        number = self.runs_in[group.start]
        reads = {number - 1} if self.has_kept_value(g) else set()
        after: set[int] = set()
        overwrites: set[int] = set()
        for i, op in zip(group, ops[group.start : group.stop], strict=True):
            reads.update(self.held_by[d] for d in op.deps if d in self.held_by)
            after.update(self.runs_in[d] for d in graph.predecessors[i])
            overwrites.update(self.runs_in[d] for d in op.overwrites if d not in self.kept)
        leaving = {i for i in members if self.last_use[i] >= group.stop}
        value = sum(ops[i].output_bytes for i in leaving)
        peak = _peak_within(graph, group, leaving, set(self.kept_members[g]))
        return Op(
            f"group{g}:{ops[members[0]].name}",
            tuple(sorted(reads - {number})),
            cost=sum(ops[i].cost for i in members),
            output_bytes=value,
            workspace_bytes=peak - value,
            is_backward=ops[group.stop - 1].is_backward,
            recomputable=members[0] not in self.kept,
            control_deps=tuple(sorted(after - {number})),
            overwrites=tuple(sorted(overwrites - {number})),
            in_place=tuple(sorted(self._in_place(group))),
        )

    def _in_place(self, group: range) -> list[int]:
        def alone(i: int) -> bool:
            """Whether op i is a group, so that the coarse op's value is its value."""
            return i in self._singles and self.last_use[i] > i

        start = group.start
        return [self.held_by[d] for d in self.graph.in_place[start] if alone(d) and alone(start)]

    @cached_property
    def _singles(self) -> set[int]:
        return {group.start for group in self.groups if len(group) == 1}


def _build(graph: DFGraph, groups: Sequence[range]) -> Expansion:
    parts = _Partition(graph, groups)
    coarse: list[Op] = []
    first: list[tuple[int, ...]] = []
    for g, group in enumerate(groups):
        if parts.has_kept_value(g):
            coarse.append(parts.kept_op(g))
            first.append(())
        coarse.append(parts.body_op(g))
        first.append(tuple(group))
    # An output of no bytes must not keep the rest of its group in memory to the end.
    outputs = {
        parts.held_by[i] for i in graph.outputs if i in parts.held_by and graph.ops[i].output_bytes
    }
    fixed_bytes = graph.fixed_bytes + sum(parts.kept_bytes[g] for g in parts.small)
    name = f"{graph.name} in {len(coarse)} groups"
    again = tuple(tuple(i for i in members if i not in parts.kept) for members in first)
    small = DFGraph(tuple(coarse), tuple(outputs), fixed_bytes, name)
    return Expansion(graph, small, tuple(first), again)


def _kept(graph: DFGraph, groups: Sequence[range]) -> set[int]:
    kept = {i for i, op in enumerate(graph.ops) if not op.recomputable} | set(graph.outputs)
    for group in groups:
        kept.update(d for i in group for d in graph.ops[i].overwrites if d in group)
    return kept


def _body(graph: DFGraph, group: range, kept: set[int]) -> tuple[int, ...]:
    """Those members of a group that may run again, else those that are no outputs, else all."""
    again = tuple(i for i in group if i not in kept)
    inner = tuple(i for i in group if i not in graph.outputs)
    return again or inner or tuple(group)


def _small(graph: DFGraph, kept_bytes: Sequence[int]) -> set[int]:
    left = SMALL_SHARE * (plain_peak(graph) - graph.fixed_bytes)
    small = set()
    for count, g in sorted((count, g) for g, count in enumerate(kept_bytes) if count):
        left -= count
        if left < 0:
            break
        small.add(g)
    return small


def _peak_within(graph: DFGraph, group: range, leaving: set[int], elsewhere: set[int]) -> int:
    """The peak of the group's first run: workspace and its values, without those in `elsewhere`."""
    ending: dict[int, list[int]] = {}
    for i in group:
        if i not in leaving and i not in elsewhere:
            last = max((j for j in graph.users[i] if j in group), default=i)
            ending.setdefault(last, []).append(i)
    in_use = peak = 0
    for i in group:
        size = 0 if i in elsewhere else graph.ops[i].output_bytes
        in_place = any(d in ending.get(i, ()) for d in graph.in_place[i])
        peak = max(peak, in_use + graph.ops[i].workspace_bytes + (0 if in_place else size))
        in_use += size
        in_use -= sum(graph.ops[d].output_bytes for d in ending.get(i, ()))
    return peak
