"""Options that are refused before the work, and completed by a shell."""

import io
import os
import re
import subprocess
import sys

import pytest
from calling import invoke

from checkmate.solvers.solve import SOLVERS


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("show", "--png", "picture.txt"), "does not end in .png"),
        (("show", "--svg", "no/such/folder/a.svg"), "There is no folder 'no/such/folder'"),
        (("show", "--html", "page.png"), "does not end in .html"),
        (("simulate", "--plot", "a.gif"), "does not end in .png or .svg or .pdf"),
        (("simulate", "-e", "dtr,magic"), "There is no 'magic'. There are dtr,"),
        (("solve", "--solver", "mlip:scip"), "no solver 'mlip:scip'. Did you mean milp:scip"),
        (("solve", "--time-limit", "-1"), "-1.0 is not in the range"),
        (("solve", "--time-limit", "nan"), "'nan' is no number"),
        (("simulate", "--overhead-limit", "nan"), "'nan' is no number"),
        (("simulate", "--overhead-limit", "-1"), "-1.0 is not in the range"),
        (("simulate", "--smallest", "nan"), "'nan' is no number"),
        (("simulate", "--smallest", "-1"), "-1.0 is not in the range"),
        (("solve", "-b", "70%,1e30"), "got '1e30'"),
        (("solve", "--json", "-b", "70%,lots"), "Cannot read 'lots'"),
        (("simulate", "-b", "70%,1e30"), "got '1e30'"),
        (("solve", "-o", "/proc/nothing"), "Cannot read or write /proc/nothing"),
        (("solve", "-b", "60"), "Did you mean '60%', '60GiB' or '60 B'?"),
        (("solve", "-b", "70%,0.6"), "Did you mean '60%'?"),
        (("simulate", "-b", "60"), "Did you mean '60%', '60GiB' or '60 B'?"),
    ],
)
def test_what_cannot_be_written_is_said_before_the_work_and_is_status_2(
    graph_file, monkeypatch, arguments, said
):
    from checkmate.commands import output, show, simulate

    for module, work in ((show, "draw"), (simulate, "simulate"), (output, "solve")):
        monkeypatch.setattr(module, work, lambda *given, **options: pytest.fail("it began"))
    command, *options = arguments
    found = invoke(command, graph_file, *options)
    assert found.exit_code == 2
    assert said in " ".join(found.stderr.split())


def test_a_long_refusal_is_broken_between_words(monkeypatch):
    """In a terminal of 80 columns; a name of a solver is never cut in two."""
    from rich.console import Console

    from checkmate.commands import table

    screen = Console(width=80, force_terminal=True, no_color=True, file=io.StringIO())
    monkeypatch.setattr(table, "Console", lambda **options: screen)
    assert invoke("plan", "resnet50", "--solver", "best").exit_code == 2
    said = screen.file.getvalue()
    assert said.startswith("checkmate: Invalid value for '--solver': There is no solver 'best'. ")
    assert max(map(len, said.splitlines())) <= 80
    assert set(SOLVERS) <= set(re.split(r"[\s,.]+", said))


def test_a_shell_completes_solvers():
    words = {
        "COMP_WORDS": "checkmate solve --solver chen",
        "COMP_CWORD": "3",
        "_CHECKMATE_COMPLETE": "bash_complete",
    }
    script = (
        "import sys; sys.argv = ['checkmate']; from checkmate.cli import main;"
        " main(prog_name='checkmate')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env={**os.environ, **words}
    )
    assert "plain,chen_sqrt_n" in done.stdout.split()
