"""`python -m benchmarks layered`: re-ordering and recomputation on random layered graphs, which
have no backward pass, and on graphs in the files that MOCCASIN publishes.

The graphs of `problems.layered` have the structure and the numbers of ops and edges of those in the
tables of MOCCASIN (Bartan et al., ICML 2023) and FastSA ("A fast heuristic to optimize time-space
tradeoff for large models", NeurIPS 2023), but are not the same graphs: for them the published
figures show what is usual on such graphs, not which method is better on one graph. The files hold
those very graphs; `node_link_files.py` reads them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from benchmarks.commands import RowTable, stream
from benchmarks.node_link_files import load_node_link
from benchmarks.problems import layered
from checkmate.commands.options import json_option, time_limit_option
from checkmate.core.graph import DFGraph
from checkmate.core.plan import Plan
from checkmate.core.replay import replay
from checkmate.solvers.result import SolveStatus
from checkmate.solvers.solve import SOLVERS, solve

COLUMNS = (
    "graph",
    "ops",
    "edges",
    "budget",
    "overhead",
    "bound",
    "given order",
    "peak/budget",
    "recomputed",
    "s",
    "FastSA",
    "MOCCASIN",
)
SIZES = (100, 250, 500, 1000)
PERCENT = (90, 80, 70)
FAST_SA = {
    "layered100": ("0.0", "0.3", "2.2 (over)"),
    "layered250": ("0.0", "0.0", "2.6"),
    "layered500": ("0.03", "2.3", "4.8 (over)"),
    "layered1000": ("0.4", "2.5", "7.4"),
    "fcn_8_vgg": ("0.1", "0.1", "3.0"),
    "ResNet50": ("0.2", "0.4", "0.8"),
}
"""Overheads in percent that FastSA's table 1 gives, at 90, 80 and 70 % of the peak of the given
order; "over" if the plan is over the budget."""

MOCCASIN = {
    "layered100": ("0.8", "2.3", ""),
    "layered250": ("0.9", "4.9", ""),
    "layered500": ("0.7", "3.4", ""),
    "layered1000": ("0.7", "3.4", ""),
    "fcn_8_vgg": ("0.0", "0.1", ""),
    "ResNet50": ("0.2", "0.3", ""),
}
"""The same of MOCCASIN, which publishes none at 70 %."""

NOTHING = ("", "", "")
"""Of a graph without published figures."""

_IN_FILES = re.compile(r"random_(layered)_n(\d+)_.*|(fcn_8_vgg|ResNet50) \(.*_train")
"""Names of graphs in MOCCASIN's files that have published figures."""


def measure(
    graphs: Sequence[int | str],
    *,
    solver: str = "auto",
    seed: int = 0,
    time_limit_s: float = 60,
) -> Iterator[dict[str, Any]]:
    """Yields a row per graph and budget.

    Without a plan, overhead, peak_bytes and recomputed are None. bound and given_order_bound are
    divided by the plain step's cost; the latter holds for plans without re-ordering. fast_sa and
    moccasin are published overheads.

    Args:
      graphs: Numbers of ops of graphs to generate, and files.
      solver: The solver that is run within an order.
      seed: Seed of the generated graphs.
      time_limit_s: For each plan.
    """
    # All files are read first, so that a mistake in the last one is reported at once.
    problems = [
        load_node_link(graph) if isinstance(graph, str) else layered(graph, seed=seed)
        for graph in graphs
    ]
    for graph in problems:
        peak = replay(graph, Plan.keep_all(graph)).peak_bytes
        name = published_name(graph)
        fast_sa, moccasin = FAST_SA.get(name, NOTHING), MOCCASIN.get(name, NOTHING)
        for percent, *published in zip(PERCENT, fast_sa, moccasin, strict=True):
            figures = _figures(graph, peak * percent // 100, solver, time_limit_s)
            yield {"percent": percent, "fast_sa": published[0], "moccasin": published[1]} | figures


def _figures(graph: DFGraph, budget_bytes: int, solver: str, time_limit_s: float) -> dict[str, Any]:
    started = time.perf_counter()
    result = solve(
        graph, budget_bytes, solver=solver, reorder=True, time_limit_s=time_limit_s, throw=False
    )
    if result.status is SolveStatus.INTERRUPTED:
        raise KeyboardInterrupt
    return {
        "graph": graph.name,
        "ops": len(graph),
        "edges": len(graph.edges),
        "budget_bytes": budget_bytes,
        "status": result.status.name,
        "overhead": result.overhead,
        "bound": result.bound / graph.total_cost,
        "given_order_bound": (result.given_order_bound or 0) / graph.total_cost,
        "peak_bytes": result.peak_bytes,
        "recomputed": sum(result.plan.recomputed.values()) if result.plan else None,
        "seconds": time.perf_counter() - started,
    }


def published_name(graph: DFGraph) -> str:
    """The key of a graph's published figures: its own name if it was generated."""
    found = _IN_FILES.match(graph.name)
    return "".join(filter(None, found.groups())) if found else graph.name


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """A row under `COLUMNS`."""
    bounds = [f"{100 * (row[key] - 1):.2f} %" for key in ("bound", "given_order_bound")]
    found = ("none", "-", "-")
    if row["overhead"] is not None:
        found = (
            f"{100 * (row['overhead'] - 1):.2f} %",
            f"{row['peak_bytes'] / row['budget_bytes']:.4f}",
            str(row["recomputed"]),
        )
    return (
        row["graph"],
        str(row["ops"]),
        str(row["edges"]),
        f"{row['percent']} %",
        found[0],
        *bounds,
        *found[1:],
        f"{row['seconds']:.1f}",
        row["fast_sa"],
        row["moccasin"],
    )


class _SizeOrFile(click.ParamType):
    """A number of ops, or an existing file."""

    name = "graph"

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> int | str:
        """Numbers are sizes; everything else is a file."""
        if isinstance(value, int):
            return value
        if value.isdecimal() and int(value):
            return int(value)
        if not Path(value).is_file():
            self.fail(f"{value!r} is neither a number of ops nor a file.", parameter, context)
        return str(value)


@click.command("layered")
@click.argument("graphs", nargs=-1, type=_SizeOrFile())
@click.option(
    "--solver",
    default="auto",
    show_default=True,
    metavar="NAME",
    type=click.Choice(list(SOLVERS)),
    help="The solver that is run within an order.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of the generated graphs.")
@time_limit_option
@json_option
def command(
    graphs: tuple[int | str, ...], solver: str, seed: int, time_limit: float, as_json: bool
) -> None:
    """Re-ordering on random layered graphs.

    Overhead in any order of ops at 90, 80 and 70 % of the peak of the given order. GRAPHS are
    numbers of ops of graphs to generate (default: 100 250 500 1000), or files of MOCCASIN's graphs
    (github.com/haoming-codes/moccasin, folder data), which you fetch yourself.

    JSON: graph, ops, edges, percent, budget_bytes, status, overhead, bound, given_order_bound,
    peak_bytes, recomputed, seconds, fast_sa, moccasin.
    """
    rows = measure(graphs or SIZES, solver=solver, seed=seed, time_limit_s=time_limit)
    title = (
        f"layered graphs, any order, {time_limit:g} s each; FastSA, MOCCASIN: percent as published,"
        " for generated graphs on others of this kind"
    )
    stream(rows, RowTable(title, COLUMNS, cells, ("graph",)), as_json=as_json)
