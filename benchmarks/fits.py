"""`python -m benchmarks fits`: what `checkmate.tf2.fits` says on paper, beside what training took.

One process trains plain, and writes a profile of the device; another trains within a share of the
plain step's peak. A third, which knows the profile alone, asks `fits` for the same. Peaks are
without the bytes set aside for next batches, of which training on one batch makes none, and without
what else is in use. The plans on paper and by `compile` need not be the same, and TensorFlow runs
a plain step in an order that differs from step to step.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from benchmarks.commands import RowTable, stream
from benchmarks.workloads import WORKLOADS
from checkmate.commands.options import NameOf, json_option, readable_budgets, steps_option
from checkmate.demo.process import fresh_process, last_line
from checkmate.errors import CheckmateError

MIB = 2**20

BATCHES = {
    "mobilenet": 16,
    "mobilenet_ln": 8,
    "resnet50_160": 8,
    "unet": 4,
    "unet_without_norm": 4,
    "vgg16": 4,
    "transformer": 16,
    "tanh_transformer": 8,
    "encoder": 8,
    "decoder": 8,
    "lstm": 32,
    "densenet121": 4,
    "efficientnetb0": 4,
    "super_resolution": 4,
}
"""The workloads measured by default, in batches that train in seconds."""

COLUMNS = (
    "model",
    "batch",
    "plain MiB: on paper",
    "by compile",
    "measured",
    "budget",
    "planned: on paper",
    "by compile",
    "measured",
    "time: on paper",
    "by compile",
    "seconds",
)


def rows(models: Sequence[str], budget: str, steps: int) -> Iterator[dict[str, Any]]:
    """Yields a row for each model. By `fits`: plain_bytes, planned_bytes, slowdown, seconds; by
    `compile`, plain_predicted_bytes, planned_predicted_bytes, predicted_slowdown; of real steps,
    plain_measured_bytes, planned_measured_bytes; model, batch, budget_bytes; or error."""
    for model in models:
        with tempfile.TemporaryDirectory() as folder:
            asked = {"model": model, "batch": BATCHES.get(model), "budget": budget, "steps": steps}
            asked["profile"] = str(Path(folder) / "profile.json")
            try:
                found: dict[str, Any] = {"model": model}
                for what in WHAT:
                    found |= fresh_process("benchmarks.fits", [json.dumps(asked | {"what": what})])
            except CheckmateError as error:
                yield {"model": model, "error": last_line(error)}
            else:
                yield found


def plain(model: str, batch: int | None, budget: str, steps: int, profile: str) -> dict[str, Any]:
    """Writes the profile, and returns what plain training took."""
    from checkmate.tf2.costs.device_profile import DeviceProfile
    from checkmate.tf2.graph.trace import trace
    from checkmate.tf2.training_step import training_step

    work, step = compiled(model, batch, "1000%")
    function, specs = training_step(work.model, work.loss, "adam", work.inputs, work.labels)
    DeviceProfile.measured(trace(function, *specs, name=model), lambda *done: None).save(profile)
    return {"batch": len(work.labels), **taken("plain", work, step, steps)}


def planned(model: str, batch: int | None, budget: str, steps: int, profile: str) -> dict[str, Any]:
    """What training within the budget took."""
    work, step = compiled(model, batch, budget)
    found = taken("planned", work, step, steps)
    return found | {"predicted_slowdown": step.report().predicted_slowdown}


def compiled(model: str, batch: int | None, budget: str) -> tuple[Any, Any]:
    import checkmate
    from benchmarks.workloads import workload

    work = workload(model, batch)
    arguments = work.model, work.loss, "adam", work.inputs, work.labels
    return work, checkmate.tf2.compile(*arguments, budget=budget, verbose=False)


def taken(kind: str, work: Any, step: Any, steps: int) -> dict[str, int]:
    """The peaks of some steps, predicted and measured."""
    for _ in range(steps):
        step(work.inputs, work.labels)
    report = step.report()
    other, ahead = report.memory.other_bytes, report.memory.next_batch_bytes
    return {
        f"{kind}_predicted_bytes": report.expected_peak_bytes - other,
        f"{kind}_measured_bytes": (report.measured_peak_bytes or 0) - (other - ahead),
    }


def on_paper(
    model: str, batch: int | None, budget: str, steps: int, profile: str
) -> dict[str, Any]:
    """What `fits` says of the device of the profile."""
    import tensorflow as tf

    import checkmate
    from benchmarks.workloads import workload
    from checkmate.tf2.graph.trace import trace
    from checkmate.tf2.memory.budget import BATCHES_MADE, bytes_ahead
    from checkmate.tf2.training_step import training_step

    work = workload(model, batch)
    specs = [tf.TensorSpec(each.shape, each.dtype) for each in (work.inputs, work.labels)]
    arguments = work.model, work.loss, "adam", *specs
    function, _ = training_step(*arguments)
    aside = bytes_ahead(trace(function, *specs, name=model), BATCHES_MADE)
    started = time.perf_counter()
    answer = checkmate.tf2.fits(
        *arguments, device=profile, budget=budget, largest=False, verbose=False
    )
    seconds = time.perf_counter() - started
    if answer.peak_bytes is None:
        raise CheckmateError(answer.refusal)
    return {
        "plain_bytes": answer.plain_peak_bytes - aside,
        "planned_bytes": answer.peak_bytes - aside,
        "budget_bytes": answer.budget_bytes - aside,
        "slowdown": answer.slowdown or 1.0,
        "seconds": seconds,
    }


WHAT: dict[str, Callable[..., dict[str, Any]]] = {
    "plain": plain,
    "planned": planned,
    "on_paper": on_paper,
}


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """A row under `COLUMNS`."""
    if "error" in row:
        return (row["model"], row["error"][:40])
    peaks = [
        *(f"plain{each}_bytes" for each in ("", "_predicted", "_measured")),
        "budget_bytes",
        *(f"planned{each}_bytes" for each in ("", "_predicted", "_measured")),
    ]
    return (
        row["model"],
        str(row["batch"]),
        *(f"{row[each] / MIB:.2f}" for each in peaks),
        f"{row['slowdown'] - 1:+.2%}",
        f"{row['predicted_slowdown'] - 1:+.2%}",
        f"{row['seconds']:.1f}",
    )


@click.command("fits")
@click.argument("models", nargs=-1, type=NameOf(WORKLOADS, "workload"), metavar="MODELS...")
@click.option(
    "--budget",
    default="60%",
    show_default=True,
    callback=readable_budgets,
    help="A share of the plain step's predicted peak.",
)
@steps_option(4, "Steps of each kind.", minimum=2)
@json_option
def command(models: tuple[str, ...], budget: str, steps: int, as_json: bool) -> None:
    """Peaks and times on paper, from a profile of this device, and measured.

    MODELS are workloads of `checkmate demo --model`; most of them by default.

    JSON: model, batch, budget_bytes, plain_bytes, plain_predicted_bytes, plain_measured_bytes,
    planned_bytes, planned_predicted_bytes, planned_measured_bytes, slowdown, predicted_slowdown,
    seconds; or error.
    """
    table = RowTable(f"within {budget}", COLUMNS, cells, ("model",))
    stream(rows(models or tuple(BATCHES), budget, steps), table, as_json=as_json)


if __name__ == "__main__":
    request = json.loads(sys.argv[1])
    print(json.dumps(WHAT[request.pop("what")](**request)))
