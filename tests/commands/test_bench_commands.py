"""`checkmate bench`: what it tells as JSON, and refuses. What is measured is tested in
`tests/bench`."""

import json
import re

import pytest
from calling import invoke, lines_of_json

import checkmate
from checkmate.bench import eager, layered, limits, steps

ONE_STEP = {
    "budget_bytes": 80,
    "peak_bytes": 70,
    "predicted_bytes": 75,
    "overhead": 1.1,
    "recomputed": 3,
}

PLANNED = {
    **ONE_STEP,
    "step_s": 1.5,
    "ratio_quartiles": [1.4, 1.5, 1.6],
    "predicted_slowdown": 1.2,
    "plain_s": 1.0,
    "gap": 0.01,
    "ops": 9,
    "planning_s": 2.0,
    "phases": {"solving": 0.5},
}

EAGER = {
    "peak_bytes": 70,
    "step_s": 1.5,
    "plain_s": 1.0,
    "slowdown": 1.5,
    "cost": 1.2,
    "difference": 0.0,
    "state_equal": True,
}

PLAIN_FACTS = {
    limits: {"plain_peak_bytes": 100, "fixed_bytes": 20},
    steps: {"peak_bytes": 100, "predicted_bytes": 100, "fixed_bytes": 20, "trace_s": 1.0},
    eager: {"peak_bytes": 100, "step_s": 1.0},
}


@pytest.mark.parametrize(
    ("module", "found"), [(limits, ONE_STEP), (steps, PLANNED), (eager, EAGER)]
)
def test_bench_tells_as_json_what_its_help_says(module, found, monkeypatch):
    """One object per row, with the keys that the command's help names, whether or not there was a
    plan."""
    name = "dtr-eager" if module is eager else module.__name__.rsplit(".", 1)[-1]

    def fresh_process(_, given, **options):
        if given[-1] == "23":
            raise checkmate.CheckmateError("No plan fits 23 B.")
        return found if len(given) == 3 else PLAIN_FACTS[module]

    monkeypatch.setattr(module, "fresh_process", fresh_process)
    model = "mlp" if module is eager else "unet"
    printed = invoke(
        "bench", name, model, "--budgets", "60%,23B" if module is eager else "60%,3B", "--json"
    )
    assert printed.exit_code == 0, printed.output
    *rows, last = lines_of_json(printed.stdout)
    documented = set(
        re.findall(
            r"\w+", invoke("bench", name, "--help").stdout.split("JSON:")[1].split("Options:")[0]
        )
    )
    assert rows
    for row in rows:
        assert set(row) <= documented, set(row) - documented
    assert last["error"] == "No plan fits 23 B."
    assert (
        "No plan fits"
        in invoke(
            "bench", name, model, "--budgets", "60%,23B" if module is eager else "60%,3B"
        ).stdout
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("layered", "9", "--time-limit", "1"),
        (
            "solvers",
            "layered9",
            "--shares",
            "0.5",
            "--solvers",
            "auto,checkpoint_all",
            "--time-limit",
            "1",
        ),
        ("dtr", "lstm2", "--shares", "80", "--heuristics", "lru"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_bench_without_training_tells_as_json_what_its_help_says(arguments):
    printed = invoke("bench", *arguments, "--json")
    assert printed.exit_code == 0, printed.output
    documented = set(
        re.findall(
            r"\w+",
            invoke("bench", arguments[0], "--help").stdout.split("JSON:")[1].split("Options:")[0],
        )
    )
    rows = lines_of_json(printed.stdout)
    assert len(rows) > 1
    for row in rows:
        assert set(row) <= documented, set(row) - documented
    assert len(invoke("bench", *arguments).stdout.splitlines()) >= len(rows) + 3


NODE_LINK = {
    "graph": {"name": "random_layered_n100_small"},
    "nodes": [{"name": k, "out_cost": 10 * (k + 1), "duration": 5} for k in range(4)],
    "links": [{"0": 0, "1": 1}, {"0": 0, "1": 2}, {"0": 1, "1": 3}, {"0": 2, "1": 3}],
}
"""A graph in the format of MOCCASIN's files."""


def test_bench_layered_takes_a_file_beside_a_size(tmp_path):
    (tmp_path / "graph.json").write_text(json.dumps(NODE_LINK))
    printed = invoke("bench", "layered", tmp_path / "graph.json", 3, "--time-limit", "1", "--json")
    assert printed.exit_code == 0, printed.output
    rows = lines_of_json(printed.stdout)
    assert [(row["graph"], row["percent"]) for row in rows] == [
        (name, percent)
        for name in ("random_layered_n100_small", "layered3")
        for percent in (90, 80, 70)
    ]
    assert [row["fast_sa"] for row in rows] == ["0.0", "0.3", "2.2 (over)", "", "", ""]
    assert [row["moccasin"] for row in rows] == ["0.8", "2.3", "", "", "", ""]


def test_bench_layered_refuses_what_is_neither_a_size_nor_a_file():
    for word in ("0", "-3", "none.json"):
        assert invoke("bench", "layered", "--", word).exit_code == 2


def test_bench_that_is_interrupted_shows_what_it_has(monkeypatch):
    def measure(*arguments, **options):
        yield from (
            {
                "graph": "layered9",
                "ops": 9,
                "edges": 1,
                "percent": 90,
                "overhead": None,
                "bound": 1,
                "given_order_bound": 1,
                "seconds": 0,
                "fast_sa": "",
                "moccasin": "",
            },
        )
        raise KeyboardInterrupt

    monkeypatch.setattr(layered, "measure", measure)
    found = invoke("bench", "layered")
    assert found.exit_code == 130
    assert "90 %" in found.stdout
    assert "checkmate: interrupted." in found.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("bench", "solvers", "--shares", "half"), "no list of numbers"),
        (("bench", "layered", "0"), "neither a number of ops nor a file"),
        (("bench", "cap", "mobilenet", "--cap", "lots"), "Cannot read 'lots'"),
        (("bench", "solvers", "nothing"), "There is no graph 'nothing'"),
        (("bench", "dtr", "--shares", "x"), "no list of numbers"),
        (("bench", "solvers", "--solvers", "paper:gurobi"), "There is no 'paper:gurobi'"),
        (("bench", "solvers", "--solvers", "grouped:x"), "There is no 'grouped:x'"),
        (("bench", "limits", "resnet05"), "no workload 'resnet05'. Did you mean resnet50"),
        (("bench", "steps", "unet", "nothing"), "There is no workload 'nothing'. There are mob"),
        (("bench", "first-step", "nothing"), "There is no workload 'nothing'"),
        (("bench", "rivals", "nothing"), "There is no workload 'nothing'"),
        (("bench", "cap", "nothing", "--cap", "1GiB"), "There is no workload 'nothing'"),
        (("bench", "rivals", "--methods", "nothing"), "There is no 'nothing'. There are xla"),
        (("bench", "dtr-eager", "nothing"), "There is no eager workload 'nothing'"),
        (("bench", "limits", "--budgets", "60"), "Did you mean '60%' or '60GiB'?"),
        (("bench", "workers", "--budget", "0.6"), "Did you mean '60%'?"),
        (
            ("bench", "cap", "unet", "--cap", "1GiB", "--micro-batches", "some"),
            "'some' is neither a whole number of at least 1 nor 'auto'",
        ),
        (
            ("bench", "cap", "unet", "--cap", "1GiB", "--micro-batches", "0"),
            "'0' is neither a whole number of at least 1 nor 'auto'",
        ),
        (("bench", "cap", "unet", "--cap", "60"), "Did you mean '60%' or '60GiB'?"),
    ],
)
def test_bench_that_cannot_be_understood_is_status_2(arguments, said):
    found = invoke(*arguments)
    assert found.exit_code == 2
    assert said in found.stderr


@pytest.mark.usefixtures("tensorflow")
@pytest.mark.parametrize("command", ["zoo", "refusals"])
def test_a_model_that_the_zoo_does_not_have_is_status_2(command):
    found = invoke("bench", command, "vgg61")
    assert found.exit_code == 2
    assert "There is no model in the zoo 'vgg61'. Did you mean vgg1" in found.stderr
