"""Rows over several intervals: every plan keeps them all, and the most violated one is found."""

from __future__ import annotations

import numpy as np
import strategies
from hypothesis import given, settings
from hypothesis import strategies as st

from checkmate import DFGraph, Free, Op
from checkmate.solvers.auto.cuts import VIOLATION, Chain, violated_chains
from checkmate.solvers.local.stage_plan import StagePlan


def _excess(chain: Chain, P: np.ndarray, R: np.ndarray) -> float:
    """By how much P and R violate row (8) or (9) of `relaxation`, term by term."""
    first, last = chain.ops[0], chain.ops[-1]
    left = P[chain.b, first] - P[chain.a, first] if chain.kept else R[chain.b, first]
    return left - P[chain.a, list(chain.ops[1:])].sum() - R[chain.a + 1 : chain.b + 1, last].sum()


def _chains(graph: DFGraph, last: int, start: int):
    """All lists of ops that end at `last` in which each reads the next, and all but the first have
    run by stage `start`."""
    yield (last,)
    for reader in graph.users[last]:
        for chain in _chains(graph, reader, start) if reader <= start else [(reader,)]:
            yield (*chain, last)


def _observed(stage_plan: StagePlan, snapshots: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """P and R of a plan, by watching it step by step."""
    n = len(stage_plan.graph)
    P, R = np.zeros((len(snapshots), n)), np.zeros((len(snapshots) + 1, n))
    live: set[int] = set()
    ran: set[int] = set()
    interval = 0
    for step in stage_plan.plan().steps:
        if isinstance(step, Free):
            live.discard(step.op)
            continue
        live.add(step.op)
        R[interval, step.op] = 1
        if interval < len(snapshots) and step.op == snapshots[interval] and step.op not in ran:
            P[interval, list(live)] = 1
            interval += 1
        ran.add(step.op)
    return P, R


@settings(max_examples=150, deadline=None)
@given(strategies.graphs(max_ops=9), st.data())
def test_no_plan_violates_a_row(graph, data):
    stage_plan = StagePlan(graph)
    for i in range(len(graph)):
        for t in data.draw(st.lists(st.integers(i + 1, len(graph)), max_size=2, unique=True)):
            if stage_plan.may_add(i, t):
                stage_plan.add([(i, t)])
    snapshots = sorted(
        data.draw(st.lists(st.integers(0, len(graph) - 1), min_size=1, max_size=4, unique=True))
    )
    P, R = _observed(stage_plan, snapshots)
    assert violated_chains(graph, snapshots, P, R, limit=1000) == []


@settings(max_examples=100, deadline=None)
@given(strategies.graphs(max_ops=7, min_ops=2), st.data())
def test_the_most_violated_row_is_found(graph, data):
    n = len(graph)
    snapshots = sorted(
        data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=4, unique=True))
    )
    chance = np.random.default_rng(data.draw(st.integers(0, 1000)))
    P, R = (
        chance.random((len(snapshots), n)),
        chance.random((len(snapshots) + 1, n)) * chance.random(),
    )
    most = 0.0
    for a, start in enumerate(snapshots):
        for b in range(a + 1, len(snapshots) + 1):
            for last in range(start + 1):
                for ops in _chains(graph, last, start):
                    most = max(most, _excess(Chain(a, b, ops, False), P, R))
                    if b < len(snapshots) and ops[0] <= start:
                        most = max(most, _excess(Chain(a, b, ops, True), P, R))
    found = violated_chains(graph, snapshots, P, R, limit=1000)
    excess = [_excess(chain, P, R) for chain in found]
    assert all(each > VIOLATION - 1e-9 for each in excess)
    for chain in found:
        assert all(d in graph.deps[j] for j, d in zip(chain.ops, chain.ops[1:], strict=False))
        assert all(i <= snapshots[chain.a] for i in chain.ops[0 if chain.kept else 1 :])
    assert np.isclose(max(excess, default=most), most) or most <= VIOLATION
    assert violated_chains(graph, snapshots, P, R, limit=1) == found[:1]


def test_a_value_by_halves_is_told():
    """b by halves in two intervals, from the same half of a: rows (1) and (2) hold, and yet a would
    have to run again."""
    ops = (
        Op("a", (), 1, 1),
        Op("b", (0,), 1, 1),
        Op("c", (), 1, 1),
        Op("d", (), 1, 1),
        Op("e", (1,), 1, 1),
    )
    P = np.array([[0.5, 0, 1, 0, 0], [0.5, 0.5, 0, 1, 0]])
    R = np.array([[1, 1, 1, 0, 0], [0, 0.5, 0, 1, 0], [0, 0.5, 0, 0, 1]])
    (chain,) = violated_chains(DFGraph(ops, outputs=(4,)), [2, 3], P, R, limit=9)
    assert chain == Chain(0, 2, (4, 1, 0), False)
    assert _excess(chain, P, R) == 0.5
