"""From a wish to a plan within the budget: lift what a relaxation dropped, evict what is too much, hold again what fits.

All of it works on a `Timetable`, where a move costs microseconds and is exact. An *eviction* picks a value that is held across an
overflowing stage and runs its op again in the stage that reads it next, together with those of its inputs that are gone by then.
It is scored by its exact extra cost per byte of overflow that it takes away.

Nothing here proves anything: bounds come from `relaxation`. Nothing here reads a clock except to stop: the same timetable and
seed give the same result as long as the deadline is not hit.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from checkmate.solvers.timetable import Timetable

SLACK = 0.02
"""An eviction is taken when none is known to be better by more than this share: it saves most of the second looks."""

Moves = list[tuple[int, int]]
"""Repeated evaluations: pairs (op, stage)."""


def lift(timetable: Timetable, snapshots: Sequence[int], dropped: Sequence[Iterable[int]]) -> None:
    """Adds the evaluations that follow when the `dropped[c]` are gone after stage `snapshots[c]`: each on its first demand.

    A value that may not run again when it is asked for was not really dropped: it is held.
    """
    graph = timetable.graph
    gone = [False] * len(graph)
    next_snapshot = 0
    for t in range(snapshots[0] + 1, len(graph)):
        while next_snapshot < len(snapshots) and snapshots[next_snapshot] < t:
            for i in dropped[next_snapshot]:
                gone[i] = True
            next_snapshot += 1
        stack = [d for d in graph.deps[t] if gone[d]]
        for i in stack:
            gone[i] = False
        moves = []
        while stack:
            i = stack.pop()
            if not timetable.may_add(i, t):
                continue
            moves.append((i, t))
            for d in graph.deps[i]:
                if gone[d]:
                    gone[d] = False
                    stack.append(d)
        timetable.add(moves)


class Repair:
    """Evicts values until no stage is over the budget.

    Candidates wait in a heap, ordered by their score when last looked at; the one on top is scored anew before it is taken, as
    other evictions have changed it meanwhile (lazy greedy). So a step scores a few candidates, not all.

    Args:
      timetable: Changed in place.
      budget_bytes: The limit, which counts the fixed bytes.
      out_of_time: Asked now and then; True stops.
    """

    def __init__(self, timetable: Timetable, budget_bytes: int, out_of_time: Callable[[], bool]):
        self.timetable = timetable
        self.budget = budget_bytes
        self.out_of_time = out_of_time
        graph = timetable.graph
        self._sizes = graph.output_bytes.tolist()
        self._costs = graph.costs.tolist()
        self._evictable = [i for i, size in enumerate(self._sizes) if size and timetable.last_stage[i] > i]
        # A free recomputation still has a price, so that among free ones the larger relief wins.
        self._least = 1e-7 * graph.total_cost / max(1, len(graph)) or 1.0
        self._heap: list[tuple[float, int, int]] = []

    def run(self) -> bool:
        """Returns whether every stage is within the budget now."""
        overflow = self.timetable.overflow(self.budget)
        while overflow:
            if not self._heap:
                self._collect()
            best = self._take_best(overflow)
            if best is None:
                return False
            self.timetable.add(best)
            after = self.timetable.overflow(self.budget)
            if after >= overflow or self.out_of_time():
                return after == 0
            overflow = after
            for i in {i for i, _ in best} | {d for i, _ in best for d in self.timetable.graph.deps[i]}:
                self._push_gaps(i)
        return True

    def _collect(self) -> None:
        for i in self._evictable:
            self._push_gaps(i)

    def _push_gaps(self, i: int) -> None:
        timetable, size = self.timetable, self._sizes[i]
        if timetable.last_stage[i] <= i or not size:
            return
        stages = timetable.touched[i]
        for a, b in zip(stages, stages[1:]):
            if b - a > 1 and timetable.may_add(i, b):
                most = self._most_relief(size, a, b)
                if most:
                    heapq.heappush(self._heap, (max(self._costs[i], self._least) / most, i, b))

    def _most_relief(self, size: int, a: int, b: int) -> int:
        """The overflow that goes away at most when `size` bytes are not held between stages a and b."""
        over = self.timetable.bytes_in[a + 1 : b] - self.budget
        return int(np.minimum(over[over > 0], size).sum())

    def _take_best(self, overflow: int) -> Moves | None:
        heap = self._heap
        while heap:
            _, i, b = heapq.heappop(heap)
            score, moves = self._score(i, b, overflow)
            if moves is None:
                continue
            if not heap or score <= heap[0][0] * (1 + SLACK):
                return moves
            heapq.heappush(heap, (score, i, b))
        return None

    def _score(self, i: int, b: int, overflow: int) -> tuple[float, Moves | None]:
        """The better of the ways to evict the value of op i until stage b, by exact trial; None when none helps."""
        timetable = self.timetable
        gap = timetable.gap(i, b - 1)
        if gap is None or gap[1] != b or not timetable.may_add(i, b):
            return 0.0, None
        a = gap[0]
        most = self._most_relief(self._sizes[i], a, b)
        if not most:
            return 0.0, None
        worst = a + 1 + int(timetable.bytes_in[a + 1 : b].argmax())
        best_score, best = float("inf"), None
        tried: list[Moves] = []
        for keep in (lambda d: timetable.touched_before(d, b) >= worst, lambda d: 2 * self._sizes[d] <= self._sizes[i]):
            moves = closure(timetable, i, b, keep)
            price = max(sum(self._costs[j] for j, _ in moves), self._least)
            if price / most >= best_score or moves in tried:
                continue
            tried.append(moves)
            timetable.add(moves)
            relief = overflow - timetable.overflow(self.budget)
            timetable.remove(moves)
            if relief > 0 and price / relief < best_score:
                best_score, best = price / relief, moves
        return best_score, best


def closure(timetable: Timetable, i: int, t: int, keep: Callable[[int], bool]) -> Moves:
    """The evaluations that give op i's value anew in stage t: its own, and those of inputs that are gone and not to be kept."""
    graph = timetable.graph
    moves, seen, stack = [], {i}, [i]
    while stack:
        j = stack.pop()
        moves.append((j, t))
        for d in graph.deps[j]:
            if d not in seen and not timetable.live_in(d, t) and timetable.may_add(d, t) and not keep(d):
                seen.add(d)
                stack.append(d)
    return moves


def trim(timetable: Timetable, budget_bytes: int) -> None:
    """Takes back evaluations, the dearest first, as long as the plan stays within the budget (or does not get worse)."""
    costs = timetable.graph.costs
    limit = max(budget_bytes, timetable.peak_bytes)
    for i, t in sorted(timetable.moves(), key=lambda move: (-costs[move[0]], move)):
        timetable.remove([(i, t)])
        if timetable.peak_bytes > limit:
            timetable.add([(i, t)])


def improve(timetable: Timetable, budget_bytes: int, *, rounds: int, seed: int, out_of_time: Callable[[], bool]) -> None:
    """Takes some evaluations back by chance, repairs what that breaks, and keeps what is cheaper (ruin and recreate)."""
    chance = random.Random(seed)
    best_cost, best = timetable.cost, timetable.moves()
    for _ in range(rounds):
        if out_of_time():
            break
        moves = timetable.moves()
        if not moves:
            break
        centre = chance.choice(moves)[1]
        nearby = sorted(moves, key=lambda move: (abs(move[1] - centre), move))[: chance.randint(1, 2 + len(moves) // 4)]
        timetable.remove(chance.sample(nearby, chance.randint(1, min(len(nearby), 12))))
        if Repair(timetable, budget_bytes, out_of_time).run():
            trim(timetable, budget_bytes)
        if timetable.peak_bytes <= budget_bytes and timetable.cost < best_cost - 1e-12 * abs(best_cost):
            best_cost, best = timetable.cost, timetable.moves()
        else:
            timetable.move_to(best)
    timetable.move_to(best)
