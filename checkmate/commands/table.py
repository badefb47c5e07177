"""Tables in a terminal of any width, in a file, and as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from checkmate.printable import printable

PIPED_WIDTH = 10_000
"""Columns of a file or a pipe: tables are as wide as what is in them."""

INTERRUPTED = 130
"""The exit status after Ctrl-C, as shells have it: 128 and the number of the signal."""


def console() -> Console:
    """Standard output, as wide as the terminal; `PIPED_WIDTH` for a file or a pipe."""
    found = Console()
    return found if found.is_terminal else Console(width=PIPED_WIDTH)


def say(sentence: str, *, style: str = "", is_whole: bool = False) -> None:
    """Prints a line; a terminal that is too narrow breaks it between words, or `is_whole`
    where that is for the terminal to do."""
    out = console()
    text = Text(printable(sentence), style=style)
    out.print(text, soft_wrap=is_whole or not out.is_terminal)


def complain(sentence: str) -> None:
    """Prints an error on standard error; in a terminal no word is broken."""
    out, sentence = Console(stderr=True), printable(f"checkmate: {sentence}")
    if out.is_terminal:
        out.print(Text(sentence))
    else:
        click.echo(sentence, err=True)


def print_json(facts: dict[str, Any]) -> None:
    click.echo(json.dumps(facts))


def print_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: Collection[str] = ()
) -> None:
    """Prints a table. A terminal that is too narrow breaks cells between words, and long names
    anywhere. Columns of `left` are text; the others are numbers, aligned on the right."""
    out = console()
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    for column in columns:
        justify: Any = "left" if column in left else "right"
        table.add_column(column, justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    out.print(Text(printable(title), style="italic"))
    out.print(table)
