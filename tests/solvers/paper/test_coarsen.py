"""Groups: the coarse graph is legal, and pinned members are not run again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import graphs, training_chain

from checkmate import DFGraph, Op, Plan, SolveStatus, replay, solve
from checkmate.core.schedule import may_run
from checkmate.solvers.paper.coarsen import _build, coarsen
from checkmate.solvers.paper.lp import LPRounding
from checkmate.solvers.paper.milp import MILP


@given(graphs(max_ops=14, min_ops=2), st.integers(2, 9))
def test_every_op_is_in_one_group(fine, max_ops):
    coarse = coarsen(fine, max_ops=max_ops)
    assert [i for members in coarse.first for i in members] == list(range(len(fine)))
    if coarse.after is not fine:
        once = {i for i, op in enumerate(fine.ops) if not op.recomputable} | set(fine.outputs)
        assert not once & {i for members in coarse.again for i in members}
        assert [bool(members) for members in coarse.again] == [
            op.recomputable for op in coarse.after.ops
        ]


@pytest.mark.parametrize("max_ops", [4, 7, 12, 20, 30])
def test_size_and_sides(max_ops):
    fine = training_chain(20, skip=4, updates=True, gradient_bytes=3)
    coarse = coarsen(fine, max_ops=max_ops)
    assert len(coarse.after) <= max_ops
    for members in coarse.first:
        assert len({fine.ops[i].is_backward for i in members}) <= 1


def test_groups_run_in_place():
    """Over another op where both are alone, and inside a group as the judge counts it."""
    ops = [
        Op("a", output_bytes=8),
        Op("b", (0,), output_bytes=8, in_place=(0,)),
        Op("c", (1,), output_bytes=8, in_place=(1,)),
        Op("d", (2,)),
    ]
    fine = DFGraph(tuple(ops), (3,))
    alone = _build(fine, [range(i, i + 1) for i in range(4)])
    assert [op.in_place for op in alone.after.ops] == [(), (0,), (1,), ()]
    together = _build(fine, [range(0, 1), range(1, 3), range(3, 4)])
    assert [op.in_place for op in together.after.ops] == [(), (), ()]
    assert [(op.output_bytes, op.workspace_bytes) for op in together.after.ops] == [
        (8, 0),
        (8, 0),
        (0, 0),
    ]
    # A is not in the group, b is.
    assert replay(together.after, Plan.keep_all(together.after)).peak_bytes == 16

    read_later = DFGraph((*ops, Op("e", (1, 3))), (4,))
    together = _build(read_later, [range(0, 1), range(1, 3), range(3, 4), range(4, 5)])
    assert [(op.output_bytes, op.workspace_bytes) for op in together.after.ops] == [
        (8, 0),
        (16, 0),
        (0, 0),
        (0, 0),
    ]


def test_small_graphs_are_left_alone():
    graph = training_chain(5)
    coarse = coarsen(graph, max_ops=len(graph))
    plan = Plan.keep_all(graph)
    assert coarse.after is graph
    assert coarse.expand(plan) == plan


def normalized_layers(layers: int, *, statistics_bytes: int) -> DFGraph:
    """Layers of convolution, statistics that may run only once, and normalization that reads both;
    their backward ops read all three."""
    ops: list[Op] = []
    for k in range(layers):
        below = (3 * k - 1,) if k else ()
        ops.append(Op(f"conv{k}", below, 5, 100))
        ops.append(Op(f"statistics{k}", (3 * k,), 1, statistics_bytes, recomputable=False))
        ops.append(Op(f"normalize{k}", (3 * k, 3 * k + 1), 1, 100))
    gradient = 3 * layers - 1
    for k in reversed(range(layers)):
        deps = {gradient, 3 * k, 3 * k + 1, 3 * k + 2, *((3 * k - 1,) if k else ())}
        ops.append(Op(f"back{k}", tuple(sorted(deps)), 10, 100, is_backward=True))
        gradient = len(ops) - 1
    return DFGraph(tuple(ops), (gradient,))


@pytest.mark.parametrize(("statistics_bytes", "own_ops"), [(1, False), (60, True), (0, False)])
def test_groups_with_statistics_can_run_again(statistics_bytes, own_ops):
    graph = normalized_layers(8, statistics_bytes=statistics_bytes)
    coarse = coarsen(graph, max_ops=24)
    kept = [op for op in coarse.after.ops if op.name.startswith("kept")]
    assert bool(kept) == own_ops
    group = {i: members for members in coarse.first for i in members}
    peak = replay(graph, Plan.keep_all(graph)).peak_bytes
    result = solve(graph, int(0.75 * peak), solver=MILP(engine="scip", max_ops=24), time_limit_s=20)
    assert any("statistics" in graph.ops[j].name for i in result.plan.recomputed for j in group[i])
    assert not any("statistics" in graph.ops[i].name for i in result.plan.recomputed)


# The loss, and no gradient.
def test_an_output_of_no_bytes_does_not_hold_its_group():
    coarse = coarsen(training_chain(12, updates=True), max_ops=14)
    assert all(op.output_bytes <= 1 for op in (coarse.after.ops[k] for k in coarse.after.outputs))


@pytest.mark.parametrize(
    "solver",
    [MILP(engine="cbc", max_ops=30), LPRounding(max_ops=30)],
    ids=lambda solver: solver.name,
)
def test_solvers_of_coarse_graphs_offer_fine_plans_and_claim_no_bound(solver):
    graph = training_chain(24, updates=True, gradient_bytes=1)
    assert len(graph) > 30
    result = solve(graph, "70%", solver=solver, time_limit_s=20)
    assert result.plan.recomputed
    assert result.status is SolveStatus.FEASIBLE
    assert result.bound == pytest.approx(graph.total_cost)


def test_what_is_overwritten_in_its_own_group_is_kept():
    ops = (
        Op("read", (), 1, 4),
        Op("use", (0,), 1, 4),
        Op("assign", (1,), 1, 0, recomputable=False, overwrites=(0,)),
        Op("later", (0, 1), 1, 4),
    )
    coarse = coarsen(DFGraph(ops, (3,)), max_ops=2)
    for members, again in zip(coarse.first, coarse.again, strict=True):
        assert not (0 in again and 2 in members)


def test_an_op_that_overwrites_expires_the_group():
    graph = training_chain(12, updates=True)
    coarse = coarsen(graph, max_ops=12)
    allowed = may_run(graph)
    for later, members in enumerate(coarse.first):
        for k in coarse.after.ops[later].overwrites:
            assert any(not allowed[max(members) + 1 :, i].any() for i in coarse.again[k])
