"""`python -m benchmarks dtr`: overhead of DTR's heuristics within budgets, compared with the best
plan known; and its theorems, run.

A budget is a share of the plain step's peak, fixed bytes included. "best" is what
`solve(solver="auto")` finds and "bound" what it proves within three seconds, for graphs of up
to `PLANNED_OPS` ops. "below 2x" is the smallest budget of a grid of 5 % down to which a heuristic
never thrashes or runs out of memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from benchmarks.commands import RowTable, numbers, stream
from benchmarks.problems import load
from benchmarks.recurrent import lstm, tree_lstm
from benchmarks.theory import E_STAR, adversary, linear_network, square_root_budget
from checkmate.commands.options import PICTURE, json_option, listed
from checkmate.core.graph import DFGraph
from checkmate.dtr.heuristic import HEURISTICS
from checkmate.dtr.program import Program
from checkmate.dtr.simulator import DTRRun, DTRStatus, simulate
from checkmate.plot.curves import online_curve
from checkmate.plot.picture import Picture, drawing, finished, series
from checkmate.solvers.result import SolveResult
from checkmate.solvers.solve import solve

NAMES = ("resnet50", "transformer12", "lstm40", "tree24")
PLANNED_OPS = 1500
GRID = tuple(range(95, 0, -5))
LAYERS = (64, 256, 1024, 4096, 16384)
CHAIN_COLUMNS = ("layers", "budget", "e* / plain ops", "dtr_eq / plain ops")
DUEL_COLUMNS = ("heuristic", "B=4", "B=8", "B=16")


def columns(shares: Sequence[int]) -> tuple[str, ...]:
    """The heads of the table."""
    return ("graph", "ops", "heuristic", *(f"{share}%" for share in shares), "below 2x")


def load_graph(name: str) -> DFGraph:
    """A graph of `benchmarks.problems`, or `lstmN` (N steps) or `treeN` (N leaves)."""
    rule = re.fullmatch(r"(lstm|tree)([1-9]\d*)", name)
    if not rule:
        return load(name)
    return (lstm if rule[1] == "lstm" else tree_lstm)(int(rule[2]))


def measure(
    names: Sequence[str],
    shares: Sequence[int],
    heuristics: Sequence[str],
    *,
    time_limit_s: float = 3,
    picture: str | None = None,
) -> Iterator[dict[str, Any]]:
    """What was found: for a graph a row per heuristic, then the best plans, then what is proven of
    any. The first is drawn into `picture`.

    Keys: graph, ops, heuristic (or "best", "bound"), overhead (by budget, as "90%"; in its place
    "oom" or "thrashed", or None for no plan), and of heuristics below_2x (the smallest share of the
    peak, in percent, down to which every run ends below twice the plain cost).
    """
    for name in names:
        graph = load_graph(name)
        program = Program.from_graph(graph)
        of_graph = {"graph": name, "ops": len(graph)}
        lines: dict[str, list[DTRRun]] = {}
        best: dict[int, float] = {}
        for heuristic in heuristics:
            runs = lines[heuristic] = [
                simulate(program, f"{share}%", heuristic=heuristic) for share in shares
            ]
            yield {
                **of_graph,
                "heuristic": heuristic,
                "overhead": _by_share(shares, map(_overhead, runs)),
                "below_2x": reach(program, heuristic),
            }
        if len(graph) <= PLANNED_OPS:
            results = _planned(graph, shares, time_limit_s)
            overheads = [result.overhead for result in results]
            bounds = [result.bound / (graph.total_cost or 1) for result in results]
            yield {**of_graph, "heuristic": "best", "overhead": _by_share(shares, overheads)}
            yield {**of_graph, "heuristic": "bound", "overhead": _by_share(shares, bounds)}
            best = {r.budget_bytes: r.overhead for r in results if r.overhead is not None}
        if picture and name == names[0]:
            online_curve(
                lines, plain_bytes=program.plain_peak_bytes, best=best, name=f"DTR of {name}"
            ).save(picture)


def _planned(graph: DFGraph, shares: Sequence[int], time_limit_s: float) -> list[SolveResult]:
    options: dict[str, Any] = {"solver": "auto", "time_limit_s": time_limit_s, "throw": False}
    return [solve(graph, f"{share}%", **options) for share in shares]


def _by_share(shares: Sequence[int], figures: Iterable[Any]) -> dict[str, Any]:
    return {f"{share}%": figure for share, figure in zip(shares, figures, strict=True)}


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """A row of `measure` under `columns`."""
    reached = f"{row['below_2x']}%" if "below_2x" in row else ""
    return (
        row["graph"],
        str(row["ops"]),
        row["heuristic"],
        *map(_cell, row["overhead"].values()),
        reached,
    )


def reach(program: Program, heuristic: str) -> int:
    """Down to which share of the peak, in percent, every run of the grid ends below twice the plain
    cost."""
    reached = 100
    for share in GRID:
        if simulate(program, f"{share}%", heuristic=heuristic).status is not DTRStatus.OK:
            break
        reached = share
    return reached


def growth_curve(methods: Mapping[str, Iterable[tuple[int, float]]], name: str) -> Picture:
    """Cost, divided by the plain cost, against the number of layers: for each method its (layers,
    overhead)."""
    with drawing(3.2) as (figure, axis):
        for k, (method, points) in enumerate(methods.items()):
            axis.plot(*zip(*points, strict=True), linewidth=1.5, label=method, **series(k))
        axis.set_xscale("log", base=2)
        axis.set_ylim(bottom=1)
        axis.set(xlabel="layers", ylabel="ops run, over those of the plain run")
        return finished(figure, name, ncols=5)


def chains(layers: Sequence[int] = LAYERS, picture: str | None = None) -> Iterator[dict[str, Any]]:
    """Theorem 3.1, run: a chain within 2 sqrt(N). What is found is drawn into the file `picture`.

    Keys: theorem, layers, budget (values), and e* and dtr_eq: the ops run over the 2 N of the plain
    step, or how the run ended.
    """
    lines: dict[str, list[tuple[int, float]]] = {"e*": [], "dtr_eq": []}
    for n in layers:
        program, budget = linear_network(n), square_root_budget(n)
        runs = [
            simulate(program, budget, heuristic=heuristic, deallocation="banish")
            for heuristic in (E_STAR, "dtr_eq")
        ]
        for points, run in zip(lines.values(), runs, strict=True):
            points.append((n, run.overhead))
        yield {
            "theorem": "3.1",
            "layers": n,
            "budget": budget,
            **dict(zip(lines, map(_overhead, runs), strict=True)),
        }
    if picture:
        growth_curve(lines, "DTR on a chain of N layers within 2 sqrt(N) values").save(picture)


def chain_cells(row: dict[str, Any]) -> tuple[str, ...]:
    """A row of `chains` under `CHAIN_COLUMNS`."""
    return (str(row["layers"]), str(row["budget"]), _cell(row["e*"]), _cell(row["dtr_eq"]))


def duels(ops: int = 200, budgets: Sequence[int] = (4, 8, 16)) -> Iterator[dict[str, Any]]:
    """Theorem 3.2, run. Keys: theorem, heuristic, ops, ratio (ops run over ops needed, by budget,
    as "4")."""
    for name in ("dtr", "dtr_eq", "local", "lru", "msps"):
        ratios = {str(budget): adversary(HEURISTICS[name], ops, budget).ratio for budget in budgets}
        yield {"theorem": "3.2", "heuristic": name, "ops": ops, "ratio": ratios}


def duel_cells(row: dict[str, Any]) -> tuple[str, ...]:
    """A row of `duels` under `DUEL_COLUMNS`."""
    return (row["heuristic"], *(f"{ratio:.1f}" for ratio in row["ratio"].values()))


def _overhead(run: DTRRun) -> float | str:
    return run.overhead if run.status is DTRStatus.OK else run.status.value


def _cell(found: float | str | None) -> str:
    return "-" if found is None else found if isinstance(found, str) else f"{found:.3f}"


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
def command(
    graphs: tuple[str, ...],
    shares: list[int],
    heuristics: list[str],
    theory: bool,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Overhead of DTR's heuristics, compared with the best plan known.

    GRAPHS are as in `benchmarks solvers`, and also lstmN and treeN; four by default.

    JSON: graph, ops, heuristic, overhead (an object, by budget), below_2x; with --theory theorem,
    and its figures.
    """
    left, picture = ("graph", "heuristic"), str(plot) if plot else None
    if theory:
        squares = RowTable("chains within 2 sqrt(N)", CHAIN_COLUMNS, chain_cells)
        stream(chains(picture=picture), squares, as_json=as_json)
        adversaries = RowTable("adversary, 200 ops", DUEL_COLUMNS, duel_cells, left)
        stream(duels(), adversaries, as_json=as_json)
        return
    rows = measure(graphs or NAMES, shares, heuristics, picture=picture)
    table = RowTable("DTR: cost divided by the plain step's", columns(shares), cells, left)
    stream(rows, table, as_json=as_json)
