"""`checkmate bench cap`: the largest batch that trains under a memory cap, plain and planned.

The cap is the allocator's limit: on a GPU the `memory_limit` of its logical device, on a CPU
`TF_CPU_BFC_MEM_LIMIT_IN_MB`. A step that needs more memory ends with an error of TensorFlow, or
crashes in a kernel that does not check its allocation. So each batch is tried in a fresh process.

Both steps return the loss alone, as Keras's `fit` does: the predictions of a whole batch, such as
the logits of a language model, would otherwise be kept by either.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from checkmate.bench.process import ProcessDiedError, fresh_process
from checkmate.bench.training import slices_cell

COLUMNS = (
    "model",
    "cap MiB",
    "plain batch",
    "planned batch",
    "slices",
    "times",
    "s per example, plain",
    "planned",
    "ratio",
)

CLOSE = 20
"""The search ends when the largest batch is known to 1 / `CLOSE` of itself."""


def measure(
    name: str, cap_bytes: int, steps: int, micro_batches: int | str = 1, times: int | None = None
) -> dict[str, Any]:
    """Returns the row of a model: plain and planned are None if no batch fits, else objects with
    batch, step_s (median), trained and micro_batches (None, or count and size of the slices).

    Args:
      micro_batches: The planned step's option, a number or "auto".
      times: The search ends when a batch of so many times the plain step's trains.
    """

    def trying(kind: str) -> Callable[[int], dict[str, Any]]:
        def trained(batch: int) -> dict[str, Any]:
            arguments = [name, kind, *map(str, (steps, batch, cap_bytes, micro_batches))]
            try:
                return fresh_process("checkmate.bench.cap", arguments)
            except ProcessDiedError:
                return {"trained": False, "batch": batch}

        return trained

    plain = _largest(trying("plain"), 1)
    batch = plain["batch"] if plain else 0
    planned = _largest(trying("planned"), (times or 2) * batch or 1, times and times * batch)
    return {"model": name, "cap_bytes": cap_bytes, "plain": plain, "planned": planned}


def _largest(
    trained: Callable[[int], dict[str, Any]], batch: int, enough: int | None = None
) -> dict[str, Any] | None:
    """Returns the result of the largest batch that trains, given that all smaller ones do too.

    Args:
      batch: The first to try.
      enough: No larger batch is tried; None or 0 for no end.
    """
    best: dict[str, Any] | None = None
    low, high = 0, enough + 1 if enough else None
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
        slices_cell(planned["micro_batches"] if planned else None),
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


def train(
    name: str, kind: str, steps: int, batch: int, cap_bytes: int, micro_batches: int | str
) -> dict[str, Any]:
    """Trains a workload on a batch of this size in this process, in which TensorFlow has run
    nothing, plain or planned with budget="auto" and this option `micro_batches`."""
    import keras
    import tensorflow as tf

    import checkmate
    from checkmate.bench.memory_limits import is_out_of_memory, limit_memory

    limit_memory(cap_bytes)
    from checkmate.bench.models import workload
    from checkmate.bench.training import loss_step, planned_loss_step, slices_of

    keras.utils.set_random_seed(0)
    optimizer = keras.optimizers.Adam(1e-4)
    seconds = []
    try:
        work = workload(name, batch)
        step: Any
        if kind == "planned":
            step = planned_loss_step(work, optimizer, "auto", micro_batches)
        else:
            step = tf.function(loss_step(work, optimizer))
        for _ in range(steps):
            started = time.perf_counter()
            float(step(work.inputs, work.labels))
            seconds.append(time.perf_counter() - started)
    except (checkmate.InfeasibleBudgetError, checkmate.NoPlanFoundError):
        return {"trained": False, "batch": batch}
    except tf.errors.OpError as error:
        if not is_out_of_memory(error):
            raise
        return {"trained": False, "batch": batch}
    return {
        "trained": True,
        "batch": batch,
        "step_s": statistics.median(seconds[1:] or seconds),
        "micro_batches": slices_of(step) if kind == "planned" else None,
    }


if __name__ == "__main__":
    model, way, count, examples, most, asked = sys.argv[1:]
    slices = asked if asked == "auto" else int(asked)
    print(json.dumps(train(model, way, int(count), int(examples), int(most), slices)))
