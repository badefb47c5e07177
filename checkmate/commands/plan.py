"""`checkmate plan`: from a model to its graph and plans, as files."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import click

from checkmate.commands.options import (
    budget_option,
    json_option,
    reorder_option,
    solver_option,
    time_limit_option,
)
from checkmate.commands.output import Found, print_found, solve_each, status_of
from checkmate.commands.quiet import quietly
from checkmate.core.graph import DFGraph
from checkmate.core.plan import Plan
from checkmate.progress import Progress


@click.command("plan")
@click.argument("model")
@click.option(
    "--batch", default=32, show_default=True, type=click.IntRange(1), help="Examples in a batch."
)
@click.option(
    "--size",
    type=click.IntRange(1),
    help="Pixels of an image's side, where the model does not say.",
)
@budget_option
@click.option(
    "--loss", help="A Keras loss; by default the model's own, or what goes with its last layer."
)
@click.option("--optimizer", default="adam", show_default=True, help="A Keras optimizer.")
@click.option(
    "--costs", default="profile", show_default=True, type=click.Choice(["profile", "roofline", "unit"]),
    help="How ops are timed: measured on this device, from sizes and arithmetic alone, or all alike.",
)  # fmt: skip
@solver_option
@time_limit_option
@reorder_option
@click.option(
    "--output",
    "-o",
    default=".",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the files; here by default.",
)
@json_option
def plan_command(
    model: str, batch: int, size: int | None, budgets: tuple[str, ...], loss: str | None, optimizer: str, costs: str,
    solver: str, time_limit: float, reorder: bool, output: Path, as_json: bool,
) -> None:  # fmt: skip
    """Plan a model's training step, as files.

    Writes the graph of the step and a plan for each budget.

    MODEL is a name of keras.applications in upper or lower case, a .keras file, or module:function,
    which returns (model, loss) or (model, loss, inputs, labels). The step is traced, not run; peaks
    are predicted. `checkmate show` draws what is written, and `checkmate.tf2.compile(...,
    plan=FILE)` runs it.

    Exit status 0 if every budget has a plan, 1 if one has none, 2 if the command cannot be
    understood.

    Example: checkmate plan resnet50 --batch 64 -b 6GiB,60%
    """
    name = f"{re.sub('[^0-9A-Za-z]+', '-', Path(model).stem if model.endswith('.keras') else model).strip('-').lower()}-b{batch}"
    output.mkdir(parents=True, exist_ok=True)
    with Progress(name) as progress:
        with progress.phase("loading TensorFlow"), quietly():
            from checkmate.tf2.costs.measured import with_costs
            from checkmate.tf2.models import traced_step
            from checkmate.tf2.planning import plan_files
        with progress.phase("tracing"):
            traced = traced_step(model, batch=batch, size=size, loss=loss, optimizer=optimizer)
        with progress.phase("measuring ops"):
            graph = with_costs(traced, costs, on_progress=progress.advance)
    graph_file = output / f"{name}.graph.json"
    graph.save(graph_file)

    def save(plan: Plan, path: Path, *, graph: DFGraph, **facts: Any) -> None:
        facts |= {"unchanged": False, "measured_peak_bytes": None}
        plan_files.save(path, traced, graph, plan, facts)

    found = solve_each(
        graph,
        budgets,
        solver=solver,
        time_limit_s=time_limit,
        reorder=reorder,
        folder=output,
        graph_file=graph_file.name,
        save=save,
    )
    print_found(
        graph,
        found,
        as_json=as_json,
        graph_file=str(graph_file),
        more=(f"Written: {graph_file}", *_next(found)),
    )
    sys.exit(status_of(found))


def _next(found: list[Found]) -> tuple[str, ...]:
    """What to do with the plan of the smallest budget."""
    files = [str(one.file) for one in found if one.file]
    if not files:
        return ()
    return (
        f"See one:  checkmate show {files[-1]} --html plan.html",
        f'Run one:  checkmate.tf2.compile(..., plan="{files[-1]}")',
    )
