"""`checkmate bench cap`: the largest batch that trains under a memory cap, plain and planned.

The cap is the allocator's limit: on a GPU the `memory_limit` of its logical device, on a CPU
`TF_CPU_BFC_MEM_LIMIT_IN_MB`. A step that needs more memory ends with an error of TensorFlow, or
crashes in a kernel that does not check its allocation. So each batch is tried in a fresh process.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from checkmate.bench.process import ProcessDiedError, fresh_process

COLUMNS = (
    "model",
    "cap MiB",
    "plain batch",
    "planned batch",
    "times",
    "s per example, plain",
    "planned",
    "ratio",
)

CLOSE = 20
"""The search ends when the largest batch is known to 1 / `CLOSE` of itself."""


def measure(name: str, cap_bytes: int, steps: int) -> dict[str, Any]:
    """Returns the row of a model: plain and planned are None if no batch fits, else objects with
    batch, step_s (median) and trained."""

    def trying(kind: str) -> Callable[[int], dict[str, Any]]:
        def trained(batch: int) -> dict[str, Any]:
            try:
                return fresh_process(
                    "checkmate.bench.cap", [name, kind, *map(str, (steps, batch, cap_bytes))]
                )
            except ProcessDiedError:
                return {"trained": False, "batch": batch}

        return trained

    plain = _largest(trying("plain"), 1)
    planned = _largest(trying("planned"), 2 * plain["batch"] if plain else 1)
    return {"model": name, "cap_bytes": cap_bytes, "plain": plain, "planned": planned}


def _largest(trained: Callable[[int], dict[str, Any]], batch: int) -> dict[str, Any] | None:
    """Returns the result of the largest batch that trains, given that all smaller ones do too;
    `batch` is the first to try."""
    best: dict[str, Any] | None = None
    low, high = 0, None
    while batch > low and (high is None or high - low > max(1, low // CLOSE)):
        found = trained(batch)
        if found["trained"]:
            low, best = batch, found
        else:
            high = batch
        batch = 2 * low if high is None else (low + high) // 2
    return best


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """A row under `COLUMNS`."""
    plain, planned = row["plain"], row["planned"]
    start = (
        row["model"],
        str(row["cap_bytes"] >> 20),
        *(str(each["batch"]) if each else "none" for each in (plain, planned)),
    )
    times = [each["step_s"] / each["batch"] if each else 0.0 for each in (plain, planned)]
    if not plain or not planned:
        return (*start, "-", *(f"{each:.3f}" if each else "-" for each in times), "-")
    return (
        *start,
        f"{planned['batch'] / plain['batch']:.2f}",
        *(f"{each:.3f}" for each in times),
        f"{times[1] / times[0]:.2f}",
    )


def train(name: str, kind: str, steps: int, batch: int, cap_bytes: int) -> dict[str, Any]:
    """Trains a workload on a batch of this size in this process, in which TensorFlow has run
    nothing, plain or planned with budget="auto"."""
    import keras
    import tensorflow as tf

    import checkmate
    from checkmate.bench.memory_limits import is_out_of_memory, limit_memory

    limit_memory(cap_bytes)
    from checkmate.bench.models import workload
    from checkmate.bench.training import plain_step, planned_step

    keras.utils.set_random_seed(0)
    optimizer = keras.optimizers.Adam(1e-4)
    seconds = []
    try:
        work = workload(name, batch)
        if kind == "planned":
            step = planned_step(work, optimizer, "auto")
        else:
            step = plain_step(work, optimizer)
        for _ in range(steps):
            started = time.perf_counter()
            float(step(work.inputs, work.labels)[1])
            seconds.append(time.perf_counter() - started)
    except (checkmate.InfeasibleBudgetError, checkmate.NoPlanFoundError):
        return {"trained": False, "batch": batch}
    except tf.errors.OpError as error:
        if not is_out_of_memory(error):
            raise
        return {"trained": False, "batch": batch}
    return {"trained": True, "batch": batch, "step_s": statistics.median(seconds[1:] or seconds)}


if __name__ == "__main__":
    print(json.dumps(train(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))))
