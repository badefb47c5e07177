"""Revolve is binomial: its recursion equals the closed form, its states are never more than
allowed, and it costs a chain what it promises."""

from math import comb

import pytest
import strategies
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import run_plan

from checkmate import Plan, replay
from checkmate.solvers.baselines.revolve import advances, held_states, revolved
from checkmate.solvers.search import Search
from checkmate.solvers.solve import make_solver

COST, SPLIT = advances(60, 8)


def closed_form(steps: int, states: int) -> int:
    """Griewank and Walther: r l - C(s + r, s + 1), where C(s + r - 1, s) < l <= C(s + r, s)."""
    r = 0
    while comb(states + r, states) < steps:
        r += 1
    return r * steps - comb(states + r, states + 1)


@pytest.mark.parametrize("states", range(1, 9))
def test_recursion_is_the_closed_form(states):
    assert [COST[steps, states] for steps in range(1, 61)] == [
        closed_form(steps, states) for steps in range(1, 61)
    ]


@given(st.integers(1, 60), st.integers(1, 8))
def test_no_more_states_than_allowed(steps, states):
    held = held_states(steps, states, SPLIT)
    assert len(held) == steps
    assert all(len(places) < states for places in held)  # the start is one of them
    assert all(1 <= place <= k for k, places in enumerate(held) for place in places)


@pytest.mark.parametrize("states", [1, 2, 3, 5])
def test_a_chain_runs_as_many_steps_as_promised(states):
    layers = 24
    graph = strategies.training_chain(layers)
    order = revolved(graph, list(range(layers - 1)), held_states(layers, states, SPLIT))
    again = len(order) - len(graph)
    # Which counts the first pass; its last step need not run before it is reversed.
    assert again == COST[layers, states] - (layers - 1)
    assert replay(graph, Plan.from_order(graph, order)).peak_bytes <= 10 * (states + 6)


@settings(max_examples=100)
@given(strategies.graphs(max_ops=12), st.integers(1, 5), st.data())
def test_any_places_make_a_legal_plan(graph, states, data):
    forward = [i for i, op in enumerate(graph.ops) if not op.is_backward]
    places = sorted(data.draw(st.sets(st.sampled_from(forward)))) if forward else []
    order = revolved(graph, places, held_states(len(places) + 1, states, SPLIT))
    if order is None:
        return
    plan = Plan.from_order(graph, order)
    replay(graph, plan)
    plain = run_plan(graph, Plan.keep_all(graph))
    assert run_plan(graph, plan).items() >= {i: plain[i] for i in graph.outputs}.items()


def test_a_long_chain_needs_few_values():
    graph = strategies.training_chain(128)
    search = Search(graph, 2**62, time_limit_s=60)
    make_solver("revolve").run(search)
    assert search.best_peak_bytes <= 10 * 16
