"""The cheapest plan as a shortest path: exact where ops are few, and a bound where they are not.

A state is what has run, and which values are in memory. An edge runs one op: the next one for the
first time, or an earlier one again, after dropping values until it fits. So a plan is a path from
nothing to a state in which all has run and the outputs are there, and A* finds the cheapest. Unlike
integer programs it misses no plan: ops run again in any order, and as often as need be.

What keeps the states few:

    estimate   values that are gone, and that ops which have not run yet will read, have to be made
               again, with those of their inputs that are gone, and so on. That costs at least the
               sum over all these ops, and the estimate never falls by more than an edge costs
    dropping   only what is dropped is needed to make room: leaving out any of it would not do.
               Keeping more is never worse. But an op runs in place where one of its in_place deps
               is dropped right after it: where it does not fit, each is tried, too
    dominance  a state is left alone when one with the same ops done, at least its values, and no
               larger cost was looked at before
    useless    a value that no later run can need is not part of the state

In the graph's order the next op is the one after those that have run; in any order it is each whose
predecessors have. The number of states can be exponential in the number of ops (as it has to be:
the problem is NP-hard); 20 ops of a chain take some thousand at most.

Source: A* is Hart, Nilsson and Raphael, 1968; the states are those of the pebble game behind
rematerialization. Guarantee: the answer is a cheapest plan, or that there is none, when the search
comes to its end; until then the least estimate that is left bounds every plan.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from checkmate.core.graph import DFGraph
from checkmate.core.plan import Plan
from checkmate.solvers.search import Search

ROUNDING = 1e-12
"""Share by which sums of costs can be wrong."""

STEP, LOOK = 100, 1000
"""States, or edges, between two looks at the clock; states between two looks at how the least
estimate grows."""

EDGES = 100
"""Edges per state that may be looked at, in the mean: half of forty values are dropped in 10^11
ways."""

Drop = int
State = tuple[int, int]
"""The ops that have run, and the values in memory, each as the bits of a number."""


@dataclass(frozen=True, slots=True)
class StateSpace:
    """Finds the cheapest plan by A* over states.

    Args:
      states: It gives up after so many.
    """

    states: int = 100_000

    name = "state_space"

    def run(self, search: Search) -> None:
        """Offers the cheapest plan, or tells that there is none; a bound where states or time are
        used up before."""
        Paths(search).advance(self.states)


class Paths:
    """A* that can be continued.

    Args:
      search: The question; in any order where it says so.
    """

    def __init__(self, search: Search):
        self.search = search
        self.ended = False
        self._rules = _Rules(
            search.graph, search.budget_bytes - search.graph.fixed_bytes, any_order=search.reorder
        )
        self._cost: dict[State, float] = {(0, 0): 0.0}
        self._from: dict[State, tuple[State, int]] = {}
        self._queue: list[tuple[float, int, State]] = [(0.0, 0, (0, 0))]
        self._seen: dict[int, list[tuple[int, float]]] = {}
        self._furthest = 0
        self._edges = 0

    def advance(
        self, states: int, out_of_time: Callable[[], bool] | None = None, *, hopeful: bool = True
    ) -> None:
        """Looks at so many states more, and at `EDGES` times as many edges at most, and tells the
        search what came of it.

        Unless `hopeful`, it gives up once the least estimate is below the best bound, and would not
        be enough if it went on growing as it did last; it grows ever more slowly.
        """
        out_of_time = out_of_time or (lambda: self.search.remaining_s <= 0)
        before, edges = 0.0, self._edges + EDGES * states

        def enough() -> bool:
            return self._edges >= edges or out_of_time()

        for number in range(states):
            if self.ended or (number % STEP == 0 and enough()):
                break
            if number % LOOK == 0 and self._queue:
                before, grown = self._queue[0][0], self._queue[0][0] - before
                if number and not hopeful and self._is_hopeless(grown / LOOK * (states - number)):
                    break
            if not self._step(enough):
                break
        if not self.ended and self._queue:
            self._tell(self._queue[0][0])

    def _step(self, enough: Callable[[], bool]) -> bool:
        """Looks at the most promising state. Returns False where it was enough before all that can
        follow was seen: the state waits on then."""
        while self._queue:
            entry = estimate, _, state = heapq.heappop(self._queue)
            if estimate >= self._affordable():
                break
            cost = self._cost[state]
            if self._dominated(state, cost):
                continue
            if self._rules.is_end(state):
                self._tell(estimate)
                self.search.offer(
                    Plan.from_order(self.search.graph, self._path_to(state)), by="state space"
                )
                self.ended = True
                return True
            if not self._expand(state, cost, enough):
                self._seen[state[0]].pop()
                heapq.heappush(self._queue, entry)
                return False
            return True
        self.ended = True
        if self.search.timeline is None:
            self.search.prove_infeasible(self._why_none(), any_order=self.search.reorder)
        else:
            self._tell(self._affordable())
        return True

    def _expand(self, state: State, cost: float, enough: Callable[[], bool]) -> bool:
        affordable = self._affordable()
        for op, price, after in self._rules.following(state):
            self._edges += 1
            if self._edges % STEP == 0 and enough():
                return False
            total = cost + price
            if total >= self._cost.get(after, affordable):
                continue
            estimate = total + self._rules.remaining(after)
            if estimate < affordable:
                self._cost[after], self._from[after] = total, (state, op)
                heapq.heappush(self._queue, (estimate, -after[0].bit_count(), after))
        return True

    def _dominated(self, state: State, cost: float) -> bool:
        """Whether nothing new can come of a state; notes it otherwise."""
        done, live = state
        seen = self._seen.setdefault(done, [])
        self._furthest = max(self._furthest, done.bit_count())
        if any(not live & ~more and cheaper <= cost for more, cheaper in seen):
            return True
        seen.append((live, cost))
        return False

    def _affordable(self) -> float:
        """What running ops again may cost to be cheaper than the best plan."""
        timeline = self.search.timeline
        return float("inf") if timeline is None else timeline.cost - self.search.graph.total_cost

    def _is_hopeless(self, growth: float) -> bool:
        """Whether the least estimate tells nothing new, and would not prove anything either when it
        has grown by so much."""
        estimate, known = self._queue[0][0], self.search.bound - self.search.graph.total_cost
        goal = self._affordable() if self.search.timeline else known
        return estimate < known and estimate + growth < goal

    def _tell(self, again: float) -> None:
        bound = (self.search.graph.total_cost + again) * (1 - ROUNDING)
        self.search.raise_bound(bound, by="state space", any_order=self.search.reorder)

    def _why_none(self) -> str:
        graph, k = self.search.graph, self._furthest
        if self.search.reorder or k == len(graph):
            return "all ways to keep, to drop and to make values again were looked at."
        return (
            f"whatever is kept, dropped and made again, op {k} {graph.ops[k].name!r} and all before"
            " it can never have run with what the ops after it need."
        )

    def _path_to(self, state: State) -> list[int]:
        order = []
        while state in self._from:
            state, op = self._from[state]
            order.append(op)
        return order[::-1]


class _Rules:
    """What may follow a state, and what it takes at least from there to the end."""

    def __init__(self, graph: DFGraph, room: int, *, any_order: bool):
        self._room, self._any_order = room, any_order
        self._all = (1 << len(graph)) - 1
        self._outputs = _set_of(graph.outputs)
        self._deps = [_set_of(op.deps) for op in graph.ops]
        self._before = [_set_of((*op.deps, *op.control_deps, *op.overwrites)) for op in graph.ops]
        self._expires = [
            _set_of(k for k, op in enumerate(graph.ops) if i in op.overwrites)
            for i in range(len(graph))
        ]
        self._once = _set_of(i for i, op in enumerate(graph.ops) if not op.recomputable)
        self._in_place = graph.in_place
        self._sizes: list[int] = graph.output_bytes.tolist()
        self._workspaces: list[int] = graph.workspace_bytes.tolist()
        self._costs: list[float] = graph.costs.tolist()
        self._known: dict[int, tuple[int, int, int]] = {}

    def is_end(self, state: State) -> bool:
        """All has run, and the outputs are in memory."""
        done, live = state
        return done == self._all and not self._outputs & ~live

    def following(self, state: State) -> Iterator[tuple[int, float, State]]:
        """Yields the ops that can run now with what that costs more than the plain step, and the
        state after it."""
        done, live = state
        _, useful, again = self._facts(done)
        held = sum(self._sizes[i] for i in _members(live))
        for op in (*self._first(done), *_members(useful & again & ~live)):
            deps = self._deps[op]
            if deps & ~live:
                continue
            known = done >> op & 1
            after = done | 1 << op
            kept = self._facts(after)[1]
            excess = held + self._sizes[op] + self._workspaces[op] - self._room
            for host in self._hosts(op, kept, excess):
                for dropped in self._ways_to_drop(
                    live & ~deps, excess - self._sizes[op] if host else excess
                ):
                    yield (
                        op,
                        self._costs[op] if known else 0.0,
                        (after, (live & ~(dropped | host) | 1 << op) & kept),
                    )

    def _hosts(self, op: int, kept: int, excess: int) -> list[Drop]:
        """The ways to run an op: in place of an input that is dropped right after it, which the set
        tells, or not in place (no input)."""
        hosts = [1 << d for d in self._in_place[op]]
        unneeded = [host for host in hosts if not host & kept]
        return unneeded[:1] or ([0, *hosts] if excess > 0 else [0])

    def remaining(self, state: State) -> float:
        """What runs again after this state costs at least this; infinity where an op would have to
        that may not."""
        done, live = state
        needed, _, again = self._facts(done)
        gone = new = needed & ~live
        cost = 0.0
        while new:
            if new & ~again:
                return float("inf")
            reads = 0
            for i in _members(new):
                cost += self._costs[i]
                reads |= self._deps[i]
            new = reads & ~live & ~gone
            gone |= new
        return cost

    def _first(self, done: int) -> Iterator[int]:
        """The ops that can run for the first time."""
        if not self._any_order:
            return iter(() if done == self._all else (done.bit_length(),))
        return (i for i in _members(self._all & ~done) if not self._before[i] & ~done)

    def _facts(self, done: int) -> tuple[int, int, int]:
        """Values that ops which have not run will read or that are outputs; those and what may help
        to make them again; ops that may run again."""
        if done not in self._known:
            needed = self._outputs
            for i in _members(self._all & ~done):
                needed |= self._deps[i]
            again = _set_of(i for i in _members(done & ~self._once) if not self._expires[i] & done)
            needed &= done
            useful = new = needed
            while new:
                reads = 0
                for i in _members(new & again):
                    reads |= self._deps[i]
                new = reads & ~useful
                useful |= new
            self._known[done] = needed, useful, again
        return self._known[done]

    def _ways_to_drop(self, candidates: int, excess: int) -> Iterator[int]:
        """Yields the smallest sets of values that hold so many bytes: without any one of them it
        would be less."""
        if excess <= 0:
            yield 0
            return
        items = sorted(
            ((self._sizes[i], 1 << i) for i in _members(candidates) if self._sizes[i]), reverse=True
        )
        left = [0]
        for size, _ in reversed(items):
            left.append(left[-1] + size)
        left.reverse()
        # Largest first: what completes a set is its smallest, so that none of the others could be
        # left out.
        open_sets = [(0, excess, 0)]
        while open_sets:
            k, missing, chosen = open_sets.pop()
            if left[k] < missing:
                continue
            open_sets.append((k + 1, missing, chosen))
            size, item = items[k]
            if size < missing:
                open_sets.append((k + 1, missing - size, chosen | item))
            else:
                yield chosen | item


def _set_of(numbers) -> int:
    return sum(1 << i for i in set(numbers))


def _members(numbers: int) -> Iterator[int]:
    while numbers:
        lowest = numbers & -numbers
        yield lowest.bit_length() - 1
        numbers ^= lowest
