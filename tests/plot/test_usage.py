"""What the pictures draw agrees with the judge, on any plan of any graph."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import graphs, leaky_relu_grad, training_chain
from tf2.plans import random_plan

from checkmate import Compute, DFGraph, Op, Plan, Schedule, replay, solve
from checkmate.plot.usage import PARTS, layers, part_of, stages, usage


@st.composite
def planned(draw):
    graph = draw(graphs())
    return graph, random_plan(graph, draw(st.integers(0, 99)), shuffled=draw(st.booleans()))


def memory_while_running(graph, plan):
    """Bytes in use while each evaluation runs, from the judge's figures after each step."""
    after = replay(graph, plan).bytes_after_step
    return [
        after[k] + graph.ops[step.op].workspace_bytes
        for k, step in enumerate(plan.steps)
        if isinstance(step, Compute)
    ]


@given(planned())
def test_the_parts_sum_to_the_judge_s_memory(case):
    graph, plan = case
    found = usage(graph, plan)
    sums = found.bytes_by_part.sum(axis=1)
    assert sums.tolist() == memory_while_running(graph, plan)
    assert sums.max(initial=graph.fixed_bytes) == found.timeline.peak_bytes
    if found.timeline.peak_bytes > graph.fixed_bytes:
        assert sums[found.peak] == found.timeline.peak_bytes
        assert found.binding_op is graph.ops[plan.computed[found.peak]]


@given(planned())
def test_evaluations_and_their_times(case):
    graph, plan = case
    found = usage(graph, plan)
    assert tuple(found.ops) == plan.computed
    assert int(found.again.sum()) == sum(plan.recomputed.values())
    assert (np.diff(found.starts) >= 0).all()
    if graph.total_cost:
        assert found.starts[-1] == pytest.approx(found.timeline.cost / graph.total_cost)


def test_an_op_in_place_counts_as_the_input_whose_memory_it_takes():
    graph = leaky_relu_grad(read_again=True, is_backward=True, workspace_bytes=3)
    found = usage(graph, Plan.keep_all(graph))
    columns = [PARTS.index(part) for part in ("forward", "backward", "workspace")]
    # 'grad' runs in the 32 bytes of its inputs, one of which is its own afterwards.
    assert found.bytes_by_part[:, columns].tolist() == [
        [16, 0, 0],
        [32, 0, 0],
        [32, 0, 3],
        [16, 16, 0],
    ]


def test_what_is_computed_again_is_told_apart():
    graph = training_chain(10, updates=True)
    result = solve(graph, "70%")
    found = usage(graph, result.plan)
    again = PARTS.index("recomputed")
    assert found.bytes_by_part[:, again].any()
    assert not usage(graph, Plan.keep_all(graph)).bytes_by_part[:, again].any()
    first = int(np.argmax(found.again))
    assert not found.bytes_by_part[:first, again].any()
    assert found.bytes_by_part[first, again] >= graph.ops[found.ops[first]].output_bytes > 0


def test_the_phases_of_a_step():
    graph = training_chain(3, updates=True)
    assert [part_of(graph.ops[graph.index(name)]) for name in ("f0", "loss", "b2", "g1", "u0")] == [
        "forward", "forward", "backward", "backward", "update",
    ]  # fmt: skip
    assert (
        part_of(Op("adam/AssignSubVariableOp", kind="Sqrt+AssignSubVariableOp", is_backward=True))
        == "update"
    )


@given(planned())
def test_layers_sum_to_the_step(case):
    graph, plan = case
    rows = layers(graph, plan)
    planned_use, plain_use = usage(graph, plan), usage(graph, Plan.keep_all(graph))
    assert sum(row.ops for row in rows) == len(graph)
    assert sum(row.evaluations for row in rows) == sum(plan.recomputed.values())
    for found, column in ((planned_use, "kept_bytes"), (plain_use, "plain_bytes")):
        k = found.turn
        running = graph.ops[found.ops[k]]
        in_memory = (
            int(found.bytes_by_part[k].sum())
            - graph.fixed_bytes
            - running.output_bytes
            - running.workspace_bytes
        )
        assert sum(getattr(row, column) for row in rows) == in_memory


def test_the_backward_pass_begins_with_its_first_op():
    graph = training_chain(6)
    found = usage(graph, Plan.keep_all(graph))
    assert graph.ops[found.ops[found.turn]].name == "b5"
    alone = DFGraph(
        (Op("a", output_bytes=1), Op("b", (0,), output_bytes=5), Op("c", (1,), output_bytes=1))
    )
    assert alone.ops[usage(alone, Plan.keep_all(alone)).turn].name == "b"


@pytest.mark.parametrize("solver", ["auto", "chen_sqrt_n"])
@pytest.mark.parametrize("skip", [0, 3])
def test_stages_are_the_paper_s_matrices_where_these_exist(solver, skip):
    graph = training_chain(12, skip=skip, sizes=(10, 3, 7))
    plan = solve(graph, "75%", solver=solver).plan
    schedule = Schedule.from_plan(graph, plan)
    assert plan.recomputed
    assert schedule is not None
    found = stages(graph, plan)
    assert found.order == tuple(range(len(graph)))
    assert (found.R == schedule.R).all()
    assert (found.S == schedule.S).all()


@given(planned())
def test_stages_of_any_plan(case):
    graph, plan = case
    found = stages(graph, plan)
    assert sorted(found.order) == list(range(len(graph)))
    assert found.R.diagonal().all()
    assert not np.triu(found.R, 1).any()
    assert not np.triu(found.S).any()


def test_live_values_at_an_evaluation():
    graph = DFGraph((Op("a", output_bytes=1), Op("b", (0,)), Op("c", (1,))), outputs=(2,))
    found = usage(graph, Plan.keep_all(graph))
    assert [found.live_at(k) for k in range(3)] == [[], [0], [1]]
