"""Every table of `python -m benchmarks`: the keys of its rows are those that its help names."""

import json
import re

import pytest
from calling import lines_of_json
from click.testing import CliRunner

from benchmarks import layered
from benchmarks.__main__ import benchmarks


def invoke(*arguments):
    return CliRunner().invoke(benchmarks, [str(argument) for argument in arguments])


def rows_of(*arguments):
    """The rows of a command, in keys that its help documents, and without an error."""
    printed = invoke(*arguments, "--json")
    assert printed.exit_code == 0, printed.output
    said = invoke(arguments[0], "--help").stdout.split("JSON:")[1].split("Options:")[0]
    rows = lines_of_json(printed.stdout)
    for row in rows:
        assert set(row) <= set(re.findall(r"\w+", said)), row
        assert "error" not in row, row
    return rows


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        (("layered", "9", "--time-limit", "1"), 3),
        (("solvers", "layered9", "--solvers", "auto,checkpoint_all", "--time-limit", "1"), 12),
        (("dtr", "lstm2", "--shares", "80", "--heuristics", "lru"), 3),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_table_without_training(arguments, count):
    assert len(rows_of(*arguments)) == count
    assert len(invoke(*arguments).stdout.splitlines()) >= count + 3


@pytest.mark.long
def test_training_compares_every_way_with_plain_steps():
    """Peaks within budgets; losses as plain's; a largest batch, without one that is tried twice."""
    ways = "remat by hand,accumulation,ours"
    plain, *others = rows_of(
        *("training", "mobilenet_ln", "--batch", 8, "--steps", 2, "--budgets", "60%"),
        *("--ways", ways),
    )
    assert [row["way"] for row in others] == ways.split(",")
    assert plain["loss_difference"] == 0
    for row in others:
        if "budget_bytes" in row:
            assert row["peak_bytes"] <= row["budget_bytes"]
    assert others[-1]["loss_difference"] < 1e-3


@pytest.mark.long
def test_backends_are_compared_with_plain_steps_of_tensorflow():
    *ways, planned = rows_of(
        *("backends", "encoder", "--batch", 8, "--steps", 2, "--budgets", "60%"),
        *("--backends", "tensorflow"),
    )
    assert [row["way"] for row in ways] == ["plain", "scope", "segments"]
    assert planned["allocator_bytes"] <= 0.6 * planned["plain_allocator_bytes"]
    assert planned["resident_bytes"] < planned["plain_resident_bytes"]


@pytest.mark.slow
def test_training_finds_largest_batches():
    plain, ours = rows_of(
        *("training", "mobilenet_ln", "--cap", "200MiB", "--steps", 2, "--ways", "ours"),
        *("--times", 2),
    )
    assert plain["batch"] < ours["batch"]


@pytest.mark.long
def test_what_is_said_on_paper_is_what_compile_predicts():
    (row,) = rows_of("fits", "mobilenet_ln", "--steps", 2)
    assert row["plain_bytes"] == pytest.approx(row["plain_predicted_bytes"], rel=1e-3)
    for peak in ("planned_bytes", "planned_measured_bytes"):
        assert 0.8 * row["budget_bytes"] < row[peak] <= row["budget_bytes"]


@pytest.mark.slow
def test_eager_steps_and_ops():
    *_, row = rows_of("dtr-eager", "mlp", "--budgets", "50%", "--steps", 2)
    assert row["peak_bytes"] <= row["budget_bytes"] and row["state_equal"]


@pytest.mark.slow
def test_the_papers_table_of_one_network():
    (row,) = rows_of("paper", "batches", "--models", "vgg19", "--time-limit", 2)
    assert row["layers_plain"] < row["layers_planned"]


NODE_LINK = {
    "graph": {"name": "random_layered_n100_small"},
    "nodes": [{"name": k, "out_cost": 10 * (k + 1), "duration": 5} for k in range(4)],
    "links": [{"0": 0, "1": 1}, {"0": 0, "1": 2}, {"0": 1, "1": 3}, {"0": 2, "1": 3}],
}
"""A graph in the format of MOCCASIN's files."""


def test_layered_takes_a_file_beside_a_size(tmp_path):
    (tmp_path / "graph.json").write_text(json.dumps(NODE_LINK))
    rows = rows_of("layered", tmp_path / "graph.json", 3, "--time-limit", "1")
    assert [(row["graph"], row["percent"]) for row in rows] == [
        (name, percent)
        for name in ("random_layered_n100_small", "layered3")
        for percent in (90, 80, 70)
    ]
    assert [row["fast_sa"] for row in rows] == ["0.0", "0.3", "2.2 (over)", "", "", ""]
    assert [row["moccasin"] for row in rows] == ["0.8", "2.3", "", "", "", ""]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("solvers", "--shares", "half"), "no list of numbers"),
        (("solvers", "--solvers", "paper:gurobi"), "There is no 'paper:gurobi'"),
        (("solvers", "--solvers", "grouped:x"), "There is no 'grouped:x'"),
        (("layered", "0"), "neither a number of ops nor a file"),
        (("layered", "--", "-3"), "neither a number of ops nor a file"),
        (("paper", "figures"), "'figures' is not"),
        (("paper", "--models", "lenet"), "resnet50"),
        (("training", "nothing"), "There is no workload 'nothing'"),
        (("backends", "--backends", "theano"), "There is no 'theano'. There are tensorflow, jax"),
        (("training", "--ways", "nothing"), "There is no 'nothing'. There are xla"),
        (("dtr-eager", "nothing"), "There is no eager workload 'nothing'"),
    ],
)
def test_a_command_that_cannot_be_understood_is_status_2(arguments, said):
    found = invoke(*arguments)
    assert found.exit_code == 2
    assert said in found.stderr


def test_an_interrupted_table_shows_its_rows(monkeypatch):
    (row, *_) = layered.measure([9], solver="auto", seed=0, time_limit_s=1)

    def measure(*arguments, **options):
        yield row
        raise KeyboardInterrupt

    monkeypatch.setattr(layered, "measure", measure)
    assert "90 %" in invoke("layered").stdout
