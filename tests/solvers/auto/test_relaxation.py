"""The bound is a bound: compared with brute force for any choice of snapshots, whatever the graph
may hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import oracles
import pytest
import strategies
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp

from benchmarks.problems import budget_at, load
from checkmate import DFGraph, Op
from checkmate.solvers.auto.bounds import solve_integer, solve_linear
from checkmate.solvers.auto.relaxation import Relaxation
from checkmate.solvers.local.stage_plan import last_stages


def _check_bound(problem, data):
    graph, budget = problem
    snapshots = data.draw(
        st.lists(st.integers(0, len(graph) - 1), min_size=1, max_size=6, unique=True)
    )
    model = Relaxation(graph, budget, snapshots)
    bound = solve_integer(model, seconds=10, nodes=200)
    cheapest = oracles.cheapest(graph, budget)
    if cheapest is not None:
        assert graph.total_cost <= bound.bound <= cheapest
        assert graph.total_cost <= solve_linear(model, seconds=10).bound <= bound.bound + 1e-3


@settings(max_examples=120, deadline=None)
@given(strategies.problems(), st.data())
def test_never_above_the_cheapest_plan(problem, data):
    _check_bound(problem, data)


@settings(max_examples=80, deadline=None)
@given(strategies.problems(strategies.training_chains_in_place()), st.data())
def test_never_above_the_cheapest_plan_of_training_graphs_in_place(problem, data):
    _check_bound(problem, data)


def test_an_op_in_place_at_a_snapshot():
    """Its bytes count where all that it may overwrite is kept, and only there."""
    for in_place, budget, cost in (
        ((1,), 32, 13),
        ((1,), 47, 13),
        ((1,), 48, 8),
        ((0,), 32, 8),
        ((0, 1), 32, 8),
        ((), 47, np.inf),
    ):
        graph = strategies.leaky_relu_grad(read_again=True, in_place=in_place)
        assert solve_integer(Relaxation(graph, budget, [2]), seconds=10, nodes=200).bound == cost
    assert np.isinf(
        solve_integer(
            Relaxation(strategies.leaky_relu_grad(), 31, [2]), seconds=10, nodes=200
        ).bound
    )


def test_an_input_that_may_not_be_made_again_is_not_overwritten():
    graph = strategies.leaky_relu_grad(read_again=True, in_place=(1,))
    once = replace(
        graph, ops=(graph.ops[0], replace(graph.ops[1], recomputable=False), *graph.ops[2:])
    )
    assert np.isinf(solve_integer(Relaxation(once, 47, [2]), seconds=10, nodes=200).bound)
    assert solve_integer(Relaxation(once, 48, [2]), seconds=10, nodes=200).bound == 8


def _optimum(graph: DFGraph, budget: int, snapshots: list[int]) -> float:
    """The optimum of rows (1) to (7), as the theorem states them: every variable, no reduction."""
    n, K = len(graph), len(snapshots)
    R = np.arange((K + 1) * n).reshape(K + 1, n)
    P = R.size + np.arange(K * n).reshape(K, n)
    A = R.size + P.size + np.arange(K)
    rows, lower, upper = [], np.zeros(R.size + P.size + K), np.ones(R.size + P.size + K)

    def at_most(limit: float, *terms: tuple[int, float]) -> None:
        rows.append((limit, np.zeros(len(upper))))
        for column, value in terms:
            rows[-1][1][column] += value

    last_stage = last_stages(graph)
    ends = [-1, *snapshots, n - 1]
    for c in range(K + 1):
        kept = [(P[c - 1, i], -1.0) if c else (R[c, i], 0.0) for i in range(n)]
        for i in range(n):
            for j in graph.users[i]:
                at_most(0, (R[c, j], 1), (R[c, i], -1), kept[i])
            if c < K:
                at_most(0, (P[c, i], 1), (R[c, i], -1), kept[i])
            if ends[c] < i <= ends[c + 1]:
                lower[R[c, i]] = 1
            elif i > ends[c + 1] or last_stage[i] <= ends[c]:
                upper[R[c, i]] = 0
        if c == K:
            continue
        t = snapshots[c]
        over = graph.in_place[t]
        for i in {t, *graph.deps[t]} - set(over):
            lower[P[c, i]] = 1
        free = budget - graph.fixed_bytes - graph.ops[t].workspace_bytes
        at_most(free, *((P[c, i], graph.ops[i].output_bytes) for i in range(n)),
                (A[c], -graph.ops[t].output_bytes))  # fmt: skip
        at_most(len(over), (A[c], 1), *((P[c, i], 1) for i in over))
    for i in graph.outputs:
        at_most(-1, (R[K, i], -1), (P[K - 1, i], -1))
    cost = np.append(np.tile(graph.costs, K + 1), np.zeros(P.size + K))
    found = milp(
        cost,
        integrality=np.ones(len(cost)),
        bounds=Bounds(lower, upper),
        constraints=LinearConstraint(np.array([row for _, row in rows]), ub=[at for at, _ in rows]),
    )
    return float("inf") if found.fun is None else found.fun


@settings(max_examples=100, deadline=None)
@given(
    strategies.problems(strategies.training_chains_in_place(max_layers=4)) | strategies.problems(),
    st.data(),
)
def test_reductions_and_cuts_keep_the_optimum(problem, data):
    graph, budget = problem
    snapshots = data.draw(
        st.lists(st.integers(0, len(graph) - 1), min_size=1, max_size=3, unique=True)
    )
    expected = _optimum(graph, budget, sorted(snapshots))
    model = Relaxation(graph, budget, snapshots)
    assert solve_integer(model, seconds=10, nodes=500).bound == pytest.approx(expected, rel=1e-4)
    solve_linear(model, seconds=10)  # adds cuts
    assert solve_integer(model, seconds=10, nodes=500).bound == pytest.approx(expected, rel=1e-4)
    more = data.draw(st.lists(st.integers(0, len(graph) - 1), max_size=2, unique=True))
    finer = Relaxation(graph, budget, [*snapshots, *more])
    finer.adopt_cuts(model)
    expected = _optimum(graph, budget, sorted({*snapshots, *more}))
    assert solve_integer(finer, seconds=10, nodes=500).bound == pytest.approx(expected, rel=1e-4)


def test_cuts_that_are_adopted_raise_the_bound():
    graph = load("resnet50")
    budget, quarters = budget_at(graph, 0.1), [len(graph) * k // 4 for k in (1, 2, 3)]
    coarse = Relaxation(graph, budget, quarters)
    known = solve_linear(coarse, seconds=60).bound
    without, adopting = (
        Relaxation(graph, budget, [*quarters, len(graph) // 3, 5 * len(graph) // 8])
        for _ in range(2)
    )
    adopting.adopt_cuts(coarse)
    first = solve_linear(without, seconds=60, rounds=1).bound
    assert first < known  # more snapshots and no cuts
    assert first < solve_linear(adopting, seconds=60, rounds=1).bound


def test_one_snapshot_is_worked_out_by_hand():
    # a -> b -> c, and d reads a and c. Beside c at its input b, 3 bytes are free: a (4 bytes) must
    # go and run again for d.
    graph = DFGraph(
        (Op("a", (), 7, 4), Op("b", (0,), 1, 2), Op("c", (1,), 1, 2), Op("d", (0, 2), 1, 1)),
        outputs=(3,),
    )
    bound = solve_integer(Relaxation(graph, 7, [2]), seconds=10, nodes=200)
    assert 16.9 < bound.bound <= 17
    assert bound.dropped == ((0,),)
    assert solve_integer(Relaxation(graph, 8, [2]), seconds=10, nodes=200).bound == graph.total_cost
    assert solve_integer(Relaxation(graph, 6, [3]), seconds=10, nodes=200).bound == float("inf")
