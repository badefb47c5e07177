"""Search: the way to write a step, and the plan of it, that together cost least within a budget.

A step costs at least what the kernels of its pieces take, each run once. No plan is made where that
is more than the cheapest plan so far; nor are smaller pieces looked at then, since smaller kernels
are no more efficient. So what is found is the cheapest of all steps that were looked at, and its
bound is the least of theirs.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from checkmate.errors import TraceError
from checkmate.tf2.rewrites.step import Rewrite, Step

log = logging.getLogger("checkmate")

Found = TypeVar("Found")


def rewritten(step: Step, site: int, rewrites: Iterable[Rewrite]) -> Step:
    """The step, rewritten at a site by the first of the rewrites that applies, with a note on why
    others do not. Raises `TraceError` where none does."""
    why_not = ""
    for rewrite in rewrites:
        try:
            found = rewrite.apply(step, site)
        except TraceError as error:
            also = f"{why_not} Nor does it run in slices otherwise: {error}"
            why_not = also if why_not else str(error)
            continue
        if not why_not:
            return found
        note = f"{step.traced.graph.name!r} cannot be split exactly. {why_not} {found.notes[-1]}"
        log.warning(note)
        return replace(found, notes=(*found.notes[:-1], note))
    raise TraceError(f"{step.traced.graph.name!r} cannot run in slices: {why_not}")


@dataclass(frozen=True, slots=True)
class Tried(Generic[Found]):
    """A step that was looked at.

    Attributes:
      bound: Seconds that no plan of it lasts less than.
      cost: Seconds of the plan that was found; None where none was, or none was looked for.
    """

    step: Step
    bound: float
    cost: float | None = None
    found: Found | None = None


@dataclass(slots=True, eq=False)
class Search(Generic[Found]):
    """The search for the cheapest of a step and its rewritten forms.

    Args:
      bound: Seconds that no plan of a step lasts less than, 0 where that is not known; None where
        no plan is within the budget, as proven by the largest of its ops.
      plan: A plan of a step, its bound and its cost; None where none was found.
      least_s: No plan lasts less than this, nor is a better one looked for than `worth` of it.
    """

    bound: Callable[[Step], float | None]
    plan: Callable[[Step], tuple[Found, float, float] | None]
    least_s: float = 0.0
    worth: float = 0.0
    tried: list[Tried[Found]] = field(default_factory=list)
    why_not: list[str] = field(default_factory=list)

    def run(self, step: Step, rewrites: Sequence[Rewrite]) -> Tried[Found] | None:
        """The cheapest step; None where none has a plan. `why_not` then says why rewrites do not
        apply."""
        self._look_at(step)
        for rewrite in rewrites:
            for site in rewrite.sites(step):
                if self._cost() <= (1 + self.worth) * self.least_s:
                    break
                try:
                    if not self._look_at(rewrite.apply(step, site)):
                        break
                except TraceError as error:
                    self.why_not.append(str(error))
                    break
        found = [each for each in self.tried if each.cost is not None]
        return min(found, key=lambda each: each.cost or 0.0, default=None)

    def _cost(self) -> float:
        costs = (each.cost for each in self.tried if each.cost is not None)
        return min(costs, default=math.inf)

    def _look_at(self, step: Step) -> bool:
        """Plans a step if it may be the cheapest; False if smaller pieces cannot be."""
        bound = self.bound(step)
        if bound is None:
            return True
        if bound >= self._cost():
            self.tried.append(Tried(step, bound))
            return False
        planned = self.plan(step)
        if planned is None:
            self.tried += [Tried(step, bound)] if bound else []
        else:
            found, bound, cost = planned
            self.tried.append(Tried(step, bound, cost, found))
        return True
