"""`checkmate zoo`: plans made in advance, in a folder where scripts find them."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import click

from checkmate.commands.options import (
    batch_option,
    json_option,
    micro_batches_option,
    optimizer_option,
    output_option,
    readable_budgets,
    size_option,
)
from checkmate.commands.quiet import quietly
from checkmate.commands.table import RowTable, stream
from checkmate.errors import CheckmateError
from checkmate.units import format_bytes

APPLICATIONS = (
    "MobileNet",
    "MobileNetV2",
    "MobileNetV3Small",
    "MobileNetV3Large",
    "ResNet50",
    "ResNet50V2",
    "DenseNet121",
    "EfficientNetB0",
    "EfficientNetV2B0",
    "InceptionV3",
    "Xception",
    "VGG16",
    "VGG19",
    "ConvNeXtTiny",
    "NASNetMobile",
)
"""Classes of keras.applications that are planned where no model is named."""

COLUMNS = ("model", "for", "budget", "peak", "extra time", "recomputed", "made in", "file")


@click.command("zoo")
@click.argument("models", nargs=-1)
@batch_option
@size_option
@click.option(
    "--budget",
    "-b",
    default="60%",
    show_default=True,
    metavar="AMOUNT",
    callback=readable_budgets,
    help="The budget that the script will give: 6GiB, or a share.",
)
@optimizer_option
@micro_batches_option
@click.option(
    "--for",
    "door",
    default="compile",
    show_default=True,
    type=click.Choice(["compile", "fit", "both"]),
    help="For `checkmate.tf2.compile`, or for `fit` after `checkmate.tf2.rematerialize`.",
)
@output_option("The folder.", default="plans")
@json_option
def zoo_command(
    models: tuple[str, ...],
    door: str,
    budget: str,
    micro_batches: int | str,
    output: Path,
    as_json: bool,
    **training: Any,
) -> None:
    """Plan models in advance, into a folder.

    MODELS are names of keras.applications (fifteen of them by default), .keras files, or
    module:function, as in `checkmate plan`. A script on a machine like this one loads its plan from
    the folder instead of searching for it:

    checkmate.tf2.compile(model, loss, "adam", images, labels, budget="60%", plan="plans")

    The script must give the same text as budget, the same number of micro-batches, and the same
    shapes and type of optimizer. Metrics are part of a step: plans for `fit` are for models
    compiled with a loss and an optimizer only. Existing plans are kept. No step runs.

    Exit status: 1 if a model has no plan, 2 if there is no such model or optimizer.

    JSON: model, for, budget, budget_bytes, peak_bytes (predicted), overhead, recomputed,
    seconds, file; or error.

    Example: checkmate zoo resnet50 mobilenet --batch 64 -b 6GiB -o plans
    """
    with quietly():
        from checkmate.tf2.models import check_name
        from checkmate.tf2.training_step import known_optimizer
    known_optimizer(training["optimizer"])
    for name in models:
        check_name(name)
    doors = ("compile", "fit") if door == "both" else (door,)
    options = {"verbose": False, "budget": budget, "micro_batches": micro_batches}
    rows = (
        _planned(output, name, each, options, training)
        for name in models or APPLICATIONS
        for each in doors
    )
    table = RowTable(f"Plans in {output}", COLUMNS, _cells, ("model", "file"))
    done = stream(rows, table, as_json=as_json)
    sys.exit(int(any("error" in row for row in done)))


def _planned(
    folder: Path, name: str, door: str, options: Any, training: dict[str, Any]
) -> dict[str, Any]:
    with quietly():
        from checkmate.tf2.models import plan_into

    started = time.perf_counter()
    row: dict[str, Any] = {"model": name, "for": door, "budget": options["budget"]}
    try:
        step = plan_into(name, {**options, "plan": folder}, fit=door == "fit", **training)
    except CheckmateError as error:
        return row | {"error": str(error), "seconds": time.perf_counter() - started}
    report = step.report()
    return row | {
        "budget_bytes": step.budget_bytes,
        "peak_bytes": report.expected_peak_bytes,
        "overhead": report.predicted_slowdown,
        "recomputed": sum(step.plan.recomputed.values()),
        "seconds": time.perf_counter() - started,
        "file": str(step.kept_at),
    }


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    start, seconds = (row["model"], row["for"]), f"{row['seconds']:.1f} s"
    if "error" in row:
        return (*start, row["budget"], "-", "-", "-", seconds, row["error"])
    budget, peak = format_bytes(row["budget_bytes"]), format_bytes(row["peak_bytes"])
    extra, again = f"{row['overhead'] - 1:+.2%}", str(row["recomputed"])
    return (*start, budget, peak, extra, again, seconds, row["file"])
