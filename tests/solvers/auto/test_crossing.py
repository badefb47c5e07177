"""Crossing plans: what a child is made of, which plans are kept and when they are alike, and what
it brings."""

from __future__ import annotations

import random

import pytest
import strategies

from checkmate import Plan, replay
from checkmate.bench import problems
from checkmate.solvers.annealing.annealer import (
    COLD,
    HOT,
    IN_STAGES,
    PRICE,
    REPEATS_ANYWHERE,
    Annealer,
)
from checkmate.solvers.auto.crossing import ALIKE, KEPT, REFUSED, SIZE, Generation
from checkmate.solvers.auto.placement import at_equal_steps
from checkmate.solvers.auto.primal import COLD_WISH, WARM_WISH, WISHED
from checkmate.solvers.auto.relaxation import SnapshotModel
from checkmate.solvers.auto.rounds import Leg, Round
from checkmate.solvers.local.repair import lift
from checkmate.solvers.local.stage_plan import Timetable, in_stage_form, last_stages, moves_of


def _generation(graph):
    return Generation(len(graph), graph.total_cost, 0)


def _some_order(graph, seed):
    draw, last = random.Random(seed), last_stages(graph)
    timetable = Timetable(graph)
    timetable.move_to(
        [
            (i, t)
            for i in range(len(graph))
            for t in range(i + 1, last[i] + 1)
            if draw.random() < 0.1
        ]
    )
    return timetable.evaluations()


def _by(axis, moves):
    return {
        number: {move for move in moves if move[axis] == number}
        for number in {move[axis] for move in moves}
    }


@pytest.mark.parametrize("name", ["once", "anywhere"])
def test_a_child_has_some_ops_or_stages_from_one_and_the_others_from_the_other(name):
    graph = strategies.training_chain(8, skip=2)
    orders = [_some_order(graph, seed) for seed in (1, 2)]
    if name == "anywhere":  # as annealing leaves them: unsorted within a stage, and twice there
        orders[0] = [orders[0][0], orders[0][1], 1, 0, 1, *orders[0][2:]]
    generation = _generation(graph)
    for cost, order in zip((2.0, 1.0), orders, strict=True):
        generation.add(cost, order)
    parents = [set(moves_of(order)) for order in orders]
    axes, different = set(), 0
    for _ in range(200):
        child = generation.cross()
        Plan.from_order(graph, child)  # raises where it is not legal
        moves = moves_of(child)
        assert len(child) == len(graph) + len(moves)
        timetable = Timetable(graph)
        timetable.move_to(moves)
        assert child == timetable.evaluations()
        kept = [
            all(
                _by(axis, moves).get(k, set())
                in [_by(axis, each).get(k, set()) for each in parents]
                for k in range(len(graph) + 1)
            )
            for axis in (0, 1)
        ]
        assert any(kept)
        axes.add(tuple(kept))
        different += set(moves) not in parents
    assert {(True, False), (False, True)} <= axes
    assert different > 150


def test_the_cheapest_are_kept_and_none_twice():
    graph = strategies.training_chain(8, skip=2)
    generation = _generation(graph)
    order = range(len(graph))
    for cost in (200.0, 100.0, 100.0 * (1 + 1e-12)):
        generation.add(cost, order)
    assert len(generation) == 2
    for k in range(2 * SIZE):
        generation.add(200.0 - k, order)
    assert len(generation) == SIZE
    assert [cost for cost, _ in generation._kept] == [
        100.0,
        *[201.0 - 2 * SIZE + k for k in range(SIZE - 1)],
    ]
    generation.renew()
    assert [cost for cost, _ in generation._kept] == [
        100.0,
        *[201.0 - 2 * SIZE + k for k in range(KEPT - 1)],
    ]


@pytest.mark.parametrize("why", ["alike", "refused", "refused while few"])
def test_a_generation_ends(why):
    graph = strategies.training_chain(8, skip=2)
    generation, order = _generation(graph), range(len(graph))
    step = ALIKE / SIZE if why == "alike" else 1.0
    for k in range(SIZE if why != "refused while few" else 3):
        assert not generation.is_over
        generation.add(graph.total_cost + 1.0 + k * step, order)
    if why == "alike":
        assert generation.is_over
    for _ in range(REFUSED):
        assert generation.is_over == (why == "alike")
        generation.add(graph.total_cost + 1.0, order)
    assert generation.is_over
    generation.renew()
    assert not generation.is_over


def test_a_round_crosses_what_its_legs_came_to():
    graph = strategies.training_chain(30, skip=3)
    budget = replay(graph, Plan.keep_all(graph)).peak_bytes // 2
    generation, begun = _generation(graph), []
    annealer = Annealer(graph, budget, range(len(graph)))
    restart = annealer.restart
    annealer.restart = lambda start: (begun.append(list(start)), restart(start))
    fresh = Leg(range(len(graph)), 0.0, 600, HOT, COLD, None, IN_STAGES)
    crossed = Leg(None, 0.0, 20, *COLD_WISH, None, IN_STAGES)
    generation.add(2 * graph.total_cost, _some_order(graph, 1))
    made = Round(annealer, [crossed, fresh, crossed], lambda: 10.0**6, generation=generation)
    made.answer(60)
    assert made.complete
    assert len(begun) == 2  # there was nothing to cross before
    assert begun[1] not in (begun[0], made.found[1], _some_order(graph, 1))
    assert made.found[0] == generation._kept[0][0] < 2 * graph.total_cost == generation._kept[-1][0]


class Uncrossed(Generation):
    """Gives what it keeps as it is."""

    def cross(self):
        again = [[] for _ in range(self._n + 1)]
        for op, stage in self._random.choice(self._kept)[1]:
            again[stage].append(op)
        return in_stage_form([sorted(ops) for ops in again])


def test_as_many_annealings_find_a_cheaper_plan_of_a_deep_graph_from_crossed_ones_than_from_those_themselves():
    graph = problems.load("resnet152")
    budget = problems.budget_at(graph, 0.1)
    timetable = Timetable(graph)
    model = SnapshotModel(
        graph, budget, at_equal_steps(timetable.bytes_in[: len(graph)].copy(), budget, 4)
    )
    model.tighten(time_limit_s=60)
    timetable.move_to(())
    lift(timetable, model.snapshots, model.rounded)
    wish = timetable.evaluations()
    annealers = [Annealer(graph, budget, wish) for _ in range(2)]
    price = PRICE / annealers[0].evictable
    ways = IN_STAGES, REPEATS_ANYWHERE
    anew = [Leg(wish, 0.0, WISHED, *WARM_WISH, price, freedom) for freedom in ways]
    crossed = [Leg(None, 0.0, WISHED, *COLD_WISH, price, freedom) for freedom in ways]
    generations = [kind(len(graph), graph.total_cost, 0) for kind in (Generation, Uncrossed)]
    rounds = [
        Round(
            annealer, SIZE // 2 * anew + 3 * SIZE * crossed, lambda: 10.0**6, generation=generation
        )
        for annealer, generation in zip(annealers, generations, strict=True)
    ]
    for each in rounds:
        each.answer(600)
    assert rounds[0].found[0] < rounds[1].found[0]
