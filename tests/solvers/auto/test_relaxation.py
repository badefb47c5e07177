"""The bound is a bound: compared with brute force for any choice of snapshots, whatever the graph
may hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import oracles
import strategies
from hypothesis import given, settings
from hypothesis import strategies as st

from checkmate import DFGraph, Op
from checkmate.solvers.auto.bounds import solve_integer, solve_linear
from checkmate.solvers.auto.relaxation import Relaxation


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


@settings(max_examples=250, deadline=None)
@given(strategies.problems(), st.data())
def test_never_above_the_cheapest_plan(problem, data):
    _check_bound(problem, data)


@settings(max_examples=150, deadline=None)
@given(strategies.problems(strategies.training_chains()), st.data())
def test_never_above_the_cheapest_plan_of_training_graphs(problem, data):
    _check_bound(problem, data)


@settings(max_examples=150, deadline=None)
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


# A, c and d together.
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
