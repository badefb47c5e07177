"""The bound is computed from multipliers, not believed: true for any of them, and the relaxation's
value for the best ones."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from oracles import cheapest
from strategies import graphs, problems, training_chain

from checkmate import Plan, replay, solve
from checkmate.solvers.backends.engines import solve_matrices
from checkmate.solvers.paper.formulation import relax
from checkmate.solvers.paper.lp import raise_relaxation_bound
from checkmate.solvers.search import Search

CHAIN = training_chain(8, skip=3, costs=(2.0, 1.0, 3.0), sizes=(4, 9, 2))


@settings(max_examples=60)
@given(problems(graphs(max_ops=6)), st.integers(0, 2**32 - 1))
def test_any_multipliers_give_a_bound(problem, seed):
    graph, budget_bytes = problem
    relaxation = relax(graph, budget_bytes)
    generator = np.random.default_rng(seed)
    y = generator.normal(size=relaxation.problem.shape[0]) * generator.choice(
        [0, 0.1, 1, 100], size=relaxation.problem.shape[0]
    )
    least = cheapest(graph, budget_bytes)
    assume(least is not None)
    assert relaxation.cost(relaxation.problem.dual_bound(y)) <= least + 1e-9


def test_multipliers_that_are_no_numbers_are_left_out():
    problem = relax(CHAIN, 60).problem
    y = np.full(problem.shape[0], np.nan)
    y[::2] = np.inf
    assert problem.dual_bound(y) == pytest.approx(problem.dual_bound(np.zeros(problem.shape[0])))


def bounded(graph, share, seconds=60.0):
    """A search with the relaxation's bound, for a share of the plain step's peak."""
    budget = int(share * replay(graph, Plan.keep_all(graph)).peak_bytes)
    search = Search(graph, budget, time_limit_s=seconds)
    raise_relaxation_bound(search)
    return search


def test_the_bound_is_the_optimum_of_the_relaxation():
    search = bounded(CHAIN, 0.75)
    relaxation = relax(CHAIN, search.budget_bytes)
    linear = replace(relaxation.problem, integer=np.zeros(relaxation.problem.shape[1], bool))
    found = solve_matrices(linear, engine="highs", time_limit_s=60)
    assert search.bound > 1.001 * CHAIN.total_cost
    assert search.bound == pytest.approx(relaxation.cost(linear.cost @ found.x), rel=1e-5)


def test_a_bound_below_the_best_plan():
    search = bounded(CHAIN, 0.75)
    assert search.proven_by == "linear relaxation"
    assert CHAIN.total_cost < search.bound <= solve(CHAIN, "75%").cost


def test_no_time_no_bound():
    assert bounded(CHAIN, 0.75, seconds=0).bound == CHAIN.total_cost


def test_a_program_that_takes_too_long_to_write_down_is_not():
    from benchmarks.problems import load

    graph = load("encoder5")
    assert bounded(graph, 0.6, seconds=1).bound == graph.total_cost
