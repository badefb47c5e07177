"""The notebooks of `tutorials/`: what is stored is whole, and a fresh run of each ends well and
shows the same kinds of things.

`python tests/test_tutorials.py [FILE ...]` stores a new run. Figures in the text are to be brought
up to date by hand.
"""

import json
import os
import re
import sys
import tempfile
from itertools import groupby
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import checkmate

ROOT = Path(checkmate.__file__).parents[1]
FOLDER = ROOT / "tutorials"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"), key=lambda path: int(path.name.split("_")[0]))

pytestmark = pytest.mark.skipif(not FOLDER.exists(), reason="needs the checkout")
of_each = pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])

MACHINE = re.compile(r"(?<![\w.])/(opt|tmp|work|root|home|usr|var|Users)/")
DRAWS = re.compile(r"^(checkmate\.plot\.\w+|report\.picture)\(", re.MULTILINE)
LARGEST_BYTES = 600_000
LONG = ("2_memory_and_time", "8_real_data", "9_gpus")
"""Those whose runs take minutes."""
CHANCE = ("times was predicted", "The next step runs under a lower plan")
"""In the warnings of a step that was slower than predicted when it was timed, and of one that took
some KiB more than its budget: in nets as small as these one run of six has holes of that size."""


def cells(path, kind):
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == kind]


def kinds(cell):
    """What a cell shows, in order: streams by name, all else by the types it comes in. Left out are
    warnings that come by chance, and the line of text that shows progress."""
    outputs = [
        each
        for each in cell.outputs
        if not any(text in each.get("text", "") for text in CHANCE)
        and not (each.output_type == "display_data" and set(each.data) == {"text/plain"})
    ]
    shown = [
        each["name"] if each.output_type == "stream" else tuple(sorted(each.get("data", ())))
        for each in outputs
    ]
    return [kind for kind, _ in groupby(shown)]  # how much of a stream comes at a time is chance


def trains(path):
    """Whether a notebook loads TensorFlow."""
    return bool(re.search(r"\bimport (tensorflow|keras)\b", path.read_text(encoding="utf-8")))


def test_they_are_numbered_and_listed():
    numbers = [int(path.name.split("_")[0]) for path in NOTEBOOKS]
    assert numbers == list(range(1, len(NOTEBOOKS) + 1))
    assert len(NOTEBOOKS) == 10
    listed = re.findall(r"\]\((\d\w+\.ipynb)\)", (FOLDER / "README.md").read_text(encoding="utf-8"))
    assert listed == [path.name for path in NOTEBOOKS]


@of_each
def test_stored_outputs_are_those_of_one_run(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = cells(path, "code")
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [each for cell in code for each in cell.outputs]
    assert any(each.output_type == "stream" for each in outputs)
    assert not [
        each for each in outputs if each.output_type == "error" or each.get("name") == "stderr"
    ]


@of_each
def test_nothing_stored_is_of_one_machine(path):
    assert path.stat().st_size < LARGEST_BYTES
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        for each in cell.get("outputs", ()):
            each.get("data", {}).pop("image/png", None)
    found = MACHINE.search(json.dumps(notebook))
    assert not found, found


@of_each
def test_each_plot_is_stored_as_a_picture(path):
    """As a PNG, which hosts of notebooks show; they drop pictures from within HTML."""
    drawn = [cell for cell in cells(path, "code") if DRAWS.search(cell.source)]
    assert drawn
    for cell in drawn:
        assert any("image/png" in shown for shown in kinds(cell)), cell.source
    assert "<img" not in path.read_text(encoding="utf-8")


@of_each
def test_links_lead_somewhere(path):
    text = "\n".join(cell.source for cell in cells(path, "markdown"))
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    assert links, "says what to read next"
    for link in links:
        assert (FOLDER / link).exists(), link
    assert "{{" not in text


def marks(path):
    if path.stem in LONG:
        return [pytest.mark.long]
    return [pytest.mark.slow] * (trains(path) or "4_" in path.stem)


@pytest.mark.parametrize(
    "path", [pytest.param(path, id=path.stem, marks=marks(path)) for path in NOTEBOOKS]
)
def test_a_fresh_run(path, tmp_path, monkeypatch):
    """In an empty folder, with nothing measured before. What is shown differs in figures only, and
    nothing is warned of."""
    for name in ("CHECKMATE_CACHE_DIR", "IPYTHONDIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    folder = tmp_path / "run"
    folder.mkdir()
    fresh = [cell for cell in run(path, folder).cells if cell.cell_type == "code"]
    for stored, cell in zip(cells(path, "code"), fresh, strict=True):
        assert kinds(cell) == kinds(stored), f"{cell.source}\n{cell.outputs}"
    assert not list(folder.iterdir()), "leaves files behind"


def run(path, folder):
    """The notebook with the outputs of a new run, in a fresh kernel that finds this checkout."""
    notebook = nbformat.read(path, as_version=4)
    # What libraries write to the terminal, past Python, is not the notebook's.
    quiet = ["--IPKernelApp.capture_fd_output=False"]
    resources = {"metadata": {"path": str(folder)}}
    (folder.parent / "benchmarks").symlink_to(ROOT / "benchmarks")  # as beside `tutorials/`
    client = NotebookClient(
        notebook,
        timeout=300,
        extra_arguments=quiet,
        resources=resources,
        record_timing=False,
        coalesce_streams=True,
    )
    search = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return client.execute(env={**os.environ, "PYTHONPATH": search})


if __name__ == "__main__":  # stores a new run of the notebooks named, or of all
    for path in map(Path, sys.argv[1:] or NOTEBOOKS):
        with tempfile.TemporaryDirectory() as parent:
            folder = Path(parent) / "tutorials"
            folder.mkdir()
            nbformat.write(run(path, folder), path)
