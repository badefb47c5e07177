"""`checkmate bench steps`: the plain and the planned training step of real models, side by side in one process per model.

Memory is what TensorFlow's allocator reports above the resting level (variables, optimizer slots, the batch), each step run on
its own as in training. The two are then timed in turn, so that a slow moment of the machine hits both. Budgets are shares of
what the plain step is predicted to need above the resting level.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from checkmate.bench.process import fresh_process

NAMES = ("mobilenet", "resnet50", "unet", "vgg16", "transformer")
COLUMNS = (
    "model",
    "budget",
    "peak MiB",
    "/ plain",
    "step s",
    "/ plain",
    "predicted MiB",
    "cost",
    "gap",
    "recomputed",
    "compile s",
    "solve s",
)
MIB = 2**20


def measure(name: str, budgets: str, steps: int) -> Iterator[tuple[str, ...]]:
    """Rows of text, one per budget, under `COLUMNS`."""
    for row in fresh_process("checkmate.bench.steps", [name, budgets, str(steps)]):
        if "error" in row:
            yield (name, row["budget"], row["error"][:60])
            continue
        yield (
            name,
            row["budget"],
            f"{row['peak_bytes'] / MIB:.0f} of {row['plain_peak_bytes'] / MIB:.0f}",
            f"{row['peak_bytes'] / row['plain_peak_bytes']:.3f}",
            f"{row['step_s']:.3f} of {row['plain_s']:.3f}",
            f"{row['step_s'] / row['plain_s']:.3f}",
            f"{row['predicted_bytes'] / MIB:.0f} of {row['predicted_plain_bytes'] / MIB:.0f}",
            f"{row['overhead'] - 1:+.2%}",
            f"{row['gap']:.2%}",
            f"{row['recomputed']} of {row['ops']}",
            f"{row['planning_s']:.1f}",
            f"{row['planning_s'] / row['plain_trace_s']:.2f}",
            f"{row['phases'].get('solving', 0):.2f}",
        )


def compare(name: str, budgets: Sequence[str], steps: int) -> list[dict[str, Any]]:
    """Measures the plain step of a workload and the planned step for each budget; one row of figures per budget."""
    import keras

    import checkmate
    from checkmate.bench.demo import plain_step
    from checkmate.bench.models import workload
    from checkmate.tf2 import device as devices

    device = devices.training_device()

    def one(step: Any) -> tuple[float, int]:
        started = time.perf_counter()
        _, before, peak = devices.peak_above(device, lambda: float(step(work.inputs, work.labels)[1]))
        return time.perf_counter() - started, peak - before

    keras.utils.set_random_seed(0)
    work = workload(name)
    optimizer = keras.optimizers.Adam(1e-4)
    plain = plain_step(work, optimizer)
    started = time.perf_counter()
    plain.get_concrete_function(work.inputs, work.labels)
    plain_trace_s = time.perf_counter() - started
    rows: list[dict[str, Any]] = []
    for budget in budgets:
        try:
            planned = checkmate.tf2.compile(work.model, work.loss, optimizer, work.inputs, work.labels, budget=budget)
        except checkmate.CheckmateError as error:
            rows.append({"budget": budget, "error": str(error)})
            continue
        report = planned.report()
        peak_bytes = max(one(planned)[1] for _ in range(steps))
        plain_peak_bytes = max(one(plain)[1] for _ in range(steps + 1))
        pairs = [(one(plain)[0], one(planned)[0]) for _ in range(steps + 1)][1:]
        rows.append(
            {
                "budget": budget,
                "budget_bytes": report.budget_bytes,
                "fixed_bytes": report.fixed_bytes,
                "plain_peak_bytes": plain_peak_bytes,
                "peak_bytes": peak_bytes,
                "predicted_plain_bytes": report.plain_peak_bytes - report.fixed_bytes,
                "predicted_bytes": report.peak_bytes - report.fixed_bytes,
                "plain_s": statistics.median(pair[0] for pair in pairs),
                "step_s": statistics.median(pair[1] for pair in pairs),
                "overhead": report.result.overhead if report.result else 1.0,
                "gap": report.result.gap if report.result else 0.0,
                "recomputed": len(planned.plan.recomputed),
                "ops": len(planned.graph),
                "plain_trace_s": plain_trace_s,
                "planning_s": sum(report.seconds.get(phase, 0.0) for phase in ("tracing", "solving", "building")),
                "phases": report.seconds,
            }
        )
    return rows


if __name__ == "__main__":
    print(json.dumps(compare(sys.argv[1], sys.argv[2].split(","), int(sys.argv[3]))))
