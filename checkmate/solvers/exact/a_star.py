"""The cheapest plan as a shortest path: exact where few values compete for memory, else a bound.

A state is what has run, and which values are in memory. An edge runs one op: the next one for the
first time, or an earlier one again, after dropping values until it fits. So a plan is a path from
nothing to a state in which all has run and the outputs are there, and A* finds the cheapest. Unlike
integer programs it misses no plan: ops run again in any order, and as often as need be.

What keeps the states few:

    estimate   values that are gone, and that ops which have not run yet will read, must be made
               again, with those of their inputs that are gone, and so on. That costs at least the
               sum over all these ops, and the estimate never falls by more than an edge costs
    dropping   only sets of values are dropped of which none could stay. Keeping more is never
               worse. But an op runs in place where one of its in_place deps is dropped right after
               it: where the op does not fit, each of them is tried, too
    dominance  a state is not expanded after one with the same ops done, at least its values, and no
               larger cost
    useless    a value that no later run can need is not part of the state

In the graph's order the next op is the one after those that have run; in any order it is each whose
predecessors have. The number of states can be exponential in the number of ops (the problem is
NP-hard).

Source: A* is Hart, Nilsson and Raphael, 1968; the states are those of the pebble game behind
rematerialization. Guarantee: the answer is a cheapest plan, or that there is none, when the search
ends by itself; until then the least estimate in the queue bounds every plan.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

from checkmate.core.graph import DFGraph
from checkmate.core.plan import Plan
from checkmate.solvers.search import Search

ROUNDING = 1e-12
"""Share by which sums of costs can be wrong."""

EDGES_PER_STATE = 100
"""Edges that count as one more state: a state can have 10^11, as half of forty values are
dropped."""


@dataclass(frozen=True, slots=True)
class AStar:
    """Finds the cheapest plan by A*, which expands so many `states` of memory at most."""

    states: int = 100_000

    name = "state_space"

    def run(self, search: Search) -> None:
        Paths(search).advance(self.states)


class Paths:
    """An A* search that can be continued; where `search.reorder`, ops run in any order."""

    def __init__(self, search: Search):
        self.search = search
        self.ended = False
        self._rules = StateRules(
            search.graph, search.budget_bytes - search.graph.fixed_bytes, any_order=search.reorder
        )
        self._cost: dict[State, float] = {(0, 0): 0.0}
        self._from: dict[State, tuple[State, int]] = {}
        self._queue: list[tuple[float, int, State]] = [(0.0, 0, (0, 0))]
        self._expanded: dict[int, list[tuple[int, float]]] = {}
        self._broken_off: dict[State, Iterator[tuple[int, float, State]]] = {}
        self._furthest = 0  # most ops that have run in any state
        self._effort = 0.0  # states, and edges in states
        self._limit, self._end_s = 0.0, 0.0

    def advance(self, states: int, *, share: float = 1.0) -> None:
        """Expands this many more states, within a share of the remaining time, and reports the
        bound."""
        self._limit = self._effort + states
        self._end_s = (1 - share) * self.search.remaining_s
        while not self.ended and not self._exhausted() and self._step():
            self._effort += 1
        if not self.ended and self._queue:
            self._raise_bound(self._queue[0][0])

    @property
    def bound(self) -> float:
        """Cost that is proven for every plan so far; infinity once it is known that none exists."""
        if self._queue:
            return (self.search.graph.total_cost + self._queue[0][0]) * (1 - ROUNDING)
        return float("inf")

    def _exhausted(self) -> bool:
        out_of_time = not self.search.deterministic and self.search.remaining_s <= self._end_s
        return self._effort >= self._limit or out_of_time

    def _step(self) -> bool:
        """Expands the most promising state. False where effort ran out: the state stays queued, and
        its expansion goes on from where it was broken off."""
        while self._queue:
            entry = estimate, _, state = heapq.heappop(self._queue)
            if estimate >= self._affordable():
                break
            cost = self._cost[state]
            if self._dominated(state, cost):
                continue
            if self._rules.is_end(state):
                self._raise_bound(estimate)
                plan = Plan.from_order(self.search.graph, self._path_to(state))
                self.search.offer(plan, by="state space")
                self.ended = True
            elif not self._expand(state, cost):
                self._expanded[state[0]].pop()
                heapq.heappush(self._queue, entry)
                return False
            return True
        self.ended = True
        if self.search.timeline is None:
            self.search.prove_infeasible(self._why_infeasible(), any_order=self.search.reorder)
        else:
            self._raise_bound(self._affordable())
        return True

    def _expand(self, state: State, cost: float) -> bool:
        affordable = self._affordable()
        edges = self._broken_off.pop(state, None) or self._rules.following(state)
        for number, (op, price, after) in enumerate(edges, 1):
            self._effort += 1 / EDGES_PER_STATE
            total = cost + price
            if total < self._cost.get(after, affordable):
                estimate = total + self._rules.remaining(after)
                if estimate < affordable:
                    self._cost[after], self._from[after] = total, (state, op)
                    heapq.heappush(self._queue, (estimate, -after[0].bit_count(), after))
            if number % EDGES_PER_STATE == 0 and self._exhausted():
                self._broken_off[state] = edges
                return False
        return True

    def _dominated(self, state: State, cost: float) -> bool:
        """Whether a state expanded before is at least as good. Notes the state otherwise."""
        done, live = state
        expanded = self._expanded.setdefault(done, [])
        self._furthest = max(self._furthest, done.bit_count())
        if any(not live & ~more and cheaper <= cost for more, cheaper in expanded):
            return True
        expanded.append((live, cost))
        return False

    def _affordable(self) -> float:
        """Cost of recomputations at which a path is no cheaper than the best plan."""
        return self.search.cost - self.search.graph.total_cost

    def _raise_bound(self, recomputation: float) -> None:
        bound = (self.search.graph.total_cost + recomputation) * (1 - ROUNDING)
        self.search.raise_bound(bound, by="state space", any_order=self.search.reorder)

    def _why_infeasible(self) -> str:
        graph, k = self.search.graph, self._furthest
        if self.search.reorder or k == len(graph):
            return "all ways to keep, to drop and to recompute values were tried."
        return (
            f"whatever is kept, dropped and recomputed, op {k} {graph.ops[k].name!r} and all ops"
            " before it can never have run with what the ops after it need."
        )

    def _path_to(self, state: State) -> list[int]:
        order = []
        while state in self._from:
            state, op = self._from[state]
            order.append(op)
        return order[::-1]


State = tuple[int, int]
"""The ops that have run, and the values in memory, each as the bits of a number."""


class StateRules:
    """The successors of a state, and a lower bound on the cost from there to the end. The available
    bytes are the budget without the fixed bytes."""

    def __init__(self, graph: DFGraph, available_bytes: int, *, any_order: bool):
        self._available, self._any_order = available_bytes, any_order
        self._all = (1 << len(graph)) - 1
        self._outputs = _set_of(graph.outputs)
        self._deps = [_set_of(op.deps) for op in graph.ops]
        self._before = [_set_of(before) for before in graph.predecessors]
        self._expires = [0] * len(graph)
        for k, op in enumerate(graph.ops):
            for i in op.overwrites:
                self._expires[i] |= 1 << k
        self._once = _set_of(i for i, op in enumerate(graph.ops) if not op.recomputable)
        self._in_place = graph.in_place
        self._sizes: list[int] = graph.output_bytes.tolist()
        self._workspaces: list[int] = graph.workspace_bytes.tolist()
        self._costs: list[float] = graph.costs.tolist()
        self._facts_of: dict[int, tuple[int, int, int]] = {}

    def is_end(self, state: State) -> bool:
        done, live = state
        return done == self._all and not self._outputs & ~live

    def following(self, state: State) -> Iterator[tuple[int, float, State]]:
        """Yields the ops that can run now, each with its cost above the plain step and the next
        state."""
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
            excess = held + self._sizes[op] + self._workspaces[op] - self._available
            for host in self._hosts(op, kept, excess):
                for dropped in self._ways_to_drop(
                    live & ~deps, excess - self._sizes[op] if host else excess
                ):
                    yield (
                        op,
                        self._costs[op] if known else 0.0,
                        (after, (live & ~(dropped | host) | 1 << op) & kept),
                    )

    def _hosts(self, op: int, kept: int, excess: int) -> list[int]:
        """Ways to run an op: in place of an input that is dropped right after it, or not (0)."""
        hosts = [1 << d for d in self._in_place[op]]
        unneeded = [host for host in hosts if not host & kept]
        return unneeded[:1] or ([0, *hosts] if excess > 0 else [0])

    def remaining(self, state: State) -> float:
        """Least cost of what must run again after this state; infinity where that may not."""
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
        if not self._any_order:
            return iter(() if done == self._all else (done.bit_length(),))
        return (i for i in _members(self._all & ~done) if not self._before[i] & ~done)

    def _facts(self, done: int) -> tuple[int, int, int]:
        """Values that later ops read or that are outputs; those and what may help to make them
        again; ops that may run again."""
        if done not in self._facts_of:
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
            self._facts_of[done] = needed, useful, again
        return self._facts_of[done]

    def _ways_to_drop(self, candidates: int, excess: int) -> Iterator[int]:
        """Yields the minimal sets of values that hold this many bytes."""
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
