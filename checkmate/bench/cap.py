"""`checkmate bench cap`: the largest batch under one memory cap, plain and planned, each trained for real.

The cap is the allocator's own (`TF_CPU_BFC_MEM_LIMIT_IN_MB`): a step that needs more dies with ResourceExhaustedError.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

from checkmate.bench.process import ProcessDiedError, fresh_process

COLUMNS = ("model", "cap MiB", "plain batch", "planned batch", "times", "s per example, plain", "planned", "ratio")


def measure(name: str, cap_bytes: int, steps: int) -> dict[str, Any]:
    """Largest batches and times of both kinds of step; the plain one's is found by trying, in a fresh process each.

    Keys: model, cap_bytes, plain_batch, and of plain (None where no batch fits) and planned: batch, step_s (median), trained.
    """

    def plain(batch: int) -> dict[str, Any]:
        try:
            return fresh_process("checkmate.bench.cap", [name, str(steps), str(batch)], cap_bytes=cap_bytes)
        except ProcessDiedError:  # out of memory, some of TensorFlow's kernels crash instead of raising ResourceExhaustedError
            return {"trained": False, "batch": batch}

    planned = fresh_process("checkmate.bench.cap", [name, str(steps)], cap_bytes=cap_bytes)
    low, high, best, batch = 0, None, None, max(1, planned["plain_batch"])
    while batch > low and (high is None or high - low > max(1, low // 20)):
        found = plain(batch)
        if found["trained"]:
            low, best = batch, found
        else:
            high = batch
        batch = 2 * low if high is None else (low + high) // 2
    return {"model": name, "cap_bytes": cap_bytes, "plain_batch": low, "plain": best, "planned": planned}


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """A row under `COLUMNS`."""
    planned, plain = row["planned"], row["plain"]
    own = planned["step_s"] / planned["batch"]
    start = (row["model"], str(row["cap_bytes"] >> 20), str(row["plain_batch"]), str(planned["batch"]))
    if not plain:
        return (*start, "-", "-", f"{own:.3f}", "-")
    other = plain["step_s"] / row["plain_batch"]
    return (*start, f"{planned['batch'] / row['plain_batch']:.2f}", f"{other:.3f}", f"{own:.3f}", f"{own / other:.2f}")


def train(name: str, steps: int, batch: int | None) -> dict[str, Any]:
    """Trains a workload in this process: plain on a batch of this size, or planned on the largest that `max_batch` finds."""
    import keras
    import tensorflow as tf

    import checkmate
    from checkmate.bench.demo import plain_step
    from checkmate.bench.models import workload

    keras.utils.set_random_seed(0)
    optimizer = keras.optimizers.Adam(1e-4)
    plain_batch = None
    if batch is None:
        work = workload(name, 1)
        found = checkmate.tf2.max_batch(work.model, work.loss, optimizer, work.inputs, work.labels)
        step, batch, plain_batch = found.step, found.batch, found.plain_batch
        fresh = workload(name, batch)
        inputs, labels = fresh.inputs, fresh.labels
        del fresh
    else:
        work = workload(name, batch)
        step, inputs, labels = plain_step(work, optimizer), work.inputs, work.labels
    seconds = []
    try:
        for _ in range(steps):
            started = time.perf_counter()
            float(step(inputs, labels)[1])
            seconds.append(time.perf_counter() - started)
    except tf.errors.ResourceExhaustedError:
        return {"trained": False, "batch": batch, "plain_batch": plain_batch}
    return {"trained": True, "batch": batch, "plain_batch": plain_batch, "step_s": statistics.median(seconds[1:] or seconds)}


if __name__ == "__main__":
    print(json.dumps(train(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else None)))
