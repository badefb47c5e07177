"""What a step says of itself: as text, as a page, in a notebook."""

import itertools
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from strategies import training_chain

import checkmate
from checkmate import Plan, SolveStatus, floor, replay, solve
from checkmate.tf2.memory.budget import MemoryBudget
from checkmate.tf2.report import MicroBatches, Report, TriedSlices
from checkmate.tf2.tensorboard import scalars
from checkmate.units import format_bytes, parse_bytes

pytestmark = pytest.mark.usefixtures("tensorflow")

ROOT = Path(checkmate.__file__).parents[1]
GRAPH = training_chain(12, sizes=(2**20, 2**19), costs=(1.0, 3.0), fixed_bytes=2**20)
PLAIN = replay(GRAPH, Plan.keep_all(GRAPH)).peak_bytes


def report(budget="60%", **changes):
    result = solve(GRAPH, budget) if budget else None
    limit = changes.pop("budget_bytes", result.budget_bytes if result else 2 * PLAIN)
    kinds = {
        "resident_bytes": 0,
        "counted_bytes": 0,
        "batch_bytes": 0,
        "next_batch_bytes": 0,
        "step_bytes": GRAPH.fixed_bytes,
        "reserve_share": 0.0,
        "start_bytes": 0,
        "device_limit_bytes": None,
    }
    kinds |= {key: changes.pop(key) for key in kinds if key in changes}
    memory = MemoryBudget(limit, **kinds)
    facts = {
        "name": "chain", "memory": memory,
        "plain_peak_bytes": PLAIN, "measured_peak_bytes": None, "result": result, "graph": GRAPH,
        "predicted_peak_bytes": (result.peak_bytes if result else PLAIN) + memory.other_bytes,
        "plain_plan": Plan.keep_all(GRAPH),
        "tensorflow_ops": 100, "seconds": {"tracing": 0.5, "solving": 1.25}, "notes": (),
    }  # fmt: skip
    return Report(**{**facts, **changes})


def rows(text):
    """The lines of the printed report that have a name and a value."""
    return dict(
        re.split(r"\s{2,}", line.strip(), maxsplit=1)
        for line in text.splitlines()[1:]
        if re.search(r"\S\s{2,}\S", line)
    )


def test_a_share_says_of_what_it_is_one():
    found = report(asked="60%", start_bytes=2**20, next_batch_bytes=2**10)
    other = found.memory.other_bytes
    own = format_bytes(PLAIN - other)
    assert f"60% of the plain step's own {own}, and {format_bytes(other)}" in str(found)
    assert "of the plain step's own" not in str(report(asked="6GiB"))


PAGES = sorted([*ROOT.glob("tutorials/*.ipynb"), *ROOT.glob("docs/*.md")])


def reports_in(path):
    """The names of the rows of each report that is stored on a page, printed or as a table."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        shown = [output for cell in json.loads(text)["cells"] for output in cell.get("outputs", ())]
        datas = [output.get("data", {}) for output in shown]
        for data in datas:
            table = re.findall(r"<tr><td[^>]*>(.*?)</td><td", "".join(data.get("text/html", ())))
            if {"budget", "time"} <= {*table}:
                yield {*table} - {"next", "try", "note"}
        text = "".join("".join(output.get("text", ())) + "\n" for output in shown)
    # In how many parts is of the page; that there are parts is of the report.
    text = re.sub(r"\bin \d+ (?=tiles|segments|micro-batches)", "in 4 ", text)
    for block in re.split(r"^ *'.*' (?=trains in|runs unchanged)", text, flags=re.MULTILINE)[1:]:
        lines = itertools.takewhile(lambda line: line.startswith("  "), block.splitlines()[1:])
        found = [re.match(r" {2,6}(\S.*?) {2,}\S", line) for line in lines]
        names = [match[1] for match in found if match]
        if "time" in names:  # else it is the sentence alone
            yield {*names[: names.index("time") + 1]}  # layers follow


def test_stored_reports_have_the_rows_of_today_s():
    micro = MicroBatches(4, 8, 32, 0, PLAIN, 9.0, 9.0, 8.0, 7.0, PLAIN)
    more = {"step_seconds": 1.0, "next_batch_bytes": 1, "tried_slices": (TriedSlices(4, 1.0, 2.0),)}
    needed = {key for key, _ in report().facts()}
    unchanged = {key for key, _ in report(budget=None).facts()}
    facts = [*report(micro_batches=micro, **more).facts()]
    for part in ("_tile", "/part_"):
        ops = tuple(replace(op, name=f"{op.name}{part}3") for op in GRAPH.ops)
        facts += report(graph=replace(GRAPH, ops=ops), plain_graph=GRAPH).facts()
    known = {key for key, _ in facts}
    stored = [(path.name, names) for path in PAGES for names in reports_in(path)]
    assert len(stored) >= 4
    stale = [
        f"{name}: {sorted(names - known)} are no more, {sorted(needed - names)} are new"
        for name, names in stored
        if not names <= known or not (needed <= names or unchanged == names)
    ]
    assert not stale


@pytest.mark.parametrize("budget", ["60%", None])
def test_a_peak_above_the_budget_is_not_said_to_be_within(budget):
    found = report(budget, measured_peak_bytes=2**10)
    allowed = f"the {format_bytes(found.budget_bytes)} allowed"
    assert f", within {allowed}" in found.sentence()
    over = replace(found, measured_peak_bytes=found.budget_bytes + 2**20).sentence()
    assert f", 1.00 MiB above {allowed}" in over and "within" not in over


def test_layers_that_save_nothing_do_not_pay():
    title = "layers that pay"
    assert title in str(report())
    same = report()
    assert title not in str(replace(same, plain_plan=same.result.plan))


def test_the_printed_report():
    found = report(measured_peak_bytes=2**22, steps=3, step_seconds=1.25)
    lines = str(found).splitlines()
    assert lines[0] == found.sentence()
    shown = rows(str(found))
    keys = [
        *("budget", "resident", "fixed, of the step", "activations", "allocator overhead"),
        *("unused", "planned peak", "plain peak"),
    ]
    assert list(shown)[:15] == [
        *keys,
        *("plan", "predicted cost", "predicted time", "step", "proven", "solver", "time"),
    ]
    again = found.result.plan.recomputed
    assert again
    assert shown["plan"].startswith(
        f"{len(again)} of {len(GRAPH)} ops are recomputed, {sum(again.values())} evaluations more"
    )
    assert f"{found.peak_bytes / PLAIN:.0%} of plain" in shown["planned peak"]
    assert f"{found.result.overhead - 1:+.2%}" in shown["predicted cost"]
    assert "4.00 MiB measured in 3 steps" in shown["planned peak"]
    assert shown["step"] == "1.25 s, the shortest of 3"
    assert shown["time"] == "tracing 0.5 s, solving 1.2 s"


def test_every_byte_of_the_budget_is_told_once():
    others, ahead, resident = 2 * 2**20, 2**20, 5 * 2**19
    kinds = {
        "next_batch_bytes": ahead,
        "resident_bytes": resident,
        "counted_bytes": resident - others,
        "step_bytes": GRAPH.fixed_bytes - (resident - others),
    }
    found = report(**kinds)
    assert found.outside_bytes == others + ahead and found.fixed_bytes == GRAPH.fixed_bytes
    limit = found.peak_bytes + found.outside_bytes + 7 * 2**20
    found = report(
        **kinds,
        budget_bytes=limit,
        predicted_peak_bytes=limit - 3 * 2**20,
        measured_peak_bytes=limit - 4 * 2**20,
        device_limit_bytes=2**30,
    )
    shown = rows(str(found))
    assert shown["budget"] == f"{format_bytes(limit)} of the 1.00 GiB that the device has"
    assert shown["resident"] == "2.50 MiB: variables, optimizer, batch, and 2.00 MiB of others"
    assert shown["for next batches"].startswith("1.00 MiB;")
    assert shown["allocator overhead"].startswith("4.00 MiB, predicted")
    assert shown["unused"] == "3.00 MiB"
    kinds = (
        *("resident", "for next batches", "fixed, of the step", "activations"),
        *("allocator overhead", "unused"),
    )
    told = sum(
        parse_bytes(re.match(r"[\d.]+ \w+", shown[key])[0].replace(" ", ""), percent_of=1)
        for key in kinds
    )
    assert told == pytest.approx(limit, abs=2**14 * len(kinds))  # shown to a hundredth of a MiB


@pytest.mark.parametrize("in_slices", [False, True])
def test_each_number_is_the_same_wherever_it_stands(in_slices, notebook):
    micro = MicroBatches(4, 8, 32, 0, PLAIN + 2**20, 9.0, 9.0, 8.0, 7.0, 2 * PLAIN)
    others = {"resident_bytes": 2**21, "next_batch_bytes": 2**20}
    plain = 2 * PLAIN if in_slices else PLAIN + 5 * 2**20
    predicted = report().peak_bytes + 4 * 2**20
    found = report(
        **others,
        budget_bytes=predicted + 2**19,
        plain_peak_bytes=plain,
        predicted_peak_bytes=predicted,
        measured_peak_bytes=predicted - 2**18,
        steps=2,
        micro_batches=micro if in_slices else None,
    )
    planned_text, plain_text = f"{format_bytes(predicted)} predicted", f"{format_bytes(plain)} pre"
    shown = rows(str(found))
    assert shown["planned peak"].startswith(planned_text)
    assert shown["plain peak"].startswith(plain_text)
    assert f"instead of {format_bytes(plain)} (predicted)" in found.sentence()
    assert f"predicted {format_bytes(predicted)} of " in found.in_a_line()
    said = [axis.texts[0].get_text() for axis in found.picture().figure.axes]
    titles = [axis.get_title(loc="left") for axis in found.picture().figure.axes]
    of_slice = f"{format_bytes(micro.peak_bytes)} predicted"
    part = "slice" if in_slices else "step"
    assert titles == [f"plain {part}", f"planned {part}"]
    for text, peak in zip(said, (of_slice if in_slices else plain_text, planned_text), strict=True):
        assert f"peak {peak}" in text
    page, table = found.to_html(), notebook(found)[0]["text/html"]
    for peak in (planned_text, plain_text):
        assert peak in page and peak in table
    assert f'"peak_bytes":{predicted}' in page and '"counted":"predicted"' in page
    written = scalars(found)
    assert written["planned_peak_predicted_GiB"] * 2**30 == predicted
    assert written["plain_peak_predicted_GiB"] * 2**30 == plain


def test_what_no_pipeline_makes_is_not_told():
    assert "for next batches" not in rows(str(report()))


def test_what_was_not_measured_is_not_said():
    assert "of plain; no step ran yet" in rows(str(report()))["planned peak"]
    assert "step" not in rows(str(report()))
    assert "(both predicted)" in report().sentence()
    assert "(measured)" in report(measured_peak_bytes=1).sentence()


def test_the_proof_is_rounded_up():
    found = report()
    assert found.result.status is SolveStatus.OPTIMAL
    assert rows(str(found))["proven"] == "no plan in this order of ops is faster"
    gap = replace(found.result, status=SolveStatus.FEASIBLE, bound=found.result.cost / 1.00001)
    assert "at most 0.01% slower than the best possible plan" in str(report(result=gap))


def test_layers_that_pay_are_those_that_save_or_run_again():
    found = report()
    paying = found.layers()
    assert paying
    assert {row.name for row in paying if row.evaluations} == {
        GRAPH.ops[i].name for i in found.result.plan.recomputed
    }
    assert sum(row.evaluations for row in paying) == sum(found.result.plan.recomputed.values())
    assert sum(row.cost for row in paying) == pytest.approx(found.result.overhead - 1)
    saved = [row.saved_bytes for row in paying]
    assert saved == sorted(saved, reverse=True)
    assert paying[0].name in str(found)


def test_the_budgets_at_which_something_changes():
    said = " ".join(report().next_budgets())
    lowest = floor(GRAPH)
    for size in (PLAIN, report().peak_bytes, lowest.bytes):
        assert checkmate.units.format_bytes(size) in said
    assert "Down to 30.00 MiB" in " ".join(report(measured_peak_bytes=30 * 2**20).next_budgets())
    assert (
        report(measured_peak_bytes=30 * 2**20, predicted_peak_bytes=31 * 2**20).lasts_to_bytes
        == 31 * 2**20
    )
    assert (
        report(measured_peak_bytes=32 * 2**20, predicted_peak_bytes=31 * 2**20).lasts_to_bytes
        == 32 * 2**20
    )
    assert GRAPH.ops[lowest.op].name in said


def test_advice_follows_what_binds():
    found = report()
    assert found.advice() == ["For less memory give a smaller budget; for less time a larger one."]
    loose = replace(found.result, status=SolveStatus.FEASIBLE, bound=found.result.cost / 1.5)
    assert "time_limit_s" in " ".join(report(result=loose).advice())
    assert "resident" in " ".join(report(step_bytes=PLAIN).advice())
    assert "least possible" in " ".join(report(budget_bytes=floor(GRAPH).bytes).advice())
    lowest = {"budget_bytes": floor(GRAPH).bytes}
    assert "a smaller batch or layer" in " ".join(report(**lowest).advice())
    assert "only a smaller layer lowers" in " ".join(report(**lowest, examples=1).advice())
    assert "fits" in " ".join(report(budget=None).advice())


def test_a_step_that_runs_unchanged(notebook):
    found = report(budget=None)
    assert "none needed: the step runs unchanged" in str(found)
    assert "proven" not in str(found)
    assert "runs unchanged" in found.sentence()
    assert found.layers() == []
    table, _ = notebook(found)
    assert "<table>" in table["text/html"]
    assert "none needed" in found.to_html()


def test_a_step_that_runs_unchanged_has_pictures(notebook):
    found = report(budget=None)
    assert [each.keys() for each in notebook(found)] == [{"text/html"}, {"image/png"}]
    assert '"title":"plain step"' in found.to_html()


def test_notes_are_told_everywhere(notebook):
    found = report(notes=("Mind the <gap>.",))
    assert "note: Mind the <gap>." in str(found)
    assert "Mind the &lt;gap&gt;." in found.to_html()
    assert "Mind the &lt;gap&gt;." in notebook(found)[0]["text/html"]


class Tags(HTMLParser):
    """Which tags a page opens, and what it would load."""

    def __init__(self, page):
        super().__init__()
        self.opened, self.loaded = [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.opened.append(tag)
        self.loaded += [
            value
            for key, value in attributes
            if key in ("src", "href") and not value.startswith("data:")
        ]


def test_the_page_and_the_notebook_load_nothing(notebook):
    found = report()
    for page in (found.to_html(), notebook(found)[0]["text/html"]):
        tags = Tags(page)
        assert tags.loaded == []
        assert "table" in tags.opened
        assert "predicted cost" in page
