"""`checkmate bench limits`: is the budget a limit? Models at several budgets, each trained in a
process of its own.

Peaks are the allocator's own, everything resident included. The prediction is what the step's
report said before training began.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from checkmate.bench.process import fresh_process
from checkmate.errors import CheckmateError
from checkmate.units import parse_bytes

COLUMNS = (
    "model",
    "budget",
    "budget MiB",
    "predicted MiB",
    "off by",
    "measured MiB",
    "unused",
    "within",
    "predicted cost",
)
MIB = 2**20


def measure(names: Sequence[str], budgets: str, steps: int) -> Iterator[dict[str, Any]]:
    """What was found, one row per model and budget; budgets are shares of the plain step's
    predicted peak above what is resident.

    Keys: model, budget (as asked), budget_bytes, predicted_bytes, peak_bytes (measured), recomputed
    (ops), overhead (predicted cost over the plain step's); instead of the last four error where
    there is no plan.
    """
    for name in names:
        plain = fresh_process("checkmate.bench.limits", [name, str(steps)])
        for budget in budgets.split(","):
            room = plain["plain_peak_bytes"] - plain["fixed_bytes"]
            budget_bytes = plain["fixed_bytes"] + parse_bytes(budget, percent_of=room)
            try:
                yield {
                    "model": name,
                    "budget": budget,
                    **fresh_process(
                        "checkmate.bench.limits", [name, str(steps), str(budget_bytes)]
                    ),
                }
            except CheckmateError as error:
                yield {
                    "model": name,
                    "budget": budget,
                    "budget_bytes": budget_bytes,
                    "error": str(error).strip().splitlines()[-1],
                }


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """A row under `COLUMNS`."""
    start = (row["model"], row["budget"], f"{row['budget_bytes'] / MIB:.1f}")
    if "error" in row:
        return (*start, row["error"][:120])
    return (
        *start,
        f"{row['predicted_bytes'] / MIB:.1f}",
        f"{off_by(row):+.2%}",
        f"{row['peak_bytes'] / MIB:.1f}",
        f"{1 - row['peak_bytes'] / row['budget_bytes']:.1%}",
        "yes" if row["peak_bytes"] <= row["budget_bytes"] else "NO",
        f"{row['overhead'] - 1:+.2%}",
    )


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """The table in a sentence."""
    ran = [row for row in rows if "error" not in row]
    if not ran:
        return "Nothing could be planned."
    broken = sum(row["peak_bytes"] > row["budget_bytes"] for row in ran)
    errors = [abs(off_by(row)) for row in ran]
    unused = [1 - row["peak_bytes"] / row["budget_bytes"] for row in ran if row["recomputed"]]
    return (
        f"{len(ran)} of {len(rows)} planned; {broken} over budget; prediction off by"
        f" {statistics.median(errors):.2%} (median), {max(errors):.2%} (worst); unused while"
        f" recomputing {statistics.median(unused or [0]):.1%} (median); {not_monotone(ran)} lower"
        " budgets that took more memory, or higher ones that cost more."
    )


def not_monotone(rows: Sequence[dict[str, Any]]) -> int:
    """How many budgets of the same model, next to each other, took 1 % more memory for the lower
    one or have a dearer plan for the higher."""
    by_budget = sorted(rows, key=lambda row: (row["model"], row["budget_bytes"]))
    pairs = [(low, high) for low, high in pairwise(by_budget) if low["model"] == high["model"]]
    return sum(
        low["peak_bytes"] > 1.01 * high["peak_bytes"] or high["overhead"] > low["overhead"]
        for low, high in pairs
    )


def off_by(row: dict[str, Any]) -> float:
    """How far the prediction is from what was measured, as a share of the latter."""
    return row["predicted_bytes"] / row["peak_bytes"] - 1


def train(name: str, steps: int, budget_bytes: int | None) -> dict[str, Any]:
    """Trains a workload under a budget in this process, or only says what the plain step would
    need."""
    import keras
    import tensorflow as tf

    import checkmate
    from checkmate.bench.models import workload
    from checkmate.tf2 import device as devices

    keras.utils.set_random_seed(0)
    work = workload(name)
    optimizer = keras.optimizers.Adam(1e-4)
    device = devices.training_device()
    step = checkmate.tf2.compile(
        work.model, work.loss, optimizer, work.inputs, work.labels, budget=budget_bytes or "1000%"
    )
    on_host = tf.nest.map_structure(lambda tensor: tensor.numpy(), (work.inputs, work.labels))
    del work  # with the batch: each step gets one of its own
    report = step.report()
    if budget_bytes is None:
        return {
            "plain_peak_bytes": report.plain_peak_bytes,
            "fixed_bytes": report.fixed_bytes + report.outside_bytes,
        }
    tf.config.experimental.reset_memory_stats(device)
    for _ in range(steps):  # each beside the results of the one before
        batch = tf.nest.map_structure(tf.constant, on_host)
        result = step(*batch)
    del result
    return {
        "budget_bytes": budget_bytes,
        "predicted_bytes": report.expected_peak_bytes,
        "peak_bytes": tf.config.experimental.get_memory_info(device)["peak"],
        "recomputed": len(step.plan.recomputed),
        "overhead": report.result.overhead if report.result else 1.0,
    }


if __name__ == "__main__":
    print(
        json.dumps(
            train(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else None)
        )
    )
