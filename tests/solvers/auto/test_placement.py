"""Where snapshots are set: at the fullest stages, apart where asked, or at equal steps of bytes."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate import SolveStatus, solve
from checkmate.bench import problems
from checkmate.solvers.auto import solver as snapshot
from checkmate.solvers.auto.placement import APART, at_equal_steps, fullest
from checkmate.solvers.auto.primal import RESTARTS, Finder
from checkmate.solvers.auto.relaxation import Bound, SnapshotModel
from checkmate.solvers.auto.solver import Snapshot
from checkmate.solvers.search import Search

profiles = st.lists(st.integers(-50, 100), min_size=1, max_size=120).map(
    lambda numbers: np.array(numbers, float)
)


@given(profiles, st.data())
def test_the_fullest_stages(over, data):
    chosen = data.draw(st.lists(st.integers(0, len(over) - 1), max_size=3))
    most, apart = data.draw(st.integers(0, 6)), data.draw(st.booleans())
    before = over.copy()
    found = fullest(over, chosen, most, apart=apart)
    assert (over == before).all()
    distance = max(1, int(APART * len(over))) if apart else 1
    free = {
        t
        for t in range(len(over))
        if over[t] > 0 and all(abs(t - c) > (distance if apart else 0) for c in chosen)
    }
    for t in found:
        assert over[t] == max(over[u] for u in free)
        free -= {u for u in free if abs(u - t) <= distance}
    assert len(found) == most or not free


@given(profiles, st.integers(1, 8))
def test_equal_steps_of_bytes(held, many):
    budget = held.max() - 40
    found = at_equal_steps(held, budget, many)
    assert int(held.argmax()) in found
    assert found == sorted(set(found))
    assert len(found) <= many
    for k in range(1, many):
        level = held.max() - 40 * k / many
        last = max(t for t in range(len(held)) if held[t] >= level - 1e-9)
        assert last in found or held[last] - level < 1e-6


def _looked(name: str, share: float) -> tuple[snapshot._Run, SnapshotModel, np.ndarray]:
    """A search after its first snapshot."""
    graph = problems.load(name)
    run = snapshot._Run(
        Snapshot(),
        Search(graph, problems.budget_at(graph, share), time_limit_s=600, deterministic=True),
    )
    one = run.highs.model([run.peak])
    return run, one, run._lift(one, one.solve(time_limit_s=60).dropped)


def test_where_blocks_are_alike_snapshots_are_spread():
    run, one, over = _looked("resnet152", 0.3)
    at_fullest = run.highs.model([run.peak, *fullest(over, one.snapshots, 1, apart=True)])
    spread = run._next_model(one, over)
    assert len(spread.snapshots) == snapshot.FEW
    quick = {"nodes": 20, "precision": 0.01, "soonest": 1e-4}
    excess = [
        run._lift(model, model.solve(time_limit_s=60, **quick).dropped).max()
        for model in (spread, at_fullest)
    ]
    assert excess[0] < 0.5 * excess[1]


def test_where_the_fullest_stage_tells_more_it_is_taken():
    run, one, over = _looked("encoder12", 0.1)
    assert run._next_model(one, over).snapshots == tuple(
        sorted((run.peak, *fullest(over, one.snapshots, 1, apart=True)))
    )


def test_too_large_programs_are_not_asked_which_tells_more(monkeypatch):
    run, one, over = _looked("resnet152", 0.3)
    monkeypatch.setattr(snapshot, "MODEL_SIZE", 2000)
    asked = []
    monkeypatch.setattr(SnapshotModel, "tighten", lambda self, **_: asked.append(self))
    assert len(run._next_model(one, over).snapshots) == 2
    assert not asked


@pytest.mark.parametrize("told", [False, True])
def test_far_from_a_proof_many_are_set_while_linear_programs_tell_something(monkeypatch, told):
    monkeypatch.setattr(snapshot, "SCAN_OPS", 0)
    run, one, over = _looked("resnet50", 0.1)
    one.tighten(time_limit_s=60)
    run.looked = snapshot._Look(0.0, one, over)
    if told:  # what integer programs proved is more than linear ones can
        run.search.raise_bound(1.19 * run.search.graph.total_cost, by="test")
    before = run.search.bound
    model = run._much_wider_model()
    if told:
        assert model is None
        assert len(run._wider_model().snapshots) < 1 + 2 * snapshot.CANDIDATES
    else:
        assert len(model.snapshots) >= 1 + snapshot.CANDIDATES
        assert run.search.bound > before


def test_where_only_snapshots_overflow_the_best_plan_tells_where_to_look():
    run, one, over = _looked("resnet50", 0.1)
    at_the_snapshot = np.where(np.arange(len(over)) == run.peak, 1.0, 0.0)
    run.looked = snapshot._Look(0.0, one, at_the_snapshot)
    assert len(run._telling_model().snapshots) > 1


@pytest.mark.parametrize("wide", [False, True])
def test_without_a_clock_wide_models_get_few_nodes(monkeypatch, wide):
    run, one, over = _looked("resnet50", 0.1)
    run.looked = snapshot._Look(0.0, one, over)
    model = run._telling_model()
    monkeypatch.setattr(snapshot, "WIDE_MODEL", model.size - wide)
    monkeypatch.setattr(snapshot._Run, "_wider_model", lambda self: model)
    monkeypatch.setattr(Finder, "improve", lambda self, **_: False)
    asked = []
    monkeypatch.setattr(SnapshotModel, "solve", lambda self, *, nodes, **_: asked.append(nodes))
    run._deepen()
    assert asked == [snapshot.NODES[1 if wide else 2]]


def test_a_linear_program_is_solved_once(monkeypatch):
    run, one, _ = _looked("resnet50", 0.1)
    first, asked = run.highs.linear_bound(one, 10.0), []
    monkeypatch.setattr(SnapshotModel, "_ask_highs", lambda self, *_: asked.append(self))
    assert run.highs.linear_bound(one, 10.0) == first > run.search.graph.total_cost
    assert not asked


def test_nothing_is_loaded_for_a_search_that_has_ended(monkeypatch):
    loaded = []
    monkeypatch.setattr(Finder, "load", lambda self: loaded.append(self.search.timeline))
    graph = problems.load("vgg16")
    assert solve(graph, problems.budget_at(graph, 0.5)).status is SolveStatus.OPTIMAL
    assert not loaded


@pytest.mark.parametrize("dear", [False, True])
def test_what_costs_more_than_the_best_plan_is_no_wish(monkeypatch, dear):
    wishes = []
    monkeypatch.setattr(Finder, "wish", lambda self: wishes.append(self.timetable.cost))
    run, one, _ = _looked("resnet50", 0.1)
    run.finder.timetable.move_to(())
    run.finder.settle(by="greedy")
    found = one.solve(time_limit_s=60)
    everything = (tuple(range(run.peak)),)
    run._learn(one, Bound(found.cost, everything if dear else found.dropped, exact=False))
    assert wishes == [] if dear else wishes[0] < run.search.timeline.cost


@pytest.mark.parametrize("near", [False, True])
def test_a_wish_that_nearly_fits_is_annealed_cold(near):
    graph = problems.load("resnet50")
    search = Search(
        graph, problems.budget_at(graph, 0.8 if near else 0.1), time_limit_s=600, deterministic=True
    )
    finder = Finder(search, proposals=100, rounds=2, seed=0)
    temperatures = []
    finder.wish()
    for finder._rounds_begun in (0, 1):
        temperatures += [
            leg.hot
            for leg in finder._legs(SimpleNamespace(evictable=len(graph)))
            if len(leg.start) == len(graph) and leg.price
        ]
    cold, warm, each = 0.05, 1.0, RESTARTS
    assert temperatures == ([cold] * 2 * each if near else [cold] + [warm] * (2 * each - 1))
