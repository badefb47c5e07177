"""`checkmate solve`: what it writes, prints and ends with."""

import subprocess
import sys

import pytest
from calling import GRAPH, PLAIN, invoke, lines_of_json
from schemas import validator

import checkmate
from checkmate import DFGraph, floor, replay, solve
from checkmate.commands.output import KEYS, Found, cells
from checkmate.core.files import load_plan
from checkmate.core.json_files import read_json


def test_solve_prints_the_documented_keys(graph_file):
    found = invoke("solve", graph_file, "-b", "70%", "--json")
    assert found.exit_code == 0
    (facts,) = lines_of_json(found.stdout)
    assert list(facts)[: len(KEYS)] == list(KEYS)
    result = solve(GRAPH, "70%")
    assert (facts["status"], facts["solver"]) == ("OPTIMAL", "auto")
    for key in ("cost", "overhead", "bound", "gap", "peak_bytes", "budget_bytes"):
        assert facts[key] == pytest.approx(getattr(result, key))
    assert facts["floor_bytes"] == floor(GRAPH).bytes
    assert facts["plain_peak_bytes"] == PLAIN


def test_a_budget_without_a_plan_is_status_1(graph_file):
    found = invoke("solve", graph_file, "-b", "80%,1B", "--json")
    assert found.exit_code == 1
    fits, fails = lines_of_json(found.stdout)
    assert fits["status"] == "OPTIMAL"
    assert fails["status"] == "INFEASIBLE"
    assert [fails[key] for key in ("cost", "overhead", "gap", "peak_bytes")] == [None] * 4
    assert (fails["budget_bytes"], fails["floor_bytes"]) == (1, floor(GRAPH).bytes)
    assert "No plan fits 1 B" in fails["message"]
    shown = invoke("solve", graph_file, "-b", "1B")
    assert shown.exit_code == 1
    assert "infeasible" in shown.stdout
    assert "checkmate: No plan fits 1 B" in shown.stderr


def test_reorder_looks_at_other_orders(tmp_path):
    """Two large values that the graph's order makes before the first of them is read."""
    facts = (("a", ()), ("b", ()), ("use_a", (0,)), ("use_b", (1,)), ("end", (2, 3)))
    ops = tuple(
        checkmate.Op(name, deps, 5, 1 if name.startswith("use") or name == "end" else 10)
        for name, deps in facts
    )
    DFGraph(ops, (4,)).save(tmp_path / "two.json")
    kept, moved = (
        lines_of_json(
            invoke(
                "solve", tmp_path / "two.json", "-b", "12B", "--json", "--time-limit", "1", *more
            ).stdout
        )[0]
        for more in ((), ("--reorder",))
    )
    assert kept["cost"] == 35
    assert (moved["cost"], moved["bound_covers"]) == (25, "any order")
    assert (
        "in any order of ops"
        in invoke("solve", tmp_path / "two.json", "-b", "12B", "--reorder").stdout
    )


def test_a_bound_without_a_plan_is_told():
    facts = dict.fromkeys(KEYS) | {"status": "NOT_FOUND", "bound": 1.5 * GRAPH.total_cost}
    assert ">= +50.00%" in cells(GRAPH, Found("70%", facts, None))


def test_a_solver_that_finds_nothing_is_status_1(graph_file):
    found = invoke("solve", graph_file, "-b", "60%", "--solver", "checkpoint_all", "--json")
    assert found.exit_code == 1
    assert lines_of_json(found.stdout)[0]["status"] == "NOT_FOUND"


@pytest.mark.parametrize(
    "arguments",
    [
        ["-b", "lots"],
        ["--solver", "magic"],
        ["--time-limit", "soon"],
        ["--nothing"],
        ["-b", "60%", "more"],
    ],
)
def test_what_cannot_be_understood_is_status_2(graph_file, arguments):
    found = invoke("solve", graph_file, *arguments)
    assert found.exit_code == 2
    assert "Traceback" not in found.output


@pytest.mark.parametrize("budget", ["", ","])
def test_no_budget_is_status_2(graph_file, budget):
    found = invoke("solve", graph_file, "-b", budget)
    assert found.exit_code == 2
    assert "No budget was given" in found.stderr


@pytest.mark.parametrize(
    "content", ["not JSON", "{}", "[]", '{"nodes": [{"name": "a"}], "edges": []}']
)
def test_files_that_are_no_graph_are_status_2(tmp_path, content):
    (tmp_path / "a.json").write_text(content)
    for command in ("solve", "show"):
        found = invoke(command, tmp_path / "a.json")
        assert found.exit_code == 2
        assert "checkmate: " in found.stderr
        assert "a.json" in found.stderr
    assert invoke("show", tmp_path / "missing.json").exit_code == 2


def test_solve_writes_plans_that_can_be_read(plan_files):
    assert [file.name for file in plan_files] == [
        f"chain-{share}pct.plan.json" for share in (60, 75, 90)
    ]
    for file, share in zip(plan_files, (0.6, 0.75, 0.9), strict=True):
        plan = load_plan(file, graph=GRAPH)
        facts = read_json(file)
        validator("plan").validate(facts)
        assert (
            replay(GRAPH, plan).peak_bytes
            == facts["peak_bytes"]
            <= facts["budget_bytes"]
            == int(share * PLAIN)
        )
        assert facts["graph_file"] == "chain.graph.json"


@pytest.mark.parametrize("command", ["solve", "simulate"])
def test_a_plan_in_the_place_of_a_graph_names_its_graph(command, plan_files, graph_file):
    found = invoke(command, plan_files[0])
    assert found.exit_code == 2
    assert found.stderr == f"checkmate: {plan_files[0]} is a plan; its graph is {graph_file}.\n"


def test_the_table_names_what_a_budget_can_be(graph_file):
    said = invoke("solve", graph_file, "-b", "70%").stdout
    for expected in (
        "none",
        "gap",
        "+",
        checkmate.units.format_bytes(PLAIN),
        checkmate.units.format_bytes(floor(GRAPH).bytes),
    ):
        assert expected in said


def test_ctrl_c_keeps_the_best_plan_and_skips_other_budgets(graph_file, monkeypatch):
    from checkmate.solvers.baselines.chen import ChenGreedy

    def interrupted(self, search, run=ChenGreedy.run):
        run(self, search)
        raise KeyboardInterrupt

    monkeypatch.setattr(ChenGreedy, "run", interrupted)
    found = invoke("solve", graph_file, "-b", "80%,70%", "--solver", "chen_greedy", "--json")
    (facts,) = lines_of_json(found.stdout)
    assert (found.exit_code, facts["status"]) == (130, "INTERRUPTED")


def test_ctrl_c_before_there_is_a_plan_keeps_what_other_budgets_have(graph_file, monkeypatch):
    from checkmate.solvers.baselines.chen import ChenGreedy

    def interrupted(self, search, run=ChenGreedy.run):
        if search.budget_bytes < int(0.75 * PLAIN):
            raise KeyboardInterrupt
        run(self, search)

    monkeypatch.setattr(ChenGreedy, "run", interrupted)
    arguments = ("solve", graph_file, "-b", "80%,70%,90%", "--solver", "chen_greedy")
    found = invoke(*arguments, "--json")
    fits, broken_off = lines_of_json(found.stdout)
    assert found.exit_code == 130
    assert (fits["status"], broken_off["status"]) == ("FEASIBLE", "INTERRUPTED")
    assert (broken_off["cost"], broken_off["peak_bytes"]) == (None, None)
    shown = invoke(*arguments)
    assert "interrupted" in shown.stdout
    assert "best found until then" not in shown.stdout
    assert "checkmate: Interrupted before there was a plan for 70%." in shown.stderr


def test_a_pipe_gets_no_colour_and_no_progress_of_quick_work(graph_file):
    done = subprocess.run(
        [sys.executable, "-m", "checkmate", "solve", str(graph_file)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    assert "Plans of" in done.stdout
