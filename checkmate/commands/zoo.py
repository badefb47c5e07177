"""`checkmate zoo`: plans made ahead of time, in a folder where scripts find them."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import click

from checkmate.commands.options import json_option
from checkmate.commands.quiet import quietly
from checkmate.commands.table import stream
from checkmate.errors import CheckmateError
from checkmate.units import format_bytes

MODELS = (
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
"""What is planned where nothing is named."""

COLUMNS = ("model", "for", "budget", "peak", "extra time", "recomputed", "made in", "file")


@click.command("zoo")
@click.argument("models", nargs=-1)
@click.option(
    "--batch", default=32, show_default=True, type=click.IntRange(1), help="Examples in a batch."
)
@click.option(
    "--size",
    type=click.IntRange(1),
    help="Pixels of an image's side, where the model does not say.",
)
@click.option(
    "--budget",
    "-b",
    default="60%",
    show_default=True,
    metavar="AMOUNT",
    help="As it will be asked for: 6GiB, or a share.",
)
@click.option("--optimizer", default="adam", show_default=True, help="A Keras optimizer.")
@click.option(
    "--for", "door", default="compile", show_default=True, type=click.Choice(["compile", "fit", "both"]),
    help="For `checkmate.tf2.compile`, or for `fit` after `checkmate.tf2.rematerialize`.",
)  # fmt: skip
@click.option(
    "--output",
    "-o",
    default="plans",
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder.",
)
@json_option
def zoo_command(
    models: tuple[str, ...],
    batch: int,
    size: int | None,
    budget: str,
    optimizer: str,
    door: str,
    output: Path,
    as_json: bool,
) -> None:
    """Plan models ahead of time, into a folder.

    MODELS are what `checkmate plan` takes: names of keras.applications (by default fifteen of
    them), .keras files, module:function. A script on a machine like this finds its plan there, and
    plans no more:

    checkmate.tf2.compile(model, loss, "adam", images, labels, budget="60%", plan="plans")

    It must ask for the same budget, in the same words, with the same shapes and kind of optimizer.
    What a step stores for its metrics is part of it, too: plans for `fit` are for models compiled
    with a loss and an optimizer only. A plan that is there already is kept. Where the allocator
    reports, each plan is run a few times on made-up data, and what it took is in its file.

    Exit status 1 if one has no plan.

    JSON: model, for, budget, budget_bytes, predicted_bytes, peak_bytes, overhead, recomputed,
    seconds, file; or error.

    Example: checkmate zoo resnet50 mobilenet --batch 64 -b 6GiB -o plans
    """
    doors = ("compile", "fit") if door == "both" else (door,)
    rows = (
        _planned(name, each, batch, size, budget, optimizer, output)
        for name in models or MODELS
        for each in doors
    )
    done = stream(
        rows, f"Plans in {output}", COLUMNS, _cells, as_json=as_json, left=("model", "file")
    )
    sys.exit(int(any("error" in row for row in done)))


def _planned(
    name: str, door: str, batch: int, size: int | None, budget: str, optimizer: str, folder: Path
) -> dict[str, Any]:
    with quietly():
        from checkmate.tf2.models import plan_into

    started = time.perf_counter()
    row: dict[str, Any] = {"model": name, "for": door, "budget": budget}
    try:
        step = plan_into(
            name,
            {"budget": budget, "plan": folder},
            fit=door == "fit",
            batch=batch,
            size=size,
            optimizer=optimizer,
        )
    except CheckmateError as error:
        return row | {"error": str(error), "seconds": time.perf_counter() - started}
    report = step.report()
    return row | {
        "budget_bytes": step.budget_bytes,
        "predicted_bytes": report.peak_bytes,
        "peak_bytes": report.measured_peak_bytes,
        "overhead": report.result.overhead if report.result else 1.0,
        "recomputed": sum(step.plan.recomputed.values()),
        "seconds": time.perf_counter() - started,
        "file": str(step.kept_at),
    }


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    start, seconds = (row["model"], row["for"]), f"{row['seconds']:.1f} s"
    if "error" in row:
        return (*start, row["budget"], "-", "-", "-", seconds, row["error"])
    peak = row["peak_bytes"] or row["predicted_bytes"]
    facts = (
        format_bytes(row["budget_bytes"]),
        format_bytes(peak),
        f"{row['overhead'] - 1:+.2%}",
        str(row["recomputed"]),
    )
    return (*start, *facts, seconds, row["file"])
