"""Graphs in the files that MOCCASIN publishes."""

import json

import pytest

from benchmarks import layered
from benchmarks.node_link_files import load_node_link
from checkmate import DFGraph, Op, PlanFileError

LAYERED = {
    "directed": True,
    "multigraph": False,
    "graph": {"name": "random_layered_n100_small", "order": [0, 3, 2, 1]},
    "nodes": [
        {"name": 0, "out_cost": 10, "param_cost": 0, "duration": 5},
        {"name": 1, "out_cost": 20, "param_cost": 0, "duration": 6},
        {"name": 2, "out_cost": 30, "param_cost": 0, "duration": 7},
        {"name": 3, "out_cost": 40, "param_cost": 0, "duration": 8},
    ],
    "links": [{"0": 0, "1": 2}, {"0": 0, "1": 3}, {"0": 2, "1": 1}, {"0": 3, "1": 1}],
}

OF_A_MODEL = {
    "graph": {},
    "nodes": [
        {"name": "conv", "backward": False, "cost_cpu": 5, "cost_ram": 10, "id": 0},
        {"name": "loss", "backward": True, "cost_cpu": 1, "cost_ram": 4, "id": 1},
        {"name": "conv_backward", "backward": True, "cost_cpu": 10, "cost_ram": 10, "id": 2},
    ],
    "links": [{"source": 0, "target": 1}, {"source": 0, "target": 2}, {"source": 1, "target": 2}],
}


@pytest.fixture
def write(tmp_path):
    """Called with an object, a file that holds it."""

    def written(data):
        path = tmp_path / "graph.json"
        path.write_text(json.dumps(data))
        return path

    return written


def test_layered_graph_keeps_the_order_of_the_file(write):
    graph = load_node_link(write(LAYERED))
    assert graph == DFGraph(
        (Op("0", (), 5, 10), Op("3", (0,), 8, 40), Op("2", (0,), 7, 30), Op("1", (1, 2), 6, 20)),
        outputs=(3,),
    )
    assert graph.name == "random_layered_n100_small"


def test_graph_of_a_model_has_a_backward_pass(write):
    graph = load_node_link(write(OF_A_MODEL))
    assert graph == DFGraph(
        (
            Op("0", (), 5, 10),
            Op("1", (0,), 1, 4, is_backward=True),
            Op("2", (0, 1), 10, 10, is_backward=True),
        ),
        outputs=(2,),
    )
    assert graph.name == "graph"


def changed(data, **fields):
    return {**json.loads(json.dumps(data)), **fields}


def node(**fields):
    return {"name": 9, "out_cost": 1, "duration": 1} | fields


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"nodes": []}, "'nodes' is a list of objects"),
        ({"nodes": [{"name": "a", "cost": 1}], "edges": [[0, 1]]}, "'links' is a list of objects"),
        (changed(OF_A_MODEL, links=[[0, 1]]), "'links' is a list of objects"),
        (
            changed(LAYERED, nodes=[{"name": 0, "out_cost": 1}]),
            "'cost_cpu' or 'duration'.*'out_cost'",
        ),
        (changed(LAYERED, nodes=[{"name": 0, "duration": 1}]), "'cost_ram' or 'out_cost'"),
        (
            changed(LAYERED, nodes=[node(), node(name=8, duration=None, cost_cpu=1) | {"x": 1}]),
            "none of the nodes",
        ),
        (
            changed(LAYERED, links=[{"0": 0, "1": 2}, {"source": 0, "target": 3}]),
            "every link has 'source' and 'target' or '0' and '1', the same for all; here both",
        ),
        (changed(LAYERED, links=[{"0": 0, "1": 17}]), "ends at 17, which is none of the nodes"),
        (changed(LAYERED, nodes=[*LAYERED["nodes"], node(name=0)]), "5 nodes have only 4 names"),
        (changed(LAYERED, graph={"order": [0, 1, 2]}), "does not name each of the 4 nodes once"),
        (changed(LAYERED, graph={"order": [0, 1, 2, 2]}), "does not name each of the 4 nodes once"),
        (changed(LAYERED, graph={"order": [0, 3, 1, 2]}), "node 1 is computed before node 2"),
        (changed(LAYERED, graph={"order": "0321"}), "does not name each"),
        (changed(OF_A_MODEL, links=[{"source": 2, "target": 0}]), "before node 2.*cycle"),
        (changed(LAYERED, nodes=[node(name={"a": 1})]), "networkx refuses"),
    ],
)
def test_foreign_files_are_refused_with_what_is_wrong(write, data, says):
    with pytest.raises(PlanFileError, match=says) as refusal:
        load_node_link(write(data))
    assert "graph.json" in str(refusal.value)


def test_a_cost_that_is_none_is_refused(write):
    from checkmate import GraphError

    nodes = [*LAYERED["nodes"][:3], node(name=3, duration="8")]
    with pytest.raises(GraphError, match="cost '8'"):
        load_node_link(write(changed(LAYERED, nodes=nodes)))


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("random_layered_n250_w0.43_nlv0.75_ed0.2_scd0.14", "layered250"),
        ("fcn_8_vgg (MLSys)_32_(416, 608, 3)_train", "fcn_8_vgg"),
        ("ResNet50 (MLSys)_256_(224, 224, 3)_train", "ResNet50"),
        ("layered500", "layered500"),
    ],
)
def test_published_figures_are_found_by_name(name, key):
    assert layered.published_name(DFGraph((Op("op"),), name=name)) == key
    assert key in layered.FAST_SA
    assert key in layered.MOCCASIN
