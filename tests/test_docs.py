"""The pages in docs/: built without a warning and without the network, complete, and with examples
that run."""

import ast
import html
import importlib.util
import inspect
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from schemas import SCHEMAS, validator

import checkmate
from checkmate import errors
from checkmate.solvers.solve import SOLVERS

ROOT = Path(checkmate.__file__).parents[1]
DOCS = ROOT / "docs"
NOTEBOOKS = sorted((ROOT / "tutorials").glob("*.ipynb"))
ERRORS = [
    name
    for name, one in vars(errors).items()
    if inspect.isclass(one) and issubclass(one, checkmate.CheckmateError)
]

pytestmark = pytest.mark.skipif(not DOCS.exists(), reason="needs the checkout")


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


class Loaded(HTMLParser):
    """What a page has a browser fetch, but for links that are clicked."""

    def __init__(self, text: str):
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        if tag in ("script", "link", "img", "iframe", "source"):
            self.found += [
                value or ""
                for key, value in attributes
                if key in ("src", "href") and ("rel", "canonical") not in attributes
            ]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built pages. Strict: a warning is an error. Whatever asks for the network gets no
    answer."""
    for module in ("mkdocs", "material", "mkdocstrings", "nbconvert"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed: pip install -e '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    nowhere = dict.fromkeys(
        ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9"
    )
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, **nowhere, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


def test_pages_load_nothing_from_elsewhere(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 10
    for path in pages:
        found = Loaded(path.read_text(encoding="utf-8")).found
        assert found
        assert not [address for address in found if re.match(r"(https?:)?//", address)], path
    for path in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import )[\"']?https?:", path.read_text(encoding="utf-8")), (
            path
        )


def test_pages_have_the_style_and_the_search_its_boost(site):
    for path in site.rglob("index.html"):
        assert re.search(r'<link rel="stylesheet" href="[./]*style\.css">', path.read_text("utf-8"))
    entries = json.loads((site / "search" / "search_index.json").read_text("utf-8"))["docs"]
    (found,) = [entry for entry in entries if entry["location"] == "out-of-memory/"]
    assert found["boost"] == 2
    assert found["tags"] == ["OOM", "ResourceExhaustedError"]


def test_options_are_described_once_and_linked(site):
    text = (site / "api" / "tf2" / "index.html").read_text("utf-8")
    (shown,) = re.findall(r'<h2 id="checkmate.tf2.PlanOptions".*?(?=<h2 )', text, re.DOTALL)
    for name in ("budget", "micro_batches", "recompute"):
        assert re.search(rf"<code>.*?{name}\b.*?</code>", shown)
    assert len(re.findall(r'href="#checkmate.tf2.PlanOptions"><code>PlanOptions<', text)) >= 6
    assert "<code>...</code>" not in text  # a default that is not told


def test_formulas_of_notebooks_are_shown(site):
    for path in (site / "tutorials").rglob("index.html"):
        assert not re.search(r"\$[^$\n]*\\\w", path.read_text("utf-8")), path
    text = (site / "tutorials" / "4_reading_a_plan" / "index.html").read_text("utf-8")
    assert "<i>R<sub>t,j</sub> ≤ R<sub>t,i</sub> + S<sub>t,i</sub></i>" in text


def public_names():
    """Of the package, of `tf2` and of `plot`; read, not imported: TensorFlow takes a while."""
    for path in ("__init__.py", "tf2/__init__.py", "plot/__init__.py"):
        for node in ast.parse((ROOT / "checkmate" / path).read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
                yield from ast.literal_eval(node.value)


@pytest.mark.parametrize("last", sorted(set(public_names())))
def test_public_names_are_in_the_api(site, last):
    text = "".join(path.read_text(encoding="utf-8") for path in (site / "api").rglob("index.html"))
    assert re.search(rf'id="checkmate\.(\w+\.)*{last}"', text)


@pytest.mark.parametrize("name", ERRORS)
def test_every_error_has_its_cure(name):
    """A heading of its own, and something under it; an error that is new here fails until somebody
    has written what to do."""
    found = re.search(
        rf"^### {name}\n(.*?)(?=^##|\Z)", page("troubleshooting.md"), re.MULTILINE | re.DOTALL
    )
    assert found, f"docs/troubleshooting.md has no heading for {name}"
    assert len(found[1].split()) >= 12


def test_no_error_is_made_up():
    assert set(re.findall(r"^### (\w+Error)$", page("troubleshooting.md"), re.MULTILINE)) == set(
        ERRORS
    )


def test_the_table_of_solvers_is_whole():
    text = page("solvers.md")
    table = text[text.index("| name | method |") : text.index("`solve(..., reorder=True)`")]
    named = {
        name
        for row in table.splitlines()
        if row.startswith("| `")
        for name in re.findall(r"`(\w+)`", row.split("|")[1])
    }
    assert named == set(SOLVERS)


def test_the_examples_of_solvers_run(capsys):
    names: dict = {}
    for example in re.findall(
        r"^```python\n(.*?)^```$", page("solvers.md"), re.MULTILINE | re.DOTALL
    ):
        exec(example, names)
    expected = re.findall(r"print\(.*  # (.*)", page("solvers.md"))
    assert capsys.readouterr().out.splitlines() == expected
    assert len(expected) > 1


def test_the_graph_written_by_hand_is_solved_as_told(tmp_path):
    """And every field of a schema is on the page."""
    text = page("formats.md")
    path = tmp_path / "my.graph.json"
    path.write_text(re.search(r"<!-- example: graph -->\n```json\n(.*?)^```", text, re.M | re.S)[1])
    validator("graph").validate(json.loads(path.read_text()))
    graph = checkmate.DFGraph.load(path)
    assert checkmate.replay(graph, checkmate.Plan.keep_all(graph)).peak_bytes == 400
    assert f"{checkmate.solve(graph, '300 B').overhead - 1:+.2%}" == "+11.11%"
    assert "which takes 400 bytes. In 300 bytes" in text and "+11.11 %" in text
    schemas = (SCHEMAS["graph"], SCHEMAS["graph"]["$defs"]["node"], *SCHEMAS.values())
    for key in {key for schema in schemas for key in schema["properties"]}:
        assert f"`{key}`" in text


def test_commands_of_the_pages_exist():
    from benchmarks.__main__ import benchmarks
    from checkmate.cli import main

    text = "\n".join(
        path.read_text(encoding="utf-8") for path in (*DOCS.rglob("*.md"), ROOT / "README.md")
    )
    commands = set(
        re.findall(
            r"checkmate ([a-z-]+)(?= |`|$)",
            "\n".join(re.findall(r"^(?: {4}checkmate .*|checkmate .*)$", text, re.M)),
        )
    )
    assert {"demo", "plan", "show", "doctor"} <= commands
    assert commands <= set(main.commands)
    assert set(main.commands) == set(
        re.findall(r"^    checkmate ([a-z]+)", page("command-line.md"), re.MULTILINE)
    )
    table = page("command-line.md").split("## Benchmarks")[1].split("|---|---|")[1]
    assert set(re.findall(r"`([a-z-]+)`", table)) == set(benchmarks.commands)


def test_every_page_is_reachable():
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    pages |= {f"tutorials/{path.stem}.md" for path in NOTEBOOKS}
    assert pages == set(re.findall(r"[\w/-]+\.md", menu))


def test_every_notebook_is_in_the_list():
    assert NOTEBOOKS
    assert [
        path.name for path in NOTEBOOKS if f"(tutorials/{path.stem}.md)" not in page("tutorials.md")
    ] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_a_notebook_is_a_page_with_all_it_shows(site, path):
    shown = (site / "tutorials" / path.stem / "index.html").read_text(encoding="utf-8")
    words = " ".join(html.unescape(re.sub(r"<[^>]*>", "", shown)).split())
    pictures = 0
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] != "code":
            continue
        assert " ".join("".join(cell["source"]).split()) in words
        printed = "".join(
            "".join(each["text"]) for each in cell["outputs"] if each["output_type"] == "stream"
        )
        assert html.escape(printed.strip(), quote=False) in shown  # as one block, every space kept
        pictures += sum("image/png" in each.get("data", {}) for each in cell["outputs"])
    found = re.findall(rf'<img [^>]*src="\.\./({path.stem}[^"]*\.png)"', shown)
    assert len(found) == pictures > 0
    assert all((site / "tutorials" / name).stat().st_size for name in found)


def test_pictures_of_the_pages_are_there_and_drawn_by_the_script():
    used = {
        name
        for path in DOCS.rglob("*.md")
        for name in re.findall(r"\(images/([\w-]+\.svg)\)", path.read_text(encoding="utf-8"))
    }
    assert used == {path.name for path in (DOCS / "images").glob("*.svg")}
    assert used


def test_the_script_draws_each_picture():
    specification = importlib.util.spec_from_file_location("pictures", DOCS / "pictures.py")
    script = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(script)
    from strategies import training_chain

    graph = training_chain(12, sizes=(2**20, 2**21))
    drawn = {**script.draw(graph, checkmate.solve(graph, "60%")), "curve": script.curve(graph)}
    assert {f"{name}.svg" for name in drawn} | {"measured.svg", "dtr.svg"} == {
        path.name for path in (DOCS / "images").glob("*.svg")
    }
    for name, picture in drawn.items():
        assert picture.figure.axes, name


def test_the_version_is_in_the_changelog_and_the_citation():
    assert re.search(
        rf"^## {re.escape(checkmate.__version__)}$",
        (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    assert re.search(
        rf"^version: {re.escape(checkmate.__version__)}$",
        (ROOT / "CITATION.cff").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
