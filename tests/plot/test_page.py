"""The interactive page: complete in itself, and, where a browser is at hand, alive in it."""

import json
import re
import shutil
from pathlib import Path

import pytest
from strategies import training_chain

from benchmarks.problems import budget_at, load
from checkmate import DFGraph, Op, Plan, solve
from checkmate.plot import page
from checkmate.plot.usage import stages, usage
from checkmate.units import format_bytes

BROWSER = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
MIB = 2**20


@pytest.fixture(scope="module")
def case():
    graph = training_chain(10, sizes=(MIB, 2 * MIB), fixed_bytes=MIB)
    result = solve(graph, "70%")
    assert result.plan.recomputed
    return graph, result


def data_of(text):
    return json.loads(
        re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1]
    )


def test_the_page_holds_the_judge_s_figures(case):
    graph, result = case
    data = data_of(page(graph, result.plan, budget_bytes=result.budget_bytes))
    assert data["budget"] == result.budget_bytes
    assert [plan["title"] for plan in data["plans"]] == ["plain step", "planned step"]
    for shown, plan in zip(data["plans"], (Plan.keep_all(graph), result.plan), strict=True):
        found = usage(graph, plan)
        assert (
            shown["peak_bytes"]
            == found.timeline.peak_bytes
            == max(map(sum, zip(*shown["parts"].values(), strict=True)))
        )
        assert tuple(shown["ops"]) == plan.computed
        assert sum(shown["again"]) == sum(plan.recomputed.values())
    assert data["ops"]["times"] == [1 + result.plan.recomputed.get(i, 0) for i in range(len(graph))]
    found = stages(graph, result.plan)
    assert sum(to - begin for spans in data["retained"] for begin, to in spans) == found.S.sum()
    assert len(data["again"]) == found.R.sum() - len(graph)


def test_names_cannot_break_out_of_the_page():
    evil = "</script><script>alert(1)</script><!--"
    graph = DFGraph((Op(evil, output_bytes=1), Op("b", (0,))), name=evil)
    text = page(graph, Plan.keep_all(graph), lead=evil, facts=[(evil, evil)])
    assert text.count("</script>") == 2
    assert "<!--" not in text
    assert data_of(text)["ops"]["name"][0] == evil


def test_the_page_of_a_large_model_is_small():
    graph = load("resnet50_ops")
    plan = solve(graph, budget_at(graph, 0.6), time_limit_s=10).plan
    assert len(page(graph, plan, budget_bytes=budget_at(graph, 0.6))) < 1.5e6


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        if BROWSER is None and not Path(driver.chromium.executable_path).exists():
            pytest.skip(
                "needs a Chromium: `apt-get install chromium`, or `playwright install chromium`"
            )
        found = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def opened(browser, tmp_path):
    """Opens a page, and fails on a message to the console, an error, or a request for anything but
    the page."""
    troubles = []

    def show(text):
        (tmp_path / "page.html").write_text(text, encoding="utf-8")
        shown = browser.new_page(viewport={"width": 1100, "height": 900})
        shown.on("console", lambda message: troubles.append(message.text))
        shown.on("pageerror", lambda error: troubles.append(str(error)))
        shown.on(
            "request",
            lambda request: (
                None if request.url.endswith("/page.html") else troubles.append(request.url)
            ),
        )
        shown.goto((tmp_path / "page.html").as_uri())
        return shown

    yield show
    assert troubles == []


def point_at(shown, selector, across, down):
    box = shown.locator(selector).last.bounding_box()
    shown.mouse.move(box["x"] + across * box["width"], box["y"] + down * box["height"])
    return shown.locator("#tip").inner_text()


def test_pointing_at_memory_tells_the_op(opened, case):
    graph, result = case
    shown = opened(page(graph, result.plan, budget_bytes=result.budget_bytes))
    found = usage(graph, result.plan)
    k = next(k for k, again in enumerate(found.again) if again)
    said = point_at(
        shown, ".pane", (found.starts[k] + found.starts[k + 1]) / 2 / found.starts[-1], 0.5
    )
    op = graph.ops[found.ops[k]]
    assert format_bytes(int(found.bytes_by_part[k].sum())) in said
    assert "computing again" in said
    for expected in (
        op.name,
        format_bytes(op.output_bytes),
        f"{1 + result.plan.recomputed[int(found.ops[k])]} times",
        "of the plain step",
    ):
        assert expected in said


def test_the_peak_is_marked_where_it_is(opened, case):
    graph, result = case
    shown = opened(page(graph, result.plan))
    for k, plan in enumerate((Plan.keep_all(graph), result.plan)):
        found = usage(graph, plan)
        mark, pane = (
            shown.locator(".peak").nth(k).bounding_box(),
            shown.locator(".pane").nth(k).bounding_box(),
        )
        share = (
            (found.starts[found.peak] + found.starts[found.peak + 1])
            / 2
            / usage(graph, result.plan).starts[-1]
        )
        assert mark["x"] + mark["width"] / 2 == pytest.approx(
            pane["x"] + share * pane["width"], abs=2
        )
        plain_peak = usage(graph, Plan.keep_all(graph)).timeline.peak_bytes
        down = 1 - found.timeline.peak_bytes / (1.08 * plain_peak)
        assert mark["y"] + mark["height"] == pytest.approx(pane["y"] + down * pane["height"], abs=2)


def test_pointing_at_the_matrices_tells_op_and_stage(opened, case):
    graph, result = case
    shown = opened(page(graph, result.plan))
    t, i = data_of(page(graph, result.plan))["again"][0]
    n = len(graph)
    shown.locator("#R").scroll_into_view_if_needed()
    said = point_at(shown, "#R", (i + 0.5) / n, (t + 0.5) / n)
    assert f"op {i}, stage {t}: computed again" in said
    assert graph.ops[i].name in said
    assert "retained" in point_at(shown, "#S", 0.5 / n, 1.5 / n)


def test_pointing_at_a_layer_tells_what_it_pays(opened, case):
    graph, result = case
    shown = opened(page(graph, result.plan))
    bars = shown.locator(".bar")
    assert bars.count() == len(data_of(page(graph, result.plan))["rows"])
    bars.first.hover()
    assert "saved by the plan" in shown.locator("#tip").inner_text()
    shown.mouse.move(2, 2)
    assert not shown.locator("#tip").is_visible()
    bars.first.focus()  # as the Tab key does
    assert "saved by the plan" in shown.locator("#tip").inner_text()
    bars.first.blur()
    assert not shown.locator("#tip").is_visible()


def test_a_graph_alone_has_its_memory(opened, case):
    shown = opened(page(case[0], title="A <graph>"))
    assert shown.locator(".pane").count() == 1
    assert shown.locator("#planned-only").count() == 0
    assert shown.title() == "A <graph>"


def test_names_cannot_run_as_script(opened):
    evil = "</script><img src=x onerror=alert(1)>"
    graph = DFGraph((Op(evil, output_bytes=1), Op("b", (0,))), name=evil)
    shown = opened(page(graph, Plan.keep_all(graph), lead=evil, facts=[(evil, evil)]))
    assert shown.locator("img").count() == 0
    assert evil in point_at(shown, ".pane", 0.2, 0.5)
