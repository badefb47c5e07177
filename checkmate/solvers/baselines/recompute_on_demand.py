"""OnDemand: ops in the graph's order, and before each again whatever it reads and is gone. What the
baselines have in common."""

from __future__ import annotations

from collections.abc import Iterable

from checkmate.core.graph import DFGraph


class OnDemand:
    """Writes down an order of evaluations while its owner says which values are dropped.

    Attributes:
      order: The evaluations so far.
      available: The ops whose values are at hand.
      expired: Ops that were run again after something overwrote what they read: the order is not
        legal if there are any.
    """

    def __init__(self, graph: DFGraph):
        self.graph = graph
        self.order: list[int] = []
        self.available: set[int] = set()
        self.expired: set[int] = set()
        self._overwritten: set[int] = set()

    def drop(self, values: Iterable[int]) -> None:
        """Drops values, but for those of no bytes: they are free to keep."""
        self.available -= {i for i in values if self.graph.ops[i].output_bytes}

    def run(self, t: int, also: Iterable[int] = ()) -> set[int]:
        """Runs op t, and before it, in the graph's order, what it needs again. Returns the latter.

        Args:
          also: Other values to be brought back on the way.
        """
        again = self._missing((*self.graph.deps[t], *also))
        self.expired |= again & self._overwritten
        self.order += [*sorted(again), t]
        self.available |= again | {t}
        self._overwritten.update(self.graph.ops[t].overwrites)
        return again

    def _missing(self, wanted: Iterable[int]) -> set[int]:
        missing: set[int] = set()
        stack = [i for i in wanted if i not in self.available]
        while stack:
            i = stack.pop()
            if i not in missing:
                missing.add(i)
                stack.extend(d for d in self.graph.deps[i] if d not in self.available)
        return missing


def last_forward_use(graph: DFGraph) -> list[int]:
    """For each op the last op of the forward pass that reads it, or -1."""
    return [
        max((j for j in users if not graph.ops[j].is_backward), default=-1) for users in graph.users
    ]
