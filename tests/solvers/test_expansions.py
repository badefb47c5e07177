"""What every `Expansion` promises: a plan of the graph after, however it retains and recomputes, is
one of the graph before, with the same results, no higher peak and no larger cost."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import run_plan
from strategies import graphs, training_chains

from checkmate import DFGraph, Plan, lower, replay
from checkmate.core.expansion import Expansion
from checkmate.core.schedule import complete
from checkmate.solvers.layer_rules import _copied, _with_copies
from checkmate.solvers.ordering.any_order import renumbered
from checkmate.solvers.paper.coarsen import coarsen


def in_groups(graph: DFGraph, data) -> Expansion:
    return coarsen(graph, max_ops=data.draw(st.integers(2, 9)))


def in_another_order(graph: DFGraph, data) -> Expansion:
    order: list[int] = []
    while len(order) < len(graph):
        ready = [
            i for i, op in enumerate(graph.ops)
            if i not in order and {*op.deps, *op.control_deps, *op.overwrites} <= set(order)
        ]  # fmt: skip
        order.append(data.draw(st.sampled_from(ready)))
    return renumbered(graph, order)


def with_copies(graph: DFGraph, data) -> Expansion:
    forward = [i for i, op in enumerate(graph.ops) if not op.is_backward]
    asked = data.draw(st.sets(st.sampled_from(forward))) if forward else set()
    return Expansion.one_to_one(graph, *_with_copies(graph, _copied(graph, asked)))


@pytest.mark.parametrize("rewrite", [in_groups, in_another_order, with_copies])
@settings(max_examples=100)
@given(graphs(max_ops=14, min_ops=2) | training_chains(max_layers=5), st.data())
def test_expanded_plans_need_and_cost_no_more(rewrite, graph, data):
    made = rewrite(graph, data)
    random = np.random.default_rng(data.draw(st.integers(0, 999)))
    n = len(made.after)
    for S in (np.ones((n, n), bool), random.random((n, n)) < random.random()):
        plan = lower(made.after, complete(made.after, S))
        expanded = made.expand(plan)
        asked, judged = replay(made.after, plan), replay(graph, expanded)
        assert judged.peak_bytes <= asked.peak_bytes
        once = max(0.0, graph.total_cost - made.after.total_cost)  # in no op of the graph after
        assert judged.cost <= asked.cost + once + 1e-9
        plain = run_plan(graph, Plan.keep_all(graph))
        assert run_plan(graph, expanded).items() >= {i: plain[i] for i in graph.outputs}.items()
