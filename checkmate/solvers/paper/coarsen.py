"""Groups the ops of a large graph, so that a method that is quadratic in the number of ops can have
it.

Method: neighbours in the graph's order are merged, two by two, always the pair that makes the
smallest group (its share of the cost plus its share of the bytes that leave it; counting what
enters as well gave dearer plans), until few enough are left. Groups are therefore intervals of the
order, hence convex, and first evaluations keep their order. Forward and backward ops share a group
only when nothing else is left to merge.

What a group is in the coarse graph:
  * a *body*: the members that may run again. Its value is what leaves the group, its cost theirs, and its workspace what the
    group's first run needs beyond that value, replayed op by op;
  * before it, and read by it, a *kept* value: the members that may run only once, are outputs, or would run again after an op of
    the same group overwrote what they read. So a body runs again only while they are in memory. Where they are small (batch
    statistics) they count as fixed bytes instead: they are not worth a stage each.
A group of kept members alone is one op that may not run again, with its outputs set aside in the
same way. What must not run before or after what is carried over. Where members run in place over
others of their group, its workspace is less. A group runs in place over another only where both are
one op alone.

Guarantee: every plan of the coarse graph expands to a legal plan of the fine one with no higher
peak: a member is in memory only while the value that stands for it is, and running a body again
computes no more than the group's first run did. Its cost is at most the coarse plan's plus
`kept_cost`, and less where not all members are wanted again. Where it ends: the values of a group
live and die together, so a bound on the coarse graph says nothing about the fine one, and a budget
can be too small for the coarse graph alone.

What grouping loses, as time beyond the plain step's, of plans proven to be within 0.7 % of the
cheapest (nearly all within 0.01 %), and of those in at most so many groups (`checkmate bench
solvers vgg16 unet mobilenet transformer12 resnet50 --shares 0.5,0.3,0.2 --solvers
auto,grouped:160,grouped:80,grouped:40 --time-limit 2`; "auto" with a minute; f as there; "-" where
no plan in groups was found):

    graph          ops   f     ops alone  160 groups   80 groups   40 groups
    vgg16           74  0.5       0.56 %                              0.56 %
                        0.3       0.85 %                              1.10 %
                        0.2       2.64 %                              2.79 %
    unet           136  0.5       1.42 %                  1.47 %      3.45 %
                        0.3       4.05 %                  4.51 %      8.67 %
                        0.2       7.13 %                  7.84 %     16.58 %
    mobilenet      180  0.5       6.70 %      6.70 %      7.99 %      9.42 %
                        0.3      12.50 %     12.58 %     13.01 %     15.97 %
                        0.2      15.40 %     15.40 %     16.15 %     21.71 %
    transformer12  294  0.5       3.10 %      4.28 %     10.41 %     13.59 %
                        0.3       9.33 %     12.31 %     22.22 %     21.59 %
                        0.2      14.55 %     17.53 %     27.78 %     51.48 %
    resnet50       354  0.5       5.52 %      6.02 %      6.66 %      8.64 %
                        0.3       9.85 %     10.93 %     13.02 %     16.02 %
                        0.2      13.56 %     17.19 %     21.43 %           -

So it is for methods that cannot do without: half the ops cost up to a few hundredths of the plain
step, a quarter up to a tenth and more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from checkmate.core.graph import DFGraph
from checkmate.core.op import Op
from checkmate.core.plan import Plan
from checkmate.core.replay import replay

SMALL_SHARE = 0.01
"""Kept values count as fixed bytes, smallest first, up to this share of what the plain step needs
beyond its fixed bytes."""
MIXED = 10.0  # weight of a group with forward and backward ops; all others weigh at most 2


@dataclass(frozen=True, slots=True)
class Coarse:
    """A graph, a smaller one made of groups of its ops, and the way back.

    Attributes:
      fine: The graph that was grouped.
      graph: The coarse graph.
      first: For each coarse op, the fine ops that its first evaluation stands for, in order.
      again: For each coarse op, the fine ops that another evaluation stands for, as far as they are
        wanted.
      kept_cost: Cost of fine ops that no coarse op accounts for; they run once in every plan.
    """

    fine: DFGraph
    graph: DFGraph
    first: tuple[tuple[int, ...], ...]
    again: tuple[tuple[int, ...], ...]
    kept_cost: float = 0.0

    def expand(self, plan: Plan) -> Plan:
        """Returns the fine plan of a coarse one. What nobody reads is not computed again, and every
        value is freed after its last use."""
        order: list[int] = []
        ran: set[int] = set()
        for k in plan.computed:
            order.extend(self.again[k] if k in ran else self.first[k])
            ran.add(k)
        return Plan.from_order(self.fine, order)


def coarsen(graph: DFGraph, *, max_ops: int) -> Coarse:
    """Groups `graph` into a coarse graph of at most `max_ops` ops (two at least). One that is small
    enough is left as it is."""
    n = len(graph)
    if n <= max_ops:
        alone = tuple((i,) for i in range(n))
        return Coarse(graph, graph, alone, alone)
    groups, target = [range(i, i + 1) for i in range(n)], max_ops
    while True:
        groups = _merge(graph, groups, target)
        coarse = _build(graph, groups)
        excess = len(coarse.graph) - max_ops  # kept values took part of the room
        if excess <= 0 or target == 1:
            return coarse
        target = max(1, target - (excess + 1) // 2)


def _merge(graph: DFGraph, groups: Sequence[range], target: int) -> list[range]:
    """Merges neighbouring intervals until `target` are left."""
    n = len(graph)
    last_use = _last_use(graph)
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


def _build(graph: DFGraph, groups: Sequence[range]) -> Coarse:
    """Makes the coarse graph of a partition into intervals."""
    ops, last_use = graph.ops, _last_use(graph)
    kept = _kept(graph, groups)
    bodies = [_body(graph, group, kept) for group in groups]
    aside = [
        tuple(i for i in group if i not in body) for group, body in zip(groups, bodies, strict=True)
    ]
    aside_bytes = [sum(ops[i].output_bytes for i in members) for members in aside]
    small = _small(graph, aside_bytes)

    runs_in: dict[int, int] = {}  # fine op -> the coarse op whose first evaluation runs it
    held_by: dict[
        int, int
    ] = {}  # fine op -> the coarse op whose value contains its value; none for what counts as fixed
    count = 0
    for g, group in enumerate(groups):
        if aside_bytes[g] and g not in small:
            held_by.update(dict.fromkeys(aside[g], count))
            count += 1
        runs_in.update(dict.fromkeys(group, count))
        held_by.update(dict.fromkeys(bodies[g], count))
        count += 1

    # The coarse op's value is theirs.
    alone = {
        group.start for group in groups if len(group) == 1 and last_use[group.start] > group.start
    }
    coarse: list[Op] = []
    first: list[tuple[int, ...]] = []
    kept_cost = 0.0
    outputs: set[int] = set()
    for g, group in enumerate(groups):
        members, body_index = bodies[g], runs_in[group.start]
        cost_aside, is_backward = (
            sum(ops[i].cost for i in aside[g]),
            ops[group.stop - 1].is_backward,
        )
        reads: set[int] = set()
        after: set[int] = set()
        overwrites: set[int] = set()
        if len(coarse) < body_index:
            coarse.append(
                Op(
                    f"kept{g}",
                    cost=cost_aside,
                    output_bytes=aside_bytes[g],
                    is_backward=is_backward,
                    recomputable=False,
                )
            )
            first.append(())
            reads.add(body_index - 1)
        else:
            kept_cost += cost_aside
        for i in group:
            reads.update(held_by[d] for d in ops[i].deps if d in held_by)
            after.update(
                runs_in[d] for d in (*ops[i].deps, *ops[i].control_deps, *ops[i].overwrites)
            )
            overwrites.update(runs_in[d] for d in ops[i].overwrites if d not in kept)
        leaving = {i for i in members if last_use[i] >= group.stop}
        value = sum(ops[i].output_bytes for i in leaving)
        coarse.append(
            Op(
                f"group{g}:{ops[members[0]].name}",
                tuple(sorted(reads - {body_index})),
                cost=sum(ops[i].cost for i in members),
                output_bytes=value,
                workspace_bytes=_peak_within(graph, group, leaving, set(aside[g])) - value,
                is_backward=is_backward,
                recomputable=members[0] not in kept,
                control_deps=tuple(sorted(after - {body_index})),
                overwrites=tuple(sorted(overwrites - {body_index})),
                in_place=tuple(
                    sorted(
                        held_by[d]
                        for d in graph.in_place[group.start]
                        if alone.issuperset((d, group.start))
                    )
                ),
            )
        )
        first.append(tuple(group))
        # An output of no bytes must not hold the rest of its group to the end.
        outputs.update(
            held_by[i] for i in graph.outputs if i in group and i in held_by and ops[i].output_bytes
        )
    fixed_bytes = graph.fixed_bytes + sum(aside_bytes[g] for g in small)
    again = tuple(tuple(i for i in members if i not in kept) for members in first)
    name = f"{graph.name} in {len(coarse)} groups"
    return Coarse(
        graph,
        DFGraph(tuple(coarse), tuple(outputs), fixed_bytes, name),
        tuple(first),
        again,
        kept_cost,
    )


def _last_use(graph: DFGraph) -> np.ndarray:
    """(n,) the last op that reads each value; itself where none does, n for outputs."""
    last_use = np.array([max(users, default=i) for i, users in enumerate(graph.users)])
    last_use[list(graph.outputs)] = len(graph)
    return last_use


def _kept(graph: DFGraph, groups: Sequence[range]) -> set[int]:
    """The ops that run once whatever happens to their group."""
    kept = {i for i, op in enumerate(graph.ops) if not op.recomputable} | set(graph.outputs)
    for group in groups:
        kept.update(d for i in group for d in graph.ops[i].overwrites if d in group)
    return kept


def _body(graph: DFGraph, group: range, kept: set[int]) -> tuple[int, ...]:
    """The members whose values make the group's own value: those that may run again, else those
    that are no outputs, else all."""
    again = tuple(i for i in group if i not in kept)
    inner = tuple(i for i in group if i not in graph.outputs)
    return again or inner or tuple(group)


def _small(graph: DFGraph, aside_bytes: Sequence[int]) -> set[int]:
    """The groups whose kept values count as fixed bytes."""
    room = SMALL_SHARE * (replay(graph, Plan.keep_all(graph)).peak_bytes - graph.fixed_bytes)
    small = set()
    for g in sorted(
        (g for g, count in enumerate(aside_bytes) if count), key=lambda g: aside_bytes[g]
    ):
        room -= aside_bytes[g]
        if room < 0:
            break
        small.add(g)
    return small


def _peak_within(graph: DFGraph, group: range, leaving: set[int], elsewhere: set[int]) -> int:
    """The most bytes that the group's first run needs for its own values and workspace; values in
    `elsewhere` are counted there."""
    ending: dict[int, list[int]] = {}
    for i in group:
        if i not in leaving and i not in elsewhere:
            ending.setdefault(max((j for j in graph.users[i] if j in group), default=i), []).append(
                i
            )
    in_use = peak = 0
    for i in group:
        size = 0 if i in elsewhere else graph.ops[i].output_bytes
        in_place = any(d in ending.get(i, ()) for d in graph.in_place[i])
        peak = max(peak, in_use + graph.ops[i].workspace_bytes + (0 if in_place else size))
        in_use += size
        in_use -= sum(graph.ops[d].output_bytes for d in ending.get(i, ()))
    return peak
