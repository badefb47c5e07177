"""`checkmate bench limits`: is the budget a limit? Models at several budgets, each trained in a
process of its own.

Peaks are the allocator's, resident bytes included. Predictions are those of the step's report
before training.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from checkmate.bench.process import fresh_process, last_line
from checkmate.bench.training import MIB
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


def measure(names: Sequence[str], budgets: str, steps: int) -> Iterator[dict[str, Any]]:
    """Yields a row per model and budget: a share of the plain step's predicted peak above its
    resident bytes. `overhead` is the predicted cost divided by the plain step's. Without a plan
    there is `error` instead of figures."""
    module = "checkmate.bench.limits"
    for name in names:
        plain = fresh_process(module, [name, str(steps)])
        for budget in budgets.split(","):
            above = plain["plain_peak_bytes"] - plain["fixed_bytes"]
            budget_bytes = plain["fixed_bytes"] + parse_bytes(budget, percent_of=above)
            row = {"model": name, "budget": budget, "budget_bytes": budget_bytes}
            try:
                yield row | fresh_process(module, [name, str(steps), str(budget_bytes)])
            except CheckmateError as error:
                yield row | {"error": last_line(error)}


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
    """Returns the table in a sentence."""
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
    """Counts neighbouring budgets of one model of which the lower took 1 % more memory, or the
    higher has a plan of higher cost."""
    by_budget = sorted(rows, key=lambda row: (row["model"], row["budget_bytes"]))
    pairs = [(low, high) for low, high in pairwise(by_budget) if low["model"] == high["model"]]
    return sum(
        low["peak_bytes"] > 1.01 * high["peak_bytes"] or high["overhead"] > low["overhead"]
        for low, high in pairs
    )


def off_by(row: dict[str, Any]) -> float:
    """Returns the relative error of the predicted peak."""
    return row["predicted_bytes"] / row["peak_bytes"] - 1


def train(name: str, steps: int, budget_bytes: int | None) -> dict[str, Any]:
    """Trains a workload within a budget in this process; without a budget, returns the prediction
    for the plain step."""
    import keras
    import tensorflow as tf

    from checkmate.bench.models import workload
    from checkmate.bench.training import planned_step
    from checkmate.tf2 import device as devices

    keras.utils.set_random_seed(0)
    work = workload(name)
    optimizer = keras.optimizers.Adam(1e-4)
    device = devices.training_device()
    step = planned_step(work, optimizer, budget_bytes or "1000%")
    on_host = tf.nest.map_structure(lambda tensor: tensor.numpy(), (work.inputs, work.labels))
    del work  # and its batch: each step gets a new one
    report = step.report()
    if budget_bytes is None:
        return {
            "plain_peak_bytes": report.plain_peak_bytes,
            "fixed_bytes": report.fixed_bytes + report.outside_bytes,
        }
    tf.config.experimental.reset_memory_stats(device)
    for _ in range(steps):  # the result of the step before stays in memory meanwhile
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
    model, count, *within = sys.argv[1:]
    print(json.dumps(train(model, int(count), int(within[0]) if within else None)))
