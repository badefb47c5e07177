"""What is asked of layers by name: to be kept, and to be computed again for the backward pass."""

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from oracles import run_plan
from strategies import training_chain, with_backward

from checkmate import (
    Compute,
    DFGraph,
    GraphError,
    InfeasibleBudgetError,
    Op,
    Plan,
    floor,
    replay,
    solve,
    solve_curve,
)
from checkmate.solvers.layer_rules import LayerRules, ops_of_layers


def layered(layers: int = 6) -> DFGraph:
    """A chain of layers `net/layer_k` and their gradients."""
    chain = training_chain(layers)
    forward = [i for i, op in enumerate(chain.ops) if not op.is_backward]
    names = {i: f"net/layer_{k}/op" for k, i in enumerate(forward)}
    ops = (
        replace(op, name=names.get(i, f"gradient_tape/{op.name}")) for i, op in enumerate(chain.ops)
    )
    return replace(chain, ops=tuple(ops), name="net")


def test_what_is_kept_runs_once_and_costs_what_it_costs():
    graph = layered()
    free = solve(graph, "80%", solver="state_space")
    assert free.plan.recomputed
    (first, *_) = free.plan.recomputed
    layer = graph.ops[first].name.split("/")[1]
    kept = solve(graph, "80%", keep=layer, solver="state_space")
    assert first not in kept.plan.recomputed
    assert kept.cost >= free.cost and kept.bound >= free.bound
    assert layer in str(kept) and f"keep {layer}" == kept.rules


def test_what_is_recomputed_does_not_wait_for_the_backward_pass():
    graph = layered()
    result = solve(graph, "100%", recompute=["layer_[23]"])
    again = {i for i, op in enumerate(graph.ops) if op.name in ("net/layer_2/op", "net/layer_3/op")}
    assert set(result.plan.recomputed) == again
    assert result.cost == graph.total_cost + sum(graph.ops[i].cost for i in again)
    first = next(i for i, op in enumerate(graph.ops) if op.is_backward)
    live = set()
    for step in result.plan.steps:
        if step == Compute(first):
            break
        (live.add if isinstance(step, Compute) else live.discard)(step.op)
    assert not live & again


def test_a_larger_budget_does_not_end_what_was_asked():
    graph = layered()
    for budget in ("100%", "1GiB"):
        assert solve(graph, budget, recompute="layer_2").plan.recomputed
    curve = solve_curve(graph, ["100%", "80%"], recompute="layer_2", find_smallest=True)
    assert all(result.plan.recomputed for result in curve.results)
    assert "layer_2" in curve.lowest.rules


@st.composite
def nets(draw) -> tuple[DFGraph, list[str], list[str]]:
    """A random net of layers with its backward pass, and layers to keep and to recompute."""
    n = draw(st.integers(3, 7))
    forward = []
    for k in range(n):
        deps = draw(st.sets(st.integers(0, k - 1), min_size=1, max_size=2)) if k else ()
        sizes = draw(st.integers(1, 8)), draw(st.integers(0, 3))
        forward.append(
            Op(
                f"net/layer_{k}/op",
                tuple(sorted(deps)),
                draw(st.integers(1, 5)),
                *sizes,
                recomputable=draw(st.integers(0, 5)) > 0,
            )
        )
    graph = with_backward(forward, "net")
    kinds = draw(st.lists(st.integers(0, 2), min_size=n, max_size=n))
    named = [[f"layer_{k}" for k in range(n) if kinds[k] == kind] for kind in (1, 2)]
    return graph, named[0], named[1]


@settings(max_examples=60)
@given(net=nets(), share=st.floats(0.4, 1.2))
def test_plans_that_hold_to_rules(net, share):
    graph, keep, recompute = net
    try:
        LayerRules.of(graph, keep, recompute)
    except GraphError:
        assume(False)
    budget = max(floor(graph).bytes, int(share * replay(graph, Plan.keep_all(graph)).peak_bytes))
    result = solve(graph, budget, keep=keep, recompute=recompute, solver="state_space", throw=False)
    free = solve(graph, budget, solver="state_space", throw=False)
    if result.plan is None:
        return
    assert replay(graph, result.plan).peak_bytes == result.peak_bytes <= budget
    assert run_plan(graph, result.plan) == run_plan(graph, Plan.keep_all(graph))
    kept = ops_of_layers(graph, keep, "keep")
    assert not kept & set(result.plan.recomputed)
    assert max(result.bound, result.given_order_bound) <= result.cost * (1 + 1e-9)
    assert free.cost is not None and free.bound <= result.cost


def test_a_copy_keeps_order_and_reads_before_a_variable_is_written():
    ops = (
        Op("net/read/op", output_bytes=4),
        Op("net/dense/op", (0,), output_bytes=8),
        Op("net/loss/op", (1,), output_bytes=1),
        Op("gradient", (1, 2), output_bytes=8, is_backward=True),
        Op("update", (3,), is_backward=True, overwrites=(0,)),
        Op("late", (0, 3), output_bytes=1, is_backward=True),
    )
    graph = DFGraph(ops, outputs=(5,))
    rules = LayerRules.of(graph, recompute="dense")
    assert rules.again == {1}
    copy = rules.expansion.after.ops[rules.expansion.first.index((1,), 2)]
    assert copy.deps == (0,) and 2 in copy.control_deps
    with pytest.raises(GraphError, match="may be computed again"):
        LayerRules.of(graph, recompute="read")  # read again after it was written to


def test_a_bound_holds_for_plans_in_which_others_read_the_second_evaluation():
    ops = (
        Op("net/a/op", (), 2, 1),
        Op("net/b/op", (0,), 1, 40),
        Op("net/loss/op", (1,), 1, 1),
        Op("gradient_b", (1, 2), 1, 40, is_backward=True),
        Op("gradient_a", (0, 3), 1, 1, is_backward=True),
    )
    graph = DFGraph(ops, outputs=(4,))
    result = solve(graph, "100%", recompute="a")
    assert result.bound <= graph.total_cost + 2  # a again, and no more
    # Tight: b runs again, too, and may read the second evaluation of a.
    tight = solve(graph, result.peak_bytes, recompute=["a", "b"])
    assert tight.bound <= graph.total_cost + 3


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"keep": "layer_9"}, "keep='layer_9' is the name of no layer of 'net'. It has"),
        ({"recompute": ["layer_1", "blok*"]}, "recompute='blok*' is the name of no layer"),
        ({"keep": 3}, "got 3"),
        ({"keep": ["layer_1"], "recompute": "layer_*"}, "'layer_1' is to be kept and to be"),
    ],
)
def test_names_that_cannot_be_meant(options, said):
    with pytest.raises(GraphError) as error:
        solve(layered(), "60%", **options)
    assert said in str(error.value)


def test_a_refusal_names_what_was_asked():
    graph = layered()
    smallest = solve_curve(graph, ["100%"], find_smallest=True).smallest_bytes
    with pytest.raises(InfeasibleBudgetError, match=r"with keep layer_\*: op"):
        solve(graph, smallest, keep="layer_*")
