"""`checkmate simulate`: simulates dynamic rematerialization of an op log or a graph."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from checkmate.commands.options import (
    PICTURE,
    NumberFrom,
    each_budget,
    json_option,
    listed,
    readable_budgets,
)
from checkmate.commands.table import complain, print_json, print_table
from checkmate.dtr.heuristic import HEURISTICS
from checkmate.dtr.pool import Search
from checkmate.dtr.program import Program
from checkmate.dtr.runtime import Deallocation
from checkmate.dtr.simulator import DTRRun, DTRStatus, as_program, simulate
from checkmate.progress import Progress
from checkmate.units import format_bytes

GRID = tuple(f"{share}%" for share in range(100, 10, -10))

COLUMNS = ("heuristic", "budget", "status", "extra time", "peak", "evictions", "recomputed", "time")


@click.command("simulate")
@click.argument("file", metavar="LOG|GRAPH", type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--budget",
    "-b",
    "budgets",
    multiple=True,
    metavar="AMOUNT",
    callback=readable_budgets,
    help=(
        "Memory, constants included: 6GiB, 800MB, or a share of the peak without a budget. Separate"
        " several with commas, or repeat the option. Default: 50%; with --plot 100% to 20%."
    ),
)
@click.option(
    "--heuristic",
    "-e",
    "heuristics",
    metavar="NAMES",
    callback=listed(HEURISTICS),
    help=(
        f"Separated by commas: {', '.join(HEURISTICS)}; or all. Default: dtr_eq; with --plot all."
    ),
)
@click.option(
    "--deallocation",
    type=click.Choice([policy.value for policy in Deallocation]),
    default=Deallocation.EAGER.value,
    show_default=True,
    help="When a value has no reference left: ignore that, evict it at once, or banish it.",
)
@click.option(
    "--overhead-limit",
    default=2.0,
    show_default=True,
    type=NumberFrom(1),
    help="A run that costs this many times the plain program is stopped as thrashed.",
)
@click.option(
    "--sample", is_flag=True, help="Compare a sample of the evictable values, about sqrt(n) of n."
)
@click.option(
    "--smallest",
    default=0.0,
    show_default=True,
    type=NumberFrom(0),
    help="Ignore values below this share of the mean size.",
)
@click.option(
    "--seed", default=0, show_default=True, help="Seed of --sample and of the heuristic random."
)
@click.option("--plot", type=PICTURE, help="Draw cost against budget: .png, .svg or .pdf.")
@json_option
def simulate_command(
    file: str,
    budgets: tuple[str, ...],
    heuristics: list[str] | None,
    plot: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Simulate DTR on an op log or a graph.

    LOG is an op log (JSON lines in DTR's format), GRAPH a graph file. The simulation evicts and
    recomputes values within the budget as DTR does.

    Exit status: 0 if every run ends within its budget, 1 if one runs out of memory or thrashes
    (with --plot, 0), 2 if the command or the file is not valid.

    Example: checkmate simulate resnet.log -b 50%,30% -e dtr_eq,lru
    """
    program = as_program(file)
    names = heuristics or (list(HEURISTICS) if plot else ["dtr_eq"])
    asked = each_budget(
        budgets or (GRID if plot else ("50%",)), percent_of=program.plain_peak_bytes
    )
    search = Search(*(options.pop(name) for name in ("sample", "smallest", "seed")))
    runs = list(_runs(program, asked, names, {**options, "search": search}))
    if as_json:
        for run in runs:
            print_json(facts_of(run))
    else:
        _print(program, runs)
    if plot:
        overhead_curve(program.name, runs).save(plot)
    sys.exit(0 if plot or all(run.status is DTRStatus.OK for run in runs) else 1)


def _runs(
    program: Program,
    budgets: Sequence[tuple[str, int]],
    names: Sequence[str],
    options: dict[str, Any],
) -> Iterator[DTRRun]:
    asked = [(name, *budget) for name in names for budget in budgets]
    phases = {f"{name} within {budget}": k for k, (name, budget, _) in enumerate(asked, 1)}
    with Progress(program.name or "program", phases) as progress:
        for name, budget, budget_bytes in asked:
            with progress.phase(f"{name} within {budget}"):
                run = simulate(program, budget_bytes, heuristic=name, **options)
            yield run


def facts_of(run: DTRRun) -> dict[str, Any]:
    facts = {field.name: getattr(run, field.name) for field in fields(run) if field.name != "plan"}
    return {
        **facts,
        "status": run.status.value,
        "overhead": run.overhead,
        "message": run.message or None,
    }


def _print(program: Program, runs: Sequence[DTRRun]) -> None:
    title = (
        f"DTR of {program.name or 'the program'}; without a budget its peak is"
        f" {format_bytes(program.plain_peak_bytes)}"
    )
    rows = []
    for run in runs:
        more = "" if run.status is DTRStatus.OK else "> "
        budget, peak = format_bytes(run.budget_bytes), format_bytes(run.peak_bytes)
        extra, seconds = f"{more}{run.overhead - 1:+.2%}", f"{run.seconds:.2f} s"
        counts = str(run.evictions), str(run.rematerializations)
        rows.append((run.heuristic, budget, run.status.value, extra, peak, *counts, seconds))
    print_table(title, COLUMNS, rows, left=("heuristic", "status"))
    if len(runs) == 1 and runs[0].message:
        complain(runs[0].message)


def overhead_curve(name: str, runs: Sequence[DTRRun]) -> Any:
    from checkmate.plot.curves import online_curve

    lines: dict[str, list[DTRRun]] = {}
    for run in runs:
        lines.setdefault(run.heuristic, []).append(run)
    return online_curve(
        lines, plain_bytes=runs[0].plain_peak_bytes, name=f"DTR of {name}" if name else "DTR"
    )
