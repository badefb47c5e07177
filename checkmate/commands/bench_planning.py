"""The benchmarks that need no training: solvers, re-ordering, and DTR's simulator."""

from __future__ import annotations

from pathlib import Path

import click

from checkmate.bench import dtr as dtr_benchmark
from checkmate.bench import layered as layered_benchmark
from checkmate.bench import problems
from checkmate.bench import solvers as solvers_benchmark
from checkmate.commands.options import PICTURE, json_option, listed, numbers, time_limit_option
from checkmate.commands.table import RowTable, stream
from checkmate.dtr.heuristic import HEURISTICS
from checkmate.solvers.backends.engines import ENGINES
from checkmate.solvers.solve import SOLVERS


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


@click.command("layered")
@click.argument("sizes", nargs=-1, type=click.IntRange(1))
@click.option(
    "--solver",
    default="auto",
    show_default=True,
    metavar="NAME",
    type=click.Choice(list(SOLVERS)),
    help="The solver that is run within an order.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of the graphs.")
@time_limit_option
@json_option
def layered(
    sizes: tuple[int, ...], solver: str, seed: int, time_limit: float, as_json: bool
) -> None:
    """Re-ordering on random layered graphs.

    Overhead in any order of ops, on graphs of SIZES ops (default: 100 250 500 1000) at 90, 80 and
    70 % of the peak of the given order.

    JSON: ops, edges, percent, budget_bytes, status, overhead, bound, given_order_bound, peak_bytes,
    recomputed, seconds, fast_sa.
    """
    b = layered_benchmark
    rows = b.measure(sizes or b.SIZES, solver=solver, seed=seed, time_limit_s=time_limit)
    title = (
        f"random layered graphs, any order, {time_limit:g} s each; FastSA: as published, on other"
        " graphs of this kind"
    )
    stream(rows, RowTable(title, b.COLUMNS, b.cells), as_json=as_json)


COMMANDS = (solvers, dtr, layered)
