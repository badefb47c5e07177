"""Standard output that cannot take what is printed: of another encoding, or full."""

import os
import subprocess
import sys

import pytest
from calling import GRAPH

from checkmate import DFGraph, Op, Plan
from checkmate.core.files import save_plan

CHAIN = DFGraph(tuple(Op(f"слой{i}/é日本", (i - 1,) if i else (), 1, 4) for i in range(3)), (2,))


def run(*arguments, **options):
    command = [sys.executable, "-m", "checkmate", *map(str, arguments)]
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, encoding="utf-8", **options)


@pytest.mark.parametrize("command", ["show", "solve"])
@pytest.mark.parametrize(
    "locale",
    [
        {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONIOENCODING": "ascii"},
    ],
    ids=["posix", "ascii"],
)
def test_names_in_any_script_are_shown_where_output_is_ascii(tmp_path, command, locale):
    file, options = tmp_path / "chain.graph.json", ("-b", "100%") if command == "solve" else ()
    CHAIN.save(file)
    found = run(command, file, *options, stdout=subprocess.PIPE, env={**os.environ, **locale})
    assert (found.returncode, found.stderr) == (0, "")
    assert command == "solve" or "\\u0441\\u043b\\u043e\\u0439" in found.stdout


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")
@pytest.mark.parametrize(
    "arguments",
    [
        ("show", "plan.json"),
        ("show", "plan.json", "--json"),
        ("solve", "graph.json"),
        ("show", "--help"),
    ],
    ids=" ".join,
)
def test_output_that_finds_no_room_is_a_sentence_and_status_1(tmp_path, arguments):
    GRAPH.save(tmp_path / "graph.json")
    save_plan(Plan.keep_all(GRAPH), tmp_path / "plan.json", graph=GRAPH, graph_file="graph.json")
    with open("/dev/full", "w") as full:
        found = run(
            *(tmp_path / each if each.endswith(".json") else each for each in arguments),
            stdout=full,
        )
    assert found.returncode == 1
    assert found.stderr.startswith("checkmate: could not write: ")
    assert len(found.stderr.splitlines()) == 1
