"""From a wish to a plan within the budget: lift what a relaxation dropped, evict what is too much,
hold again what fits.

All of it works on a `Timetable`, where a move costs microseconds and is exact. An *eviction* picks
a value that is held across an overflowing stage and runs its op again in the stage that reads it
next, together with those of its inputs that are gone by then. It is scored by its exact extra cost
per byte of overflow that it takes away. From there on simulated annealing goes where greed does not
(`annealer`); `improve` is the slower way, for when its machine code is not there yet.

Nothing here proves anything: bounds come from `relaxation`. Nothing here reads a clock except to
stop: the same timetable and seed give the same result as long as the deadline is not hit.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from checkmate.core.plan import Plan
from checkmate.solvers.annealing.annealer import HOT, WARM, Annealer, Loading
from checkmate.solvers.local.stage_plan import Moves, Timetable
from checkmate.solvers.search import Search

SLACK = 0.05
"""An eviction is taken when none is known to be better by more than this share: it saves most of
the second looks."""

LOAD_SHARE = 0.7
"""Share of the time to wait for the annealer; ruin and recreate has the rest where it does not
come."""

RUIN = 40
"""At most so many neighbouring evaluations are taken back at once."""

MISPRICING = (1.0, 1.0, 0.5, 2.0)
"""Factors on the costs, drawn per op and round."""


@dataclass(frozen=True, slots=True)
class LocalSearch:
    """Finds plans by greedy repair and simulated annealing, in the graph's order of first
    evaluations. It proves nothing.

    Args:
      proposals: Proposals per op in the first round. Each further round has twice as many.
      rounds: Rounds at most; it ends before when two in a row found nothing better.
      seed: Of the chances taken.
    """

    proposals: int = 400
    rounds: int = 8
    seed: int = 0

    name = "local_search"

    def run(self, search: Search) -> None:
        """Offers plans until the rounds or the time are over."""
        timetable = Timetable(search.graph)
        Repair(timetable, search.budget_bytes, lambda: search.remaining_s <= 0).run()
        trim(timetable, search.budget_bytes, out_of_time=lambda: search.remaining_s <= 0)
        search.offer(timetable.plan(), by="greedy")
        loading = Loading(
            search.graph, search.budget_bytes, timetable.evaluations(), seed=self.seed
        )
        annealer = loading.annealer(search.at_most(LOAD_SHARE * search.remaining_s))
        if annealer is None:
            if search.timeline is not None:
                work = self.proposals * len(search.graph)
                improve(
                    timetable,
                    search.budget_bytes,
                    work=work,
                    seed=self.seed,
                    out_of_time=lambda: search.remaining_s <= 0,
                )
                search.offer(timetable.plan(), by="ruin and recreate")
            return
        anneal_in_rounds(annealer, search, self.proposals * len(search.graph), self.rounds)


def anneal_in_rounds(
    annealer: Annealer, search: Search, proposals: int, rounds: int, patience: int = 2
) -> None:
    """Runs rounds, each twice as long as the one before and from the best order, and offers what
    they find.

    Ends after so many rounds, when `patience` of them in a row found nothing cheaper, or with the
    time.
    """
    waiting, best, best_cost = patience, None, float("inf")
    for number in range(rounds):
        annealer.run(
            proposals << number, hot=WARM if number else HOT, remaining_s=lambda: search.remaining_s
        )
        if annealer.best is not None and annealer.best_cost < best_cost:
            best, best_cost = annealer.best, annealer.best_cost
            search.offer(Plan.from_order(search.graph, best), by="annealing")
            waiting = patience + 1
        waiting -= 1
        if search.optimal or search.remaining_s <= 0 or not waiting:
            return
        if best is not None:
            annealer.restart(best)


def lift(timetable: Timetable, snapshots: Sequence[int], dropped: Sequence[Iterable[int]]) -> None:
    """Adds the evaluations that follow when the `dropped[c]` are gone after stage `snapshots[c]`:
    each on its first demand.

    A value that may not run again when it is asked for was not really dropped: it is held.
    """
    graph = timetable.graph
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

    Candidates wait in a heap, ordered by their score when last looked at; the one on top is scored
    anew before it is taken, as other evictions have changed it meanwhile (lazy greedy). So a step
    scores a few candidates, not all.

    Args:
      timetable: Changed in place.
      budget_bytes: The limit, which counts the fixed bytes.
      out_of_time: Asked now and then; True stops.
    """

    def __init__(
        self,
        timetable: Timetable,
        budget_bytes: int,
        out_of_time: Callable[[], bool],
        prices: Sequence[float] | None = None,
    ):
        self.timetable = timetable
        self.budget = budget_bytes
        self.out_of_time = out_of_time
        graph = timetable.graph
        self._sizes = graph.output_bytes.tolist()
        self._in_place = graph.in_place
        self._costs = graph.costs.tolist() if prices is None else prices
        self._evictable = [
            i for i, size in enumerate(self._sizes) if size and timetable.last_stage[i] > i
        ]
        # A free recomputation still has a price, so that among free ones the larger relief wins.
        self._least = 1e-7 * graph.total_cost / max(1, len(graph)) or 1.0
        self._heap: list[tuple[float, int, int]] = []
        self._first_over = self._last_over = 0

    def run(self) -> bool:
        """Returns whether every stage is within the budget now."""
        timetable = self.timetable
        overflow = timetable.overflow(self.budget)
        fresh = False  # whether the heap holds every gap that crosses an overflow now
        while overflow and not self.out_of_time():
            best = self._take_best(overflow)
            if best is None:
                if fresh:
                    return False
                self._collect()
                fresh = True
                continue
            fresh = False
            timetable.add(best)
            overflow = timetable.overflow(self.budget)
            moved = {i for i, _ in best}
            for i in sorted(moved.union(*(timetable.graph.deps[i] for i in moved))):
                self._push_gaps(i)
        return not overflow

    def _collect(self) -> None:
        over = np.flatnonzero(self.timetable.bytes_in > self.budget)
        self._first_over, self._last_over = int(over[0]), int(over[-1])
        for i in self._evictable:
            if i < self._last_over:
                self._push_gaps(i)

    def _push_gaps(self, i: int) -> None:
        timetable, size = self.timetable, self._sizes[i]
        if timetable.last_stage[i] <= i or not size:
            return
        a = i
        for b in timetable.touched[i][1:]:
            if b > self._first_over and b - self._since(i, a) > 0 and timetable.may_add(i, b):
                most = self._most_relief(i, a, b)
                if most:
                    heapq.heappush(self._heap, (max(self._costs[i], self._least) / most, i, b))
            if b > self._last_over:
                break
            a = b

    def _since(self, i: int, a: int) -> int:
        """The first stage that needs less when the value of op i is not held from stage a on: a
        itself where op a runs in place then."""
        return a if i in self._in_place[a] else a + 1

    def _most_relief(self, i: int, a: int, b: int) -> int:
        """The overflow that goes away at most when the value of op i is not held between stages a
        and b."""
        over = self.timetable.bytes_in[a + 1 : b] - self.budget
        relief = int(np.minimum(over[over > 0], self._sizes[i]).sum())
        if self._since(i, a) == a:
            relief += max(0, min(int(self.timetable.bytes_in[a]) - self.budget, self._sizes[a]))
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
        """The better of the ways to evict the value of op i until stage b, by exact trial; None
        when none helps."""
        timetable = self.timetable
        a = timetable.touched_before(i, b)
        since = self._since(i, a)
        if since >= b or b not in timetable.touched[i] or not timetable.may_add(i, b):
            return 0.0, None
        most = self._most_relief(i, a, b)
        if not most:
            return 0.0, None
        worst = since + int(timetable.bytes_in[since:b].argmax())
        best_score, best = float("inf"), None
        tried: list[Moves] = []
        for keep in (
            lambda d: timetable.touched_before(d, b) >= worst,
            lambda d: 2 * self._sizes[d] <= self._sizes[i],
        ):
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
    """The evaluations that give op i's value anew in stage t: its own, and those of inputs that are
    gone and not to be kept."""
    graph = timetable.graph
    moves, seen, stack = [], {i}, [i]
    while stack:
        j = stack.pop()
        moves.append((j, t))
        for d in graph.deps[j]:
            if (
                d not in seen
                and not timetable.live_in(d, t)
                and timetable.may_add(d, t)
                and not keep(d)
            ):
                seen.add(d)
                stack.append(d)
    return moves


def trim(
    timetable: Timetable,
    budget_bytes: int,
    moves: Moves | None = None,
    *,
    out_of_time: Callable[[], bool] = lambda: False,
) -> None:
    """Takes back evaluations, the dearest first, as long as the plan stays within the budget (or
    does not get worse).

    Args:
      timetable: Changed in place.
      budget_bytes: The limit, which counts the fixed bytes.
      moves: What to try; all repeated evaluations when left out.
      out_of_time: Asked now and then; True stops.
    """
    graph = timetable.graph
    costs, sizes = graph.costs, graph.output_bytes
    limit = max(budget_bytes, timetable.peak_bytes)
    for i, t in sorted(
        timetable.moves() if moves is None else moves, key=lambda move: (-costs[move[0]], move)
    ):
        if out_of_time():
            return
        # Held instead, the value fills the stages since it was touched; its inputs may be free
        # there in return.
        since = timetable.touched_before(i, t) + 1
        surely = int(sizes[i]) - sum(int(sizes[d]) for d in graph.deps[i])
        if since < t and int(timetable.bytes_in[since:t].max()) + surely > limit:
            continue
        timetable.remove([(i, t)])
        if timetable.peak_bytes > limit:
            timetable.add([(i, t)])


def improve(
    timetable: Timetable,
    budget_bytes: int,
    *,
    work: int,
    seed: int,
    out_of_time: Callable[[], bool],
) -> None:
    """Takes some evaluations back by chance, repairs what that breaks, and keeps what is cheaper
    (ruin and recreate).

    Args:
      timetable: Changed in place; within the budget before and after.
      budget_bytes: The limit, which counts the fixed bytes.
      work: Stops after so much work of the timetable.
      seed: Of the chances taken.
      out_of_time: Asked now and then; True stops.
    """
    chance = random.Random(seed)
    costs = timetable.graph.costs.tolist()
    best_cost, best = timetable.cost, timetable.moves()
    work += timetable.work
    while best and timetable.work < work and not out_of_time():
        centre = chance.choice(best)[1]
        nearby = sorted(best, key=lambda move: (abs(move[1] - centre), move))[
            : chance.randint(1, min(len(best), RUIN))
        ]
        bytes_before = timetable.bytes_in.copy()
        timetable.remove(chance.sample(nearby, chance.randint(1, len(nearby))))
        # Every other time the prices are wrong, or the repair would put back what was just taken
        # away.
        wrong = chance.random() < 0.5
        prices = (
            [
                cost * factor
                for cost, factor in zip(
                    costs, chance.choices(MISPRICING, k=len(costs)), strict=True
                )
            ]
            if wrong
            else costs
        )
        hopeless = best_cost + 0.2 * (best_cost - timetable.cost)
        if Repair(
            timetable,
            budget_bytes,
            lambda: out_of_time() or timetable.cost > hopeless,  # noqa: B023
            prices,
        ).run():
            # Only what is held across a stage that became emptier can fit now where it did not
            # before.
            emptier = np.concatenate(([0], np.cumsum(timetable.bytes_in < bytes_before)))
            again = [
                (i, t)
                for i, t in timetable.moves()
                if emptier[t + 1] > emptier[timetable.touched_before(i, t)]
            ]
            trim(timetable, budget_bytes, again, out_of_time=out_of_time)
            if timetable.cost < best_cost * (1 - 1e-12):
                best_cost, best = timetable.cost, timetable.moves()
                continue
        timetable.work += 1  # so that a round without moves counts too
        timetable.move_to(best)
