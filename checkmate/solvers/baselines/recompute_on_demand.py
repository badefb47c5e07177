"""OnDemand: runs ops in the graph's order, and before each op recomputes its missing inputs; what
several baselines share."""

from __future__ import annotations

from collections.abc import Iterable

from checkmate.core.graph import DFGraph


class OnDemand:
    """Records an order of evaluations; the caller chooses which values are dropped.

    Attributes:
      expired: Ops that ran again after what they read was overwritten. The order is legal only if
        there are none.
    """

    def __init__(self, graph: DFGraph):
        self.graph = graph
        self.order: list[int] = []
        self.available: set[int] = set()
        self.expired: set[int] = set()
        self._overwritten: set[int] = set()

    def drop(self, values: Iterable[int]) -> None:
        """Drops values, except those of no bytes."""
        self.available -= {i for i in values if self.graph.ops[i].output_bytes}

    def run(self, t: int, also: Iterable[int] = ()) -> set[int]:
        """Runs op t, and before it, in the graph's order, the missing ops that it or `also` needs.
        Returns the latter."""
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
    """For each op, the last op of the forward pass that reads it, or -1."""
    return [
        max((j for j in users if not graph.ops[j].is_backward), default=-1) for users in graph.users
    ]
