"""Tables in a terminal of any width, in a file, and as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from checkmate.printable import printable
from checkmate.progress import Progress

PIPED_WIDTH = 160
"""Width of tables in a file or a pipe, in characters; a table that needs more takes more."""

ANY_WIDTH = 10_000

INTERRUPTED = 130
"""The exit status after Ctrl-C, as shells have it: 128 and the number of the signal."""

Row = TypeVar("Row")


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
    """Prints a row per line, or a paragraph per row if the terminal is too narrow; cells are never
    broken. Columns of `left` are text; the others are numbers, aligned on the right."""
    title = printable(title)
    rows = [[*map(printable, row), *[""] * (len(columns) - len(row))] for row in rows]
    table = Table(
        title=Text(title),
        title_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
        collapse_padding=True,
    )
    for column in columns:
        table.add_column(column, justify="left" if column in left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    out, wide = console(), Console(width=ANY_WIDTH)
    width = max(len(title), Measurement.get(wide, wide.options, table).maximum)
    if width <= out.width:
        out.print(table)
    elif not out.is_terminal:
        Console(width=width).print(table)
    else:
        _print_paragraphs(out, title, columns, rows)


def _print_paragraphs(
    out: Console, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]
) -> None:
    out.print(Text(title, style="italic"))
    for row in rows:
        facts = [
            f"{column} {cell}".strip()
            for column, cell in zip(columns[1:], row[1:], strict=True)
            if cell not in ("", "-")
        ]
        lines = [""]
        for fact in facts:
            if lines[-1] and len(lines[-1]) + len(fact) + 4 > out.width:
                lines.append("")
            lines[-1] += f"{fact}, "
        paragraph = [line.strip() for line in lines]
        paragraph[-1] = paragraph[-1].rstrip(",")
        together = len(paragraph) == 1 and len(row[0]) + len(paragraph[0]) + 2 <= out.width
        head = Text(f"{row[0]}: " if together else f"{row[0]}\n  ", style="bold")
        out.print(head.append("\n  ".join(paragraph), style="not bold"), soft_wrap=True)


@dataclass(frozen=True, slots=True)
class RowTable(Generic[Row]):
    """The title and columns of rows, those of `left` of text; from a row to its cells, and to its
    JSON object."""

    title: str
    columns: Sequence[str]
    cells: Callable[[Row], Sequence[str]]
    left: Collection[str] = ()
    facts: Callable[[Row], Any] = lambda row: row


def stream(rows: Iterable[Row], table: RowTable[Row], *, as_json: bool) -> list[Row]:
    """Prints rows that take their time: as JSON each at once, else as a table at the end. After
    Ctrl-C the rows so far are printed. Returns the rows."""
    done: list[Row] = []
    interrupted = False
    try:
        with Progress("checkmate") as progress, progress.phase("measuring"):
            for row in rows:
                done.append(row)
                if as_json:
                    print_json(table.facts(row))
                cells = " ".join(filter(None, table.cells(row)))
                progress.tell(f"{len(done)} done, the last: {cells}")
    except KeyboardInterrupt:
        interrupted = True
    if not as_json and done:
        print_table(table.title, table.columns, map(table.cells, done), left=table.left)
    if interrupted:
        raise click.Abort
    return done
