"""The judge: memory counted against a second, independent count, and every way in which a plan can
be illegal."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from oracles import cheapest
from strategies import graphs, leaky_relu_grad, training_chain

from checkmate import Compute, DFGraph, Free, Op, Plan, PlanError, floor, replay


@st.composite
def walks(draw):
    """A graph and a legal plan of it: at each moment any step that is allowed, until every op has
    run and the outputs are there."""
    graph = draw(graphs())
    n, steps, live, done, expired = len(graph), [], set(), set(), set()

    def compute(i):
        if i in live:
            return True
        if i in done and (not graph.ops[i].recomputable or i in expired):
            return False
        if not all(compute(d) for d in graph.deps[i]):
            return False
        if not all(d in done for d in (*graph.ops[i].control_deps, *graph.ops[i].overwrites)):
            return False
        if i not in done:
            expired.update(graph.ops[i].overwrites)
        steps.append(Compute(i))
        live.add(i)
        done.add(i)
        return True

    for t in range(n):
        for i in draw(st.lists(st.integers(0, n - 1), max_size=3)):
            if i in live and graph.ops[i].recomputable:
                steps.append(Free(i))
                live.remove(i)
            elif i in done:
                compute(i)
        assume(compute(t))
    assume(all(compute(i) for i in graph.outputs))
    return graph, Plan(tuple(steps))


@given(walks())
def test_peak_cost_and_bytes_against_a_count_from_scratch(example):
    graph, plan = example
    timeline = replay(graph, plan)
    peak, cost = graph.fixed_bytes, 0.0
    for k, step in enumerate(plan.steps):
        latest = {s.op: isinstance(s, Compute) for s in plan.steps[: k + 1]}
        live = {i for i, computed in latest.items() if computed} - taken_over_at(graph, plan, k)
        in_use = graph.fixed_bytes + sum(graph.ops[i].output_bytes for i in live)
        assert timeline.bytes_after_step[k] == in_use
        if isinstance(step, Compute):
            cost += graph.ops[step.op].cost
            peak = max(peak, in_use + graph.ops[step.op].workspace_bytes)
    assert timeline.peak_bytes == peak
    assert timeline.cost == pytest.approx(cost)
    assert timeline.fixed_bytes == graph.fixed_bytes
    if peak > graph.fixed_bytes:
        step = plan.steps[timeline.peak_step]
        assert (
            timeline.bytes_after_step[timeline.peak_step] + graph.ops[step.op].workspace_bytes
            == peak
        )


def taken_over_at(graph, plan, k):
    """The op, as a set, whose value lies in the memory of an input that is still to be freed after
    step k."""
    ran = max(p for p in range(k + 1) if isinstance(plan.steps[p], Compute))
    frees = itertools.takewhile(
        lambda p: isinstance(plan.steps[p], Free), range(ran + 1, len(plan.steps))
    )
    v = plan.steps[ran].op
    hosts = [p for p in frees if plan.steps[p].op in graph.ops[v].in_place]
    return {v} if hosts and k < hosts[0] else set()


def test_in_place_takes_over_one_input():
    steps = (Compute(0), Compute(1), Compute(2), Free(0), Free(1))
    assert replay(leaky_relu_grad(in_place=()), Plan(steps)).peak_bytes == 48
    for in_place in ((0,), (1,), (0, 1)):
        timeline = replay(leaky_relu_grad(in_place=in_place), Plan(steps))
        assert (timeline.peak_bytes, timeline.peak_step) == (32, 1)
        # The value lies in one input's memory, so freeing that frees nothing; the other's 16 go as
        # ever.
        assert timeline.bytes_after_step.tolist() == (
            [16, 32, 32, 32, 16] if 0 in in_place else [16, 32, 32, 16, 16]
        )


def test_the_floor_of_ops_in_place():
    not_in_place = floor(leaky_relu_grad(in_place=()))
    assert (not_in_place.bytes, not_in_place.live) == (48, (0, 1, 2))
    graph = leaky_relu_grad(in_place=(1,))
    assert (floor(graph).bytes, floor(graph).live) == (32, (0, 1))
    # An input that may run only once and is an output stays beside the value; one that may run
    # again can be brought back.
    assert floor(DFGraph(graph.ops, (1, 2))).bytes == 32
    once = DFGraph((graph.ops[0], replace(graph.ops[1], recomputable=False), graph.ops[2]), (1, 2))
    assert (floor(once).bytes, floor(once).live) == (48, (0, 1, 2))
    # So it does for an op that comes later.
    later = DFGraph((*once.ops, Op("later", (1, 2))), (2,))
    assert floor(later).bytes == 48
    assert floor(DFGraph(once.ops, (2,))).bytes == 32


@given(walks())
def test_no_plan_is_below_the_floor(example):
    graph, plan = example
    lowest = floor(graph)
    assert replay(graph, plan).peak_bytes >= lowest.bytes
    assert 0 <= lowest.op < len(graph)


@given(graphs(max_ops=6))
def test_brute_force_finds_nothing_below_the_floor_and_the_plain_step_at_its_peak(graph):
    assert cheapest(graph, floor(graph).bytes - 1) is None
    assert cheapest(graph, replay(graph, Plan.keep_all(graph)).peak_bytes) == pytest.approx(
        graph.total_cost
    )


def test_the_floor_names_the_op_that_binds():
    graph = DFGraph(
        (
            Op("a", output_bytes=5),
            Op("b", (0,), output_bytes=6, workspace_bytes=3),
            Op("c", (1,), output_bytes=2),
        ),
        fixed_bytes=100,
    )
    assert (floor(graph).bytes, floor(graph).op) == (114, 1)


def test_the_floor_counts_what_may_not_be_computed_again():
    ops = (
        Op("once", output_bytes=50, recomputable=False),
        Op("a", (0,), output_bytes=5),
        Op("b", (1,), output_bytes=6),
        Op("c", (0, 2), output_bytes=1),
    )
    assert floor(DFGraph(ops)).bytes == 50 + 5 + 6
    again = tuple(Op(op.name, op.deps, output_bytes=op.output_bytes) for op in ops)
    assert floor(DFGraph(again)).bytes == 50 + 6 + 1


def two_ops(**facts):
    return DFGraph(
        (Op("a", output_bytes=1), Op("b", (0,), output_bytes=1), Op("c", output_bytes=1, **facts)),
        (1,),
    )


@pytest.mark.parametrize(
    ("graph", "steps", "message"),
    [
        (
            two_ops(),
            [Compute(0), Free(0), Compute(1), Compute(2)],
            "Step 2 runs op 1 'b', but its input 0 'a' is not in memory",
        ),
        (two_ops(), [Compute(0), Compute(1)], "1 ops never run, the first is op 2 'c'"),
        (
            two_ops(),
            [Compute(0), Compute(1), Compute(2), Free(1)],
            "Output 1 'b' is not in memory at the end",
        ),
        (two_ops(), [Compute(3)], "Step 0 names op 3"),
        (
            two_ops(control_deps=(1,)),
            [Compute(0), Compute(2), Compute(1)],
            "runs op 2 'c' before op 1 'b', which it must follow",
        ),
        (
            two_ops(overwrites=(1,)),
            [Compute(0), Compute(2), Compute(1)],
            "runs op 2 'c' before op 1 'b', which it must follow",
        ),
        (
            two_ops(recomputable=False),
            [Compute(2), Free(2), Compute(2), Compute(0), Compute(1)],
            "runs op 2 'c' again; it may run only once",
        ),
        (
            two_ops(overwrites=(0,)),
            [Compute(0), Compute(1), Free(0), Compute(2), Compute(0)],
            "again after op 2 'c' overwrote",
        ),
    ],
)
def test_illegal(graph, steps, message):
    with pytest.raises(PlanError, match=message):
        replay(graph, Plan(tuple(steps)))


def test_order_only_edges_bind_the_first_evaluation_alone():
    graph = two_ops(control_deps=(1,))
    plan = Plan((Compute(0), Compute(1), Compute(2), Free(2), Free(1), Compute(2), Compute(1)))
    assert replay(graph, plan).cost == 5


def test_overwriting_twice_and_before_is_allowed():
    graph = two_ops(overwrites=(0,))
    plan = Plan((Compute(0), Free(0), Compute(0), Compute(1), Compute(2), Free(2), Compute(2)))
    assert replay(graph, plan).cost == 5


def test_bytes_are_exact_beyond_what_floats_hold():
    big = 2**60
    graph = DFGraph((Op("a", output_bytes=big), Op("b", (0,), output_bytes=1)), fixed_bytes=3)
    assert replay(graph, Plan.keep_all(graph)).peak_bytes == big + 4


def test_the_timeline_is_read_only():
    timeline = replay(training_chain(2), Plan.keep_all(training_chain(2)))
    assert timeline.bytes_after_step.dtype == np.int64
    with pytest.raises(ValueError, match="read-only"):
        timeline.bytes_after_step[0] = 0
