"""Plan: what it refuses at construction, and the freeing rule of `from_order` and `lower`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import graphs, training_chain

from checkmate import Compute, DFGraph, Free, Op, Plan, PlanError, Schedule, lower, replay


@st.composite
def orders(draw):
    """A graph and an order of its ops with repeats, each after what it reads."""
    graph = draw(graphs())
    order = list(range(len(graph)))
    for i in draw(st.lists(st.integers(0, len(graph) - 1), max_size=6)):
        order.insert(draw(st.integers(i + 1, len(order))), i)
    return graph, order


def test_no_double_compute_and_no_free_of_nothing():
    with pytest.raises(PlanError, match="Step 1 computes op 0, whose value is still in memory"):
        Plan((Compute(0), Compute(0)))
    with pytest.raises(PlanError, match="Step 0 frees op 3"):
        Plan((Free(3),))
    with pytest.raises(PlanError, match="A step is"):
        Plan((("compute", 0),))


@given(orders())
def test_values_live_exactly_until_their_last_use(example):
    graph, order = example
    plan = Plan.from_order(graph, order)
    live_since: dict[int, int] = {}
    last_read: dict[int, int] = {}
    computes = 0
    for step in plan.steps:
        if isinstance(step, Compute):
            computes += 1
            live_since[step.op] = last_read[step.op] = computes
            last_read.update(dict.fromkeys(graph.deps[step.op], computes))
        else:
            # Freed right after the evaluation that read it last, or its own.
            assert last_read[step.op] == computes
            del live_since[step.op]
    assert set(live_since) == set(graph.outputs)
    assert set(plan.computed) == set(range(len(graph)))


@given(orders())
def test_a_repeat_that_is_left_in_is_read(example):
    graph, order = example
    computed = Plan.from_order(graph, order).computed
    assert Plan.from_order(graph, computed).computed == computed
    for position, i in enumerate(computed):
        if i in computed[:position]:
            later = computed[position + 1 :]
            until = later.index(i) if i in later else len(later)
            assert any(i in graph.deps[j] for j in later[:until]) or (
                until == len(later) and i in graph.outputs
            )


def test_from_order_refuses():
    graph = training_chain(2)
    with pytest.raises(
        PlanError, match=r"Op 1 'f1' at position 0 reads op 0 'f0', which did not run before"
    ):
        Plan.from_order(graph, [1, 0, 2, 3, 4])
    with pytest.raises(PlanError, match="1 ops never run, the first is op 4 'b0'"):
        Plan.from_order(graph, [0, 1, 2, 3])
    with pytest.raises(PlanError, match="Position 1 names op 9"):
        Plan.from_order(graph, [0, 9])
    with pytest.raises(PlanError, match="Position 1 names op -1"):
        Plan.from_order(graph, [0, -1])


def test_repr_and_counts():
    graph = training_chain(2)
    plan = Plan.from_order(graph, [0, 1, 2, 0, 1, 3, 4])
    assert plan.recomputed == {0: 1, 1: 1}
    assert repr(plan).startswith("Plan(7 evaluations")
    assert Plan.from_order(graph, [0, 1, 2, 3, 0, 4]).recomputed == {0: 1}
    assert Plan.from_order(graph, [0, 1, 2, 3, 1, 4]).recomputed == {}  # nobody reads f1 any more


def test_lower_refuses_what_is_not_there():
    graph = DFGraph((Op("a"), Op("b", (0,))))
    nothing = [[False, False], [False, False]]
    with pytest.raises(
        PlanError,
        match="In stage 1 op 1 'b' runs, but its input 0 'a' is neither retained nor computed",
    ):
        lower(graph, Schedule([[True, False], [False, True]], nothing))
    with pytest.raises(PlanError, match="3 columns and the graph 2 ops"):
        lower(graph, Schedule([[True, False, False]], [[False] * 3]))


@given(orders())
def test_lowered_plans_are_the_schedule(example):
    graph, order = example
    plan = Plan.from_order(graph, order)
    schedule = Schedule.from_plan(graph, plan)
    if schedule is not None:
        assert lower(graph, schedule) == plan


@given(graphs(max_ops=10))
def test_the_plain_step_is_legal_and_has_stages(graph):
    plan = Plan.keep_all(graph)
    assert replay(graph, plan).cost == pytest.approx(graph.total_cost)
    assert lower(graph, Schedule.from_plan(graph, plan)) == plan
