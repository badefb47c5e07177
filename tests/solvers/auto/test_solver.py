"""The default solver: legal, within the budget, bounded, near brute force, fast on deep graphs and
the same every time."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import replace

import numpy as np
import oracles
import pytest
import strategies
from hypothesis import assume, given, settings

from benchmarks.problems import budget_at
from checkmate import (
    DFGraph,
    InfeasibleBudgetError,
    Op,
    Schedule,
    SolveStatus,
    floor,
    replay,
    solve,
)
from checkmate.solvers.auto.solver import Auto, worst_overflows
from checkmate.solvers.background import unfinished_tasks
from checkmate.solvers.baselines.dtr import DTR
from checkmate.solvers.local.repair import Repair, trim
from checkmate.solvers.local.stage_plan import StagePlan, moves_of
from checkmate.solvers.search import Search


def _resnet_like(blocks: int) -> DFGraph:
    return strategies.training_chain(
        3 * blocks,
        skip=3,
        costs=(8.0, 1.0, 0.5),
        sizes=(100, 100, 50),
        updates=True,
        gradient_bytes=2,
        fixed_bytes=300,
    )


@settings(max_examples=80, deadline=None)
@given(strategies.problems(strategies.training_chains()))
def test_training_graphs_against_brute_force(problem):
    graph, budget = problem
    cheapest = oracles.cheapest(graph, budget)
    assume(cheapest is not None)
    result = solve(graph, budget, throw=False)
    assert result.plan is not None
    assert result.bound <= cheapest <= result.cost + 1e-9
    assert result.cost <= 1.35 * cheapest


@pytest.mark.parametrize("share", [0.9, 0.3])
def test_deep_graph_is_nearly_proven(share):
    graph = _resnet_like(16)
    result = solve(graph, budget_at(graph, share), time_limit_s=20)
    assert result.gap < 0.02
    assert result.plan.recomputed
    assert Schedule.from_plan(graph, result.plan) is not None
    oracles.run_plan(graph, result.plan)


def test_tight_budget_of_a_deep_graph():
    graph = _resnet_like(16)
    result = solve(graph, budget_at(graph, 0.08), time_limit_s=2)
    assert result.peak_bytes <= result.budget_bytes
    assert result.overhead < 1.5


def test_thousand_ops_in_seconds():
    graph = _resnet_like(84)
    assert len(graph) > 1000
    result = solve(graph, budget_at(graph, 0.5))
    assert result.gap < 0.02


def test_deterministic_reads_no_clock(monkeypatch):
    graph = _resnet_like(6)
    quick, budget = Auto(max_stalls=1, rounds=1), budget_at(graph, 0.2)

    def ask(time_limit_s):
        result = solve(graph, budget, solver=quick, deterministic=True, time_limit_s=time_limit_s)
        return result.plan, result.bound, [(cost, bound) for _, cost, bound in result.stats.history]

    expected = ask(60)
    passed = [0.0]

    def hurried():  # every look at the clock finds a minute gone
        passed[0] += 60
        return passed[0]

    monkeypatch.setattr(time, "monotonic", hurried)
    assert ask(0) == expected


@settings(max_examples=60, deadline=None)
@given(strategies.problems(strategies.training_chains()))
def test_plans_of_others_are_starts(problem):
    graph, budget = problem
    search = Search(graph, budget, time_limit_s=60)
    DTR(budgets=4).run(search)
    assume(search.plan is not None)
    stage_plan = StagePlan(graph)
    stage_plan.move_to(moves_of(search.plan.computed))
    assert moves_of(stage_plan.plan().computed) == stage_plan.moves()
    assert stage_plan.cost <= search.timeline.cost
    replay(graph, stage_plan.plan())


def test_interruption_passes_through():
    graph = _resnet_like(8)

    def interrupt(search):
        if search.plan is not None:
            raise KeyboardInterrupt

    search = Search(graph, budget_at(graph, 0.5), time_limit_s=60, on_progress=interrupt)
    with pytest.raises(KeyboardInterrupt):
        Auto().run(search)
    assert search.plan is not None
    result = solve(graph, budget_at(graph, 0.5), on_progress=interrupt)
    assert result.status in (SolveStatus.INTERRUPTED, SolveStatus.OPTIMAL)
    assert result.plan is not None


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_search_that_is_stopped_ends_with_its_plan(deterministic):
    found = []

    def stop(search):
        if search.plan is not None:
            found.append(search.elapsed_s)
            search.stop()

    graph = _resnet_like(8)
    result = solve(graph, budget_at(graph, 0.5), deterministic=deterministic, on_progress=stop)
    assert result.plan is not None and result.status is SolveStatus.FEASIBLE
    assert len(found) <= 2, "the plan that was found, and what was offered beside it"


def test_relaxation_proves_what_the_floor_does_not():
    # Running `a` again needs `state`, which runs once: at `big`, either of the two must be held.
    ops = (
        Op("state", (), 1, 4, recomputable=False),
        Op("a", (0,), 1, 4),
        Op("big", (), 1, 8),
        Op("end", (1, 2), 1, 1),
    )
    graph = DFGraph(ops, outputs=(3,))
    assert floor(graph).bytes <= 13
    tight = DFGraph(
        (*ops[:2], Op("big", (), 1, 10), Op("shrunk", (2,), 1, 0), Op("end", (1, 3), 1, 1)),
        outputs=(4,),
    )
    with pytest.raises(InfeasibleBudgetError, match="big"):
        solve(tight, 12)
    assert solve(tight, 14).cost == tight.total_cost


def test_repair_and_trim_keep_what_they_promise():
    graph = _resnet_like(12)
    budget = budget_at(graph, 0.3)
    stage_plan = StagePlan(graph)
    assert Repair(stage_plan, budget, lambda: False).run()
    repaired = stage_plan.cost
    trim(stage_plan, budget)
    assert stage_plan.peak_bytes <= budget
    assert stage_plan.cost <= repaired


@pytest.mark.parametrize(
    ("share", "said"),
    [(2e-5, "less than 0.01 % above"), (0.05, "at most 5.00 % above"), (0.0, "not above")],
)
def test_a_gap_is_not_rounded_to_nothing(share, said):
    found = solve(_resnet_like(6), "60%", time_limit_s=5)
    status = SolveStatus.FEASIBLE if share else SolveStatus.OPTIMAL
    assert said in str(replace(found, status=status, bound=found.cost / (1 + share)))


def test_where_a_repair_is_stuck_nothing_may_fit():
    # A chain that is large in the middle, and can be evicted there; then pairs of which one value
    # each must stay, and nothing says which.
    layers, pairs, size = 40, 12, 10
    graph = strategies.training_chain(layers, sizes=(size,))
    ops, end = list(graph.ops), len(graph)
    for k in range(pairs):
        ops += [
            Op(f"w{k}", (end - 1,), 1, size + 2, recomputable=False),
            Op(f"v{k}", (end + 2 * k,), 1, size),
        ]
    ops += [Op(f"g{k}", (end + 2 * k + 1,), 1, 1) for k in range(pairs)]
    graph = DFGraph(tuple(ops), tuple(range(end + 2 * pairs, len(ops))))
    budget = pairs * size - 2
    assert floor(graph).bytes <= budget
    assert solve(graph, budget, throw=False).status is SolveStatus.INFEASIBLE


@pytest.mark.parametrize(
    ("overflow", "chosen", "many", "expected"),
    [
        ([0, 3, 9, 5], [], 1, [2]),
        ([0, 3, 9, 5], [2], 1, [3]),
        ([0, 3, 9, 5], [], 4, [2, 3, 1]),  # only what overflows
        ([0, -3, 0], [], 4, []),
        ([0] * 50 + [7, 8, 7] + [0] * 26 + [1], [], 4, [51, 79]),  # a neighbour says the same
        ([0] * 50 + [7, 8, 7] + [0] * 27, [51], 4, []),
        ([0] * 50 + [7, 8, 7] + [0] * 27, [51], 1, [50]),
    ],
)
def test_snapshots_are_added_where_most_overflows(overflow, chosen, many, expected):
    assert worst_overflows(np.array(overflow, float), chosen, many) == expected


def test_all_of_the_time_is_used_while_there_is_no_plan():
    graph = strategies.tangled(12)
    budget = budget_at(graph, 0.7)
    search = Search(graph, budget, time_limit_s=2)
    Auto(exact_share=0.0).run(search)  # A* would prove that there is none
    assert search.plan is None and not search.infeasible
    assert search.remaining_s <= 0


@pytest.fixture
def highs(monkeypatch):
    """Sets what runs in the place of HiGHS."""
    return lambda call: monkeypatch.setattr("scipy.optimize.milp", lambda *_, **__: call())


def test_a_call_of_highs_that_hangs_is_left_alone(highs):
    free, asked = threading.Event(), []
    highs(lambda: asked.append(1) or free.wait(60))
    graph = _resnet_like(8)
    result = solve(graph, budget_at(graph, 0.3), time_limit_s=2)
    assert asked and unfinished_tasks()
    free.set()
    assert result.status is SolveStatus.FEASIBLE
    assert result.peak_bytes <= result.budget_bytes


def test_ctrl_c_arrives_while_highs_works(highs):
    free = threading.Event()

    def working():
        os.kill(os.getpid(), signal.SIGINT)
        free.wait(60)

    highs(working)
    graph = _resnet_like(8)
    result = solve(graph, budget_at(graph, 0.3), time_limit_s=60)
    assert not free.is_set() and unfinished_tasks()
    free.set()
    assert result.status is SolveStatus.INTERRUPTED
    assert result.peak_bytes <= result.budget_bytes


def test_a_search_ends_where_it_no_longer_pays():
    """Greedy repair has a plan at once. In no step at all nothing better pays for more; in very
    many steps everything does."""
    graph = _resnet_like(8)
    first = solve(graph, budget_at(graph, 0.3), solver=Auto(steps=0))
    assert first.stats.found_by == "greedy" and first.bound == graph.total_cost
    for steps in (1e9, float("inf")):
        best = solve(graph, budget_at(graph, 0.3), solver=Auto(steps=steps), time_limit_s=5)
        assert best.bound > graph.total_cost and best.cost <= first.cost


def test_without_a_plan_a_search_goes_on():
    graph = _resnet_like(8)
    budget = floor(graph).bytes
    result = solve(graph, budget, solver=Auto(steps=0), time_limit_s=1, throw=False)
    assert result.bound > graph.total_cost


def test_a_deterministic_search_does_not_look_at_the_clock_for_what_pays():
    graph = _resnet_like(3)
    quick = Auto(steps=0, rounds=1)
    result = solve(graph, budget_at(graph, 0.3), solver=quick, deterministic=True)
    assert result.bound > graph.total_cost
