"""Tables in a terminal of any width, in a file, and as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, TypeVar

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

PIPED_WIDTH = 160
"""Columns of what goes to a file or a pipe; a table that needs more takes more."""

ANY_WIDTH = 10_000

Row = TypeVar("Row")


def console() -> Console:
    """Standard output, as wide as the terminal, or wide enough for a file."""
    found = Console()
    return found if found.is_terminal else Console(width=PIPED_WIDTH)


def complain(sentence: str) -> None:
    """Says on standard error what went wrong; in a terminal no word is broken."""
    out = Console(stderr=True)
    if out.is_terminal:
        out.print(Text(f"checkmate: {sentence}"))
    else:
        click.echo(f"checkmate: {sentence}", err=True)


def print_json(facts: dict[str, Any]) -> None:
    """One line of JSON."""
    click.echo(json.dumps(facts))


def print_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: Collection[str] = ()
) -> None:
    """Prints a row per line, or, where a terminal is too narrow for that, a paragraph per row.
    Cells are never broken.

    Args:
      left: Columns of text; the others are aligned on the right, as figures are.
    """
    rows = [list(row) + [""] * (len(columns) - len(row)) for row in rows]
    table = Table(
        title=title,
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
    out.print(title, style="italic", highlight=False, markup=False)
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


def stream(
    rows: Iterable[Row], title: str, columns: Sequence[str], cells: Callable[[Row], Sequence[str]], *,
    as_json: bool, left: Collection[str] = (), facts: Callable[[Row], Any] = lambda row: row,
) -> list[Row]:  # fmt: skip
    """Prints rows that take their time: as JSON each at once, else as a table at the end. Ctrl-C
    ends it with the rows so far.

    Args:
      cells: From a row to its text under `columns`.
      facts: From a row to its JSON object.

    Returns:
      The rows.
    """
    done: list[Row] = []
    interrupted = False
    try:
        with Console(stderr=True).status("working ...") as status:
            for row in rows:
                done.append(row)
                if as_json:
                    print_json(facts(row))
                status.update(" ".join(filter(None, cells(row))))
    except KeyboardInterrupt:
        interrupted = True
    if not as_json and done:
        print_table(title, columns, [cells(row) for row in done], left=left)
    if interrupted:
        raise click.Abort
    return done
