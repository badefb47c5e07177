"""`solve_curve`: the cost of plans for several budgets, and the smallest budget that has a plan.

A plan with a peak of p bytes fits every budget from p up, and a bound for one budget holds for
every smaller one. So all budgets share the plans and bounds: a larger budget never costs more, even
if single searches end with a gap.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial

from checkmate.core.graph import DFGraph
from checkmate.core.replay import floor, plain_peak
from checkmate.errors import BudgetError
from checkmate.solvers.layer_rules import Patterns, as_patterns
from checkmate.solvers.result import OrderSpace, SolveResult, SolveStats, SolveStatus
from checkmate.solvers.search import OPTIMALITY_TOLERANCE, Solver, check_graph
from checkmate.solvers.solve import solve
from checkmate.units import Bytes, parse_bytes

SolveAt = Callable[..., SolveResult]
"""`solve` of one graph; called with a budget."""

CLOSE = 0.005
"""The search for the smallest budget ends when it is known to this share of itself."""

FIRST_TRY, SECOND_TRY = 1 / 8, 1 / 2
"""The shares of its time that the search for the smallest budget gives to a budget: the second
where nothing was found, as no smaller budget is tried then."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Cost against budget.

    Attributes:
      graph: The problem.
      results: One result per budget, smallest budget first. Neither costs nor bounds rise from one
        to the next.
      lowest: The result whose plan has the lowest peak of all that were found.
      floor_bytes: Proven lower bound on the peak of plans in the graph's order of first
        evaluations.

    Examples:
      >>> curve = checkmate.solve_curve(graph, ["90%", "60%"])
      >>> [result.overhead for result in curve.results], curve.smallest_bytes
    """

    graph: DFGraph = field(repr=False)
    results: tuple[SolveResult, ...]
    lowest: SolveResult
    floor_bytes: int

    @property
    def smallest_bytes(self) -> int:
        """The lowest peak of any plan found, fixed bytes included."""
        assert self.lowest.peak_bytes is not None  # it was chosen for its plan
        return self.lowest.peak_bytes

    def within(self, budget_bytes: int) -> SolveResult | None:
        """Returns the plan of the lowest peak as a result for any budget; None if it does not fit.

        Args:
          budget_bytes: The budget in bytes.
        """
        if self.smallest_bytes > budget_bytes:
            return None
        bound = (
            self.lowest.bound if self.lowest.budget_bytes >= budget_bytes else self.graph.total_cost
        )
        stats = _found_elsewhere(self.lowest)
        return replace(
            self.lowest,
            status=SolveStatus.FEASIBLE,
            budget_bytes=budget_bytes,
            bound=bound,
            stats=stats,
            given_order_bound=None,
        )


def solve_curve(
    graph: DFGraph,
    budgets: Iterable[Bytes],
    *,
    solver: str | Solver = "auto",
    time_limit_s: float = 10,
    find_smallest: bool = False,
    keep: Patterns = (),
    recompute: Patterns = (),
) -> Curve:
    """Solves one graph for several budgets, so that a larger budget never costs more.

    Args:
      graph: The problem.
      budgets: Amounts of memory as in `solve`, in any order; at least one.
      solver: As in `solve`.
      time_limit_s: Wall-clock seconds for each budget, and for the search for the smallest.
      find_smallest: Also search for the smallest budget that has a plan, by bisection.
      keep: As in `solve`, as is `recompute`.
      recompute: As in `solve`.

    Returns:
      A result for each budget. Without a plan its status is INFEASIBLE (proven) or NOT_FOUND. After
      Ctrl-C: what was found until then, with status INTERRUPTED where there is a plan.

    Raises:
      BudgetError: There is no budget, or one that cannot be parsed.
      SolverUnavailableError: As in `solve`.
      SolverFailedError: As in `solve`.
      KeyboardInterrupt: Ctrl-C before the first result.

    Examples:
      >>> from checkmate import DFGraph, Op, solve_curve
      >>> ops = (Op("a", (), 1, 4), Op("b", (0,), 1, 4), Op("c", (1,), 1, 1), Op("d", (0, 2), 1, 1))
      >>> graph = DFGraph(ops, outputs=(3,))  # in 8 bytes, a is freed before c and runs again for d
      >>> tuple(result.cost for result in solve_curve(graph, [9, 8, 10]).results)
      (5.0, 4.0, 4.0)
    """
    check_graph(graph, "solve_curve")
    plain_bytes = plain_peak(graph)
    asked = {parse_bytes(budget, percent_of=plain_bytes) for budget in budgets}
    if not asked:
        raise BudgetError("A curve needs at least one budget; none was given.")
    solve_at = partial(solve, graph, keep=as_patterns(keep), recompute=as_patterns(recompute))
    results = _searched(solve_at, sorted(asked, reverse=True), solver, time_limit_s)
    impossible = [r.budget_bytes + 1 for r in results if r.status is SolveStatus.INFEASIBLE]
    proven = max([floor(graph).bytes, *impossible])
    # What is recomputed by rule may take more than the plain step.
    plain = solve_at(2 * plain_bytes + 1, solver="checkpoint_all", time_limit_s=0)
    found = [*(result for result in results if result.plan), plain]
    if find_smallest and all(result.status is not SolveStatus.INTERRUPTED for result in results):
        lowest = min(result.timeline.peak_bytes for result in found if result.timeline)
        more, proven = _bisect(solve_at, lowest, proven, solver, time_limit_s)
        found += more
    peak, _, k = min((t.peak_bytes, t.cost, k) for k, r in enumerate(found) if (t := r.timeline))
    return Curve(graph, tuple(reversed(_shared(results, found))), found[k], min(proven, peak))


def _searched(
    solve_at: SolveAt, amounts: list[int], solver: str | Solver, time_limit_s: float
) -> list[SolveResult]:
    """A result for each budget. After Ctrl-C there is no further search: the other budgets get the
    plain step, or no plan."""
    results: list[SolveResult] = []
    for each in amounts:
        try:
            results.append(solve_at(each, solver=solver, time_limit_s=time_limit_s, throw=False))
        except KeyboardInterrupt:
            if not results:
                raise
            break
        if results[-1].status is SolveStatus.INTERRUPTED:
            break
    for each in amounts[len(results) :]:
        plain = solve_at(each, solver="checkpoint_all", time_limit_s=0, throw=False)
        if plain.status is not SolveStatus.INFEASIBLE:
            plain = replace(plain, status=SolveStatus.INTERRUPTED)
        results.append(plain)
    return results


def _shared(results: list[SolveResult], found: list[SolveResult]) -> list[SolveResult]:
    """Each result, largest budget first, with the best plan that fits it and the best bound for
    it."""
    shared, given, anyway = [], 0.0, 0.0  # bounds for plans in the graph's order, and in any
    for result in results:
        given = max(given, result.bound, result.given_order_bound or 0.0)
        anyway = max(anyway, result.bound if result.bound_covers == "any order" else 0.0)
        interrupted = result.status is SolveStatus.INTERRUPTED
        status, best, stats, bound = result.status, result, result.stats, given
        fitting = [
            (t.cost, t.peak_bytes, k)
            for k, other in enumerate(found)
            if (t := other.timeline) and t.peak_bytes <= result.budget_bytes
        ]
        if fitting:
            cost, _, k = min(fitting)
            if result.cost is None or result.cost > cost:
                best = found[k]
                stats = replace(stats, found_by=_found_elsewhere(best).found_by)
            bound = min(given, cost)
            status = SolveStatus.INTERRUPTED if interrupted else SolveStatus.FEASIBLE
            if cost <= bound * (1 + OPTIMALITY_TOLERANCE):
                status = SolveStatus.OPTIMAL
        elif interrupted:
            status = SolveStatus.NOT_FOUND
        covers: OrderSpace = "any order" if bound <= anyway else "given order"
        answer = replace(result, status=status, plan=best.plan, timeline=best.timeline, stats=stats)
        shared.append(replace(answer, bound=bound, bound_covers=covers, given_order_bound=given))
    return shared


def _found_elsewhere(result: SolveResult) -> SolveStats:
    return replace(result.stats, found_by=f"{result.stats.found_by} at another budget")


def _bisect(
    solve_at: SolveAt, lowest: int, proven: int, solver: str | Solver, time_limit_s: float
) -> tuple[list[SolveResult], int]:
    """Plans of lower and lower peaks, and the smallest budget not proven to have none; in
    `time_limit_s` in all, or little more."""
    found, hopeless, ends = [], proven, time.monotonic() + time_limit_s
    while lowest - hopeless > CLOSE * lowest and time.monotonic() < ends:
        middle = (lowest + hopeless) // 2
        try:
            for share in (FIRST_TRY, SECOND_TRY):
                seconds = max(0.0, min(share * time_limit_s, ends - time.monotonic()))
                result = solve_at(middle, solver=solver, time_limit_s=seconds, throw=False)
                if result.status is not SolveStatus.NOT_FOUND:
                    break
        except KeyboardInterrupt:
            break
        if result.timeline is not None:
            found.append(result)
            lowest = result.timeline.peak_bytes
            if result.status is SolveStatus.INTERRUPTED:
                break
        else:
            hopeless = result.budget_bytes + 1
            if result.status is SolveStatus.INFEASIBLE:
                proven = hopeless
    return found, proven
