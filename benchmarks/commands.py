"""What the commands of the benchmarks share: lists of numbers as options, and rows that take their
time as a table or as JSON lines."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import click

from checkmate.commands.options import Callback
from checkmate.commands.table import print_json, print_table
from checkmate.progress import Progress

Row = TypeVar("Row")


def numbers(kind: Callable[[str], Any]) -> Callback:
    """Callback of an option that is a comma-separated list of numbers, with or without percent
    signs."""

    def read(context: click.Context, parameter: click.Parameter, text: str) -> list[Any]:
        try:
            return [kind(part.strip().rstrip("%")) for part in text.split(",")]
        except ValueError:
            raise click.BadParameter(
                f"{text!r} is no list of numbers, such as {parameter.default}."
            ) from None

    return read


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
