"""The curve: a larger budget never costs more, bounds never contradict each other, and how low the
budget can go is bracketed."""

from itertools import pairwise

import pytest
import strategies
from hypothesis import given, settings
from oracles import cheapest

from checkmate import BudgetError, Op, Plan, SolveStatus, floor, replay, solve, solve_curve
from checkmate.core.graph import DFGraph
from checkmate.solvers.search import Search


def check(curve):
    for tighter, looser in pairwise(curve.results):
        assert tighter.budget_bytes < looser.budget_bytes
        assert tighter.bound >= looser.bound
        assert tighter.plan is None or looser.cost <= tighter.cost
    for result in curve.results:
        assert (result.plan is None) == (result.budget_bytes < curve.smallest_bytes)
        if result.plan:
            assert replay(curve.graph, result.plan) == result.timeline
            assert result.bound <= result.cost
            assert result.peak_bytes <= result.budget_bytes
    assert curve.floor_bytes <= curve.smallest_bytes


@settings(max_examples=25)
@given(strategies.training_chains())
def test_monotone_and_bounded(graph):
    peak = replay(graph, Plan.keep_all(graph)).peak_bytes
    lowest = max(1, floor(graph).bytes - 1)
    curve = solve_curve(graph, range(lowest, peak + 2, max(1, (peak - lowest) // 4)))
    check(curve)
    for result in curve.results:
        least = cheapest(graph, result.budget_bytes)
        assert (least is None) <= (result.plan is None)
        if least is not None:
            assert result.bound <= least * (1 + 1e-6)


@settings(max_examples=25)
@given(strategies.training_chains())
def test_the_lowest_plan_is_an_answer_wherever_it_fits(graph):
    curve = solve_curve(graph, ["100%"], find_smallest=True, time_limit_s=0.4)
    assert curve.within(curve.smallest_bytes - 1) is None
    for budget in (
        curve.smallest_bytes,
        curve.smallest_bytes + 3,
        replay(graph, Plan.keep_all(graph)).peak_bytes,
    ):
        answer = curve.within(budget)
        assert (answer.plan, answer.budget_bytes, answer.peak_bytes) == (
            curve.lowest.plan,
            budget,
            curve.smallest_bytes,
        )
        assert answer.stats.found_by.endswith("at another budget")
        assert answer.bound <= cheapest(graph, budget) * (1 + 1e-6)


class Whimsical:
    """Finds a plan for some budgets only, and a dear one for large ones."""

    name = "whimsical"

    def run(self, search: Search) -> None:
        tight = 50 if search.budget_bytes % 2 else 60
        if search.budget_bytes % 3:
            search.offer(solve(search.graph, f"{tight}%").plan, by=self.name)


def test_plans_and_bounds_are_shared_between_budgets():
    graph = strategies.training_chain(12)
    peak = replay(graph, Plan.keep_all(graph)).peak_bytes
    curve = solve_curve(graph, range(peak // 2, peak, 13), solver=Whimsical())
    check(curve)
    with_plan = [result for result in curve.results if result.plan]
    assert {result.stats.found_by for result in with_plan} >= {"whimsical at another budget"}


def test_the_least_budget_is_bracketed():
    graph = strategies.training_chain(16, fixed_bytes=100)
    curve = solve_curve(graph, ["90%", "70%"], find_smallest=True, time_limit_s=0.4)
    check(curve)
    assert (
        floor(graph).bytes
        <= curve.floor_bytes
        <= curve.smallest_bytes
        < curve.results[0].budget_bytes
    )
    assert solve(graph, curve.smallest_bytes, time_limit_s=0.5).plan


def test_bad_budgets():
    graph = DFGraph((Op("a", (), 1, 4),))
    with pytest.raises(BudgetError, match="none was given"):
        solve_curve(graph, [])
    with pytest.raises(BudgetError):
        solve_curve(graph, ["much"])


def test_budgets_without_a_plan_say_why():
    graph = strategies.training_chain(6)
    lowest = floor(graph).bytes
    curve = solve_curve(graph, [lowest - 1, "100%"])
    assert [result.status for result in curve.results] == [
        SolveStatus.INFEASIBLE,
        SolveStatus.OPTIMAL,
    ]
    assert curve.floor_bytes >= lowest


def test_a_bound_from_another_budget_says_which_orders_it_covers():
    graph = DFGraph(
        (
            Op("o0", (), 1, 2),
            Op("o1", (0,), 4, 5),
            Op("o2", (1,), 1, 11, overwrites=(1,)),
            Op("o3", (2,), 7, 2),
            Op("o4", (0, 1), 10, 5, overwrites=(0,)),
        ),
        outputs=(3,),
    )
    in_another_order = solve(graph, 16, reorder=True)
    below = solve_curve(graph, [16, 18, 19]).results[0]
    assert below.status is SolveStatus.INFEASIBLE
    assert below.bound > in_another_order.cost
    assert below.bound_covers == "given order"
    assert below.given_order_bound == below.bound


class Impatient:
    """Finds a plan for the first budget, and is interrupted at the second, before or after it has
    found one there."""

    name = "impatient"

    def __init__(self, found):
        self.found, self.asked = found, []

    def run(self, search: Search) -> None:
        self.asked.append(search.budget_bytes)
        if len(self.asked) == 1 or self.found:
            search.offer(solve(search.graph, search.budget_bytes).plan, by=self.name)
        if len(self.asked) == 2:
            raise KeyboardInterrupt


@pytest.mark.parametrize("found", [False, True])
def test_an_interrupt_ends_the_whole_curve_and_loses_nothing(found):
    graph, solver = strategies.training_chain(12, fixed_bytes=100), Impatient(found)
    curve = solve_curve(graph, ["90%", "80%", "70%", "65%"], solver=solver, find_smallest=True)
    assert len(solver.asked) == 2
    statuses = [result.status for result in curve.results]
    assert statuses[3] is SolveStatus.FEASIBLE
    assert statuses[2] is (SolveStatus.INTERRUPTED if found else SolveStatus.NOT_FOUND)
    assert statuses[1] is SolveStatus.NOT_FOUND
    assert all((result.plan is not None) == result.status.has_plan for result in curve.results)


def test_an_interrupt_before_anything_is_found_is_raised():
    solver = Impatient(found=False)
    solver.asked.append(0)
    with pytest.raises(KeyboardInterrupt):
        solve_curve(strategies.training_chain(12), ["80%", "70%"], solver=solver)


class Slow:
    """Finds nothing in a moment, as where what it needs is still being loaded."""

    name = "slow"

    def run(self, search):
        if search.remaining_s > 0.25:
            search.offer(
                solve(
                    search.graph, search.budget_bytes, solver="state_space", time_limit_s=30
                ).plan,
                by=self.name,
            )


def test_a_moment_in_which_nothing_is_found_does_not_end_the_search_for_the_smallest_budget():
    graph = strategies.training_chain(6)
    curve = solve_curve(graph, ["100%"], solver=Slow(), find_smallest=True, time_limit_s=1)
    assert curve.smallest_bytes < replay(graph, Plan.keep_all(graph)).peak_bytes
