"""`checkmate bench accept`: the acceptance run."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from checkmate.bench import accept as b
from checkmate.bench.accept_lines import LINES
from checkmate.commands.options import json_option, listed, output_option
from checkmate.commands.table import RowTable, stream


@click.command("accept")
@click.option(
    "--lines",
    callback=listed(LINES),
    help=f"Only these, separated by commas: {', '.join(LINES)}.",
)
@click.option("--quick", is_flag=True, help="Only a few lines, in about two minutes on a CPU.")
@output_option("Folder of the files of results.", default=".")
@json_option
def accept(lines: list[str] | None, quick: bool, output: Path, as_json: bool) -> None:
    """Does all of this work on the device that trains here?

    Nets of several kinds are trained plain and within budgets; limits, times, files, refusals, DTR,
    fit, replicas and more are tried, each line in a process of its own. A line that this machine
    cannot run says so. accept.json and accept.md in the folder have the answers, also those of a
    run that was interrupted.

    Exit status: 1 if a line failed, else 0.

    JSON: line, asks, result, why, figures, details, seconds.
    """
    rows = b.measure(b.chosen(lines, quick=quick), output)
    table = RowTable("acceptance run", b.COLUMNS, b.cells, b.COLUMNS[:-1])
    done = stream(rows, table, as_json=as_json)
    if not as_json:
        click.echo(b.summary(done))
    sys.exit(int(any(row["result"] == b.FAILED for row in done)))


COMMANDS = (accept,)
