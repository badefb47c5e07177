"""The search through states misses no plan, and where it ends early its bound holds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import cheapest, cheapest_in_any_order, run_plan
from strategies import graphs, problems, tangled, training_chain

from benchmarks.problems import budget_at
from checkmate import DFGraph, Op, SolveStatus, solve
from checkmate.solvers.exact.a_star import EDGES_PER_STATE, AStar, Paths
from checkmate.solvers.search import Search


def _check(search, expected):
    if expected is None:
        assert search.plan is None
        assert search.infeasible
        return
    assert search.timeline.cost == pytest.approx(expected)
    assert search.optimal
    assert search.bound <= expected
    assert search.timeline.peak_bytes <= search.budget_bytes
    run_plan(search.graph, search.plan)


@pytest.mark.parametrize(
    ("reorder", "most_ops", "expected"), [(False, 7, cheapest), (True, 6, cheapest_in_any_order)]
)
@settings(max_examples=250)
@given(data=st.data())
def test_the_cheapest_plan_or_none(reorder, most_ops, expected, data):
    graph, budget_bytes = data.draw(problems(graphs(max_ops=most_ops)))
    search = Search(graph, budget_bytes, time_limit_s=60, reorder=reorder)
    AStar().run(search)
    _check(search, expected(graph, budget_bytes))


@settings(max_examples=150)
@given(problems(graphs(max_ops=7)))
def test_states_that_were_not_looked_at_are_in_the_bound(problem):
    graph, budget_bytes = problem
    expected = cheapest(graph, budget_bytes)
    search = Search(graph, budget_bytes, time_limit_s=60)
    paths = Paths(search)
    while not paths.ended:
        paths.advance(2)
        assert expected is None or search.bound <= expected
    _check(search, expected)


def test_a_known_plan_only_leaves_proof():
    graph = training_chain(10)
    budget_bytes = budget_at(graph, 0.3)
    search = Search(graph, budget_bytes, time_limit_s=60)
    search.offer(solve(graph, budget_bytes, solver="state_space").plan, by="known")
    AStar().run(search)
    assert search.optimal
    assert search.found_by == "known"


def test_layers_that_no_plan_in_stages_fits():
    """What runs again does so in whatever order needs least, not by index."""
    graph = tangled(20)
    result = solve(graph, budget_at(graph, 0.5), throw=False)
    assert result.status is SolveStatus.OPTIMAL
    assert (
        solve(tangled(12), budget_at(tangled(12), 0.7), throw=False).status
        is SolveStatus.INFEASIBLE
    )


def test_costs_of_all_sizes():
    costs = (1e15, 1e3, 1.0)
    graph = training_chain(3, costs=costs, sizes=(7, 10, 3))
    for budget_bytes in range(20, 40):
        expected = cheapest(graph, budget_bytes)
        result = solve(graph, budget_bytes, solver="state_space", throw=False)
        assert (result.plan is None) == (expected is None)
        assert expected is None or result.cost == expected


def test_what_needs_nothing_and_gives_nothing():
    graph = DFGraph(tuple(Op(f"op{i}", (), 1, 3) for i in range(4)))
    assert solve(graph, 3, solver="state_space").cost == 4


def _fan(width: int, readers: int) -> DFGraph:
    """Many values of nearly the same size, of which half must go for one that is large."""
    ops = [Op(f"f{i}", (), 1 + i % 7, 5 + i % 9) for i in range(width)] + [
        Op("big", (), 1, 5 * width)
    ]
    ops += [Op(f"b{j}", (*range(j, width, readers), width), 1, 1) for j in range(readers)]
    return DFGraph(tuple(ops), tuple(range(width + 1, len(ops))))


def test_edges_count_as_states_where_a_state_has_too_many():
    graph = _fan(38, 8)
    assert EDGES_PER_STATE < 2**19  # half of 38 values are dropped in more ways than this
    search = Search(graph, budget_at(graph, 0.5), time_limit_s=60, deterministic=True)
    AStar(60).run(search)
    assert search.plan is None and not search.infeasible


@pytest.mark.parametrize("states", [1, 3])
def test_an_expansion_that_was_broken_off_goes_on(states):
    """Each state after the wide op has more edges than an advance of one state may take."""
    graph = _fan(14, 4)
    expected = solve(graph, budget_at(graph, 0.6), solver="state_space").cost
    search = Search(graph, budget_at(graph, 0.6), time_limit_s=600)
    paths, advances = Paths(search), 0
    while not paths.ended:
        paths.advance(states)
        advances += 1
        assert search.bound <= expected + 1e-9
    assert search.timeline.cost == expected and search.optimal
    assert advances > 10
