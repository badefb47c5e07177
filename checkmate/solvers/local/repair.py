"""From a relaxed solution to a plan within the budget: lift it, repair what overflows, trim.

All three work on a `StagePlan`, where a move costs microseconds and its memory is exact. They prove
nothing and read no clock: with the same arguments they give the same plan, unless they are stopped.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import numpy as np

from checkmate.solvers.local.stage_plan import Moves, StagePlan

SLACK = 0.05
"""An eviction is taken when no other is known to be better by more than this share. Without slack
most candidates are scored twice."""


def lift(stage_plan: StagePlan, snapshots: Sequence[int], dropped: Sequence[Iterable[int]]) -> None:
    """Adds the evaluations that follow when the values `dropped[c]` are gone after `snapshots[c]`.

    Each runs again in the stage that reads it first. A value that may not run again there is
    retained instead.
    """
    graph = stage_plan.graph
    gone = [False] * len(graph)
    next_snapshot = 0
    for t in range(snapshots[0] + 1, len(graph) + 1):
        while next_snapshot < len(snapshots) and snapshots[next_snapshot] < t:
            for i in dropped[next_snapshot]:
                gone[i] = True
            next_snapshot += 1
        stack = [d for d in (graph.deps[t] if t < len(graph) else graph.outputs) if gone[d]]
        for i in stack:
            gone[i] = False
        moves = []
        while stack:
            i = stack.pop()
            if not stage_plan.may_add(i, t):
                continue
            moves.append((i, t))
            for d in graph.deps[i]:
                if gone[d]:
                    gone[d] = False
                    stack.append(d)
        stage_plan.add(moves)


class Repair:
    """Evicts values until no stage is over the budget (lazy greedy).

    An eviction drops a value that is retained across an overflowing stage, and runs its op again in
    the next stage that reads it, with those of its inputs that are gone by then. Its score is its
    exact cost per byte of overflow that it removes. Candidates wait in a heap under their last
    score. Only the best one is scored anew before it is taken, as other evictions changed it.
    """

    def __init__(self, stage_plan: StagePlan, budget_bytes: int, out_of_time: Callable[[], bool]):
        self.stage_plan = stage_plan
        self.budget = budget_bytes
        self.out_of_time = out_of_time
        graph = stage_plan.graph
        self._sizes: list[int] = graph.output_bytes.tolist()
        self._costs: list[float] = graph.costs.tolist()
        self._evictable = [
            i for i, b in enumerate(self._sizes) if b and stage_plan.last_stage[i] > i
        ]
        # A free recomputation still has a price: among free ones the larger relief wins.
        self._least = 1e-7 * graph.total_cost / max(1, len(graph)) or 1.0
        self._heap: list[tuple[float, int, int]] = []
        self._first_over = self._last_over = 0

    def run(self) -> bool:
        """True when every stage is within the budget."""
        overflow = self.stage_plan.overflow(self.budget)
        complete = False  # the heap has every candidate for the present overflow
        while overflow and not self.out_of_time():
            moves = self._take_best(overflow)
            if moves is None and complete:
                return False
            complete = moves is None
            if moves is None:
                self._collect()
                continue
            self.stage_plan.add(moves)
            overflow = self.stage_plan.overflow(self.budget)
            moved = {i for i, _ in moves}
            for i in sorted(moved.union(*(self.stage_plan.graph.deps[i] for i in moved))):
                self._push(i)
        return not overflow

    def _collect(self) -> None:
        over = np.flatnonzero(self.stage_plan.stage_bytes > self.budget)
        self._first_over, self._last_over = int(over[0]), int(over[-1])
        for i in self._evictable:
            if i < self._last_over:
                self._push(i)

    def _push(self, i: int) -> None:
        if self.stage_plan.last_stage[i] <= i or not self._sizes[i]:
            return
        for a, b in pairwise(self.stage_plan.touched[i]):
            helps = b > self._first_over and b > self._freed_from(i, a)
            if helps and self.stage_plan.may_add(i, b) and (relief := self._most_relief(i, a, b)):
                heapq.heappush(self._heap, (max(self._costs[i], self._least) / relief, i, b))
            if b > self._last_over:
                break

    def _freed_from(self, i: int, a: int) -> int:
        """The first stage that needs less when op i's value is dropped after stage a: stage a
        itself where op a then runs in place."""
        return a if i in self.stage_plan.graph.in_place[a] else a + 1

    def _most_relief(self, i: int, a: int, b: int) -> int:
        """An upper bound of the overflow removed by dropping op i's value between a and b."""
        over = self.stage_plan.stage_bytes[a + 1 : b] - self.budget
        relief = int(np.minimum(over[over > 0], self._sizes[i]).sum())
        if self._freed_from(i, a) == a:
            over_here = int(self.stage_plan.stage_bytes[a]) - self.budget
            relief += max(0, min(over_here, self._sizes[a]))
        return relief

    def _take_best(self, overflow: int) -> Moves | None:
        heap = self._heap
        while heap and not self.out_of_time():
            _, i, b = heapq.heappop(heap)
            score, moves = self._score(i, b, overflow)
            if moves is None:
                continue
            if not heap or score <= heap[0][0] * (1 + SLACK):
                return moves
            heapq.heappush(heap, (score, i, b))
        return None

    def _score(self, i: int, b: int, overflow: int) -> tuple[float, Moves | None]:
        """Tries the ways to evict op i's value until stage b. None where none of them helps.

        The ways differ in which missing inputs are retained instead of recomputed: those that are
        used after the worst stage anyway, or those that are small.
        """
        stages = self.stage_plan
        a = stages.touched_before(i, b)
        first = self._freed_from(i, a)
        if first >= b or b not in stages.touched[i] or not stages.may_add(i, b):
            return 0.0, None
        if not (most := self._most_relief(i, a, b)):
            return 0.0, None
        worst = first + int(stages.stage_bytes[first:b].argmax())
        best_score, best = float("inf"), None
        tried: list[Moves] = []
        for retained in (
            lambda d: stages.touched_before(d, b) >= worst,
            lambda d: 2 * self._sizes[d] <= self._sizes[i],
        ):
            moves = closure(stages, i, b, retained)
            price = max(sum(self._costs[j] for j, _ in moves), self._least)
            if price / most >= best_score or moves in tried:
                continue
            tried.append(moves)
            stages.add(moves)
            relief = overflow - stages.overflow(self.budget)
            stages.remove(moves)
            if relief > 0 and price / relief < best_score:
                best_score, best = price / relief, moves
        return best_score, best


def closure(stages: StagePlan, i: int, t: int, retained: Callable[[int], bool]) -> Moves:
    """The evaluations that make op i's value in stage t, with all inputs it lacks there.

    Args:
      retained: Whether an input that is gone is to be retained until stage t instead.
    """
    moves, seen, stack = [], {i}, [i]
    while stack:
        j = stack.pop()
        moves.append((j, t))
        for d in stages.graph.deps[j]:
            gone = d not in seen and not stages.live_in(d, t) and stages.may_add(d, t)
            if gone and not retained(d):
                seen.add(d)
                stack.append(d)
    return moves


def trim(
    stages: StagePlan, budget_bytes: int, *, out_of_time: Callable[[], bool] = lambda: False
) -> None:
    """Takes recomputations back, the costliest first, as long as that stays within the budget.

    Where `stages`, which is changed, is above the budget, its peak is the limit.
    """
    graph = stages.graph
    costs, sizes = graph.costs, graph.output_bytes
    limit = max(budget_bytes, stages.peak_bytes)
    for i, t in sorted(stages.moves(), key=lambda move: (-costs[move[0]], move)):
        if out_of_time():
            return
        # Retained instead, the value fills the stages since it was touched; its inputs may leave.
        since = stages.touched_before(i, t) + 1
        at_least = int(sizes[i]) - sum(int(sizes[d]) for d in graph.deps[i])
        if since < t and int(stages.stage_bytes[since:t].max()) + at_least > limit:
            continue
        stages.remove([(i, t)])
        if stages.peak_bytes > limit:
            stages.add([(i, t)])
