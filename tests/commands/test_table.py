"""Tables, in a terminal of any width."""

import io
import re

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
def test_a_terminal_too_narrow_for_a_table_gets_paragraphs_and_no_broken_cell(screen, width):
    shown = screen(width, lambda: print_table("All of it", COLUMNS, ROWS, left=("name",)))
    assert shown.splitlines()[1:3] == ["first", "  bytes 12.00 MiB,"]
    assert shown.splitlines()[-1:] == ["second: bytes 7 B"]
    assert "why because it is so" in shown
