"""`checkmate plan`: writes the graph of a model's training step, and plans of it, to files."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from checkmate.commands.options import (
    SearchOptions,
    batch_option,
    budget_option,
    json_option,
    micro_batches_option,
    optimizer_option,
    output_option,
    rewrites_option,
    rounding_option,
    search_options,
    size_option,
)
from checkmate.commands.output import Found, print_found, status_of, written
from checkmate.commands.quiet import quietly
from checkmate.commands.table import print_json, say
from checkmate.progress import Progress


@click.command("plan")
@click.argument("model")
@batch_option
@size_option
@budget_option
@click.option(
    "--loss", help="A Keras loss; by default the model's own, or one that fits its last layer."
)
@optimizer_option
@click.option(
    "--costs",
    default="profile",
    show_default=True,
    type=click.Choice(["profile", "roofline", "unit"]),
    help="Costs of ops: measured here, estimated from sizes and arithmetic, or all equal.",
)
@click.option(
    "--device",
    metavar="NAME|AMOUNT|FILE",
    help=(
        "Also say whether the step fits this device, and which batch would: a GPU such as"
        " A100-80GB, an amount of memory, or a file of `checkmate profile`. Costs are then of it."
    ),
)
@micro_batches_option
@rewrites_option
@rounding_option
@search_options
@output_option("Folder for the files.", default=".")
@json_option
def plan_command(
    model: str,
    budgets: tuple[str, ...],
    costs: str,
    device: str | None,
    micro_batches: int | str,
    rewrites: list[str],
    rounding: bool,
    search: SearchOptions,
    output: Path,
    as_json: bool,
    **training: Any,
) -> None:
    """Plan a model's training step, as files.

    Writes the graph of the step and a plan for each budget.

    MODEL is a name of keras.applications in upper or lower case, a .keras file, or module:function
    for a function that returns a model, compiled or not, (model, loss), or (model, loss, inputs,
    labels). The step is traced, not run; peaks are predicted. `checkmate show` draws the files, and
    `checkmate.tf2.compile(..., plan=FILE)` runs a plan.

    Where an op needs too much of a budget, the plan is one of the step with its largest ops in
    parts, and a graph file of its own is written.

    With --micro-batches, graph and plan are those of a slice of the batch, and a plan costs what a
    slice does, without the update of the optimizer; give the same to `compile`.

    With --device nothing is measured here; files are written for the budgets of -b, or with
    --micro-batches for that of the device, alone.

    Exit status: 0 if every budget has a plan, 1 if one has none, 2 if the command or the model is
    not valid, 130 after Ctrl-C, which keeps the best plan so far.

    Example: checkmate plan resnet50 --batch 64 -b 6GiB,60%
    """
    stem = Path(model).stem if model.endswith(".keras") else model
    name = re.sub("[^0-9A-Za-z]+", "-", stem).strip("-").lower() + f"-b{training['batch']}"
    output.mkdir(parents=True, exist_ok=True)
    phases = {"loading TensorFlow": 1, "tracing": 2, "measuring ops": 3}
    with Progress(name, phases) as progress:
        with progress.phase("loading TensorFlow"), quietly():
            from checkmate.commands.plan_slices import SliceGraphs
            from checkmate.tf2.costs.device_profile import DeviceProfile
            from checkmate.tf2.models import step_on_paper
            from checkmate.tf2.rewrites.split import Split
        profile = DeviceProfile.of(device) if device else None
        with progress.phase("tracing"):
            step, keras_model = step_on_paper(model, **training)
    allowed = Split(
        0, tuple({*rewrites} - {"none"}), rounding, tried=costs == "profile" and not profile
    )
    status = 0
    if profile:
        answer = _on_device(step, keras_model, profile, search, allowed, as_json=as_json)
        status = int(not answer)
        if click.get_current_context().get_parameter_source("budgets") is ParameterSource.DEFAULT:
            if micro_batches == 1:
                sys.exit(status)
            budgets, status = (f"{answer.budget_bytes} B",), 0
    with Progress(name, phases) as progress, progress.phase("measuring ops"):
        model_costs = profile.cost_model if profile else costs
        graphs = SliceGraphs(step, model_costs, allowed, progress.advance)
    for sliced, found in graphs.plans(budgets, search, micro_batches):
        graph_file = output / f"{name}{sliced.suffix}.graph.json"
        sliced.graph.save(graph_file)
        done = [written(one, sliced.graph, output, graph_file.name, sliced.save) for one in found]
        more = (f"Written: {graph_file}", *_next(done, sliced.suffix and sliced.slices.count))
        print_found(
            sliced.graph,
            done,
            as_json=as_json,
            graph_file=str(graph_file),
            plain_bytes=sliced.plain_bytes if sliced.split else 0,
            more=more,
        )
        status = max(status, status_of(done))
    sys.exit(status)


def _on_device(
    step: Any, model: Any, profile: Any, search: SearchOptions, allowed: Any, *, as_json: bool
) -> Any:
    from checkmate.tf2.fits import step_fits
    from checkmate.tf2.options import PlanOptions
    from checkmate.tf2.uninitialized import uninitialized_variables

    asked = PlanOptions(
        solver=search.solver,
        keep=search.keep,
        recompute=search.recompute,
        rewrites=allowed.kinds,
        rounding=allowed.sums,
        verbose=False,
    )
    name = step.traced.graph.name
    with uninitialized_variables(), Progress(name) as progress:
        answer = step_fits(step.source, step.specs, name, profile, asked, progress, model=model)
    if as_json:
        print_json(dataclasses.asdict(answer))
    else:
        for line in str(answer).splitlines():
            say(line, is_whole=True)
    return answer


def _next(found: list[Found], micro_batches: Any) -> tuple[str, ...]:
    more = f", micro_batches={micro_batches}" if micro_batches else ""
    files = [str(one.file) for one in found if one.file]
    if not files:
        return ()
    return (
        f"See one:  checkmate show {files[-1]} --html plan.html",
        f'Run one:  checkmate.tf2.compile(..., plan="{files[-1]}"{more})',
    )
