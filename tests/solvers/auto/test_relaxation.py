"""The bound is a bound: compared with brute force for any choice of snapshots, whatever the graph
may hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import oracles
import strategies
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from checkmate import DFGraph, Op, Plan, replay
from checkmate.solvers.auto.relaxation import SnapshotModel, _stands_for
from checkmate.solvers.local.stage_plan import StagePlan


def _check_bound(problem, data):
    graph, budget = problem
    snapshots = data.draw(
        st.lists(st.integers(0, len(graph) - 1), min_size=1, max_size=6, unique=True)
    )
    model = SnapshotModel(graph, budget, snapshots)
    bound = model.solve(time_limit_s=10)
    cheapest = oracles.cheapest(graph, budget)
    if cheapest is not None:
        assert graph.total_cost <= bound.cost <= cheapest
        assert graph.total_cost <= model.tighten(time_limit_s=10) <= bound.cost + 1e-3


@settings(max_examples=250, deadline=None)
@given(strategies.problems(), st.data())
def test_never_above_the_cheapest_plan(problem, data):
    _check_bound(problem, data)


@settings(max_examples=150, deadline=None)
@given(strategies.problems(strategies.training_chains()), st.data())
def test_never_above_the_cheapest_plan_of_training_graphs(problem, data):
    _check_bound(problem, data)


@settings(max_examples=100, deadline=None)
@given(strategies.problems(), st.data())
def test_kept_in_its_place_costs_the_same(problem, data):
    """The second reduction of the module's docstring changes no optimum."""
    graph, budget = problem
    snapshots = data.draw(
        st.lists(st.integers(0, len(graph) - 1), min_size=1, max_size=2, unique=True)
    )
    reduced = SnapshotModel(graph, budget, snapshots).solve(time_limit_s=10)

    class Unreduced(SnapshotModel):
        def _add_variables(self):
            self._stands_for = [-1] * len(self.graph)
            super()._add_variables()

    full = Unreduced(graph, budget, snapshots).solve(time_limit_s=10)
    assert np.isclose(reduced.cost, full.cost, rtol=1e-5) or reduced.cost == full.cost


@settings(max_examples=100, deadline=None)
@given(strategies.problems(strategies.training_chains()), st.data())
def test_rows_over_several_intervals_change_no_optimum(problem, data):
    graph, budget = problem
    snapshots = data.draw(
        st.lists(st.integers(0, len(graph) - 1), min_size=3, max_size=7, unique=True)
    )
    model = SnapshotModel(graph, budget, snapshots)
    apart = model.solve(time_limit_s=10)
    chance = np.random.default_rng(data.draw(st.integers(0, 1000)))
    rows = len(model._upper)
    # Fractions that no linear program would give break rows of every form.
    for share in (
        0.1,
        0.5,
        0.9,
    ):
        for _ in range(5):
            model._join(np.where(chance.random(model.size) < share, chance.random(model.size), 0.0))
    assume(len(model._upper) > rows or model.contradiction)
    joined = model.solve(time_limit_s=10)
    assert np.isclose(joined.cost, apart.cost, rtol=1e-5) or joined.cost == apart.cost


def test_rows_over_several_intervals_bound_better():
    graph = strategies.training_chain(12)
    model = SnapshotModel(graph, int(0.4 * StagePlan(graph).peak_bytes), [12, 14, 16, 18, 20, 22])
    apart = model.tighten(time_limit_s=10, rounds=1)
    assert model.tighten(time_limit_s=10) > apart + 0.02 * graph.total_cost


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
        assert SnapshotModel(graph, budget, [2]).solve(time_limit_s=10).cost == cost
    assert np.isinf(
        SnapshotModel(strategies.leaky_relu_grad(), 31, [2]).solve(time_limit_s=10).cost
    )


def test_an_input_that_may_not_be_made_again_is_not_overwritten():
    graph = strategies.leaky_relu_grad(read_again=True, in_place=(1,))
    once = replace(
        graph, ops=(graph.ops[0], replace(graph.ops[1], recomputable=False), *graph.ops[2:])
    )
    assert np.isinf(SnapshotModel(once, 47, [2]).solve(time_limit_s=10).cost)
    assert SnapshotModel(once, 48, [2]).solve(time_limit_s=10).cost == 8


def test_larger_ops_must_not_stand_in():
    """The second reduction needs "and is not larger": here it would drop a small value for a large
    one, and raise the bound."""
    # a (1 byte) -> b (6 bytes) -> end; beside big (8 bytes) of 9 there is room for a, not for b.
    ops = (
        Op("a", (), 9, 1),
        Op("b", (0,), 1, 6),
        Op("big", (), 1, 8),
        Op("shrunk", (2,), 1, 0),
        Op("end", (1, 3), 1, 1),
    )
    graph = DFGraph(ops, outputs=(4,))
    cheapest = oracles.cheapest(graph, 9)
    assert (
        SnapshotModel(graph, 9, [2]).solve(time_limit_s=10).cost <= cheapest == graph.total_cost + 1
    )

    class Careless(SnapshotModel):
        def _add_variables(self):
            self._stands_for[0] = 1
            super()._add_variables()

    assert Careless(graph, 9, [2]).solve(time_limit_s=10).cost > cheapest


# A, c and d together.
def test_one_snapshot_is_worked_out_by_hand():
    # a -> b -> c, and d reads a and c. Beside c at its input b, 3 bytes are free: a (4 bytes) must
    # go and run again for d.
    graph = DFGraph(
        (Op("a", (), 7, 4), Op("b", (0,), 1, 2), Op("c", (1,), 1, 2), Op("d", (0, 2), 1, 1)),
        outputs=(3,),
    )
    bound = SnapshotModel(graph, 7, [2]).solve(time_limit_s=10)
    assert 16.9 < bound.cost <= 17
    assert bound.dropped == ((0,),)
    assert bound.exact
    assert SnapshotModel(graph, 8, [2]).solve(time_limit_s=10).cost == graph.total_cost
    assert SnapshotModel(graph, 6, [3]).solve(time_limit_s=10).cost == float("inf")


def test_who_is_kept_in_whose_place():
    ops = (
        Op("conv", (), 5, 8),
        Op("norm", (0,), 1, 8),
        Op("relu", (1,), 1, 4),
        Op("pool", (2,), 1, 6),
        Op("last", (3, 2), 1, 1),
    )
    # Relu has two users, pool's user reads two.
    assert _stands_for(DFGraph(ops)) == [
        1,
        2,
        -1,
        -1,
        -1,
    ]
    assert _stands_for(DFGraph(ops, outputs=(0,))) == [-1, 2, -1, -1, -1]


@settings(max_examples=150, deadline=None)
@given(strategies.problems(strategies.training_chains()), st.data())
def test_a_charge_for_what_is_read_late_leaves_a_bound(problem, data):
    graph, budget = problem
    snapshots = data.draw(
        st.lists(st.integers(0, len(graph) - 1), min_size=1, max_size=4, unique=True)
    )
    model, soonest = (
        SnapshotModel(graph, budget, snapshots),
        data.draw(st.sampled_from((1e-4, 0.01, 0.3))),
    )
    exact, charged = model.solve(time_limit_s=10), model.solve(time_limit_s=10, soonest=soonest)
    assert charged.cost <= exact.cost * (1 + 1e-6)
    unit = 1  # both are rounded up to whole costs
    assert (
        charged.cost >= exact.cost - unit - soonest * graph.total_cost * (1 + 1e-3)
        or charged.cost == exact.cost
    )


def test_of_solutions_alike_the_one_that_keeps_what_is_read_soon():
    graph = strategies.training_chain(8)
    for t in (8, 9):
        (dropped,) = (
            SnapshotModel(graph, int(0.6 * StagePlan(graph).peak_bytes), [t])
            .solve(time_limit_s=10, soonest=0.01)
            .dropped
        )
        kept = [i for i in range(t) if i not in dropped]
        assert kept == list(range(t - len(kept), t))


def test_whole_costs_end_the_search_a_unit_early():
    """Proving the last unit one branch after the other takes many times as long."""
    graph = strategies.training_chain(16, skip=2, costs=(10, 1, 1), sizes=(4,))
    peak = int(replay(graph, Plan.keep_all(graph)).peak_bytes)
    whole = SnapshotModel(graph, peak * 6 // 10, (16, 19, 22))
    assert all(whole._binary)
    assert whole.solve(time_limit_s=60, nodes=20, soonest=0.1).cost % 1 == 0
    measured = DFGraph(
        tuple(replace(op, cost=op.cost * 1.0001 + 1e-7) for op in graph.ops), graph.outputs
    )
    assert not all(SnapshotModel(measured, peak * 6 // 10, (16, 19, 22))._binary)


def test_rows_of_fewer_snapshots_are_taken_over():
    graph = strategies.training_chain(12)
    budget = int(0.4 * StagePlan(graph).peak_bytes)
    fewer, more = (
        SnapshotModel(graph, budget, snapshots)
        for snapshots in ([12, 14, 16, 20, 22], [12, 14, 16, 18, 20, 22])
    )
    fewer.tighten(time_limit_s=10)
    rows = len(more._upper)
    more.adopt(fewer)
    assert len(more._upper) > rows
    once = SnapshotModel(graph, budget, more.snapshots).tighten(time_limit_s=10, rounds=1)
    assert more.tighten(time_limit_s=10, rounds=1) > once
    exact = SnapshotModel(graph, budget, more.snapshots).solve(time_limit_s=30)
    assert np.isclose(more.solve(time_limit_s=30).cost, exact.cost, rtol=1e-5)


@settings(max_examples=100, deadline=None)
@given(strategies.problems(strategies.training_chains()), st.data())
def test_rows_that_are_taken_over_change_no_optimum(problem, data):
    graph, budget = problem
    snapshots = data.draw(
        st.lists(st.integers(0, len(graph) - 1), min_size=3, max_size=7, unique=True)
    )
    fewer, more = (
        SnapshotModel(graph, budget, snapshots[::2]),
        SnapshotModel(graph, budget, snapshots),
    )
    chance = np.random.default_rng(data.draw(st.integers(0, 1000)))
    for share in (0.1, 0.5, 0.9):
        fewer._join(np.where(chance.random(fewer.size) < share, chance.random(fewer.size), 0.0))
    apart = more.solve(time_limit_s=10)
    more.adopt(fewer)
    joined = more.solve(time_limit_s=10)
    assert np.isclose(joined.cost, apart.cost, rtol=1e-5) or joined.cost == apart.cost
