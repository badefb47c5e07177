"""`checkmate show`: tables, pictures and pages of what is in files."""

import pytest
from calling import GRAPH, PLAIN, invoke, lines_of_json
from strategies import training_chain

from checkmate import DFGraph, Op, floor, replay, solve
from checkmate.commands.output import KEYS
from checkmate.core.files import load_plan, save_plan
from checkmate.units import format_bytes


def test_show_a_graph(graph_file):
    said = invoke("show", graph_file).stdout
    assert f"{len(GRAPH)}" in said
    assert GRAPH.ops[floor(GRAPH).op].name in said
    (facts,) = lines_of_json(invoke("show", graph_file, "--json").stdout)
    assert facts["ops"] == len(GRAPH)
    assert facts["plain_peak_bytes"] == PLAIN


def test_a_graph_alone_has_no_columns_of_a_plan(graph_file, plan_files):
    assert {"kept", "saved"}.isdisjoint(invoke("show", graph_file).stdout.split())
    assert {"kept", "saved"} <= set(invoke("show", plan_files[0]).stdout.split())


def test_show_a_plan(plan_files):
    found = invoke("show", plan_files[0])
    assert found.exit_code == 0
    recomputed = load_plan(plan_files[0], graph=GRAPH).recomputed
    assert f"{sum(recomputed.values())} recomputations of" in found.stdout
    assert "f1" in found.stdout
    (facts,) = lines_of_json(invoke("show", plan_files[0], "--json").stdout)
    assert set(KEYS) <= set(facts)
    assert facts["status"] == "OPTIMAL"


def test_show_believes_the_judge_and_not_the_file(graph_file):
    plan = solve(GRAPH, "70%").plan
    file = graph_file.parent / "boast.plan.json"
    save_plan(
        plan, file, graph=GRAPH, graph_file=graph_file.name, cost=1, overhead=0.5, peak_bytes=7
    )
    (facts,) = lines_of_json(invoke("show", file, "--json").stdout)
    timeline = replay(GRAPH, plan)
    assert (facts["cost"], facts["peak_bytes"]) == (timeline.cost, timeline.peak_bytes)


def test_show_several_plans(plan_files):
    found = invoke("show", *plan_files)
    assert found.exit_code == 0
    assert all(file.name in found.stdout for file in plan_files)
    assert len(lines_of_json(invoke("show", *plan_files, "--json").stdout)) == 3


@pytest.mark.parametrize("picture", ["memory", "matrices", "layers", "curve"])
def test_show_draws(plan_files, picture, tmp_path):
    found = invoke("show", plan_files[0], "--picture", picture, "--svg", tmp_path / "a.svg")
    assert found.exit_code == 0
    assert b"<svg" in (tmp_path / "a.svg").read_bytes()


def test_show_draws_what_goes_with_the_files(plan_files, graph_file, tmp_path):
    def drawn(files, *options):
        path = tmp_path / "a.svg"
        assert invoke("show", *files, "--svg", path, *options).exit_code == 0
        return path.read_bytes()

    for files, kind in (
        ([graph_file], "memory"),
        (plan_files[:1], "memory"),
        (plan_files, "curve"),
    ):
        assert drawn(files) == drawn(files, "--picture", kind)


def test_an_op_of_no_layer_binds_by_its_own_name(tmp_path):
    update = Op("adam/truediv_1", output_bytes=5, is_backward=True)
    DFGraph((Op("model/dense/MatMul"), update), fixed_bytes=2).save(tmp_path / "a.json")
    shown = " ".join(invoke("show", tmp_path / "a.json").stdout.split())
    assert "plain peak 7 B asked for no plan below 7 B, because of adam/truediv_1" in shown


def test_show_writes_a_page(plan_files, graph_file, tmp_path):
    for file, plans in ((plan_files[0], 2), (graph_file, 1)):
        assert invoke("show", file, "--html", tmp_path / "a.html").exit_code == 0
        text = (tmp_path / "a.html").read_text()
        assert text.count('"title":') == plans
        assert (f"instead of {format_bytes(PLAIN)}, for " in text) == (plans == 2)


def test_show_refuses_what_does_not_belong_together(plan_files, graph_file, tmp_path):
    other = training_chain(4)
    other.save(tmp_path / "other.json")
    for arguments in (
        [plan_files[0], graph_file],
        [graph_file, graph_file],
        [plan_files[0], "--graph", tmp_path / "other.json"],
    ):
        assert invoke("show", *arguments).exit_code == 2
    assert (
        invoke("show", graph_file, "--picture", "layers", "--png", tmp_path / "a.png").exit_code
        == 2
    )
    graph_file.rename(tmp_path / "moved.json")
    lost = invoke("show", plan_files[0])
    assert lost.exit_code == 2
    assert "--graph" in lost.stderr
    assert invoke("show", plan_files[0], "--graph", tmp_path / "moved.json").exit_code == 0
