"""Names from files of strangers: control characters, marks of direction, markup of any kind. They
are shown as escapes wherever people read them."""

import json
import re

import pytest
from calling import invoke

import checkmate
from checkmate import DFGraph, Op, Plan, plot
from checkmate.core.files import save_plan
from checkmate.progress import Progress

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x00\x9b31m\r\n\u202egpj\u2066[/b][red]$\\bad$<img src=x>\ud800"
OBEYED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def chain():
    names = [f"{HOSTILE}{k}/op" for k in range(4)]
    ops = [
        Op(names[k], (k - 1,) if k else (), 1, 2**20, is_backward=k > 1, kind=HOSTILE)
        for k in range(4)
    ]
    return DFGraph(tuple(ops), (3,), name=HOSTILE)


@pytest.fixture
def files(tmp_path):
    graph = chain()
    graph.save(tmp_path / "graph.json")
    for k in range(2):
        path = tmp_path / f"{k}.plan.json"
        facts = {"graph_file": "graph.json", "solver": HOSTILE, "status": "FEASIBLE"}
        save_plan(Plan.keep_all(graph), path, graph=graph, seconds=1, **facts)
    return tmp_path


def is_harmless(text):
    return not OBEYED.search(text) and r"\x1b]0;owned\x07\x1b[2J\x00\x9b31m\r\n\u202egpj" in text


@pytest.mark.parametrize(
    "arguments",
    [
        ("show", "graph.json"),
        ("show", "0.plan.json"),
        ("show", "0.plan.json", "1.plan.json"),
        ("solve", "graph.json", "-b", "100%"),
        ("simulate", "graph.json"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("columns", ["20", "200"])
def test_commands_print_escapes(files, arguments, columns):
    arguments = [files / each if each.endswith(".json") else each for each in arguments]
    found = invoke(*arguments, env={"COLUMNS": columns})
    assert not found.exit_code or arguments[0] == "simulate"
    assert is_harmless(found.output)
    assert json.loads(invoke(*arguments, "--json").stdout.splitlines()[0])


def test_errors_and_progress_have_escapes(files):
    with pytest.raises(checkmate.PlanFileError) as caught:
        checkmate.core.files.load_plan(files / "0.plan.json", graph=DFGraph((Op("a"),)))
    assert is_harmless(str(caught.value).replace("\n", r"\n"))
    progress = Progress(HOSTILE, enabled=False)
    with progress.phase("solving"):
        progress.tell(HOSTILE)
        assert is_harmless(progress.line())


def test_a_page_has_escapes(files):
    assert not invoke("show", files / "0.plan.json", "--html", files / "a.html").exit_code
    text = (files / "a.html").read_text(encoding="utf-8")
    assert is_harmless(text)
    assert "<img" not in text.replace("\\u003c", "<").split("<script", 1)[0]
    (data,) = re.findall(r'id="data"[^>]*>(.*?)</script>', text, re.DOTALL)
    names = json.loads(data)["ops"]["name"]
    assert all(map(is_harmless, names))


@pytest.mark.parametrize("picture", ["memory", "matrices", "layers", "curve"])
@pytest.mark.filterwarnings("error")
def test_pictures_draw_escapes(files, picture):
    svg = files / "a.svg"
    found = invoke("show", files / "0.plan.json", "--picture", picture, "--svg", svg)
    assert not found.exit_code
    assert not OBEYED.search(svg.read_text())


def test_a_picture_in_a_page_stays_a_picture():
    assert plot.memory(DFGraph((Op("a"),), name='"><script>')).html().count("<") == 1
