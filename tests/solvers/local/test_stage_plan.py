"""The stage_plan counts what the judge counts, after any moves, and takes every move back
exactly."""

from __future__ import annotations

import numpy as np
import oracles
import pytest
import strategies
from hypothesis import given, settings
from hypothesis import strategies as st

from checkmate import Plan, Schedule, floor, lower, replay
from checkmate.solvers.local.repair import Repair
from checkmate.solvers.local.stage_plan import StagePlan, last_stages


def _random_moves(stage_plan: StagePlan, data: st.DataObject, count: int = 12) -> None:
    n = len(stage_plan.graph)
    for _ in range(count):
        t = data.draw(st.integers(1, n))
        i = data.draw(st.integers(0, t - 1))
        if stage_plan.may_add(i, t):
            stage_plan.add([(i, t)])
        elif i in stage_plan.recomputed[t]:
            stage_plan.remove([(i, t)])


@settings(max_examples=100, deadline=None)
@given(strategies.graphs(max_ops=9), st.data())
def test_cost_and_peak_are_the_judges(graph, data):
    stage_plan = StagePlan(graph)
    _random_moves(stage_plan, data)
    plan = stage_plan.plan()
    timeline = replay(graph, plan)
    oracles.run_plan(graph, plan)
    if len(plan.computed) == len(graph) + len(stage_plan.moves()):
        assert timeline.peak_bytes == stage_plan.peak_bytes
        assert timeline.cost == pytest.approx(stage_plan.cost)
    else:  # the plan leaves out evaluations that nobody reads
        assert timeline.peak_bytes <= stage_plan.peak_bytes
        assert timeline.cost <= stage_plan.cost + 1e-9


@settings(max_examples=100, deadline=None)
@given(strategies.graphs(max_ops=9), st.data())
def test_moves_can_be_taken_back(graph, data):
    stage_plan = StagePlan(graph)
    before = stage_plan.stage_bytes.copy()
    _random_moves(stage_plan, data)
    moves = stage_plan.moves()
    other = StagePlan(graph)
    other.move_to(data.draw(st.permutations(moves)))
    assert np.array_equal(other.stage_bytes, stage_plan.stage_bytes)
    stage_plan.remove(data.draw(st.permutations(moves)))
    assert np.array_equal(stage_plan.stage_bytes, before)
    assert stage_plan.cost == pytest.approx(graph.total_cost)


def test_plain_stage_plan_is_the_plain_step():
    graph = strategies.training_chain(20, skip=4, updates=True, gradient_bytes=3, fixed_bytes=100)
    stage_plan = StagePlan(graph)
    assert stage_plan.plan() == Plan.keep_all(graph)
    assert (
        stage_plan.peak_bytes == replay(graph, Plan.keep_all(graph)).peak_bytes > floor(graph).bytes
    )


def test_repair_overwrites_what_the_fullest_stage_reads():
    """The value is read in the stage that is too full, and again in the next: it has to be made
    anew there, so that the op before runs in place."""
    for budget, fits, moves in (
        (48, True, []),
        (47, True, [(1, 3)]),
        (32, True, [(1, 3)]),
        (31, False, None),
    ):
        stage_plan = StagePlan(strategies.leaky_relu_grad(read_again=True, in_place=(1,)))
        assert Repair(stage_plan, budget, lambda: False).run() == fits
        assert stage_plan.moves() == moves or not fits


def test_every_stage_plan_has_a_schedule():
    graph = strategies.training_chain(6)
    stage_plan = StagePlan(graph)
    stage_plan.add([(2, 9), (1, 9), (1, 11)])
    schedule = Schedule.from_plan(graph, stage_plan.plan())
    assert schedule is not None
    assert lower(graph, schedule) == stage_plan.plan()


def test_last_stages_honour_state_and_overwrites():
    graph = strategies.training_chain(2, updates=True)
    last = last_stages(graph)
    forward, update, gradient = graph.index("f1"), graph.index("u1"), graph.index("g1")
    assert last[forward] == update  # the update changes what it reads
    assert last[gradient] == gradient  # it may run once
    assert last[graph.index("loss")] == len(graph)
