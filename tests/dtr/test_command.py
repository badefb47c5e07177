"""`checkmate simulate`, and the theorems of `benchmarks.dtr`."""

import json
import re

import pytest
from calling import invoke
from strategies import training_chain

from benchmarks import dtr as benchmark
from benchmarks.recurrent import lstm, tree_lstm
from checkmate.commands.simulate import overhead_curve
from checkmate.core.plan import Plan
from checkmate.core.replay import replay
from checkmate.dtr.heuristic import HEURISTICS
from checkmate.dtr.log import OpLog
from checkmate.dtr.simulator import simulate


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "step.log"
    OpLog.from_graph(training_chain(20, fixed_bytes=5)).save(path)
    return path


def test_json(log):
    found = invoke("simulate", log, "--budget", "50%", "--heuristic", "dtr_eq", "--json")
    assert found.exit_code == 0
    facts = json.loads(found.output)
    run = simulate(log, "50%")
    assert {
        key: facts[key]
        for key in (
            *("status", "overhead", "evictions", "rematerializations", "peak_bytes", "cost"),
            "budget_bytes",
        )
    } == {
        "status": "ok",
        "overhead": run.overhead,
        "evictions": run.evictions,
        "rematerializations": run.rematerializations,
        "peak_bytes": run.peak_bytes,
        "cost": run.cost,
        "budget_bytes": run.budget_bytes,
    }


def test_a_line_for_each_budget_and_heuristic(log):
    found = invoke(
        *("simulate", log, "-b", "70%,60%", "-b", "90%", "-e", "dtr,LRU", "--overhead-limit"),
        *("9", "--json"),
    )
    lines = [json.loads(line) for line in found.output.splitlines()]
    assert [(line["heuristic"], line["status"]) for line in lines] == [("dtr", "ok")] * 3 + [
        ("lru", "ok")
    ] * 3


def test_table_and_status_1(log):
    found = invoke("simulate", log, "--budget", "12B")
    assert found.exit_code == 1
    assert "oom" in found.output
    assert "Raise the budget" in found.stderr


def test_not_understood(log, tmp_path):
    assert invoke("simulate", log, "--budget", "much").exit_code == 2
    assert invoke("simulate", log, "--deallocation", "later").exit_code == 2
    assert invoke("simulate", tmp_path / "missing").exit_code == 2
    text = log.read_text()
    log.write_text(text[: len(text) // 2])
    found = invoke("simulate", log)
    assert found.exit_code == 2
    assert re.search(r"[Ll]ine \d+.*expected", found.stderr)


def test_a_graph_and_its_picture(tmp_path):
    training_chain(20).save(tmp_path / "graph.json")
    found = invoke("simulate", tmp_path / "graph.json", "--plot", tmp_path / "curve.png", "--json")
    assert found.exit_code == 0
    assert len(found.output.splitlines()) == 9 * len(HEURISTICS)
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_the_picture_shows_every_run():
    log = OpLog.from_graph(training_chain(20))
    runs = [
        simulate(log, f"{share}%", heuristic=name)
        for name in ("dtr_eq", "lru")
        for share in (100, 60, 30, 10)
    ]
    axis = overhead_curve("step", runs).figure.axes[0]
    drawn = {line.get_label(): line.get_ydata() for line in axis.lines}
    for name in ("dtr_eq", "lru"):
        ended = sorted(
            100 * (run.overhead - 1) for run in runs if run.heuristic == name and run.status == "ok"
        )
        assert sorted(y for y in drawn[name] if y == y) == pytest.approx(ended)
    hollow = sum(
        len(line.get_xdata()) for line in axis.lines if line.get_markerfacecolor() == "none"
    )
    assert hollow == sum(run.status != "ok" for run in runs) > 0


def test_bench_of_theorems(tmp_path):
    assert [
        (row["layers"], row["budget"])
        for row in benchmark.chains((64, 100), str(tmp_path / "chains.svg"))
    ] == [(64, 16), (100, 20)]
    assert b"<svg" in (tmp_path / "chains.svg").read_bytes()
    assert all(row["ratio"]["4"] > 1 for row in benchmark.duels(40, (4,)))


@pytest.mark.parametrize(("graph", "per_unit"), [(lstm(5), 26), (tree_lstm(5), 40)])
def test_recurrent_graphs_are_training_steps(graph, per_unit):
    assert 3 * per_unit < len(graph) < 10 * per_unit
    assert graph.outputs == (
        next(i for i, op in enumerate(graph.ops) if op.kind == "loss"),
        len(graph) - 1,
    )
    forward = [op for op in graph.ops if not op.is_backward]
    assert all(op.is_backward for op in graph.ops[len(forward) :])
    assert all(graph.users[i] for i in range(len(forward) - 1))
    assert replay(graph, Plan.keep_all(graph)).peak_bytes > 2 * graph.fixed_bytes / 3
