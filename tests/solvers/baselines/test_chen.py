"""The baselines: legal on every graph, and really recomputing."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import run_plan
from strategies import graphs, training_chain

from checkmate import DFGraph, Op, Plan, replay, solve
from checkmate.solvers.baselines import chen
from checkmate.solvers.baselines.chen import (
    FORMS,
    ChenGreedy,
    ChenSqrtN,
    checkpoint_candidates,
    checkpointed,
)
from checkmate.solvers.search import Search
from checkmate.solvers.solve import make_solver

CHEN = (ChenSqrtN(), ChenGreedy())


@settings(max_examples=150)
@given(graphs(max_ops=12), st.data())
def test_any_checkpoints_make_a_legal_plan(graph, data):
    forward = [i for i, op in enumerate(graph.ops) if not op.is_backward]
    checkpoints = sorted(data.draw(st.sets(st.sampled_from(forward)))) if forward else []
    order = checkpointed(
        graph, checkpoints, crossing=data.draw(st.booleans()), steady=data.draw(st.booleans())
    )
    plan = Plan.from_order(graph, order)
    timeline = replay(graph, plan)
    assert timeline.cost >= graph.total_cost - 1e-9
    assert not set(plan.recomputed) & set(checkpoints)
    plain = run_plan(graph, Plan.keep_all(graph))
    assert run_plan(graph, plan).items() >= {i: plain[i] for i in graph.outputs}.items()


@pytest.mark.parametrize("baseline", CHEN, ids=lambda solver: solver.name)
def test_memory_of_a_long_chain_grows_like_the_square_root(baseline):
    for layers in (36, 144):
        graph = training_chain(layers, sizes=(10,))
        search = Search(graph, 2**62, time_limit_s=60)
        baseline.run(search)
        # Segments, one segment's values, and gradients.
        assert search.best_peak_bytes <= 10 * (2 * math.sqrt(layers) + 5)
        assert search.best_peak_bytes < 0.5 * replay(graph, Plan.keep_all(graph)).peak_bytes


@pytest.mark.parametrize("baseline", CHEN, ids=lambda solver: solver.name)
def test_a_chain_costs_at_most_one_more_forward_pass(baseline):
    graph = training_chain(36)
    result = solve(graph, "50%", solver=baseline)
    assert graph.total_cost < result.cost <= graph.total_cost + 36
    assert all(
        not graph.ops[i].is_backward and extra == 1 for i, extra in result.plan.recomputed.items()
    )


@pytest.mark.parametrize("name", ["chen_sqrt_n", "chen_greedy", "revolve", "min_cut"])
def test_what_has_no_bytes_is_not_computed_again(name):
    graph = training_chain(12, sizes=(10, 0, 6), skip=3)
    search = Search(graph, 2**62, time_limit_s=60)
    plans = []
    search.offer = lambda plan, by: plans.append(plan)
    make_solver(name).run(search)
    assert any(plan.recomputed for plan in plans)
    assert not any(graph.ops[i].output_bytes == 0 for plan in plans for i in plan.recomputed)


@pytest.mark.parametrize("name", ["chen_sqrt_n:ap", "chen_sqrt_n:linearized"])
def test_the_two_forms_differ_in_where_checkpoints_may_stand(name):
    graph = training_chain(40, skip=5)
    candidates = {form: checkpoint_candidates(graph, form) for form in FORMS}
    assert candidates["linearized"] == [i for i, op in enumerate(graph.ops) if not op.is_backward]
    assert 0 < len(candidates["ap"]) < len(candidates["linearized"])
    both = solve(graph, "60%", solver="chen_sqrt_n")
    assert solve(graph, "60%", solver=name).cost >= both.cost


def test_a_graph_without_a_backward_pass_is_left_as_it_is():
    graph = DFGraph(
        tuple(Op(f"op{i}", (i - 1,) if i else (), output_bytes=1) for i in range(9)), (8,)
    )
    for crossing in (False, True):
        assert checkpointed(graph, [2, 5, 8], crossing=crossing, steady=True) == tuple(range(9))


def test_articulation_points_help_where_the_linear_order_hurts():
    """Diamonds in a row: a checkpoint inside one leaves its other arm to be computed from further
    back."""
    ops: list[Op] = []
    joins = []
    for k in range(12):
        start = (len(ops) - 1,) if ops else ()
        ops.append(Op(f"left{k}", start, 1, 10))
        ops.append(Op(f"right{k}", start, 1, 10))
        ops.append(Op(f"join{k}", (len(ops) - 2, len(ops) - 1), 1, 10))
        joins.append(len(ops) - 1)
    gradient = len(ops) - 1
    for k in reversed(range(12)):
        ops.append(
            Op(
                f"back{k}",
                tuple(sorted({gradient, 3 * k, 3 * k + 1, 3 * k + 2})),
                3,
                10,
                is_backward=True,
            )
        )
        gradient = len(ops) - 1
    graph = DFGraph(tuple(ops), (gradient,))

    def cost(checkpoints):
        return replay(
            graph,
            Plan.from_order(graph, checkpointed(graph, checkpoints, crossing=False, steady=True)),
        ).cost

    assert cost(joins[2::3]) < cost([i - 1 for i in joins[2::3]])


def test_a_plan_of_far_too_many_evaluations_is_not_written_down(monkeypatch):
    graph = training_chain(8)
    peaks = []
    for most in (chen.MAX_EVALUATIONS, len(graph)):
        monkeypatch.setattr(chen, "MAX_EVALUATIONS", most)
        search = Search(graph, 1, time_limit_s=60)
        make_solver("checkpoint_last").run(search)
        peaks.append(search.best_peak_bytes)
    assert peaks[0] and not peaks[1]
