"""The command `checkmate`. It finds its way to the library; what it prints comes from there."""

from __future__ import annotations

import sys

import click
from rich.console import Console
from rich.table import Table

import checkmate
from checkmate.commands.completion import completion_command
from checkmate.commands.doctor import doctor_command
from checkmate.commands.plan import plan_command
from checkmate.commands.show import show_command
from checkmate.commands.solve import solve_command
from checkmate.units import format_bytes

MISUNDERSTOOD = (checkmate.BudgetError, checkmate.GraphError, checkmate.PlanError, checkmate.PlanFileError)
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
def main() -> None:
    """Train TensorFlow and Keras models that do not fit, within a memory budget."""


for command in (plan_command, solve_command, show_command, doctor_command, completion_command):
    main.add_command(command)


@main.command()
@click.option("--model", default="mobilenet", show_default=True, help="A workload: see `checkmate bench steps --help`.")
@click.option("--budget", default="60%", show_default=True, help="Amount of memory, or a share of the plain step's predicted peak.")
@click.option("--steps", default=4, show_default=True, help="Training steps.")
@click.option("--report", is_flag=True, help="Also print what the planned step reports of itself.")
def demo(model: str, budget: str, steps: int, report: bool) -> None:
    """Train a real model for a few steps, plain and under a budget, and measure both.

    Each run is a fresh process in which TensorFlow's own allocator counts. Exit status 0 only if the measured peak is within the
    budget and the losses agree.
    """
    from checkmate.bench.demo import LOSS_TOLERANCE, run_demo

    with Console(stderr=True).status(f"training {model}, plain and within {budget} ..."):
        found = run_demo(model, budget, steps)
    table = Table(title=f"{found.model}, {steps} training steps on {found.device}")
    for column in ("", "measured peak", "step time", "first loss", "last loss"):
        table.add_column(column, justify="left" if not column else "right")
    for name, row in (("plain", found.plain), (f"budget {format_bytes(found.budget_bytes)}", found.planned)):
        table.add_row(name, format_bytes(row.peak_bytes), f"{row.step_s:.2f} s", f"{row.losses[0]:.6f}", f"{row.losses[-1]:.6f}")
    console = Console()
    console.print(table)
    console.print(found.sentence(), highlight=False, soft_wrap=not console.is_terminal)
    if report:
        click.echo(found.report)
    if not found.losses_agree:
        click.echo(f"checkmate: the losses differ by more than {LOSS_TOLERANCE:.0e} of their size.", err=True)
    if not found.within_budget:
        click.echo("checkmate: the measured peak is above the budget.", err=True)
    sys.exit(0 if found.losses_agree and found.within_budget else 1)


@main.group()
def bench() -> None:
    """Tables that anyone can reproduce; ratios are of two things measured in one run."""


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
