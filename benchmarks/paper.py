"""`python -m benchmarks paper`: the experiments of Checkmate (Jain et al., MLSys 2020) beside the
figures that it publishes, each network in a process of its own.

`paper_batches.py` and `paper_overheads.py` say what is compared, and what is not the same.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import click

from benchmarks import paper_batches, paper_overheads
from benchmarks.commands import RowTable, numbers, stream
from checkmate.commands.options import json_option, listed, time_limit_option
from checkmate.demo.process import fresh_process, last_line
from checkmate.errors import CheckmateError
from checkmate.units import parse_bytes


@dataclass(frozen=True, slots=True)
class PaperTable:
    """A table of the paper.

    Attributes:
      title: What is in its cells.
      networks: Names of `paper_models.py`.
      columns: Their headings.
      cells: From a row to its text under them.
    """

    title: str
    networks: Sequence[str]
    columns: Sequence[str]
    cells: Callable[[dict[str, Any]], Sequence[str]]


TABLES = {
    "batches": PaperTable(
        "largest batch with at most one more forward pass; published: within 16 GB",
        paper_batches.NAMES,
        paper_batches.COLUMNS,
        paper_batches.cells,
    ),
    "overheads": PaperTable(
        "cost over the plain step's",
        paper_overheads.NAMES,
        paper_overheads.COLUMNS,
        paper_overheads.cells,
    ),
}

RATIOS = PaperTable(
    "cost divided by our plan's, geometric mean over budgets",
    paper_overheads.NAMES,
    paper_overheads.RATIO_COLUMNS,
    paper_overheads.ratio_cells,
)
"""Made of the rows of "overheads"."""

NETWORKS = tuple(dict.fromkeys(name for table in TABLES.values() for name in table.networks))

LONGEST_S = 4 * 3600
"""Limit for one network."""


def measure(
    table: str,
    names: Sequence[str] | None,
    *,
    budget_bytes: int,
    shares: Sequence[float],
    time_limit_s: float,
) -> Iterator[dict[str, Any]]:
    """Yields the rows of a table of `TABLES`; a network that failed has `error` instead of
    figures.

    Args:
      names: Networks; those that the table does not have are left out. None for all.
      budget_bytes: The budget of the batches.
      shares: The budgets of the overheads.
      time_limit_s: For each plan.
    """
    for name in TABLES[table].networks:
        if names is not None and name not in names:
            continue
        arguments = [table, name, str(budget_bytes), json.dumps(list(shares)), str(time_limit_s)]
        try:
            yield from fresh_process("benchmarks.paper", arguments, timeout_s=LONGEST_S)
        except CheckmateError as error:
            yield {"table": table, "network": name, "error": last_line(error)}


def rows(
    table: str, name: str, budget_bytes: int, shares: Sequence[float], time_limit_s: float
) -> list[dict[str, Any]]:
    """Returns the rows of one network, made in this process."""
    if table == "batches":
        return [paper_batches.row(name, budget_bytes, time_limit_s)]
    return list(paper_overheads.rows(name, shares, time_limit_s))


@click.command("paper")
@click.argument("tables", nargs=-1, type=click.Choice(list(TABLES)))
@click.option(
    "--models",
    metavar="NAMES",
    callback=listed(NETWORKS),
    help=f"Networks separated by commas: {', '.join(NETWORKS)}; all by default.",
)
@click.option(
    "--budget",
    default="16GB",
    show_default=True,
    metavar="AMOUNT",
    help="For the largest batches; the published ones are for 16 GB, not GiB.",
)
@click.option(
    "--shares",
    default=",".join(map(str, paper_overheads.SHARES)),
    show_default=True,
    callback=numbers(float),
    help="Other budgets, as shares of the way from the floor to the plain peak.",
)
@time_limit_option
@json_option
def command(
    tables: tuple[str, ...],
    models: list[str] | None,
    budget: str,
    shares: list[float],
    time_limit: float,
    as_json: bool,
) -> None:
    """The experiments of Checkmate's paper, on paper.

    TABLES are batches: the largest batch with at most one more forward pass; and overheads: cost
    against budget by every baseline, then the mean by that of our plans. Both by default. Nothing
    trains; published figures stand beside ours.

    JSON: table (batches, overheads, ratios), network, error; of batches budget_bytes, published,
    layers_plain, layers_planned, layers_at_most, traced_plain, traced_planned, seconds; of
    overheads batch, budget_bytes, plain_bytes, overhead, gap, overheads (an object, by solver),
    best_by_ours, published_best, published_linearized_sqrt_n, seconds; of ratios budgets, ratios,
    with_plan, published (objects, by solver), gap.
    """
    budget_bytes = parse_bytes(budget)
    for name in tables or TABLES:
        rows = measure(
            name, models, budget_bytes=budget_bytes, shares=shares, time_limit_s=time_limit
        )
        table = TABLES[name]
        title = f"{table.title}; {time_limit:g} s for each plan"
        done = stream(rows, _paper_table(title, table), as_json=as_json)
        if name == "overheads":
            ratios = RATIOS
            stream(
                paper_overheads.ratios(done), _paper_table(ratios.title, ratios), as_json=as_json
            )


def _paper_table(title: str, table: PaperTable) -> RowTable[dict[str, Any]]:
    return RowTable(title, table.columns, table.cells, ("network",))


if __name__ == "__main__":
    which, network, budget, asked, limit = sys.argv[1:]
    print(json.dumps(rows(which, network, int(budget), json.loads(asked), float(limit))))
