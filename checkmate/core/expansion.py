"""Expansion: a graph made of another one, such as a coarser one or one in another order, and the
way back for its plans."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from checkmate.core.graph import DFGraph
from checkmate.core.plan import Plan


@dataclass(frozen=True, slots=True)
class Expansion:
    """A graph, and another one made of it, whose ops stand for those of the first.

    Attributes:
      before: The graph.
      after: The graph made of it.
      first: For each op of `after`, the ops of `before` that its first evaluation runs, in order.
      again: For each op of `after`, the ops of `before` that another evaluation runs.
    """

    before: DFGraph
    after: DFGraph
    first: tuple[tuple[int, ...], ...]
    again: tuple[tuple[int, ...], ...]

    @classmethod
    def one_to_one(cls, before: DFGraph, after: DFGraph, original: Iterable[int]) -> Expansion:
        """Each op of `after` stands for one op of `before`, its `original`, as several may do."""
        alone = tuple((i,) for i in original)
        return cls(before, after, alone, alone)

    def expand(self, plan: Plan) -> Plan:
        """Returns the plan of `before` that a plan of `after` stands for, with no higher peak:
        values without readers are not recomputed, and every value is freed after its last use."""
        if self.after is self.before:
            return plan
        order: list[int] = []
        ran: set[int] = set()
        for k in plan.computed:
            order.extend(self.again[k] if k in ran else self.first[k])
            ran.add(k)
        return Plan.from_order(self.before, order)
