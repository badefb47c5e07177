"""The benchmarks that need no training: solvers, re-ordering, DTR's simulator, and the paper's
experiments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from checkmate.bench import dtr as dtr_benchmark
from checkmate.bench import layered as layered_benchmark
from checkmate.bench import paper as paper_benchmark
from checkmate.bench import paper_overheads, problems
from checkmate.bench import solvers as solvers_benchmark
from checkmate.commands.options import PICTURE, json_option, listed, numbers, time_limit_option
from checkmate.commands.table import RowTable, stream
from checkmate.dtr.heuristic import HEURISTICS
from checkmate.solvers.backends.engines import ENGINES
from checkmate.solvers.solve import SOLVERS
from checkmate.units import parse_bytes


@click.command("solvers")
@click.argument("graphs", nargs=-1)
@click.option(
    "--shares",
    default="0.9,0.7,0.5,0.3,0.2,0.1",
    show_default=True,
    callback=numbers(float),
    help="Budgets, as shares of the way from the floor to the plain peak.",
)
@click.option(
    "--solvers",
    default="auto",
    show_default=True,
    metavar="NAMES",
    callback=listed(SOLVERS, also=rf"paper:({'|'.join(ENGINES)})|grouped:[1-9]\d*"),
    help=(
        "Solvers separated by commas, see `checkmate solve --help`; paper:ENGINE is the paper's"
        " program alone, grouped:N the graph in N groups."
    ),
)
@time_limit_option
@json_option
def solvers(
    graphs: tuple[str, ...],
    shares: list[float],
    solvers: list[str],
    time_limit: float,
    as_json: bool,
) -> None:
    """Cost, bound, gap and times of solvers.

    GRAPHS are names of packaged graphs (all by default), layeredN, chainN and encoderN, which are
    generated, or graph files (.json, .json.gz).

    JSON: graph, ops, share, solver, overhead, bound, gap, first_s, gap_s, small_gap_s, proof_s,
    total_s, found_by, refusal.
    """
    rows = solvers_benchmark.measure(
        graphs or problems.packaged(), shares, solvers, time_limit_s=time_limit
    )
    table = RowTable(
        f"solvers within {time_limit:g} s; f is the budget's share of the way from the floor to"
        " the plain peak",
        solvers_benchmark.COLUMNS,
        solvers_benchmark.Row.cells,
        ("graph", "solver", "found by"),
        solvers_benchmark.Row.facts,
    )
    done = stream(rows, table, as_json=as_json)
    if not as_json:
        for sentence in solvers_benchmark.times_faster(done):
            click.echo(sentence)


@click.command("dtr")
@click.argument("graphs", nargs=-1)
@click.option(
    "--shares",
    default="90,80,70,60,50,40,30,20",
    show_default=True,
    callback=numbers(int),
    help="Budgets, in percent of the plain step's peak.",
)
@click.option(
    "--heuristics",
    default="dtr,dtr_eq,local,lru,size,msps,random",
    show_default=True,
    metavar="NAMES",
    callback=listed(HEURISTICS),
    help="See `checkmate simulate --help`.",
)
@click.option(
    "--theory",
    is_flag=True,
    help="Run the theorems instead: chains within 2 sqrt(N), and the adversary.",
)
@click.option(
    "--plot",
    type=PICTURE,
    help="Draw the first graph, or with --theory the chains: .png, .svg or .pdf.",
)
@json_option
def dtr(
    graphs: tuple[str, ...],
    shares: list[int],
    heuristics: list[str],
    theory: bool,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Overhead of DTR's heuristics, compared with the best plan known.

    GRAPHS are as in `bench solvers`, and also lstmN and treeN; four by default.

    JSON: graph, ops, heuristic, overhead (an object, by budget), below_2x; with --theory theorem,
    and its figures.
    """
    b, left, picture = dtr_benchmark, ("graph", "heuristic"), str(plot) if plot else None
    if theory:
        chains = RowTable("chains within 2 sqrt(N)", b.CHAIN_COLUMNS, b.chain_cells)
        stream(b.chains(picture=picture), chains, as_json=as_json)
        duels = RowTable("adversary, 200 ops", b.DUEL_COLUMNS, b.duel_cells, left)
        stream(b.duels(), duels, as_json=as_json)
        return
    rows = b.measure(graphs or b.NAMES, shares, heuristics, picture=picture)
    table = RowTable("DTR: cost divided by the plain step's", b.columns(shares), b.cells, left)
    stream(rows, table, as_json=as_json)


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
def layered(
    graphs: tuple[int | str, ...], solver: str, seed: int, time_limit: float, as_json: bool
) -> None:
    """Re-ordering on random layered graphs.

    Overhead in any order of ops at 90, 80 and 70 % of the peak of the given order. GRAPHS are
    numbers of ops of graphs to generate (default: 100 250 500 1000), or files of MOCCASIN's graphs
    (github.com/haoming-codes/moccasin, folder data), which you fetch yourself.

    JSON: graph, ops, edges, percent, budget_bytes, status, overhead, bound, given_order_bound,
    peak_bytes, recomputed, seconds, fast_sa, moccasin.
    """
    b = layered_benchmark
    rows = b.measure(graphs or b.SIZES, solver=solver, seed=seed, time_limit_s=time_limit)
    title = (
        f"layered graphs, any order, {time_limit:g} s each; FastSA, MOCCASIN: percent as published,"
        " for generated graphs on others of this kind"
    )
    stream(rows, RowTable(title, b.COLUMNS, b.cells, ("graph",)), as_json=as_json)


@click.command("paper")
@click.argument("tables", nargs=-1, type=click.Choice(list(paper_benchmark.TABLES)))
@click.option(
    "--models",
    metavar="NAMES",
    callback=listed(paper_benchmark.NETWORKS),
    help=f"Networks separated by commas: {', '.join(paper_benchmark.NETWORKS)}; all by default.",
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
def paper(
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
    for name in tables or paper_benchmark.TABLES:
        rows = paper_benchmark.measure(
            name, models, budget_bytes=budget_bytes, shares=shares, time_limit_s=time_limit
        )
        table = paper_benchmark.TABLES[name]
        title = f"{table.title}; {time_limit:g} s for each plan"
        done = stream(rows, _paper_table(title, table), as_json=as_json)
        if name == "overheads":
            ratios = paper_benchmark.RATIOS
            stream(
                paper_overheads.ratios(done), _paper_table(ratios.title, ratios), as_json=as_json
            )


def _paper_table(title: str, table: paper_benchmark.PaperTable) -> RowTable[dict[str, Any]]:
    return RowTable(title, table.columns, table.cells, ("network",))


COMMANDS = (solvers, dtr, layered, paper)
