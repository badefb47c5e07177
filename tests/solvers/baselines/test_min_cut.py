"""The knapsack and the cut, each against brute force."""

from itertools import chain, combinations

import pytest
import strategies
from hypothesis import given, settings
from hypothesis import strategies as st

from checkmate import DFGraph, Op, Plan, replay
from checkmate.solvers.baselines.min_cut import activations, cut, never_again, recompute_once


def separates(graph, never, saved) -> bool:
    """Whether the backward pass's reads can be computed from `saved` without running an op of
    `never` again."""
    stack = [
        d for op in graph.ops if op.is_backward for d in op.deps if not graph.ops[d].is_backward
    ]
    while stack:
        i = stack.pop()
        if i in saved:
            continue
        if i in never:
            return False
        stack += [d for d in graph.deps[i] if not graph.ops[d].is_backward]
    return True


def forward_first(graph):
    """The graph without backward ops among its forward ones, as in training."""
    return all(
        not graph.ops[d].is_backward
        for i, op in enumerate(graph.ops)
        if not op.is_backward
        for d in op.deps
    )


@settings(max_examples=150)
@given(strategies.graphs(max_ops=8).filter(forward_first), st.data())
def test_the_cut_has_the_fewest_bytes(graph, data):
    forward = [i for i, op in enumerate(graph.ops) if not op.is_backward]
    never = data.draw(st.sets(st.sampled_from(forward))) if forward else set()
    saved = cut(graph, never)
    assert separates(graph, never, saved)
    sizes = graph.output_bytes
    choices = chain.from_iterable(combinations(forward, k) for k in range(len(forward) + 1))
    least = min(
        int(sizes[list(choice)].sum()) for choice in choices if separates(graph, never, set(choice))
    )
    assert int(sizes[list(saved)].sum()) == least


@pytest.mark.parametrize(
    ("share", "kept"), [(1.0, {0, 1, 2}), (0.7, {0, 2}), (0.3, {2}), (0.0, set())]
)
def test_the_knapsack_by_hand(share, kept):
    forward = (Op("a", (), 5, 40), Op("b", (0,), 1, 30), Op("c", (1,), 4, 30))
    graph = DFGraph((*forward, Op("g", (0, 1, 2), 1, 1, is_backward=True)), outputs=(3,))
    assert activations(graph) == [0, 1, 2]
    assert never_again(graph, share) == kept


def test_each_op_runs_at_most_once_more():
    graph = strategies.training_chain(20, skip=3)
    for share in (0.0, 0.3, 0.6):
        plan = Plan.from_order(graph, recompute_once(graph, cut(graph, never_again(graph, share))))
        assert set(plan.recomputed.values()) <= {1}
        assert all(not graph.ops[i].is_backward for i in plan.recomputed)
        replay(graph, plan)


def test_sizes_beyond_32_bits():
    graph = strategies.training_chain(6, sizes=(10**12, 3 * 10**12))
    saved = cut(graph, never_again(graph, 0.5))
    assert separates(graph, never_again(graph, 0.5), saved)
