"""`checkmate demo`: a real model trained plain and within a budget."""

from __future__ import annotations

import sys
from dataclasses import asdict

import click

from checkmate.commands.options import json_option
from checkmate.commands.table import complain, console, print_json, print_table
from checkmate.progress import Progress
from checkmate.units import format_bytes


@click.command("demo")
@click.option(
    "--model",
    default="mobilenet",
    show_default=True,
    help="A workload: see `checkmate bench steps --help`.",
)
@click.option(
    "--budget",
    default="60%",
    show_default=True,
    help="Amount of memory, or a share of the plain step's predicted peak.",
)
@click.option(
    "--steps", default=4, show_default=True, type=click.IntRange(1), help="Training steps."
)
@click.option("--report", is_flag=True, help="Also print what the planned step reports of itself.")
@click.option(
    "--picture",
    type=click.Path(dir_okay=False),
    help="Draw the measured memory over a step into this .png, .svg or .pdf.",
)
@json_option
def demo_command(
    model: str, budget: str, steps: int, report: bool, picture: str | None, as_json: bool
) -> None:
    """Train a model plain and under a budget, and compare.

    A real model, a few steps, both measured. Each run is a fresh process in which TensorFlow's own
    allocator counts. Exit status 0 only if the measured peak is within the budget and the losses
    agree. Where they differ, the plain training runs once more, from weights a last bit off, which
    tells how much of that is the model's own sensitivity. With --json: model, device, budget_bytes,
    within_budget, losses_agree, and of the plain, the planned and that third ("moved", or null)
    training peak_bytes, step_s and losses.
    """
    from checkmate import plot
    from checkmate.bench.demo import LOSS_TOLERANCE, run_demo

    with (
        Progress("demo") as progress,
        progress.phase(f"training {model}, plain and within {budget}"),
    ):
        found = run_demo(model, budget, steps, watch=picture is not None)
    if picture:
        runs = {"plain step": found.plain.in_use, "planned step": found.planned.in_use}
        plot.measured(runs, budget_bytes=found.budget_bytes, name=found.model).save(picture)
    if as_json:
        print_json(
            {
                **asdict(found),
                "within_budget": found.within_budget,
                "losses_agree": found.losses_agree,
            }
        )
        sys.exit(0 if found.losses_agree and found.within_budget else 1)
    rows = [
        (
            name,
            format_bytes(row.peak_bytes),
            f"{row.step_s:.2f} s",
            f"{row.losses[0]:.6f}",
            f"{row.losses[-1]:.6f}",
        )
        for name, row in (
            ("plain", found.plain),
            (f"budget {format_bytes(found.budget_bytes)}", found.planned),
        )
    ]
    title = f"{found.model}, {steps} training steps on {found.device}"
    print_table(
        title, ("", "measured peak", "step time", "first loss", "last loss"), rows, left=("",)
    )
    out = console()
    out.print(found.sentence(), highlight=False, soft_wrap=not out.is_terminal)
    if report:
        click.echo(found.report)
    if not found.losses_agree:
        complain(f"the losses differ by more than {LOSS_TOLERANCE:.0e} of their size.")
    if not found.within_budget:
        complain("the measured peak is above the budget.")
    sys.exit(0 if found.losses_agree and found.within_budget else 1)
