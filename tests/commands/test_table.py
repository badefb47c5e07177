"""Tables, in a terminal of any width and in a pipe."""

import io
import re
from collections import Counter

import pytest

from checkmate.commands.table import print_table

COLUMNS = ("name", "bytes", "why")

ROWS = [("first", "12.00 MiB", "because it is so"), ("second", "7 B", "")]


@pytest.fixture
def screen(monkeypatch):
    """Makes tables go to a terminal of a width, and returns what it shows."""
    from rich.console import Console

    from checkmate.commands import table

    def of(width, print_it):
        console = Console(width=width, force_terminal=True, no_color=True, file=io.StringIO())
        monkeypatch.setattr(table, "console", lambda: console)
        print_it()
        return re.sub("\x1b\\[[0-9;]*m", "", console.file.getvalue())

    return of


def test_a_table_that_fits_is_a_table(screen):
    shown = screen(
        50, lambda: print_table("All of it", COLUMNS, ROWS, left=("name", "why"))
    ).splitlines()
    assert [line.split() for line in shown[:2]] == [["All", "of", "it"], ["name", "bytes", "why"]]
    assert shown[3].split(maxsplit=3) == ["first", "12.00", "MiB", "because it is so"]
    assert len(shown) == 5


@pytest.mark.parametrize("width", [20, 30])
def test_a_terminal_too_narrow_for_a_table_breaks_cells_and_loses_nothing(screen, width):
    shown = screen(width, lambda: print_table("All of it", COLUMNS, ROWS, left=("name",)))
    assert max(map(len, shown.splitlines())) <= width
    cells = "".join("".join(row) for row in ROWS).replace(" ", "")
    assert Counter(cells) <= Counter(shown)


def test_a_pipe_breaks_nothing(capsys):
    print_table("All of it", COLUMNS, [("x" * 300, "1 B", "because it is so")])
    assert len(capsys.readouterr().out.splitlines()) == 4
