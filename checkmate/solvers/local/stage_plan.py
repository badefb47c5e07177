"""A plan in stage form with exact memory, kept up to date move by move.

Stage t runs some earlier ops again, in index order, and then op t for the first time: R[t] of the
paper. Stage n, at the end, only runs ops again, so that an output may be dropped and recomputed.
**Any** choice of recomputable ops per stage is a legal plan: a value that a stage reads and does
not compute is retained from its latest evaluation. So the retained values S follow from R. A move,
"run op i again in stage t" or its reverse, changes only how long the values of op i and of its
inputs are retained. It costs microseconds where a replay of the plan costs milliseconds.

The bytes of a stage are those of the values retained across it untouched, plus the peak of the
evaluations inside it. `peak_bytes` and `cost` are what `replay(graph, stages.plan())` says; the
tests compare them.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from checkmate.core.graph import DFGraph
from checkmate.core.plan import Plan

Moves = list[tuple[int, int]]
"""Repeated evaluations: pairs (op, stage)."""


class StagePlan:
    """A plan in stage form that changes in place.

    Attributes:
      recomputed: recomputed[t], the ops that stage t runs again before op t, ascending.
      stage_bytes: (n + 1,) int64, the most bytes in use at any moment of stage t, fixed bytes
        included. Read it, do not write it.
      touched: touched[i], the stages that compute or read the value of op i, ascending. Outputs are
        read in stage n.
      computed_in: computed_in[i], the stages that compute op i; the first is i itself.
      last_stage: last_stage[i], the last stage in which op i may run; i itself where it may run
        only once.
    """

    def __init__(self, graph: DFGraph):
        n = len(graph)
        self.graph = graph
        self.recomputed: list[list[int]] = [[] for _ in range(n + 1)]
        self.computed_in = [{i} for i in range(n)]
        self.last_stage = last_stages(graph)
        self._deps = graph.deps
        self._costs: list[float] = graph.costs.tolist()
        self._sizes: list[int] = graph.output_bytes.tolist()
        self._workspaces: list[int] = graph.workspace_bytes.tolist()
        # Stage -> readers in it.
        self._reads: list[dict[int, int]] = [dict.fromkeys(users, 1) for users in graph.users]
        for i in graph.outputs:
            self._reads[i][n] = 1
        self.touched = [[i, *reads] for i, reads in enumerate(self._reads)]
        self._in_place = (*graph.in_place, ())
        # A stage that runs nothing again needs its op's inputs, value and workspace, and stage n
        # then needs nothing. Where its op may run in place, that depends on who reads the inputs
        # later: such stages are always counted anew.
        self._alone = [
            self._sizes[t] + self._workspaces[t] + sum(self._sizes[d] for d in self._deps[t])
            for t in range(n)
        ] + [0]
        self._inside = [
            self._peak_inside(t) if self._in_place[t] else alone
            for t, alone in enumerate(self._alone)
        ]
        self.stage_bytes = np.array(self._inside, dtype=np.int64) + graph.fixed_bytes
        for size, stages in zip(self._sizes, self.touched, strict=True):
            for before, after in pairwise(stages):
                self.stage_bytes[before + 1 : after] += size
        self.cost = graph.total_cost

    @property
    def peak_bytes(self) -> int:
        return int(self.stage_bytes.max())

    def overflow(self, budget_bytes: int) -> int:
        """Sum over the stages of the bytes above the budget: what a repair brings to zero."""
        above = self.stage_bytes - budget_bytes
        return int(above[above > 0].sum())

    def may_add(self, i: int, t: int) -> bool:
        """Whether stage t may run op i again and does not yet."""
        return i < t <= self.last_stage[i] and t not in self.computed_in[i]

    def add(self, moves: Sequence[tuple[int, int]]) -> None:
        """For each (i, t) runs op i again in stage t. `may_add(i, t)` must hold for each."""
        changed: set[int] = set()
        for i, t in moves:
            insort(self.recomputed[t], i)
            self.cost += self._costs[i]
            size, stages, computed_in = self._sizes[i], self.touched[i], self.computed_in[i]
            k = bisect_left(stages, t)
            before = stages[k - 1]
            if k < len(stages) and stages[k] == t:  # it was retained until here
                self.stage_bytes[before + 1 : t] -= size
            else:
                if k < len(stages) and stages[k] not in computed_in:  # it was retained across
                    self.stage_bytes[before + 1 : t + 1] -= size
                stages.insert(k, t)
            computed_in.add(t)
            for d in self._deps[i]:
                self._read(d, t, changed)
            changed.update((before, t))
        self._count_inside(changed)

    def remove(self, moves: Sequence[tuple[int, int]]) -> None:
        """Undoes `add(moves)`: the stages read values that are retained from before."""
        changed: set[int] = set()
        for i, t in reversed(moves):
            self.recomputed[t].remove(i)
            self.cost -= self._costs[i]
            size, stages, computed_in = self._sizes[i], self.touched[i], self.computed_in[i]
            k = bisect_left(stages, t)
            before = stages[k - 1]
            computed_in.remove(t)
            if t in self._reads[i]:
                self.stage_bytes[before + 1 : t] += size
            else:
                del stages[k]
                if k < len(stages) and stages[k] not in computed_in:
                    self.stage_bytes[before + 1 : t + 1] += size
            for d in self._deps[i]:
                self._unread(d, t, changed)
            changed.update((before, t))
        self._count_inside(changed)

    def move_to(self, moves: Iterable[tuple[int, int]]) -> None:
        """Makes `moves`, pairs (op, stage), the whole set of repeated evaluations."""
        wanted, present = set(moves), set(self.moves())
        self.remove(sorted(present - wanted))
        self.add(sorted(wanted - present))

    def moves(self) -> Moves:
        return [(i, t) for t, ops in enumerate(self.recomputed) for i in ops]

    def live_in(self, i: int, t: int) -> bool:
        """Whether the value of op i is in memory at some moment of stage t > i."""
        stages = self.touched[i]
        k = bisect_left(stages, t)
        return k < len(stages) and (stages[k] == t or stages[k] not in self.computed_in[i])

    def touched_before(self, i: int, t: int) -> int:
        """The last stage before t > i that touches the value of op i."""
        stages = self.touched[i]
        return stages[bisect_left(stages, t) - 1]

    def evaluations(self) -> list[int]:
        stages = enumerate(self.recomputed)
        return [i for t, ops in stages for i in (*ops, t)][:-1]

    def plan(self) -> Plan:
        return Plan.from_order(self.graph, self.evaluations())

    def _read(self, d: int, t: int, changed: set[int]) -> None:
        reads, stages = self._reads[d], self.touched[d]
        count = reads.get(t, 0)
        reads[t] = count + 1
        if count or t in self.computed_in[d]:
            return
        k = bisect_left(stages, t)
        size = self._sizes[d]
        if k < len(stages) and stages[k] not in self.computed_in[d]:
            self.stage_bytes[t] -= size  # retained across it before, counted inside it now
        elif size:
            self.stage_bytes[stages[k - 1] + 1 : t] += size
        stages.insert(k, t)
        changed.add(stages[k - 1])

    def _unread(self, d: int, t: int, changed: set[int]) -> None:
        reads, stages = self._reads[d], self.touched[d]
        if reads[t] > 1:
            reads[t] -= 1
            return
        del reads[t]
        if t in self.computed_in[d]:
            return
        k = bisect_left(stages, t)
        del stages[k]
        size = self._sizes[d]
        if k < len(stages) and stages[k] not in self.computed_in[d]:
            self.stage_bytes[t] += size
        elif size:
            self.stage_bytes[stages[k - 1] + 1 : t] -= size
        changed.add(stages[k - 1])

    def _count_inside(self, changed: Iterable[int]) -> None:
        for t in changed:
            inside = (
                self._peak_inside(t) if self.recomputed[t] or self._in_place[t] else self._alone[t]
            )
            if inside != self._inside[t]:
                self.stage_bytes[t] += inside - self._inside[t]
                self._inside[t] = inside

    def _peak_inside(self, t: int) -> int:
        deps, sizes, workspaces = self._deps, self._sizes, self._workspaces
        order = [*self.recomputed[t], t] if t < len(deps) else self.recomputed[t]
        last: dict[int, int] = {}
        for position, i in enumerate(order):
            for d in deps[i]:
                last[d] = position
            last[i] = position
        if t == len(deps):
            last.update(dict.fromkeys(self.graph.outputs, len(order)))
        ends, ending = [0] * (len(order) + 1), set[tuple[int, int]]()
        in_use = 0
        for v, position in last.items():
            size = sizes[v]
            if size:
                stages, computed_in = self.touched[v], self.computed_in[v]
                if t not in computed_in:
                    in_use += size
                after = bisect_left(stages, t) + 1
                # Nobody waits for it beyond this stage.
                if after == len(stages) or stages[after] in computed_in:
                    ends[position] += size
                    ending.add((v, position))
        peak = 0
        for position, i in enumerate(order):
            in_place = any((d, position) in ending for d in self._in_place[i])
            running = in_use + workspaces[i] + (0 if in_place else sizes[i])
            if running > peak:
                peak = running
            in_use += sizes[i] - ends[position]
        return peak


def moves_of(order: Iterable[int]) -> Moves:
    """The repeated evaluations of an order in which first ones come in the graph's order;
    each once per stage."""
    moves: dict[tuple[int, int], None] = {}
    stage = 0
    for i in order:
        if i == stage:
            stage += 1
        else:
            moves[i, stage] = None
    return list(moves)


def last_stages(graph: DFGraph) -> list[int]:
    """For each op, the last stage in which it may run: its own when it may run once, and none after
    it is overwritten. Stage len(graph) is after all first evaluations."""
    return [graph.expires[i] if op.recomputable else i for i, op in enumerate(graph.ops)]
