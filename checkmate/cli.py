"""The command `checkmate`. It finds its way to the library; what it prints comes from there."""

from __future__ import annotations

import logging
import sys

import click
from rich.console import Console
from rich.table import Table

import checkmate
from checkmate.commands.completion import completion_command
from checkmate.commands.demo import demo_command
from checkmate.commands.doctor import doctor_command
from checkmate.commands.output import json_option, print_json
from checkmate.commands.plan import plan_command
from checkmate.commands.show import show_command
from checkmate.commands.simulate import simulate_command
from checkmate.commands.solve import solve_command

MISUNDERSTOOD = (
    checkmate.BudgetError,
    checkmate.GraphError,
    checkmate.LogError,
    checkmate.PlanError,
    checkmate.PlanFileError,
    checkmate.TraceError,
)
"""Errors that say that what was given cannot be read or does not belong together."""


class _Group(click.Group):
    """Turns the library's refusals into a sentence and exit status 1, or 2 where what was given is at fault."""

    def invoke(self, context: click.Context) -> None:
        try:
            super().invoke(context)
        except checkmate.CheckmateError as error:
            click.echo(f"checkmate: {error}", err=True)
            sys.exit(2 if isinstance(error, MISUNDERSTOOD) else 1)


@click.group(cls=_Group)
@click.version_option(checkmate.__version__, package_name="checkmate")
@click.option("--verbose", "-v", is_flag=True, help="Show the library's log on standard error.")
def main(verbose: bool) -> None:
    """Train TensorFlow and Keras models that do not fit, within a memory budget."""
    if verbose:
        logging.basicConfig(format="%(asctime)s %(name)s: %(message)s")
        logging.getLogger("checkmate").setLevel(logging.INFO)


for command in (demo_command, plan_command, solve_command, show_command, simulate_command, doctor_command, completion_command):
    main.add_command(command)


@main.group()
def bench() -> None:
    """Tables that anyone can reproduce; ratios are of two things measured in one run."""


@bench.command("limits")
@click.argument("models", nargs=-1)
@click.option("--budgets", default="80%,65%,50%,40%", show_default=True, help="Shares of the plain step's peak above what is resident.")
@click.option("--steps", default=4, show_default=True, help="Training steps under each budget.")
def bench_limits(models: tuple[str, ...], budgets: str, steps: int) -> None:
    """Budget, prediction and the allocator's measured peak, for MODELS (default: all)."""
    from checkmate.bench import limits
    from checkmate.bench.models import NAMES

    table, rows = Table(*limits.COLUMNS, title="measured peak against the budget, everything resident included"), []
    with Console(stderr=True).status("measuring ..."):
        for row in limits.measure(models or NAMES, budgets, steps):
            rows.append(row)
            table.add_row(*limits.cells(row))
    Console(width=max(150, Console().width)).print(table, limits.summary(rows))


@bench.command("cap")
@click.argument("models", nargs=-1, required=True)
@click.option("--cap", required=True, help="All the memory that training may take, such as 600MiB.")
@click.option("--steps", default=3, show_default=True, help="Training steps of each kind.")
def bench_cap(models: tuple[str, ...], cap: str, steps: int) -> None:
    """The largest batch that trains under one memory cap, plain and planned, for MODELS."""
    from checkmate.bench import cap as benchmark
    from checkmate.units import parse_bytes

    table = Table(*benchmark.COLUMNS, title="largest batch under a cap of the allocator")
    for name in models:
        with Console(stderr=True).status(f"measuring {name} ..."):
            table.add_row(*benchmark.cells(benchmark.measure(name, parse_bytes(cap), steps)))
    Console(width=max(120, Console().width)).print(table)


@bench.command("steps")
@click.argument("models", nargs=-1)
@click.option("--budgets", default="60%,50%,40%", show_default=True, help="Shares of the plain step's peak above what is resident.")
@click.option("--steps", default=5, show_default=True, help="Timed steps of each kind.")
def bench_steps(models: tuple[str, ...], budgets: str, steps: int) -> None:
    """Peak memory and time of the planned step against the plain one, for MODELS (default: all)."""
    from checkmate.bench import steps as benchmark

    table = Table(title="planned / plain training step; memory is the allocator's peak above the resting level")
    for column in benchmark.COLUMNS:
        table.add_column(column, justify="right")
    names = models or benchmark.NAMES
    for name in names:
        with Console(stderr=True).status(f"measuring {name} ..."):
            for row in benchmark.measure(name, budgets, steps):
                table.add_row(*row)
    Console(width=max(150, Console().width)).print(table)


@bench.command("rivals")
@click.argument("models", nargs=-1)
@click.option("--budgets", default="80%,60%,45%", show_default=True, help="Ours: shares of the plain step's peak above what is resident.")
@click.option("--methods", help="Of the others, with commas; all by default.")
@click.option("--steps", default=4, show_default=True, type=click.IntRange(1), help="Timed steps of each kind.")
@json_option
def bench_rivals(models: tuple[str, ...], budgets: str, methods: str | None, steps: int, as_json: bool) -> None:
    """Plain, XLA, Keras's RematScope and remat, and ours, for MODELS (default: mobilenet resnet50 transformer)."""
    from checkmate.bench import rivals as benchmark

    table = Table(title="memory is the allocator's peak above the resting level; time and losses are beside those of the plain step")
    for column in benchmark.COLUMNS:
        table.add_column(column, justify="left" if column in ("model", "method") else "right")
    with Console(stderr=True).status("measuring ...") as status:
        for name in models or benchmark.NAMES:
            for row in benchmark.measure(name, methods.split(",") if methods else benchmark.METHODS, budgets, steps):
                table.add_row(*benchmark.cells(row))
                status.update(f"{name} {row['method']} measured ...")
                if as_json:
                    print_json(row)
    if not as_json:
        Console(width=max(150, Console().width)).print(table)


@bench.command("solvers")
@click.argument("graphs", nargs=-1)
@click.option(
    "--shares", default="0.9,0.7,0.5,0.3,0.2,0.1", show_default=True, help="Budgets, as shares of the way from floor to plain peak."
)
@click.option("--solvers", default="auto", show_default=True, help="Names of solvers; paper:ENGINE is the paper's program alone.")
@click.option("--time-limit", default=60.0, show_default=True, help="Seconds for each.")
def bench_solvers(graphs: tuple[str, ...], shares: str, solvers: str, time_limit: float) -> None:
    """Cost, bound, gap and times of solvers on GRAPHS (default: the packaged ones; layeredN and encoderN are made by rule)."""
    from checkmate.bench import problems
    from checkmate.bench import solvers as benchmark

    names, rows = graphs or problems.packaged(), []
    table = Table(title=f"solvers within {time_limit:g} s; f is the budget's share of the way from floor to plain peak")
    for column in benchmark.COLUMNS:
        table.add_column(column, justify="right")
    with Console(stderr=True).status("solving ...") as status:
        for row in benchmark.measure(names, [float(share) for share in shares.split(",")], solvers.split(","), time_limit_s=time_limit):
            rows.append(row)
            table.add_row(*row.cells())
            status.update(" ".join(row.cells()))
    Console(width=max(150, Console().width)).print(table)
    for sentence in benchmark.times_faster(rows):
        click.echo(sentence)


@bench.command("dtr")
@click.argument("graphs", nargs=-1)
@click.option("--shares", default="90,80,70,60,50,40,30,20", show_default=True, help="Budgets, in percent of the plain step's peak.")
@click.option("--heuristics", default="dtr,dtr_eq,local,lru,size,msps,random", show_default=True, help="See `checkmate simulate --help`.")
@click.option("--theory", is_flag=True, help="Run the theorems instead: chains within 2 sqrt(N), and the adversary.")
@click.option("--plot", type=click.Path(dir_okay=False), help="With --theory: draw the chains into this .png, .svg or .pdf.")
def bench_dtr(graphs: tuple[str, ...], shares: str, heuristics: str, theory: bool, plot: str | None) -> None:
    """Overhead of DTR's heuristics on GRAPHS (default: four; also lstmN and treeN by rule), against the best plan known."""
    from checkmate.bench import dtr as benchmark

    percent = [int(share.rstrip("%")) for share in shares.split(",")]
    chains = ("layers", "budget", "e* / plain ops", "dtr_eq / plain ops")
    tables = (
        [
            ("chains within 2 sqrt(N)", chains, benchmark.chains(picture=plot)),
            ("adversary, 200 ops", ("", "B=4", "B=8", "B=16"), benchmark.duels()),
        ]
        if theory
        else [("DTR", benchmark.columns(percent), benchmark.measure(graphs or benchmark.NAMES, percent, heuristics.split(",")))]
    )
    for title, columns, rows in tables:
        table = Table(title=title)
        for column in columns:
            table.add_column(column, justify="right")
        with Console(stderr=True).status(f"{title} ...") as status:
            for row in rows:
                table.add_row(*row)
                status.update(" ".join(row))
        Console(width=max(150, Console().width)).print(table)


@bench.command("dtr-eager")
@click.argument("workloads", nargs=-1)
@click.option("--budgets", default="50%,40%", show_default=True, help="Shares of the plain step's measured peak.")
@click.option("--steps", default=5, show_default=True, help="Timed steps of each kind.")
@click.option("--trees", is_flag=True, help="Instead: the largest TreeLSTM that trains within one cap of memory.")
def bench_dtr_eager(workloads: tuple[str, ...], budgets: str, steps: int, trees: bool) -> None:
    """Eager training steps under checkmate.tf2.dtr against the plain tape, for WORKLOADS (default: all)."""
    from checkmate.bench import eager as benchmark

    table = Table(title="eager TensorFlow under dtr(); memory is the allocator's peak, variables and data included")
    for column in benchmark.TREE_COLUMNS if trees else benchmark.COLUMNS:
        table.add_column(column, justify="right")
    with Console(stderr=True).status("measuring ..."):
        for name in [""] if trees else workloads or benchmark.NAMES:
            for row in benchmark.trees() if trees else benchmark.measure(name, budgets, steps):
                table.add_row(*row)
    Console(width=max(150, Console().width)).print(table)


@bench.command("layered")
@click.argument("sizes", nargs=-1, type=int)
@click.option("--solver", default="auto", show_default=True, help="The solver that is asked within an order.")
@click.option("--seed", default=0, show_default=True, help="Of the graphs.")
@click.option("--time-limit", default=60.0, show_default=True, help="Seconds for each.")
def bench_layered(sizes: tuple[int, ...], solver: str, seed: int, time_limit: float) -> None:
    """Overhead with re-ordering on random layered graphs of SIZES ops (default: 100 250 500 1000) at 90, 80 and 70 % of their peak."""
    from checkmate.bench import layered as benchmark

    table = Table(title=f"random layered graphs, any order, {time_limit:g} s each; FastSA: published, on other graphs of this kind")
    for column in benchmark.COLUMNS:
        table.add_column(column, justify="right")
    with Console(stderr=True).status("solving ...") as status:
        for row in benchmark.measure(sizes or benchmark.SIZES, solver=solver, seed=seed, time_limit_s=time_limit):
            table.add_row(*row)
            status.update(" ".join(row))
    Console(width=max(150, Console().width)).print(table)
