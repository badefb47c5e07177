"""The bench of solvers: its problems are what they say, and its table says what the solvers
said."""

import pytest

from benchmarks import problems, solvers
from checkmate import DFGraph, GraphError, Plan, PlanFileError, floor, replay


def test_packaged_graphs_come_with_the_package():
    names = problems.packaged()
    assert {"vgg16", "resnet50", "resnet152", "transformer40", "resnet50_ops"} <= set(names)
    sizes = {name: len(problems.load(name)) for name in names}
    assert sizes["resnet50"] == 354
    assert sizes["resnet50_ops"] == 1255
    assert all(any(op.is_backward for op in problems.load(name).ops) for name in names)


@pytest.mark.parametrize("name", ["resnet", "layered0", "encoder", "../vgg16"])
def test_unknown_graphs_are_refused_with_the_known_ones(name):
    with pytest.raises(GraphError, match="vgg16"):
        problems.load(name)


@pytest.mark.parametrize(("n", "edges"), [*problems.LAYERED_EDGES.items()][:3])
def test_layered_graphs_have_the_size_they_promise(n, edges):
    graph = problems.load(f"layered{n}")
    assert (len(graph), len(graph.edges)) == (n, edges)


def test_layered_graphs_are_drawn_from_a_seed():
    assert problems.layered(100).deps == problems.layered(100, seed=0).deps
    assert problems.layered(100).deps != problems.layered(100, seed=1).deps


def test_small_layered_graphs_end():
    assert [len(problems.layered(n)) for n in (1, 2, 3, 7)] == [1, 2, 3, 7]


def test_encoder_grows_by_the_layer():
    one, two, three = (len(problems.encoder(layers)) for layers in (1, 2, 3))
    assert three - two == two - one == 94
    graph = problems.encoder(2)
    assert [op.is_backward for op in graph.ops] == [False] * (len(graph) // 2 + 1) + [True] * (
        len(graph) // 2
    )


def test_budget_goes_from_floor_to_peak():
    graph = problems.load("vgg16")
    assert problems.budget_at(graph, 0) == floor(graph).bytes
    assert problems.budget_at(graph, 1) == replay(graph, Plan.keep_all(graph)).peak_bytes


def test_rows_tell_what_the_solvers_said():
    (auto, chen, none) = solvers.measure(
        ["vgg16"], [0.3], ["auto", "chen_sqrt_n", "checkpoint_all"], time_limit_s=30
    )
    assert auto.overhead == pytest.approx(auto.bound, rel=1e-3)
    assert 0 <= auto.first_s <= auto.gap_s <= auto.small_gap_s <= auto.total_s
    assert chen.overhead > auto.bound
    assert (none.refusal, none.overhead, none.gap) == ("NOT_FOUND", None, None)


def test_the_papers_chain_and_its_program():
    auto, paper = solvers.measure(["chain8"], [0.3], ["auto", "paper:highs"], time_limit_s=60)
    assert auto.ops == paper.ops == 17
    assert paper.proof_s is not None
    assert auto.overhead == pytest.approx(paper.overhead)
    (sentence,) = solvers.times_faster([auto, paper])
    assert "times faster than paper:highs" in sentence


def test_what_grouping_loses():
    graph = problems.load("vgg16")
    alone, all_ops, grouped = solvers.measure(
        ["vgg16"], [0.2], ["auto", f"grouped:{len(graph)}", "grouped:40"], time_limit_s=30
    )
    assert all_ops.overhead == pytest.approx(alone.overhead)
    assert grouped.overhead > alone.overhead + 1e-3
    assert (grouped.bound, grouped.proof_s) == (1.0, None)


def test_how_much_faster():
    def row(solver, proof_s, total_s):
        return solvers.Row(
            "g", 9, 0.5, solver, 1.1, 1.1, 0.0, proof_s, proof_s, proof_s, total_s, ""
        )

    rows = [
        row("auto", 0.5, 0.5),
        row("paper:scip", 100.0, 100.0),
        row("paper:cbc", None, 60.0),
        row("checkpoint_all", None, 0.1),
    ]
    assert list(solvers.times_faster(rows)) == [
        "g f=0.5: auto has its proof 200 times faster than paper:scip",
        "g f=0.5: auto has its proof more than 120 times faster than paper:cbc",
    ]


def test_graph_files_are_problems_too(tmp_path):
    for file in ("mine.graph.json", "mine.json.gz"):
        problems.chain(3).save(tmp_path / file)
        assert problems.load(str(tmp_path / file)) == problems.chain(3)
    nameless = DFGraph(problems.chain(3).ops)
    nameless.save(tmp_path / "other.graph.json")
    assert problems.load(str(tmp_path / "other.graph.json")).name == "other"
    with pytest.raises(PlanFileError, match=r"missing\.json"):
        problems.load(str(tmp_path / "missing.json"))
    (row,) = solvers.measure([str(tmp_path / "mine.graph.json")], [0.3], ["auto"], time_limit_s=5)
    assert (row.graph, row.ops) == ("chain3", 7)
