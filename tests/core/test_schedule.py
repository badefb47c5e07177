"""Schedule: the rules of R and S, and which plans have stages."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import graphs, training_chain

from checkmate import Compute, DFGraph, Free, Op, Plan, PlanError, Schedule, lower


@pytest.mark.parametrize(
    ("R", "S", "message"),
    [
        ([[1, 0]], [[0, 0], [0, 0]], "matrices of one shape"),
        ([1, 0], [0, 0], "matrices of one shape"),
        (np.zeros((0, 2)), np.zeros((0, 2)), "matrices of one shape"),
        ([[1, 0], [0, 1]], [[1, 0], [0, 0]], "S retains op 0 into stage 0"),
        (
            [[1, 0], [0, 1], [0, 0]],
            [[0, 0], [0, 0], [1, 0]],
            "S retains op 0 into stage 2, but it was not in memory in stage 1",
        ),
    ],
)
def test_refused(R, S, message):
    with pytest.raises(PlanError, match=message):
        Schedule(R, S)


def test_read_only_and_comparable():
    R, S = np.eye(2, dtype=bool), np.zeros((2, 2), bool)
    schedule = Schedule(R, S)
    with pytest.raises(ValueError, match="read-only"):
        schedule.R[0, 0] = False
    R[0, 1] = True  # a copy was taken
    assert schedule == Schedule(np.eye(2), np.zeros((2, 2)))
    assert schedule != Schedule(R, S)
    assert repr(schedule) == "Schedule(stages=2, ops=2, evaluations=2)"


@st.composite
def stage_orders(draw):
    """A graph and an order in stages: some earlier ops in index order, with what they read, then
    the next op for the first time."""
    graph = draw(graphs())
    order: list[int] = []
    for t in range(len(graph)):
        again = draw(st.sets(st.integers(0, t - 1), max_size=3)) if t else set()
        order += [*sorted(again), t]
    return graph, order


@given(stage_orders())
def test_plans_in_stages_go_to_matrices_and_back(example):
    graph, order = example
    plan = Plan.from_order(graph, order)
    schedule = Schedule.from_plan(graph, plan)
    assert lower(graph, schedule) == plan
    n = len(graph)
    assert not np.triu(schedule.R, 1).any() and schedule.R.diagonal().all()
    assert not np.triu(schedule.S).any()
    assert int(schedule.R.sum()) == len(plan.computed)
    assert Schedule.from_plan(graph, lower(graph, schedule)) == schedule
    available = schedule.R | schedule.S
    assert all(
        available[t, d] for t in range(n) for i in schedule.R[t].nonzero()[0] for d in graph.deps[i]
    )


@given(stage_orders())
def test_what_is_retained_is_read_before_it_is_computed_again(example):
    graph, order = example
    schedule = Schedule.from_plan(graph, Plan.from_order(graph, order))
    n = len(graph)
    for t, i in np.argwhere(schedule.S):
        read = any(schedule.R[t, j] for j in graph.users[i] if not schedule.R[t, i])
        kept_on = schedule.S[t + 1, i] if t + 1 < n else i in graph.outputs
        assert read or kept_on


def test_a_plan_that_reorders_has_no_stages():
    graph = DFGraph((Op("a"), Op("b"), Op("c", (0, 1))))
    assert Schedule.from_plan(graph, Plan.from_order(graph, [1, 0, 2])) is None


def test_an_op_twice_in_a_stage_has_no_stages():
    graph = training_chain(3)
    again = (Compute(0), Free(0), Compute(0), Free(0))
    steps = (*Plan.keep_all(graph).steps[:1], Free(0), *again, *Plan.keep_all(graph).steps)
    assert Schedule.from_plan(graph, Plan(steps)) is None


def test_work_after_the_last_first_evaluation_has_no_stages():
    graph = DFGraph((Op("a", output_bytes=5), Op("b", output_bytes=5)), (0, 1))
    plan = Plan((Compute(0), Free(0), Compute(1), Compute(0)))
    assert Schedule.from_plan(graph, plan) is None
