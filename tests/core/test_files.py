"""Graph and plan files: equal after a round trip, and every broken or foreign file is named for
what it is."""

import dataclasses
import gzip
import json
import os
from unittest.mock import Mock

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import graphs, training_chain

from checkmate import DFGraph, GraphError, Op, Plan, PlanError, PlanFileError
from checkmate.core import json_files
from checkmate.core.files import fingerprint, load_plan, save_plan


@given(graph=graphs(max_ops=10))
def test_graph_round_trip(graph, tmp_path_factory):
    path = tmp_path_factory.mktemp("files") / "graph.json"
    graph.save(path)
    assert DFGraph.load(path) == graph
    assert fingerprint(DFGraph.load(path)) == fingerprint(graph)


@given(graph=graphs(max_ops=10))
def test_plan_round_trip(graph, tmp_path_factory):
    path = tmp_path_factory.mktemp("files") / "plan.json"
    plan = Plan.keep_all(graph)
    save_plan(plan, path, graph=graph, cost=1.5)
    assert load_plan(path, graph=graph) == plan
    assert json.loads(path.read_text())["cost"] == 1.5


@given(graph=graphs(max_ops=6, min_ops=2), data=st.data())
def test_the_fingerprint_is_of_what_a_plan_depends_on(graph, data):
    i = data.draw(st.integers(0, len(graph) - 1))
    free, bound = ("cost", "workspace_bytes", "name", "in_place"), ("output_bytes", "recomputable")
    change = data.draw(st.sampled_from([*free, *bound, "outputs"]))
    op = graph.ops[i]
    facts = {field.name: getattr(op, field.name) for field in dataclasses.fields(op)}
    ops = (dataclasses.replace(o, in_place=o.in_place if o is op else ()) for o in graph.ops)
    graph = dataclasses.replace(graph, ops=tuple(ops))
    outputs = graph.outputs
    if change == "outputs":
        outputs = tuple({i} ^ set(outputs))
    elif change == "in_place":
        assume(op.in_place)
        facts[change] = op.in_place[1:]
    else:
        # What is larger may not fit any more.
        facts["in_place"] = op.in_place if change != "output_bytes" else ()
        facts[change] = (
            not op.recomputable
            if change == "recomputable"
            else op.name + "_"
            if change == "name"
            else facts[change] + 1
        )
    changed = DFGraph(
        (*graph.ops[:i], Op(**facts), *graph.ops[i + 1 :]), outputs, graph.fixed_bytes
    )
    assert (fingerprint(changed) == fingerprint(graph)) == (change in free)


def test_files_of_graphs_without_ops_in_place_stay_as_they_were(tmp_path):
    plain = DFGraph((Op("a", output_bytes=2), Op("b", (0,), output_bytes=2)), (1,))
    in_place = dataclasses.replace(
        plain, ops=(plain.ops[0], dataclasses.replace(plain.ops[1], in_place=(0,)))
    )
    plain.save(tmp_path / "plain.json")
    in_place.save(tmp_path / "in_place.json")
    nodes = json.loads((tmp_path / "plain.json").read_text())["nodes"]
    assert [set(node) for node in nodes] == [
        {"name", "op", "cost", "bytes", "backward", "workspace", "output"}
    ] * 2
    assert json.loads((tmp_path / "in_place.json").read_text())["nodes"] == [
        nodes[0],
        nodes[1] | {"in_place": [0]},
    ]
    assert DFGraph.load(tmp_path / "plain.json") == plain  # what an older version wrote
    assert DFGraph.load(tmp_path / "in_place.json") == in_place
    # Written down when Op had no such field.
    assert (
        fingerprint(plain)
        == "sha256:c7604f353218c64ba70b7beb1fbff9be5e41f692ddfdc55e998de692805ad41b"
    )
    assert fingerprint(in_place) == fingerprint(plain)  # found out anew in every process


def write(path, data):
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


NODE = {"name": "a", "cost": 1, "bytes": 2}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is not JSON"),
        ('{"nodes": [', "is not JSON"),
        ("[1, 2]", "holds a JSON list"),
        ({"edges": []}, r"graph\.json: nodes is missing; a list was expected\."),
        ({"nodes": [NODE]}, "edges is missing; a list was expected"),
        (
            {"nodes": [{"name": "a", "cost": 1}], "edges": []},
            r"graph\.json: node 0 'a': bytes is missing; a whole number of bytes, 0 or more",
        ),
        ({"nodes": [{"cost": 1}], "edges": []}, "node 0: name is missing; text was expected"),
        (
            {"nodes": [NODE], "edges": [[0]]},
            r"edge 0 is \[0\]; a pair of nodes, each as its number from 0 to 0 or its name, was",
        ),
        ({"nodes": [NODE], "edges": [[0, 5]]}, r"edge 0 is \[0, 5\], and 5 is no node"),
        ({"nodes": [NODE], "edges": [["a", "b"]]}, r'edge 0 is \["a", "b"\], and "b" is no node'),
        ({"nodes": [NODE], "edges": [[True, 0]]}, "and true is no node"),
        ({"nodes": [NODE], "edges": [[-1, 0]]}, "and -1 is no node"),
        ({"nodes": [NODE], "edges": {"a": "b"}}, 'edges is {"a": "b"}; a list was expected'),
        ({"nodes": 3, "edges": []}, "nodes is 3; a list was expected"),
        ({"nodes": [3], "edges": []}, "node 0 is 3; an object with name, cost, bytes was expected"),
        (
            {"nodes": [NODE | {"in_place": 0}], "edges": []},
            "node 0 'a': in_place is 0; a list was expected",
        ),
        ({"nodes": [NODE | {"in_place": [True]}], "edges": []}, "true is no node; a list of nodes"),
        ({"nodes": [NODE | {"cost": -1}], "edges": []}, "cost is -1; a finite number, 0 or more,"),
        ({"nodes": [NODE | {"cost": 10**400}], "edges": []}, r"cost is 10+\.\.\.; a finite"),
        ({"format": "dot", "nodes": [], "edges": []}, 'format is "dot"; "checkmate-graph" was'),
        ({"version": 2, "nodes": [], "edges": []}, "version is 2, and this library reads"),
        ({"version": "1", "nodes": [], "edges": []}, 'version is "1"; a whole number, 1 or more,'),
        ('{"nodes": [], "edges": [], "fixed_bytes": ' + "1" * 5000 + "}", "is not JSON"),
    ],
)
def test_files_that_are_no_graph(content, message, tmp_path):
    with pytest.raises(PlanFileError, match=message) as caught:
        DFGraph.load(write(tmp_path / "graph.json", content))
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("nodes", "edges", "message"),
    [
        ([NODE, NODE], [], "Two ops are called 'a'"),
        ([NODE], [[0, 0]], "has op 0 in deps"),
        ([], [], r"graph\.json: A graph needs at least one op"),
    ],
)
def test_files_with_an_illegal_graph(nodes, edges, message, tmp_path):
    with pytest.raises(GraphError, match=message):
        DFGraph.load(write(tmp_path / "graph.json", {"nodes": nodes, "edges": edges}))


@given(st.binary(max_size=60))
def test_any_bytes_are_refused_by_name(content):
    import tempfile

    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        file.write(content)
        file.flush()
        with pytest.raises((PlanFileError, GraphError)):
            DFGraph.load(file.name)


@pytest.mark.parametrize("cut", [0.1, 0.5, 0.9, 0.99])
def test_a_plan_file_that_was_cut_short(cut, tmp_path):
    graph, path = training_chain(3), tmp_path / "plan.json"
    save_plan(Plan.keep_all(graph), path, graph=graph)
    text = path.read_text()
    path.write_text(text[: int(cut * len(text))])
    with pytest.raises(PlanFileError, match="is not JSON"):
        load_plan(path, graph=graph)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            {"format": "another"},
            PlanFileError,
            'format is "another"; "checkmate-plan" was expected',
        ),
        ({"format": "checkmate-graph"}, PlanFileError, "is a graph, and a plan was expected"),
        ({"version": 2}, PlanFileError, "version is 2, and this library reads versions up to 1"),
        ({"version": None}, PlanFileError, "version is null; a whole number, 1 or more, was"),
        ({"graph": "sha256:0"}, PlanFileError, "was made for .*sha256:0"),
        ({"graph": None}, PlanFileError, "graph is missing; text was expected"),
        (
            {"steps": [["compute", 0], ["jump", 1]]},
            PlanFileError,
            r'step 1 is \["jump", 1\]; \["compute", i\] or \["free", i\], with',
        ),
        ({"steps": [["compute", "0"]]}, PlanFileError, "step 0 is"),
        ({"steps": [["compute", True]]}, PlanFileError, "step 0 is"),
        ({"steps": [["compute", -1]]}, PlanFileError, "step 0 is"),
        ({"steps": [["compute", 0]]}, PlanError, "never run"),
        ({"steps": [["free", 0]]}, PlanError, "Step 0 frees op 0"),
        ({"steps": [["compute", 99]]}, PlanError, "Step 0 names op 99"),
        ({"steps": None}, PlanFileError, "steps is missing; a list was expected"),
        *(
            ({"steps": steps}, PlanFileError, r"steps is .*; a list was expected|step 0 is")
            for steps in (5, {"compute": 0}, "compute", [["compute"]], [[["compute"], 0]])
        ),
    ],
)
def test_plan_files_that_are_not_for_this(change, error, message, tmp_path):
    graph, path = training_chain(3), tmp_path / "plan.json"
    save_plan(Plan.keep_all(graph), path, graph=graph)
    write(path, json.loads(path.read_text()) | change)
    with pytest.raises(error, match=message):
        load_plan(path, graph=graph)


@pytest.mark.parametrize("name", ["NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize("text", ['{{"seconds": {}}}', '{{"a": [1, {{"seconds": [2, {}]}}]}}'])
def test_numbers_that_json_does_not_have_are_refused_for_every_key(name, text, tmp_path):
    path = write(tmp_path / "graph.json", text.format(name))
    with pytest.raises(PlanFileError, match=f"its 'seconds' is {name}; a finite number was"):
        DFGraph.load(path)


def test_a_plan_in_the_place_of_a_graph_names_its_graph(tmp_path):
    graph, path = training_chain(3), tmp_path / "plan.json"
    save_plan(Plan.keep_all(graph), path, graph=graph, graph_file="chain.json")
    with pytest.raises(PlanFileError, match=r"plan\.json is a plan; its graph is .*, which is not"):
        DFGraph.load(path)
    graph.save(tmp_path / "chain.json")
    with pytest.raises(PlanFileError, match=rf"is a plan; its graph is {tmp_path}/chain\.json\.$"):
        DFGraph.load(path)
    save_plan(Plan.keep_all(graph), path, graph=graph)
    with pytest.raises(
        PlanFileError, match=r"is a plan and names no graph file; a graph was expected"
    ):
        DFGraph.load(path)
    with pytest.raises(PlanFileError, match=r"chain\.json is a graph, and a plan was expected"):
        load_plan(tmp_path / "chain.json", graph=graph)


def test_nodes_may_be_named(tmp_path):
    nodes = [{**NODE, "name": name} for name in "abc"]
    nodes[2] |= {"in_place": ["b"], "overwrites": ["a"], "control_deps": [0]}
    edges = [["a", "b"], [1, "c"]]
    found = DFGraph.load(write(tmp_path / "g.json", {"nodes": nodes, "edges": edges}))
    assert found.deps == ((), (0,), (1,))
    last = found.ops[2]
    assert (last.in_place, last.overwrites, last.control_deps) == ((1,), (0,), (0,))


def test_a_number_that_json_does_not_have_is_not_written(tmp_path):
    graph, path = training_chain(2), tmp_path / "plan.json"
    with pytest.raises(PlanFileError, match="Cannot write"):
        save_plan(Plan.keep_all(graph), path, graph=graph, gap=float("nan"))
    assert not path.exists()


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_is_read_up_to_a_size(packed, tmp_path, monkeypatch):
    graph, path = training_chain(3), tmp_path / "graph.json"
    graph.save(path)
    content = path.read_bytes()
    if packed:
        path.write_bytes(gzip.compress(content))
    monkeypatch.setattr(json_files, "MOST_BYTES", len(content))
    assert DFGraph.load(path) == graph
    monkeypatch.setattr(json_files, "MOST_BYTES", len(content) - 1)
    with pytest.raises(PlanFileError, match=r"has more than .* B( when unpacked)?, the most of"):
        DFGraph.load(path)


def test_memory_that_runs_out_is_a_sentence(tmp_path, monkeypatch):
    path = write(tmp_path / "graph.json", "{}")
    monkeypatch.setattr(json_files.json, "loads", Mock(side_effect=MemoryError))
    with pytest.raises(PlanFileError, match="there is not enough memory"):
        DFGraph.load(path)


def test_a_plan_for_another_graph(tmp_path):
    path = tmp_path / "plan.json"
    save_plan(Plan.keep_all(training_chain(3)), path, graph=training_chain(3))
    with pytest.raises(
        PlanFileError, match=r"was made for chain3 .* but this is chain4 with 9 ops"
    ):
        load_plan(path, graph=training_chain(4))


def test_no_such_file(tmp_path):
    with pytest.raises(PlanFileError, match=r"Cannot read .*No such file"):
        DFGraph.load(tmp_path / "nowhere.json")
    with pytest.raises(PlanFileError, match="Cannot read"):
        DFGraph.load(tmp_path)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "plan.json"
    graph = training_chain(2)
    graph.save(path)
    before = path.read_text()
    with pytest.raises(TypeError):
        save_plan(Plan.keep_all(graph), path, graph=graph, note=object())
    assert path.read_text() == before
    assert os.listdir(tmp_path) == ["plan.json"]


def test_a_file_that_cannot_be_written(tmp_path):
    with pytest.raises(
        PlanFileError, match=r"Cannot write .*nowhere/graph.json: No such file or directory"
    ):
        training_chain(2).save(tmp_path / "nowhere" / "graph.json")


@pytest.mark.parametrize(
    "field, value",
    [
        ("recomputable", "false"),
        ("backward", 2),
        ("output", "no"),
        ("control_deps", "0"),
        ("overwrites", [0.5]),
        ("cost", True),
        ("bytes", False),
        ("name", None),
        ("op", {"kind": "relu"}),
    ],
)
def test_fields_of_another_type_are_not_read_as_something_else(field, value, tmp_path):
    nodes = [
        {"name": "a", "cost": 1, "bytes": 1},
        {"name": "b", "cost": 1, "bytes": 1} | {field: value},
    ]
    with pytest.raises(PlanFileError, match=f"{field} is "):
        DFGraph.load(write(tmp_path / "g.json", {"nodes": nodes, "edges": [[0, 1]]}))
