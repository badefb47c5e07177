"""The states of A*: which ops have run, and which values are in memory, as bits of two numbers."""

from __future__ import annotations

from collections.abc import Iterator

from checkmate.core.graph import DFGraph

State = tuple[int, int]
"""The ops that have run, and the values in memory, each as the bits of a number."""


class StateRules:
    """What may follow a state, and a lower bound for what it costs from there to the end.

    Args:
      graph: The problem.
      available_bytes: The budget without the fixed bytes.
      any_order: First evaluations may come in any legal order.
    """

    def __init__(self, graph: DFGraph, available_bytes: int, *, any_order: bool):
        self._available, self._any_order = available_bytes, any_order
        self._all = (1 << len(graph)) - 1
        self._outputs = _set_of(graph.outputs)
        self._deps = [_set_of(op.deps) for op in graph.ops]
        self._before = [_set_of((*op.deps, *op.control_deps, *op.overwrites)) for op in graph.ops]
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
