"""`checkmate bench steps`: memory and time of plain and planned training steps.

Memory is the allocator's peak above the resting level (variables, optimizer slots, the batch), in a
process of its own for each kind of step. In the planned step's process the two kinds are timed in
turn. Budgets are shares of the plain step's predicted peak above the resting level.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

from checkmate.bench.process import fresh_process, last_line
from checkmate.bench.training import (
    MIB,
    plain_prediction,
    plain_step,
    planned_step,
    timed,
    timed_in_turn,
)
from checkmate.errors import CheckmateError
from checkmate.units import parse_bytes

NAMES = ("mobilenet", "resnet50", "unet", "vgg16", "transformer")
TITLE = "planned / plain training step; memory is the allocator's peak above the resting level"
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


def measure(name: str, budgets: str, steps: int) -> Iterator[dict[str, Any]]:
    """Yields a row per budget.

    Bytes are above the resting level, except for budget_bytes. overhead and predicted_slowdown are
    predicted cost and time divided by the plain step's; planning_s is the time of tracing, solving
    and building, phases the seconds of each phase. Without a plan there is `error` instead.
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
            yield {**asked, "error": last_line(error)}
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
    """Trains a workload in this process, plain or within a budget, and returns the figures."""
    import keras

    from checkmate.bench.models import workload

    keras.utils.set_random_seed(0)
    work = workload(name)
    optimizer = keras.optimizers.Adam(1e-4)
    plain = plain_step(work, optimizer)
    if budget_bytes is None:
        started = time.perf_counter()
        plain.get_concrete_function(work.inputs, work.labels)
        found = {"trace_s": time.perf_counter() - started}
        found["peak_bytes"] = max(timed(plain, work).above_resting_bytes for _ in range(steps))
        return found | plain_prediction(planned_step(work, optimizer, "1000%").report())
    planned = planned_step(work, optimizer, budget_bytes)
    report = planned.report()
    peak_bytes = max(timed(planned, work).above_resting_bytes for _ in range(steps))
    times = timed_in_turn(steps, lambda: timed(plain, work), lambda: timed(planned, work))
    return {
        **times,
        "peak_bytes": peak_bytes,
        "predicted_bytes": report.peak_bytes - report.fixed_bytes,
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
    model, count, *within = sys.argv[1:]
    print(json.dumps(run(model, int(count), int(within[0]) if within else None)))
