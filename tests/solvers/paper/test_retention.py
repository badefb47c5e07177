"""Retention intervals: the optimum of the space that they state, and a start that is taken."""

import pytest
from hypothesis import given, settings
from oracles import cheapest_in_stages
from strategies import graphs, problems, training_chain

from checkmate import DFGraph, Op, Schedule, replay, solve
from checkmate.solvers.backends.engines import solve_intervals
from checkmate.solvers.backends.matrices import AnswerStatus
from checkmate.solvers.paper.retention import (
    Retention,
    intervals_of,
    plan_of,
    retention_problem,
    turn,
)


@settings(max_examples=8)
@given(problems(graphs(max_ops=5)))
def test_the_optimum_in_stages(problem):
    graph, budget_bytes = problem
    least = cheapest_in_stages(graph, budget_bytes)
    answer = solve_intervals(retention_problem(graph, budget_bytes, 5), time_limit_s=20)
    if least is None:
        assert answer.status is AnswerStatus.INFEASIBLE
        return
    assert answer.status is AnswerStatus.OPTIMAL
    timeline = replay(graph, plan_of(graph, answer.starts))
    assert timeline.peak_bytes <= budget_bytes
    assert timeline.cost == pytest.approx(least)


def test_what_is_kept_to_the_end_is_not_overwritten_by_the_last_op():
    """Its interval ends with the time, one after the last op starts: that looks like being freed
    there."""
    graph = DFGraph(
        (Op("a", output_bytes=10), Op("b", (0,), output_bytes=4, in_place=(0,))), (0, 1)
    )
    statuses = [
        solve_intervals(retention_problem(graph, budget, 2), time_limit_s=20).status
        for budget in (13, 14)
    ]
    assert statuses == [AnswerStatus.INFEASIBLE, AnswerStatus.OPTIMAL]
    only_b = DFGraph(graph.ops, (1,))
    assert (
        solve_intervals(retention_problem(only_b, 10, 2), time_limit_s=20).status
        is AnswerStatus.OPTIMAL
    )


def test_turns_follow_each_other():
    assert [turn(t, i) for t in range(5) for i in range(t + 1)] == list(range(15))


def test_a_start_fits_the_model_and_is_not_made_worse():
    graph = training_chain(10, skip=2)
    result = solve(graph, "70%")
    schedule = Schedule.from_plan(graph, result.plan)
    most = int(schedule.R.sum(axis=0).max())
    start = intervals_of(graph, schedule)
    assert (
        plan_of(graph, tuple(tuple(begins for begins, _ in of_value) for of_value in start))
        == result.plan
    )
    answer = solve_intervals(
        retention_problem(graph, result.budget_bytes, most), time_limit_s=10, start=start
    )
    assert replay(graph, plan_of(graph, answer.starts)).cost <= result.cost


def test_without_a_start_it_finds_the_same_optimum():
    graph = training_chain(7, costs=(2.0, 1.0, 3.0), sizes=(4, 9, 2))
    found = [
        solve(graph, "80%", solver=Retention(start_share=share), time_limit_s=20).cost
        for share in (0, 0.3)
    ]
    assert found[0] == pytest.approx(found[1])
