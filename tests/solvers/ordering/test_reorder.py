"""Re-ordering: plans in any order, bounds that cover any order, and what the result says about
both."""

from __future__ import annotations

import threading
from dataclasses import replace

import oracles
import pytest
import strategies
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from benchmarks.problems import layered
from checkmate import (
    DFGraph,
    GraphError,
    InfeasibleBudgetError,
    Op,
    Plan,
    SolveStatus,
    floor,
    replay,
    solve,
)
from checkmate.solvers.annealing.annealer import Annealer, AnnealingRun, AnnealingTask
from checkmate.solvers.annealing.arrays import IN_ANY_ORDER
from checkmate.solvers.auto.solver import Auto
from checkmate.solvers.baselines.chen import ChenGreedy
from checkmate.solvers.ordering import reorder
from checkmate.solvers.ordering.any_order import comparable, raise_any_order_bound, renumbered
from checkmate.solvers.ordering.reorder import Reorder, greedy_order
from checkmate.solvers.search import Search


@st.composite
def tight_problems(draw, max_ops: int = 6) -> tuple[DFGraph, int]:
    """Graphs whose plain step does not fit, with a budget from the floor up."""
    graph = draw(
        strategies.graphs(max_ops=max_ops, min_ops=3) | strategies.training_chains(max_layers=2)
    )
    lowest, peak = floor(graph).bytes, replay(graph, Plan.keep_all(graph)).peak_bytes
    assume(1 <= lowest < peak)
    return graph, draw(st.integers(lowest, peak - 1))


def two_pairs() -> DFGraph:
    """Two large values made first and read last in the given order; one after the other they need
    half the memory."""
    ops = (Op("a", (), 1, 8), Op("b", (), 1, 8), Op("use_a", (0,), 1, 1), Op("use_b", (1,), 1, 1))
    return DFGraph(ops, outputs=(2, 3))


@settings(max_examples=80)
@given(tight_problems())
def test_bounds_and_plans_against_brute_force_in_any_order(problem):
    graph, budget = problem
    cheapest = oracles.cheapest_in_any_order(graph, budget)
    given_order = oracles.cheapest(graph, budget)
    result = solve(graph, budget, reorder=True, throw=False, solver="chen_greedy")
    if cheapest is None:
        assert result.plan is None
        return
    assert result.status is not SolveStatus.INFEASIBLE
    assert result.bound_covers == "any order"
    assert result.bound <= cheapest * (1 + 1e-9)
    assert given_order is None or result.given_order_bound <= given_order * (1 + 1e-9)
    if result.plan is not None:
        assert cheapest - 1e-9 <= result.cost
        assert result.peak_bytes <= budget
        assert replay(graph, result.plan) == result.timeline
        plain = oracles.run_plan(graph, Plan.keep_all(graph))
        assert (
            oracles.run_plan(graph, result.plan).items()
            >= {i: plain[i] for i in graph.outputs}.items()
        )


@settings(max_examples=300)
@given(tight_problems())
def test_bound_for_any_order(problem):
    graph, budget = problem
    cheapest = oracles.cheapest_in_any_order(graph, budget)
    search = Search(graph, budget, time_limit_s=60, reorder=True)
    raise_any_order_bound(search)
    if cheapest is None:
        return
    assert not search.infeasible
    assert search.bound == search.any_order_bound <= cheapest * (1 + 1e-9)
    assert search.given_order_bound >= search.any_order_bound


@settings(max_examples=60)
@given(tight_problems())
def test_nearly_always_the_cheapest(problem):
    graph, budget = problem
    cheapest = oracles.cheapest_in_any_order(graph, budget)
    assume(cheapest is not None)
    result = solve(graph, budget, reorder=True, throw=False)
    assert result.plan is not None
    assert result.cost <= 1.2 * cheapest + 1e-9


def test_another_order_for_free():
    graph = two_pairs()
    assert replay(graph, Plan.keep_all(graph)).peak_bytes == 17
    with_order = solve(graph, 12)
    # Each of the two is made twice.
    assert (with_order.cost, with_order.bound_covers) == (6, "given order")
    assert 5 - 1e-6 <= with_order.bound <= 6
    free = solve(graph, 12, reorder=True)
    assert (free.status, free.cost, free.bound, free.bound_covers) == (
        SolveStatus.OPTIMAL,
        4,
        4,
        "any order",
    )
    assert free.plan.recomputed == {}
    assert free.schedule is None


def test_the_result_says_that_another_order_is_cheaper():
    # Re-ordering helps with the first pair, recomputation is needed for the second: it is not found
    # by moving alone.
    ops = (
        *two_pairs().ops,
        Op("c", (), 1, 8),
        Op("big", (), 1, 9),
        Op("use_c", (4, 5), 1, 1, control_deps=(2, 3)),
    )
    graph = DFGraph(ops, outputs=(2, 3, 6))
    budget = 21
    given_order, free = solve(graph, budget), solve(graph, budget, reorder=True)
    assert given_order.bound_covers == "given order" or given_order.cost == free.cost
    assert free.cost <= given_order.cost
    if free.cost < given_order.cost:
        assert "in any order" in str(free)


def test_what_beats_the_given_order_is_called_so():
    given_order, free = solve(two_pairs(), 12), solve(two_pairs(), 12, reorder=True)
    told = replace(free, given_order_bound=given_order.bound)
    assert told.beats_given_order
    assert "cheaper than any plan in the graph's own order" in str(told)
    assert not given_order.beats_given_order
    assert "in the graph's order" in str(given_order)


def test_training_chain_is_proven_for_every_order():
    graph = strategies.training_chain(8, skip=2, costs=(2.0, 1.0), sizes=(5, 3))
    result = solve(graph, "80%", reorder=True)
    assert result.status is SolveStatus.OPTIMAL
    assert result.bound_covers == "any order"
    assert result.bound > graph.total_cost


def test_nothing_fits_in_any_order():
    # Running `a` again needs `state`, which runs once: whatever the order, one of the two is in
    # memory beside `big`.
    ops = (
        Op("state", (), 1, 4, recomputable=False),
        Op("a", (0,), 1, 4),
        Op("big", (1,), 1, 10),
        Op("shrunk", (2,), 1, 0),
        Op("end", (0, 3), 1, 1),
    )
    graph = DFGraph(ops, outputs=(4,))
    with pytest.raises(InfeasibleBudgetError):
        solve(graph, 13, reorder=True)


def test_order_that_matters_is_kept():
    """An op that overwrites a variable stays behind its readers, and what was overwritten does not
    run again."""
    graph = strategies.training_chain(8, skip=2, updates=True, gradient_bytes=3, fixed_bytes=20)
    result = solve(graph, "75%", reorder=True, time_limit_s=5)
    oracles.run_plan(graph, result.plan)
    assert result.peak_bytes <= result.budget_bytes


def test_what_may_be_overwritten_is_renumbered_and_cut_down_too():
    graph = strategies.leaky_relu_grad(read_again=True, in_place=(1,))
    assert [op.in_place for op in renumbered(graph, [1, 0, 2, 3]).after.ops] == [(), (), (0,), ()]
    part, moment = comparable(graph, 2)
    assert part.ops[moment].in_place == (1,)
    search = Search(graph, 32, time_limit_s=10, reorder=True)
    raise_any_order_bound(search)
    assert not search.infeasible
    assert search.bound == pytest.approx(13)


def test_renumbering_refuses_an_impossible_order():
    with pytest.raises(GraphError):
        renumbered(two_pairs(), [2, 0, 1, 3])


def test_cut_down_to_one_moment():
    graph = two_pairs()
    part, moment = comparable(graph, 2)
    assert [op.name for op in part.ops] == ["a", "use_a"]
    assert part.ops[moment].name == "use_a"
    assert part.ops[moment].deps == (0,)


def test_moves_alone_leave_a_place_where_nothing_fits():
    """At a quarter of these temperatures they do not, in as many proposals."""
    graph = layered(250)
    budget = int(0.8 * replay(graph, Plan.keep_all(graph)).peak_bytes)
    annealer = Annealer(graph, budget)
    hot, cold = Reorder(Auto()).moves
    start = range(len(graph))
    annealer.run(AnnealingRun(start, 4000, hot, cold, IN_ANY_ORDER, only_move=True))
    assert annealer.best is not None
    assert replay(graph, Plan.from_order(graph, annealer.best)).peak_bytes <= budget


def test_any_solver_can_be_asked():
    graph = strategies.tangled(40)
    budget = int(0.85 * replay(graph, Plan.keep_all(graph)).peak_bytes)
    for solver in (Auto(), "chen_greedy"):
        result = solve(graph, budget, solver=solver, reorder=True, time_limit_s=1)
        assert result.peak_bytes <= budget
    assert Reorder(Auto()).name == "auto"


class FindsNothing:
    """A solver that gives up at once."""

    name = "finds_nothing"

    def run(self, search: Search) -> None:
        pass


def test_no_plan_in_the_given_order_is_no_reason_to_give_up():
    graph = strategies.tangled(60)
    budget = int(0.8 * replay(graph, Plan.keep_all(graph)).peak_bytes)
    search = Search(graph, budget, time_limit_s=600, reorder=True)
    Reorder(FindsNothing(), proposals=500, rounds=2).run(search)
    assert search.plan is not None
    assert search.timeline.peak_bytes <= budget
    assert search.plan.recomputed


@pytest.mark.parametrize("during", ["annealing", "the solver"])
def test_what_annealing_had_found_before_an_interrupt_counts(monkeypatch, during):
    graph = strategies.tangled(60)
    budget = int(0.8 * replay(graph, Plan.keep_all(graph)).peak_bytes)
    search = Search(graph, budget, time_limit_s=600, reorder=True)
    wait = AnnealingTask.wait

    def interrupted(task, seconds=None):
        if task.found[1] and during == "annealing":
            monkeypatch.undo()
            raise KeyboardInterrupt
        wait(task, seconds)

    class Interrupted(FindsNothing):
        def run(self, search: Search) -> None:
            if search.graph is not graph:  # in an order that annealing found
                raise KeyboardInterrupt

    monkeypatch.setattr(AnnealingTask, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Reorder(Interrupted(), proposals=500).run(search)
    assert search.timeline.peak_bytes <= budget


def test_without_the_annealer_the_solver_is_called_in_both_orders(monkeypatch):
    free = threading.Event()
    monkeypatch.setattr(reorder, "Annealer", lambda *_, **__: free.wait(60))
    called: list[DFGraph] = []

    class Called(FindsNothing):
        def run(self, search: Search) -> None:
            called.append(search.graph)

    graph = layered(100, seed=1)
    solve(graph, "80%", solver=Called(), reorder=True, time_limit_s=4, throw=False)
    free.set()
    assert called == [graph, renumbered(graph, greedy_order(graph)).after]
    assert called[0] != called[1]


@settings(max_examples=100)
@given(strategies.graphs(max_ops=9) | strategies.training_chains(max_layers=3))
# Raises where an op comes before one it must follow.
def test_greedy_order_is_legal(graph):
    order = greedy_order(graph)
    assert sorted(order) == list(range(len(graph)))
    assert len(renumbered(graph, order).after) == len(graph)


def test_greedy_order_saves_memory():
    graph = two_pairs()
    assert replay(graph, Plan.from_order(graph, greedy_order(graph))).peak_bytes == 10


def test_same_question_same_answer():
    graph = strategies.tangled(40)
    budget = int(0.7 * replay(graph, Plan.keep_all(graph)).peak_bytes)
    solver = Reorder(ChenGreedy(), proposals=100, rounds=2)

    def ask():
        search = Search(graph, budget, time_limit_s=600, reorder=True)
        solver.run(search)
        return search

    first, second = ask(), ask()
    assert (first.plan, first.bound) == (second.plan, second.bound)
