"""`checkmate demo`: trains a model plain and within a budget."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import click

from checkmate.commands.options import PICTURE, NameOf, json_option, readable_budgets, steps_option
from checkmate.commands.table import complain, print_json, print_table, say
from checkmate.demo import WORKLOADS
from checkmate.demo.demo import LOSS_TOLERANCE, PHASES, Demo, run_demo
from checkmate.progress import Progress
from checkmate.units import format_bytes


@click.command("demo")
@click.option(
    "--model",
    default="mobilenet",
    show_default=True,
    type=NameOf(WORKLOADS, "workload"),
    metavar="NAME",
    help=f"One of {', '.join(WORKLOADS)}.",
)
@click.option(
    "--budget",
    default="60%",
    show_default=True,
    callback=readable_budgets,
    help="Amount of memory, or a share of the plain step's predicted peak.",
)
@steps_option(4, "Training steps.")
@click.option("--report", is_flag=True, help="Also print the planned step's report.")
@click.option(
    "--picture", type=PICTURE, help="Draw the measured memory over a step: .png, .svg or .pdf."
)
@json_option
def demo_command(
    model: str, budget: str, steps: int, report: bool, picture: Path | None, as_json: bool
) -> None:
    """Train a model plain and within a budget, and compare.

    Each training runs in its own process, and TensorFlow's allocator measures its memory.

    Exit status: 0 if the measured peak is within the budget and the losses agree, else 1.

    JSON: model, device, budget_bytes, within_budget, losses_agree, report, and of the trainings
    plain and planned peak_bytes, step_s, losses and in_use.
    """
    with Progress(f"demo of {model}", PHASES) as progress:
        found = run_demo(model, budget, steps, watch=picture is not None, phase=progress.phase)
    if picture:
        from checkmate import plot

        runs = {"plain step": found.plain.in_use, "planned step": found.planned.in_use}
        plot.measured(runs, budget_bytes=found.budget_bytes, name=found.model).save(picture)
    if as_json:
        verdict = {"within_budget": found.within_budget, "losses_agree": found.losses_agree}
        print_json({**asdict(found), **verdict})
        sys.exit(0 if found.losses_agree and found.within_budget else 1)
    _print(found, steps)
    if report:
        click.echo(found.report)
    if not found.losses_agree:
        complain(f"the losses differ by more than {LOSS_TOLERANCE:.0e} of their size.")
    if not found.within_budget:
        complain("the measured peak is above the budget.")
    sys.exit(0 if found.losses_agree and found.within_budget else 1)


def _print(found: Demo, steps: int) -> None:
    rows = []
    for name, run in {"plain": found.plain, "planned": found.planned}.items():
        losses = [f"{run.losses[k]:.6f}" for k in (0, -1)]
        rows.append((name, format_bytes(run.peak_bytes), f"{run.step_s:.2f} s", *losses))
    title = f"{found.model}, {steps} training steps on {found.device}"
    title += f", budget {format_bytes(found.budget_bytes)}"
    columns = ("step", "measured peak", "step time", "first loss", "last loss")
    print_table(title, columns, rows, left=("step",))
    say(found.sentence())
