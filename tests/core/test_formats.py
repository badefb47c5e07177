"""The schemas of files beside their readers: what we write is of the schema, and both refuse the
same."""

import copy
import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from schemas import SCHEMAS, refused, validator
from strategies import training_chain

from checkmate import CheckmateError, DFGraph, Op, Plan, PlanFileError
from checkmate.core.fields import shown
from checkmate.core.files import load_plan, save_plan
from checkmate.dtr.log import OpLog
from checkmate.dtr.log_format import Annotate, Call, Constant, Copy, CopyFrom, Mutate, Release
from checkmate.errors import LogError

GRAPH = DFGraph(
    (
        Op("a", output_bytes=8, kind="Conv2D", fused=("conv/a",)),
        Op("b", (0,), 2.5, 8, 16, True, False, in_place=(0,)),
        Op("c", (1,), 0, 8, control_deps=(0,), overwrites=(0,)),
    ),
    (2,),
    64,
    "graph",
)
FACTS = {
    "graph_file": "graph.json",
    "status": "OPTIMAL",
    "solver": "auto",
    "seconds": 0.5,
    "cost": 3.5,
    "overhead": 1.0,
    "bound": 3.5,
    "bound_covers": "given order",
    "rules": "keep dense*",
    "gap": 0,
    "budget_bytes": 96,
    "peak_bytes": 96,
    "floor_bytes": 90,
    "unchanged": False,
    "plain_bytes": 96,
    "rise_bytes": 8,
}
LOG = OpLog(
    (
        Constant("w", 4),
        Call(("x", "y"), "matmul", ("w",), 5, (8, 0), (-1, 0)),
        Annotate("BACKWARD"),
        Copy("z", "x"),
        Mutate("relu_", ("x", "y"), (0,), 3),
        CopyFrom("z", "y"),
        Release("x"),
    )
)
ODD = ["zz", "", -1, 0.5, 3, 10**30, True, None, [], {}, [0.5], [["compute"]]]
"""Values, most of which are wrong for any one field."""


def written(save, path):
    save(path)
    return json.loads(path.read_text())


@pytest.fixture
def graph_data(tmp_path):
    return written(GRAPH.save, tmp_path / "graph.json")


@pytest.fixture
def plan_data(tmp_path):
    def save(path):
        save_plan(Plan.keep_all(GRAPH), path, graph=GRAPH, **FACTS)

    return written(save, tmp_path / "plan.json")


def answer(read, data, path: Path):
    """The reader's error for a file; None where it has none."""
    path.write_text(json.dumps(data))
    try:
        read(path)
    except CheckmateError as error:
        return error
    return None


def load(path):
    return load_plan(path, graph=GRAPH)


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_is_one(name):
    Draft202012Validator.check_schema(SCHEMAS[name])


def test_files_are_of_their_schemas(graph_data, plan_data):
    validator("graph").validate(graph_data)
    validator("plan").validate(plan_data)
    for layers in (1, 4):
        for line in OpLog.from_graph(training_chain(layers, fixed_bytes=4)).to_lines():
            validator("op-log-line").validate(json.loads(line))


def test_each_field_of_the_schema_is_in_a_file_here(graph_data, plan_data):
    """So that no field is left out of the tests below."""
    assert set(SCHEMAS["graph"]["properties"]) == set(graph_data)
    fields = set(SCHEMAS["graph"]["$defs"]["node"]["properties"])
    assert fields == set().union(*graph_data["nodes"])
    of_steps = {"costs", "made_for", "rewrites"}  # tests/tf2/test_function.py
    assert set(SCHEMAS["plan"]["properties"]) - of_steps == set(plan_data)
    lines = [json.loads(line) for line in LOG.to_lines()]
    assert set(SCHEMAS["op-log-line"]["properties"]) == set().union(*lines)


@pytest.mark.parametrize("value", ODD, ids=shown)
def test_reader_and_schema_of_graphs_agree(value, graph_data, tmp_path):
    places = [("nodes", k, key) for k, node in enumerate(graph_data["nodes"]) for key in node]
    places += [(key,) for key in graph_data] + [("nodes", 1), ("edges", 0), ("edges", 0, 0)]
    for place in places:
        data = changed(graph_data, place, value)
        error = answer(DFGraph.load, data, tmp_path / "g.json")
        if refused("graph", data) or isinstance(error, PlanFileError):
            assert isinstance(error, CheckmateError), (place, value)
            assert "\n" not in str(error) and "g.json: " in str(error)
            # Only a reader knows which nodes there are.
            assert refused("graph", data) or "no node" in str(error), (place, value, error)
        if isinstance(error, PlanFileError):
            field = [key for key in place if isinstance(key, str)][-1]
            assert {"nodes": "node", "edges": "edge"}.get(field, field) in str(error)


@pytest.mark.parametrize("value", ODD, ids=shown)
def test_reader_and_schema_of_plans_agree(value, plan_data, tmp_path):
    for place in [(key,) for key in plan_data] + [("steps", 0), ("steps", 0, 0), ("steps", 0, 1)]:
        data = changed(plan_data, place, value)
        error = answer(load, data, tmp_path / "p.json")
        assert refused("plan", data) == (
            isinstance(error, PlanFileError) and is_of(error, place)
        ), (
            place,
            value,
            error,
        )


def is_of(error, place):
    """Whether a message is of a field, and not of the graph that another fingerprint is of."""
    fields = ("steps", "step 0") if place[0] == "steps" else place
    return any(f"p.json: {field} is" in str(error) for field in fields)


@pytest.mark.parametrize("value", ODD, ids=shown)
def test_reader_and_schema_of_logs_agree(value):
    lines = [json.loads(line) for line in LOG.to_lines()]
    for k, line in enumerate(lines):
        for key in line:
            odd = [*lines[:k], line | {key: value}, *lines[k + 1 :]]
            if refused("op-log-line", odd[k]):
                with pytest.raises(LogError, match=r"^Line \d"):
                    OpLog.from_lines(map(json.dumps, odd))


def changed(data, place, value):
    data = copy.deepcopy(data)
    inner = data
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return data


@pytest.mark.parametrize(("name", "reader"), [("graph", DFGraph.load), ("plan", load)])
def test_a_field_that_is_needed(name, reader, graph_data, plan_data, tmp_path):
    data = {"graph": graph_data, "plan": plan_data}[name]
    for key in data:
        less = {other: value for other, value in data.items() if other != key}
        error = answer(reader, less, tmp_path / "file.json")
        assert bool(error) == refused(name, less) == (key in SCHEMAS[name]["required"])
        assert error is None or key in str(error)
