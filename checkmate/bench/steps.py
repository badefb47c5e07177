"""`checkmate bench steps`: the plain and the planned training step of real models, side by side.

Memory is what TensorFlow's allocator reports above the resting level (variables, optimizer slots,
the batch), each step in a fresh process as in training. In the planned step's process the two are
then timed in turn, so that a slow moment of the machine hits both. Budgets are shares of what the
plain step is predicted to need above the resting level.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

from checkmate.bench.process import fresh_process
from checkmate.errors import CheckmateError
from checkmate.units import parse_bytes

NAMES = ("mobilenet", "resnet50", "unet", "vgg16", "transformer")
COLUMNS = (
    "model",
    "budget",
    "peak MiB",
    "/ plain",
    "step s",
    "/ plain",
    "predicted",
    "predicted MiB",
    "cost",
    "gap",
    "recomputed",
    "planning s",
    "/ trace",
    "solving s",
)
MIB = 2**20


def measure(name: str, budgets: str, steps: int) -> Iterator[dict[str, Any]]:
    """What was found, one row per budget.

    Keys: model, budget (as asked), budget_bytes, peak_bytes, predicted_bytes, step_s, overhead
    (predicted cost over the plain step's), gap, predicted_slowdown (predicted time over the plain
    step's), recomputed, ops, planning_s (tracing, solving, building), phases (seconds of each); of
    the plain step plain_peak_bytes, plain_predicted_bytes, plain_s, trace_s. Bytes are above the
    resting level, but for budget_bytes. Instead of these there is error where there is no plan.
    """
    plain = fresh_process("checkmate.bench.steps", [name, str(steps)])
    for budget in budgets.split(","):
        budget_bytes = plain["fixed_bytes"] + parse_bytes(
            budget, percent_of=plain["predicted_bytes"]
        )
        asked = {"model": name, "budget": budget, "budget_bytes": budget_bytes}
        try:
            found = fresh_process("checkmate.bench.steps", [name, str(steps), str(budget_bytes)])
        except CheckmateError as error:
            yield {**asked, "error": str(error).strip().splitlines()[-1]}
            continue
        of_plain = {
            "plain_peak_bytes": plain["peak_bytes"],
            "plain_predicted_bytes": plain["predicted_bytes"],
            "trace_s": plain["trace_s"],
        }
        yield {**asked, **found, **of_plain}


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """A row under `COLUMNS`."""
    if "error" in row:
        return (row["model"], row["budget"], row["error"][:100])
    return (
        row["model"],
        row["budget"],
        f"{row['peak_bytes'] / MIB:.0f} of {row['plain_peak_bytes'] / MIB:.0f}",
        f"{row['peak_bytes'] / row['plain_peak_bytes']:.3f}",
        f"{row['step_s']:.3f} of {row['plain_s']:.3f}",
        f"{row['step_s'] / row['plain_s']:.3f}",
        f"{row['predicted_slowdown']:.3f}",
        f"{row['predicted_bytes'] / MIB:.0f} of {row['plain_predicted_bytes'] / MIB:.0f}",
        f"{row['overhead'] - 1:+.2%}",
        f"{row['gap']:.2%}",
        f"{row['recomputed']} of {row['ops']}",
        f"{row['planning_s']:.1f}",
        f"{row['planning_s'] / row['trace_s']:.2f}",
        f"{row['phases'].get('solving', 0):.2f}",
    )


def run(name: str, steps: int, budget_bytes: int | None) -> dict[str, Any]:
    """Trains a workload plain, or under a budget, in this process, and returns the figures."""
    import keras

    import checkmate
    from checkmate.bench.demo import plain_step
    from checkmate.bench.models import workload
    from checkmate.tf2 import device as devices

    device = devices.training_device()

    def one(step: Any) -> tuple[float, int]:
        started = time.perf_counter()
        _, before, peak = devices.peak_above(
            device, lambda: float(step(work.inputs, work.labels)[1])
        )
        return time.perf_counter() - started, peak - before

    keras.utils.set_random_seed(0)
    work = workload(name)
    optimizer = keras.optimizers.Adam(1e-4)
    plain = plain_step(work, optimizer)
    if budget_bytes is None:
        started = time.perf_counter()
        plain.get_concrete_function(work.inputs, work.labels)
        trace_s = time.perf_counter() - started
        peak_bytes = max(one(plain)[1] for _ in range(steps))
        report = checkmate.tf2.compile(
            work.model, work.loss, optimizer, work.inputs, work.labels, budget="1000%"
        ).report()
        resident = report.fixed_bytes + report.outside_bytes
        predicted = report.plain_peak_bytes - resident
        return {
            "trace_s": trace_s,
            "peak_bytes": peak_bytes,
            "fixed_bytes": resident,
            "predicted_bytes": predicted,
        }
    planned = checkmate.tf2.compile(
        work.model, work.loss, optimizer, work.inputs, work.labels, budget=budget_bytes
    )
    report = planned.report()
    peak_bytes = max(one(planned)[1] for _ in range(steps))
    pairs = [(one(plain)[0], one(planned)[0]) for _ in range(steps + 1)][1:]
    return {
        "peak_bytes": peak_bytes,
        "predicted_bytes": report.peak_bytes - report.fixed_bytes,
        "plain_s": statistics.median(pair[0] for pair in pairs),
        "step_s": statistics.median(pair[1] for pair in pairs),
        "overhead": report.result.overhead if report.result else 1.0,
        "predicted_slowdown": report.predicted_slowdown,
        "gap": report.result.gap if report.result else 0.0,
        "recomputed": len(planned.plan.recomputed),
        "ops": len(planned.graph),
        "planning_s": sum(
            report.seconds.get(phase, 0.0) for phase in ("tracing", "solving", "building")
        ),
        "phases": report.seconds,
    }


if __name__ == "__main__":
    print(
        json.dumps(
            run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else None)
        )
    )
