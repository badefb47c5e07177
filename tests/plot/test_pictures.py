"""Each picture is drawn from a stored graph and plan, and what it draws is read back from it."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from strategies import training_chain

import checkmate
from checkmate import DFGraph, Plan, floor, plot, replay, solve
from checkmate.core.files import load_plan, save_plan
from checkmate.plot.bars import chosen
from checkmate.plot.curves import bound_steps
from checkmate.plot.picture import COLOURS, LABELS, SERIES
from checkmate.plot.usage import layers, stages, usage
from checkmate.units import format_bytes

MIB = 2**20


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A graph and a plan that recomputes, as they come back from files."""
    folder = tmp_path_factory.mktemp("stored")
    graph = training_chain(
        14,
        sizes=(MIB, 2 * MIB),
        costs=(1.0, 2.0),
        updates=True,
        gradient_bytes=MIB // 2,
        fixed_bytes=MIB,
    )
    save_plan(solve(graph, "65%").plan, folder / "plan.json", graph=graph)
    graph.save(folder / "graph.json")
    graph = DFGraph.load(folder / "graph.json")
    plan = load_plan(folder / "plan.json", graph=graph)
    assert plan.recomputed
    return graph, plan


def labels(picture):
    """What the legend names."""
    return [text.get_text() for text in picture.figure.legends[0].get_texts()]


def areas(axis):
    """Colour -> the filled area's corners, for each part of memory that is drawn."""
    from matplotlib.colors import to_hex

    return {
        to_hex(found.get_facecolor()[0]): found.get_paths()[0].vertices
        for found in axis.collections
    }


def test_memory_draws_the_judge_s_figures(stored):
    graph, plan = stored
    budget = int(0.65 * replay(graph, Plan.keep_all(graph)).peak_bytes)
    picture = plot.memory(graph, plan, budget_bytes=budget)
    plain, planned = picture.figure.axes
    for axis, shown in ((plain, Plan.keep_all(graph)), (planned, plan)):
        found = usage(graph, shown)
        drawn = areas(axis)
        assert max(corners[:, 1].max() for corners in drawn.values()) == pytest.approx(
            found.timeline.peak_bytes / MIB
        )
        bottom = drawn[COLOURS["resident"]]
        assert (bottom[:, 1].min(), bottom[:, 1].max()) == (0, graph.fixed_bytes / MIB)
        assert axis.get_xlim() == pytest.approx((0, 100 * found.timeline.cost / graph.total_cost))
        said = " ".join(text.get_text() for text in axis.texts)
        assert format_bytes(found.timeline.peak_bytes) in said
        assert found.layers[found.ops[found.peak]] in said
        line = next(
            line
            for line in axis.lines
            if len(set(line.get_ydata())) == 1 and len(line.get_ydata()) == 2
        )
        assert line.get_ydata()[0] == pytest.approx(budget / MIB)
    assert COLOURS["recomputed"] in areas(planned)
    assert COLOURS["recomputed"] not in areas(plain)


def test_no_label_of_a_peak_crosses_the_budget_line(stored):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    graph, plan = stored
    peak = replay(graph, plan).peak_bytes
    for share in (1.0, 1.01, 1.1, 1.2, 1.25, 1.3, 1.4, 1.6):
        figure = plot.memory(graph, plan, budget_bytes=int(share * peak)).figure
        FigureCanvasAgg(figure)
        figure.draw_without_rendering()
        for axis in figure.axes:
            line = axis.transData.transform((0, share * peak / MIB))[1]
            for text in axis.texts:
                box = text.get_window_extent()
                assert not box.y0 < line < box.y1, (share, text.get_text())
                assert box.y1 < axis.get_tightbbox().y1 + 1


def test_memory_by_an_allocator_s_count(stored):
    graph, plan = stored
    other, asked = 3 * MIB, {"plain step": Plan.keep_all(graph), "planned step": plan}
    asked = {title: replay(graph, each).peak_bytes + other for title, each in asked.items()}
    peaks = [asked["plain step"] + 5 * MIB, asked["planned step"] + MIB]
    picture = plot.memory(graph, plan, allocated=plot.Allocated(other, *peaks))
    for axis, title, peak in zip(picture.figure.axes, asked, peaks, strict=True):
        assert axis.get_title(loc="left") == title
        assert f"peak {format_bytes(peak)} predicted" in axis.texts[0].get_text()
        drawn = areas(axis)
        assert max(corners[:, 1].max() for corners in drawn.values()) == pytest.approx(peak / MIB)
        resident = drawn[COLOURS["resident"]]
        assert resident[:, 1].max() == pytest.approx((graph.fixed_bytes + other) / MIB)
        assert COLOURS["overhead"] in drawn


def test_a_legend_of_all_kinds_of_memory_is_within_the_picture():
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    kinds = {"updates": True, "gradient_bytes": MIB // 2, "fixed_bytes": MIB}
    graph = training_chain(14, sizes=(MIB, 2 * MIB), **kinds)
    graph = replace(graph, ops=tuple(replace(op, workspace_bytes=MIB) for op in graph.ops))
    plan, plain = solve(graph, "75%").plan, replay(graph, Plan.keep_all(graph)).peak_bytes
    allocated = plot.Allocated(0, 2 * plain, plain)
    figure = plot.memory(graph, plan, budget_bytes=plain, allocated=allocated).figure
    assert len(figure.legends[0].get_texts()) >= len(LABELS)
    FigureCanvasAgg(figure)
    figure.draw_without_rendering()
    box, whole = figure.legends[0].get_window_extent(), figure.bbox
    assert whole.x0 <= box.x0 and box.x1 <= whole.x1


def test_the_legend_of_memory_names_what_is_drawn(stored):
    graph, plan = stored
    picture = plot.memory(graph, plan, budget_bytes=10 * MIB)
    colours = {colour for axis in picture.figure.axes for colour in areas(axis)}
    drawn = [LABELS[part] for part in LABELS if COLOURS[part] in colours]
    assert labels(picture) == [*drawn, "budget 10.00 MiB"]
    assert labels(plot.memory(graph)) == [name for name in drawn if name != LABELS["recomputed"]]


def test_the_matrices_draw_every_recomputation(stored):
    graph, plan = stored
    picture = plot.matrices(graph, plan)
    left, right = picture.figure.axes
    found = stages(graph, plan)
    again = next(line for line in right.lines if line.get_color() == COLOURS["recomputed"])
    drawn = {(int(t), int(i)) for i, t in zip(again.get_xdata(), again.get_ydata(), strict=True)}
    assert drawn == {(int(t), int(i)) for t, i in zip(*found.R.nonzero(), strict=True) if t != i}
    assert drawn
    image = left.images[0].get_array()
    assert (image[: len(graph), : len(graph), 3] > 0).sum() == found.S.sum()
    assert f"{int(found.S.sum()):,} values" in left.get_title(loc="left")


def test_fine_matrices_lose_nothing():
    graph = training_chain(400)
    picture = plot.matrices(graph, Plan.keep_all(graph))
    image = picture.figure.axes[0].images[0]
    assert image.get_array().shape[0] < len(graph)
    S = stages(graph, Plan.keep_all(graph)).S
    step = -(-len(graph) // 500)
    rows, columns = S.nonzero()
    assert (image.get_array()[rows // step, columns // step, 3] > 0).all()


def test_layer_bars_sum_to_the_step(stored):
    graph, plan = stored
    for most in (3, 100):
        picture = plot.layers(graph, plan, most=most)
        kept, saved = (
            [patch.get_width() for patch in bars] for bars in picture.figure.axes[0].containers
        )
        rows = layers(graph, plan)
        assert sum(kept) * MIB == pytest.approx(sum(row.kept_bytes for row in rows))
        if most == 100:
            assert sum(saved) * MIB == pytest.approx(sum(max(0, row.saved_bytes) for row in rows))
        spent = [patch.get_width() for patch in picture.figure.axes[1].containers[0]]
        assert sum(spent) == pytest.approx(100 * sum(row.cost for row in rows))
        assert len(kept) <= most + 1
    assert labels(picture) == [
        "kept for the backward pass",
        "saved by the plan",
        "time to recompute, number of evaluations",
    ]


def test_bars_of_layers_end_before_the_frame_and_nothing_saved_has_no_outline(stored):
    left, _ = plot.layers(*stored).figure.axes
    kept, saved = left.containers
    assert left.get_xlim()[1] > max(bar.get_x() + bar.get_width() for bar in (*kept, *saved))
    assert {bool(bar.get_linewidth()) == bool(bar.get_width()) for bar in saved} == {True}
    assert {bool(bar.get_width()) for bar in saved} == {True, False}


def test_many_layers_are_grouped_by_how_their_names_begin():
    from benchmarks.problems import budget_at, load

    graph = load("resnet50")
    rows = chosen(
        layers(
            graph,
            solve(graph, budget_at(graph, 0.5), solver="chen_sqrt_n", throw=False).plan
            or Plan.keep_all(graph),
        ),
        24,
    )
    names = [row.name for row in rows]
    assert len(names) <= 25
    assert any(re.fullmatch(r"conv3_block2 \(\d+ layers\)", name) for name in names)


def test_the_curve_draws_plans_and_what_is_impossible():
    graph = training_chain(12, sizes=(MIB, 2 * MIB))
    lowest, plain = floor(graph).bytes, replay(graph, Plan.keep_all(graph)).peak_bytes
    budgets = [int(lowest + share * (plain - lowest)) for share in (0.5, 0.7, 0.9)]
    results = {
        name: [solve(graph, budget, solver=name, throw=False) for budget in budgets]
        for name in ("auto", "chen_sqrt_n")
    }
    picture = plot.budget_curve(results, floor_bytes=lowest, plain_bytes=plain)
    axis = picture.figure.axes[0]
    for k, found in enumerate(results.values()):
        dots = next(
            line
            for line in axis.lines
            if line.get_linestyle() == "None" and line.get_color() == SERIES[k]
        )
        solved = [result for result in found if result.plan]
        assert list(dots.get_xdata()) == [
            pytest.approx(result.peak_bytes / MIB) for result in solved
        ]
        assert list(dots.get_ydata()) == [
            pytest.approx(100 * (result.overhead - 1)) for result in solved
        ]
    shaded = next(patch for patch in axis.patches if patch.get_label() == "proven impossible")
    values = shaded.get_data()
    points = [plot.Point.of(result) for found in results.values() for result in found]
    for point in points:
        if point.overhead is not None:
            place = np.searchsorted(values.edges, point.budget_bytes / MIB - 1e-9) - 1
            assert values.values[place] <= 100 * (point.overhead - 1) + 1e-6, (
                "a plan lies in what is proven impossible"
            )
    assert {"proven impossible", "below the floor", "auto", "plain step"} <= set(labels(picture))


def test_bounds_hold_for_every_smaller_budget():
    points = [
        plot.Point(10, 1.5, 1.4),
        plot.Point(20, 1.3, 1.1),
        plot.Point(20, 1.2, 1.2),
        plot.Point(30, None, 1.0),
    ]
    assert bound_steps(points) == ([10, 20, 30], [1.4, 1.2, 1.0])


def test_a_solver_without_a_plan_is_named_as_such():
    picture = plot.budget_curve(
        {"auto": [plot.Point(100, 1.2, 1.1, 90)], "chen": [plot.Point(100, None)]}
    )
    assert {"auto", "chen (no plan)"} <= set(labels(picture))


def test_batch_size_bars():
    data = {"ResNet50": {"plain": 61, "planned": 210}, "U-Net": {"plain": 0, "planned": 66}}
    picture = plot.batch_sizes(data)
    bars = [[patch.get_height() for patch in bars] for bars in picture.figure.axes[0].containers]
    assert bars == [[61, 0], [210, 66]]
    said = [text.get_text() for text in picture.figure.axes[0].texts]
    assert said == ["61", "0", "210\n3.4x", "66"]
    assert labels(picture) == ["plain", "planned"]


def test_few_batches_are_counted_in_whole_examples():
    axis = plot.batch_sizes({"a": {"plain": 8, "planned": 19}}).figure.axes[0]
    assert all(tick == round(tick) for tick in axis.get_yticks())


@pytest.mark.parametrize("data", [{}, {"a": {}}, {"a": {"x": 1}, "b": {"y": 1}}])
def test_batch_sizes_that_cannot_be_compared(data):
    with pytest.raises(checkmate.CheckmateError, match="same methods"):
        plot.batch_sizes(data)


@pytest.mark.parametrize(
    ("draw", "ending", "begins"),
    [("matrices", "png", b"\x89PNG"), ("memory", "svg", b"<?xml"), ("layers", "pdf", b"%PDF")],
)
def test_pictures_are_files(stored, tmp_path, draw, ending, begins):
    path = tmp_path / f"picture.{ending}"
    getattr(plot, draw)(*stored).save(path)
    assert path.read_bytes().startswith(begins)


def test_a_picture_is_the_same_each_time(stored, tmp_path):
    for name in ("a.svg", "b.svg"):
        plot.memory(*stored).save(tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_other_endings_are_refused(stored, tmp_path):
    with pytest.raises(checkmate.CheckmateError, match=r"\.png, \.svg or \.pdf"):
        plot.memory(*stored).save(tmp_path / "a.gif")


def test_the_online_curve_draws_runs_and_what_was_given_up(stored):
    graph, _ = stored
    shares = (100, 60, 20)
    runs = {
        heuristic: [checkmate.simulate(graph, f"{share}%", heuristic=heuristic) for share in shares]
        for heuristic in ("dtr_eq", "lru")
    }
    ended = {heuristic: [run.status == "ok" for run in found] for heuristic, found in runs.items()}
    assert all(any(each) and not all(each) for each in ended.values()), "the case has both kinds"
    picture = plot.online_curve(runs, plain_bytes=runs["lru"][0].plain_peak_bytes)
    assert labels(picture) == ["dtr_eq", "lru", "peak without a budget", "given up"]
    axis = picture.figure.axes[0]
    for heuristic, colour in zip(runs, SERIES, strict=False):
        solid, hollow = (line for line in axis.lines if line.get_color() == colour)
        drawn = dict(zip(solid.get_xdata(), solid.get_ydata(), strict=True))
        for run in runs[heuristic]:
            cost = drawn[run.budget_bytes / MIB]
            assert (
                cost == pytest.approx(100 * (run.overhead - 1))
                if run.status == "ok"
                else np.isnan(cost)
            )
        assert len(hollow.get_xdata()) == ended[heuristic].count(False)


def test_notebooks_show_picture_result_and_plan(stored, notebook):
    """Pictures are outputs of their own: hosts of notebooks drop those from within HTML."""
    graph, plan = stored
    (picture,) = notebook(plot.memory(graph, plan))
    assert picture.keys() == {"image/png"}
    result = solve(graph, "65%")
    sentence, picture = notebook(result)
    assert "OPTIMAL" in sentence["text/html"]
    assert picture.keys() == {"image/png"}
    shown = plan._repr_html_()
    assert shown.count("h1") == len(plan.computed)
    assert "#e69f00" in shown
    assert "#e69f00" not in Plan.keep_all(graph)._repr_html_()
    (sentence,) = notebook(solve(graph, floor(graph).bytes - 1, throw=False))
    assert "INFEASIBLE" in sentence["text/html"]


def test_no_plan_no_cost_no_name():
    from checkmate import Op

    graph = DFGraph((Op("a", cost=0), Op("b", (0,), cost=0)))
    for picture in (
        plot.memory(graph, Plan.keep_all(graph), budget_bytes=1),
        plot.matrices(graph, Plan.keep_all(graph)),
        plot.layers(graph, Plan.keep_all(graph)),
    ):
        assert picture.html().startswith("<img")


def test_drawing_needs_no_tensorflow_and_changes_no_settings(stored, tmp_path):
    graph, _ = stored
    graph.save(tmp_path / "graph.json")
    script = """
import sys, matplotlib, checkmate
before = dict(matplotlib.rcParams)
graph = checkmate.DFGraph.load("graph.json")
checkmate.plot.memory(graph).save("a.png")
loaded = [name for name in ("tensorflow", "keras") if name in sys.modules]
print(loaded, dict(matplotlib.rcParams) == before)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(checkmate.__file__).parents[1])},
    )
    assert done.stdout.split("\n")[0] == "[] True"


def test_measured_memory_draws_every_peak():
    plain = [(k / 1e4, MIB * (100 + (k == 5000) * 900)) for k in range(10_000)]
    planned = [(0.0, 10 * MIB), (0.6, 480 * MIB), (1.2, 20 * MIB)]
    picture = plot.measured(
        {"plain step": plain, "planned step": planned}, budget_bytes=500 * MIB, name="a model"
    )
    axis = picture.figure.axes[0]
    for found, most, end in zip(axis.collections, (1000, 480), (0.9999, 1.2), strict=True):
        corners = found.get_paths()[0].vertices
        assert corners[:, 1].max() == pytest.approx(most)
        assert corners[:, 0].max() == pytest.approx(end)
        assert len(corners) < 3000
    line = next(
        line
        for line in axis.lines
        if len(line.get_ydata()) == 2 and len(set(line.get_ydata())) == 1
    )
    assert line.get_ydata()[0] == pytest.approx(500)
    said = [text.get_text() for text in axis.texts]
    assert said == ["plain step: peak 1000.00 MiB", "planned step: peak 480.00 MiB"]
    assert axis.texts[1].xy[1] == pytest.approx(500), "the words stand above the budget line"
    assert labels(picture) == ["plain step", "planned step", "budget 500.00 MiB"]


@pytest.mark.parametrize("runs", [{}, {"plain step": []}])
def test_nothing_measured_is_not_drawn(runs):
    with pytest.raises(checkmate.CheckmateError, match="measured"):
        plot.measured(runs)
