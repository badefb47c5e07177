"""DFGraph: what it accepts, what it derives, and its way to networkx and back."""

import dataclasses
import pickle

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from strategies import graphs, training_chain

from checkmate import DFGraph, GraphError, Op
from checkmate.core.graph import ancestors


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"deps": (0, 0)}, "lists an op twice in deps"),
        ({"control_deps": (1, 1)}, "lists an op twice in control_deps"),
        ({"cost": -1}, "cost -1"),
        ({"cost": float("nan")}, "cost nan"),
        ({"cost": float("inf")}, "cost inf"),
        ({"cost": "3"}, "cost '3'"),
        ({"cost": None}, "cost None"),
        ({"cost": 10**400}, "Op 'bad' has cost 1000"),
        *(
            ({"output_bytes": size}, "Op 'bad' has output_bytes .* whole number of bytes")
            for size in (-4, 1.5, float("nan"), float("inf"), None, "12")
        ),
        ({"workspace_bytes": -1}, "workspace_bytes -1"),
        ({"deps": (0, 1), "in_place": (1, 1)}, "lists an op twice in in_place"),
        (
            {"deps": (0, 1), "in_place": (2,)},
            r"has op 2 in in_place, but does not read it: deps are \(0, 1\)",
        ),
    ],
)
def test_an_op_that_is_none(facts, message):
    with pytest.raises(GraphError, match=message):
        Op("bad", **facts)


@pytest.mark.parametrize(
    ("ops", "facts", "message"),
    [
        ((), {}, "at least one op"),
        ((Op("a"), Op("a")), {}, "Two ops are called 'a'"),
        ((Op("a", (0,)),), {}, "Op 0 'a' has op 0 in deps"),
        ((Op("a", (1,)), Op("b")), {}, "Op 0 'a' has op 1 in deps"),
        ((Op("a"), Op("b", control_deps=(2,)), Op("c")), {}, "has op 2 in control_deps"),
        ((Op("a"), Op("b", overwrites=(-1,))), {}, "has op -1 in overwrites"),
        ((Op("a"),), {"outputs": (1,)}, "Output 1 is no op"),
        (
            (Op("a", output_bytes=4), Op("b", (0,), output_bytes=6, in_place=(0,))),
            {},
            "Op 1 'b' of 6 bytes has op 0 'a' of 4 bytes in in_place, 2 bytes too few",
        ),
        *(
            ((Op("a"),), {"fixed_bytes": size}, "fixed_bytes is .* whole number of bytes")
            for size in (-1, 0.5, float("nan"), float("inf"), None, "12")
        ),
        ((Op("a", output_bytes=2**62), Op("b", output_bytes=2**62)), {}, r"2\^63"),
        ((Op("a", cost=1e308), Op("b", cost=1e308)), {}, "costs add up"),
    ],
)
def test_a_graph_that_is_none(ops, facts, message):
    with pytest.raises(GraphError, match=message) as caught:
        DFGraph(ops, **facts)
    assert isinstance(caught.value, ValueError)


def test_sums_just_below_the_limit():
    assert len(DFGraph((Op("a", output_bytes=2**62), Op("b", output_bytes=2**62 - 1)))) == 2


@given(graphs(max_ops=10))
def test_derived_views_agree(graph):
    n = len(graph)
    assert graph.edges == tuple((d, i) for i in range(n) for d in graph.deps[i])
    assert {(i, j) for i in range(n) for j in graph.users[i]} == set(graph.edges)
    assert all(list(users) == sorted(users) for users in graph.users)
    assert graph.total_cost == pytest.approx(graph.costs.sum())
    for array in (graph.costs, graph.output_bytes, graph.workspace_bytes, graph.recomputable):
        assert len(array) == n
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


@given(graphs(max_ops=10))
def test_ancestors_are_what_is_reachable_backward(graph):
    digraph = nx.DiGraph(graph.edges)
    digraph.add_nodes_from(range(len(graph)))
    for i, bits in enumerate(ancestors(graph.deps)):
        assert {d for d in range(len(graph)) if bits >> d & 1} == nx.ancestors(digraph, i)


@given(graphs(max_ops=10))
def test_networkx_round_trip(graph):
    back = DFGraph.from_networkx(graph.to_networkx(), fixed_bytes=graph.fixed_bytes)
    assert back == without_order_of_deps(graph)


def without_order_of_deps(graph):
    return dataclasses.replace(
        graph,
        ops=tuple(
            dataclasses.replace(op, control_deps=tuple(sorted(op.control_deps))) for op in graph.ops
        ),
    )


def test_networkx_names_what_may_be_overwritten():
    digraph = nx.DiGraph()
    digraph.add_node("sum", output_bytes=3, in_place=("b",))
    digraph.add_nodes_from(("a", "b"), output_bytes=3)
    digraph.add_edges_from([("a", "sum"), ("b", "sum")])
    graph = DFGraph.from_networkx(digraph)
    assert graph.ops[graph.index("sum")].in_place == (graph.index("b"),)
    assert graph.to_networkx().nodes["sum"]["in_place"] == ("b",)


def test_networkx_cycle_and_unknown_attribute():
    with pytest.raises(GraphError, match="cycle through"):
        DFGraph.from_networkx(nx.DiGraph([("a", "b"), ("b", "a")]))
    digraph = nx.DiGraph()
    digraph.add_node("a", colour="red")
    with pytest.raises(GraphError, match="'a' has an attribute that no Op has"):
        DFGraph.from_networkx(digraph)


def test_networkx_nodes_in_any_order_are_sorted_topologically():
    digraph = nx.DiGraph()
    digraph.add_node("last", cost=3)
    digraph.add_node("first", cost=1, output=True)
    digraph.add_edge("first", "last")
    graph = DFGraph.from_networkx(digraph)
    assert [(op.name, op.deps, op.cost) for op in graph.ops] == [
        ("first", (), 1),
        ("last", (0,), 3),
    ]
    assert graph.outputs == (0,)


def test_frozen_equal_and_picklable():
    graph = training_chain(3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        graph.fixed_bytes = 3
    with pytest.raises(dataclasses.FrozenInstanceError):
        graph.ops[0].cost = 3
    assert pickle.loads(pickle.dumps(graph)) == graph
    assert dataclasses.replace(graph, name="another") == graph
    assert dataclasses.replace(graph, fixed_bytes=1) != graph


def test_numpy_numbers_are_taken():
    op = Op("a", cost=np.float32(0.5), output_bytes=np.int64(7))
    assert (op.output_bytes, type(op.output_bytes)) == (7, int)
    assert DFGraph((op,), outputs=(np.int64(0),)).outputs == (0,)


def test_a_dep_need_not_be_said_twice():
    assert Op("a", (0, 1), control_deps=(1, 2)).control_deps == (2,)


def test_index_by_name():
    assert training_chain(3).index("f2") == 2
    with pytest.raises(GraphError, match="'nobody'"):
        training_chain(3).index("nobody")
