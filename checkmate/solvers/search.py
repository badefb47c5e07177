"""Search: the blackboard between the door and a solver. Solvers offer plans and bounds; only what
the judge accepts counts."""

from __future__ import annotations

import math
import numbers
import os
import time
from collections.abc import Callable
from typing import Protocol

from checkmate.core.graph import DFGraph
from checkmate.core.plan import Plan
from checkmate.core.replay import MemoryTimeline, replay
from checkmate.errors import BudgetError, GraphError

OPTIMALITY_TOLERANCE = 1e-6
"""A plan counts as optimal when its cost is within this share of the bound: what floating point
leaves of equality."""


FOREVER = 1e6
"""Seconds that are always left to a search that counts work and not time."""


def check_time_limit(seconds: float) -> None:
    """Raises `BudgetError` unless `seconds` is a number from 0 to infinity."""
    # Nan is not either.
    if isinstance(seconds, bool) or not isinstance(seconds, numbers.Real) or not seconds >= 0:
        raise BudgetError(f"time_limit_s is a number of seconds, 0 or more; got {seconds!r}.")


def check_graph(graph: object, function: str) -> None:
    """Refuses what is no graph, in the name of a function."""
    if not isinstance(graph, DFGraph):
        hint = (
            "DFGraph.load reads a file"
            if isinstance(graph, (str, os.PathLike))
            else "checkmate.tf2.trace(...).graph is that of a training step"
        )
        raise GraphError(f"{function}() takes a DFGraph; got {type(graph).__name__}. {hint}.")


class Solver(Protocol):
    """A method that finds plans. It offers what it finds to the search as it goes, and returns when
    it can do no more.

    It must return soon after `search.remaining_s` reaches zero, and may be interrupted at any time:
    what it offered counts. It raises `SolverFailedError` for the package behind it.
    """

    @property
    def name(self) -> str:
        """The name of the solver in results."""

    def run(self, search: Search) -> None:
        """Offers plans and bounds to `search`."""


class Search:
    """One problem, its deadline, and the best plan and bound so far.

    Args:
      graph: The problem.
      budget_bytes: The limit, which counts `graph.fixed_bytes`.
      time_limit_s: Seconds from now until solvers should stop.
      deterministic: No clock: a solver stops when its own limits of work (rounds, nodes, snapshots)
        are reached, on every machine alike.
      reorder: The question is about plans in any order; otherwise about those whose first
        evaluations come in the graph's order.
      on_progress: Called with this search each time plan or bound improves.
    """

    def __init__(
        self,
        graph: DFGraph,
        budget_bytes: int,
        *,
        time_limit_s: float,
        deterministic: bool = False,
        reorder: bool = False,
        on_progress: Callable[[Search], None] | None = None,
    ):
        self.graph = graph
        self.budget_bytes = budget_bytes
        self.time_limit_s = FOREVER if deterministic else min(time_limit_s, FOREVER)
        self.deterministic = deterministic
        self.reorder = reorder
        self.plan: Plan | None = None
        self.timeline: MemoryTimeline | None = None
        # Every op runs at least once.
        self.given_order_bound = self.any_order_bound = graph.total_cost
        self.infeasible: str = ""  # why no plan can exist, once a solver has proven it
        self.found_by, self.proven_by = "", "every op runs once"
        self.best_peak_bytes: int | None = None
        self.history: list[tuple[float, float | None, float]] = []
        self._started = time.monotonic()
        self._deadline, self._stopped = self._started + self.time_limit_s, False
        self._on_progress = on_progress

    def part(
        self,
        share: float,
        graph: DFGraph | None = None,
        on_progress: Callable[[Search], None] | None = None,
    ) -> Search:
        """A search of its own with this budget, for a share of the time that is left.

        Args:
          graph: Another graph than that of this search.
        """
        return Search(
            graph or self.graph,
            self.budget_bytes,
            time_limit_s=share * self.remaining_s,
            deterministic=self.deterministic,
            on_progress=on_progress,
        )

    @property
    def elapsed_s(self) -> float:
        """Seconds since the search began."""
        return time.monotonic() - self._started

    @property
    def remaining_s(self) -> float:
        """Seconds until solvers should stop; never below zero. The same at all times when
        deterministic."""
        if self._stopped:
            return 0.0
        return FOREVER if self.deterministic else max(0.0, self._deadline - time.monotonic())

    def stop(self) -> None:
        """Ends the search with what was found."""
        self._stopped = True

    def out_of_time(self) -> bool:
        """Whether solvers should stop."""
        return self.remaining_s <= 0

    @property
    def finished(self) -> bool:
        """Whether the question is answered, or the time over."""
        return self.optimal or bool(self.infeasible) or self.out_of_time()

    @property
    def cost(self) -> float:
        """Cost of the best plan; infinity where there is none."""
        return math.inf if self.timeline is None else self.timeline.cost

    def at_most(self, seconds: float) -> float:
        """Seconds for one call of an engine, at most those left; no limit when deterministic."""
        return FOREVER if self.deterministic else min(seconds, self.remaining_s)

    @property
    def bound(self) -> float:
        """Lower bound on the cost of the plans that the question is about."""
        return self.any_order_bound if self.reorder else self.given_order_bound

    @property
    def optimal(self) -> bool:
        """Whether the best plan's cost meets the bound."""
        return self.timeline is not None and self.cost <= self.bound * (1 + OPTIMALITY_TOLERANCE)

    def offer(self, plan: Plan, *, by: str) -> MemoryTimeline:
        """Has the judge replay a plan, and keeps it when it is within the budget and the cheapest
        so far.

        Raises:
          PlanError: The plan is not legal: a mistake of the solver that must not be hidden.
        """
        timeline = replay(self.graph, plan)
        self.best_peak_bytes = min(timeline.peak_bytes, self.best_peak_bytes or timeline.peak_bytes)
        better = self.timeline is None or (timeline.cost, timeline.peak_bytes) < (
            self.timeline.cost,
            self.timeline.peak_bytes,
        )
        if timeline.peak_bytes <= self.budget_bytes and better:
            self.plan, self.timeline, self.found_by = plan, timeline, by
            self._improved()
        return timeline

    def raise_bound(self, bound: float, *, by: str, any_order: bool = False) -> None:
        """Reports that no plan within the budget costs less than `bound`: of those in the graph's
        order, or, with `any_order`, in any order."""
        before = self.bound
        self.given_order_bound = max(self.given_order_bound, bound)
        if any_order:
            self.any_order_bound = max(self.any_order_bound, bound)
        if self.bound > before:
            self.proven_by = by
            self._improved()

    def prove_infeasible(self, why: str, *, any_order: bool = False) -> None:
        """Reports that no plan within the budget exists: of those in the graph's order, or, with
        `any_order`, in any order."""
        if any_order or not self.reorder:
            self.infeasible = why

    def _improved(self) -> None:
        self.history.append(
            (self.elapsed_s, self.timeline.cost if self.timeline else None, self.bound)
        )
        if self._on_progress:
            self._on_progress(self)
