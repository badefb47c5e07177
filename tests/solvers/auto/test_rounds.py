"""Rounds of annealing: in a thread of their own, told about on the way, ended when asked to, and
never waited for beside other work."""

from __future__ import annotations

import threading
import time

import pytest
import strategies

from checkmate import Plan, replay
from checkmate.bench import problems
from checkmate.solvers.annealing.annealer import COLD, HOT, IN_STAGES, Annealer
from checkmate.solvers.auto import primal as finder_module
from checkmate.solvers.auto.primal import Finder
from checkmate.solvers.auto.rounds import LONGEST, Leg, Round
from checkmate.solvers.auto.solver import Snapshot, _Run
from checkmate.solvers.background import Beside
from checkmate.solvers.search import Search

ENDLESS = 10**9
FOREVER = 10.0**6


def _chain():
    graph = strategies.training_chain(30, skip=3)
    return graph, replay(graph, Plan.keep_all(graph)).peak_bytes // 2


def _leg(graph, proposals, **facts):
    given = {
        "start": range(len(graph)),
        "start_cost": 0.0,
        "hot": HOT,
        "cold": COLD,
        "price": None,
        "freedom": IN_STAGES,
    }
    return Leg(proposals=proposals, **given | facts)


def test_a_round_to_its_end(monkeypatch):
    graph, budget = _chain()
    annealer, told = Annealer(graph, budget, range(len(graph))), []
    run = annealer.run

    def noted(*args, **facts):
        made = run(*args, **facts)
        told.append((annealer.best_cost, annealer.best))
        return made

    monkeypatch.setattr(annealer, "run", noted)
    made = Round(annealer, [_leg(graph, 200), _leg(graph, 100)], lambda: FOREVER)
    made.wait()
    assert made.complete
    cost, order = made.found
    assert len(told) == 2
    assert (cost, order) == min(told, key=lambda each: each[0])
    timeline = replay(graph, Plan.from_order(graph, order))
    assert timeline.peak_bytes <= budget
    assert timeline.cost == pytest.approx(cost, rel=1e-9)


def test_a_round_that_is_stopped_keeps_what_it_found():
    graph, budget = _chain()
    under_way = Round(
        Annealer(graph, budget, range(len(graph))), [_leg(graph, ENDLESS)], lambda: FOREVER
    )
    while not under_way.found[1]:
        assert under_way.busy
        time.sleep(0.001)
    under_way.stop()
    assert not under_way.busy
    assert not under_way.complete
    assert under_way.found[0] < float("inf")


def test_a_leg_takes_a_share_of_the_time_at_most():
    graph, budget = _chain()
    asked = []

    def remaining_s():
        asked.append(10.0 - 0.5 * len(asked))
        return max(0.0, asked[-1])

    made = Round(Annealer(graph, budget, range(len(graph))), [_leg(graph, ENDLESS)], remaining_s)
    made.wait()
    assert not made.complete
    assert asked[-1] > (1 - 2 * LONGEST) * asked[0]


def test_a_leg_begins_from_what_an_earlier_one_found_if_that_costs_less(monkeypatch):
    graph, budget = _chain()
    annealer = Annealer(graph, budget, range(len(graph)))
    begun = []
    restart = annealer.restart
    monkeypatch.setattr(
        annealer, "restart", lambda start: (begun.append(list(start)), restart(start))
    )
    cheap, dear = 0.0, float("inf")
    made = Round(
        annealer,
        [_leg(graph, 100), _leg(graph, 0, start_cost=dear), _leg(graph, 0, start_cost=cheap)],
        lambda: FOREVER,
    )
    made.wait()
    assert begun == [list(range(len(graph))), made.found[1], list(range(len(graph)))]


def _finder(time_limit_s, **options):
    graph = problems.load("resnet50")
    finder = Finder(
        Search(graph, problems.budget_at(graph, 0.1), time_limit_s=time_limit_s, **options),
        proposals=ENDLESS,
        rounds=8,
        seed=0,
    )
    finder.settle(by="greedy")
    finder.load()
    finder._here = finder._loading.annealer(60)
    return finder


def test_annealing_is_not_waited_for_beside_other_work():
    finder, free = _finder(600), threading.Event()
    work = Beside(lambda: free.wait(0.05))
    assert finder.improve(beside=work)
    assert not work.busy
    assert finder._running.busy
    finder.go_on()  # nor here
    under_way = finder._running
    assert under_way.busy
    finder.stop()
    assert not under_way.busy
    assert finder._running is None


def test_rounds_go_on_beside_other_work_when_they_have_found_nothing(monkeypatch):
    finder = _finder(600)
    finder._fruitless = 100
    assert not finder.improve()
    assert finder.improve(beside=Beside(lambda: time.sleep(0.05)))
    assert finder._running.busy
    finder.stop()


@pytest.mark.parametrize("when", ["it ends the search", "now and then", "the round is over"])
def test_when_a_plan_is_taken_from_a_round_under_way(monkeypatch, when):
    monkeypatch.setattr(
        finder_module, "NOW_AND_THEN", 0.0 if when == "now and then" else float("inf")
    )
    finder = _finder(600)
    before = finder.search.timeline.cost
    if when == "it ends the search":
        finder.search.raise_bound(0.9999 * before, by="test")  # what costs less is near enough
    finder.go_on()
    under_way = finder._running
    while under_way.found[0] >= before:
        time.sleep(0.001)
    finder.go_on()
    assert under_way.busy
    assert (finder.search.timeline.cost < before) == (when != "the round is over")
    assert finder.finished() == (when == "it ends the search")
    finder.stop()
    assert finder.search.timeline.cost < before


def test_the_solver_leaves_no_round_behind(monkeypatch):
    graph = problems.load("resnet50")
    search = Search(graph, problems.budget_at(graph, 0.1), time_limit_s=3)
    run = _Run(Snapshot(), search)

    def interrupted():
        run.finder.load()
        run.finder._here = run.finder._loading.annealer(60)
        run.finder.go_on()
        assert run.finder._running.busy
        raise KeyboardInterrupt

    monkeypatch.setattr(_Run, "_first_look", lambda self: interrupted())
    with pytest.raises(KeyboardInterrupt):
        run.run()
    assert not [
        thread for thread in threading.enumerate() if isinstance(thread, Round) and thread.busy
    ]
