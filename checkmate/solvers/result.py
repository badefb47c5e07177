"""SolveResult: a solver's plan, what is proven about it, and a sentence that says so."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from checkmate.core.graph import DFGraph
from checkmate.core.plan import Plan
from checkmate.core.replay import MemoryTimeline
from checkmate.core.schedule import Schedule
from checkmate.units import format_bytes

OrderSpace = Literal["given order", "any order"]
"""The plans for which a bound holds, by the order of their first evaluations."""

LEAST_SHOWN = 1e-4
"""Smaller gaps are shown as "less than" this share."""


def gap_text(gap: float) -> str:
    """Returns a gap in percent, rounded up: text does not claim more than the bound proves.

    Examples:
      >>> gap_text(0.03251)
      '3.26%'
    """
    return f"{math.ceil(gap * 1e4) / 1e4:.2%}"


class SolveStatus(Enum):
    """The end of a search. The value is a sentence for people.

    Examples:
      >>> SolveStatus.INFEASIBLE.value, SolveStatus.INFEASIBLE.has_plan
      ('It is proven that no plan fits the budget.', False)
    """

    OPTIMAL = (
        "The plan is within the budget and proven to be the cheapest of those that the bound"
        " covers."
    )
    FEASIBLE = "The plan is within the budget; the gap bounds how much cheaper another plan can be."
    INFEASIBLE = "It is proven that no plan fits the budget."
    NOT_FOUND = "No plan within the budget was found, and none was proven impossible."
    INTERRUPTED = "The search was interrupted; the plan is the best found until then."

    @property
    def has_plan(self) -> bool:
        """OPTIMAL, FEASIBLE and INTERRUPTED come with a plan."""
        return self in (SolveStatus.OPTIMAL, SolveStatus.FEASIBLE, SolveStatus.INTERRUPTED)


@dataclass(frozen=True, slots=True)
class SolveStats:
    """The search behind a result.

    Attributes:
      solver: Name of the solver.
      seconds: Wall-clock time of the search.
      found_by: The part of the solver that found the plan, or "".
      proven_by: The part that proved the bound.
      best_peak_bytes: The lowest peak of any plan tried, within the budget or not; None if none was
        tried.
      history: (seconds, cost or None, bound) at each improvement of cost or bound.

    Examples:
      >>> stats = checkmate.solve(graph, "60%").stats
      >>> stats.seconds, stats.found_by, stats.proven_by
    """

    solver: str
    seconds: float
    found_by: str = ""
    proven_by: str = ""
    best_peak_bytes: int | None = None
    history: tuple[tuple[float, float | None, float], ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class SolveResult:
    """The result of a solver; `replay` has checked its plan.

    Attributes:
      status: How the search ended.
      graph: The problem.
      budget_bytes: The budget, which includes `graph.fixed_bytes`.
      plan: Present if `status.has_plan`; then `timeline.peak_bytes <= budget_bytes`.
      timeline: The result of `replay`.
      bound: Lower bound on the cost of plans within the budget, of those that `bound_covers`, in
        the graph's unit.
      stats: How the result was found.
      bound_covers: "any order", or "given order" for plans that evaluate ops for the first time in
        the graph's order; a plan in another order can then be cheaper than an optimal one. With
        `solve(..., reorder=True)` it is "any order".
      given_order_bound: Lower bound on the cost of plans that keep the graph's order.
      rules: What was asked of layers by `keep` and `recompute`, in words; bounds and refusals are
        those of plans that hold to it.

    Examples:
      >>> result = checkmate.solve(graph, "60%")
      >>> print(result)
      >>> result.overhead, result.gap, result.plan.recomputed
    """

    status: SolveStatus
    graph: DFGraph = field(repr=False)
    budget_bytes: int
    plan: Plan | None
    timeline: MemoryTimeline | None
    bound: float
    stats: SolveStats
    bound_covers: OrderSpace = "given order"
    given_order_bound: float | None = None
    rules: str = ""

    @property
    def cost(self) -> float | None:
        """Cost of all evaluations of the plan, in the graph's unit."""
        return self.timeline.cost if self.timeline else None

    @property
    def peak_bytes(self) -> int | None:
        """The plan's peak as `replay` counts it, fixed bytes included."""
        return self.timeline.peak_bytes if self.timeline else None

    @property
    def gap(self) -> float | None:
        """cost / bound - 1: the most by which the plan can exceed the cheapest one, as a share."""
        if self.timeline is None:
            return None
        return max(0.0, self.timeline.cost / self.bound - 1) if self.bound > 0 else 0.0

    @property
    def overhead(self) -> float | None:
        """cost / cost of evaluating every op once. 1.0 means that nothing is recomputed."""
        if self.timeline is None:
            return None
        return self.timeline.cost / self.graph.total_cost if self.graph.total_cost > 0 else 1.0

    @property
    def beats_given_order(self) -> bool:
        """Whether the plan is cheaper than any plan in the graph's own order."""
        cost, bound = self.cost, self.given_order_bound
        return cost is not None and bound is not None and cost < bound

    @property
    def schedule(self) -> Schedule | None:
        """The paper's R and S of the plan, or None if the plan has no stage-wise form."""
        return Schedule.from_plan(self.graph, self.plan) if self.plan else None

    def _ipython_display_(self) -> None:
        """Shows the sentence and a picture of memory over the step in a notebook."""
        from checkmate.plot import memory
        from checkmate.plot.picture import show_in_notebook

        budget = self.budget_bytes
        drawn = memory(self.graph, self.plan, budget_bytes=budget) if self.plan else None
        show_in_notebook(f"<p>{self}</p>", drawn)

    @property
    def _above(self) -> str:
        """The gap as text, never rounded to zero."""
        gap = self.gap or 0.0
        if self.status is SolveStatus.OPTIMAL or not gap:
            return "not above"
        said, shown = ("at most", gap) if gap >= LEAST_SHOWN else ("less than", LEAST_SHOWN)
        return f"{said} {100 * shown:.2f} % above"

    def __str__(self) -> str:
        head = (
            f"{self.status.name} ({self.stats.solver}, {self.stats.seconds:.2f} s):"
            f" {self.status.value}"
        )
        if self.timeline is None or self.overhead is None or self.gap is None:
            return f"{head} Budget {format_bytes(self.budget_bytes)}."
        space = "any order" if self.bound_covers == "any order" else "the graph's order"
        space += f" ({self.rules})" if self.rules else ""
        sentence = (
            f"{head} Peak {format_bytes(self.timeline.peak_bytes)} of"
            f" {format_bytes(self.budget_bytes)}, cost {100 * (self.overhead - 1):.2f} % over the"
            f" plain step, {self._above} the cheapest plan in {space}."
        )
        if self.beats_given_order:
            sentence += " It is cheaper than any plan in the graph's own order."
        return sentence
