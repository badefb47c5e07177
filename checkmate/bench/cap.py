"""`checkmate bench cap`: the largest batch that trains under a memory cap, plain and planned.

The cap is the allocator's limit: on a GPU the `memory_limit` of its logical device, on a CPU
`TF_CPU_BFC_MEM_LIMIT_IN_MB`. A step that needs more memory ends with an error of TensorFlow, or
crashes in a kernel that does not check its allocation. So each batch is tried in a fresh process.

Both steps return the loss alone, as Keras's `fit` does: the predictions of a whole batch, such as
the logits of a language model, would otherwise be kept by either.

The processes of the two largest batches stay, and their steps are timed in turn: other work of the
machine slows both.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from checkmate.bench.process import ProcessDiedError, StepProcess, take_steps
from checkmate.bench.training import (
    in_turn,
    loss_step,
    planned_loss_step,
    ratios,
    slices_cell,
    slices_of,
)
from checkmate.errors import CheckmateError

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
    in_turn has plain_s and step_s, the medians of both timed in turn, and ratio_quartiles, those of
    planned by plain; it is None if one of them has no batch, or no longer fits.

    Args:
      micro_batches: The planned step's option, a number or "auto".
      times: The search ends when a batch of so many times the plain step's trains.
    """

    def trying(kind: str) -> Callable[[int], StepProcess | None]:
        def trained(batch: int) -> StepProcess | None:
            arguments = [name, kind, *map(str, (steps, batch, cap_bytes, micro_batches))]
            try:
                process = StepProcess("checkmate.bench.cap", arguments)
            except ProcessDiedError:
                return None
            if process.facts["trained"]:
                return process
            process.close()
            return None

        return trained

    plain = _largest(trying("plain"), 1)
    batch = plain.facts["batch"] if plain else 0
    planned = _largest(trying("planned"), (times or 2) * batch or 1, times and times * batch)
    row = {
        "model": name,
        "cap_bytes": cap_bytes,
        "plain": plain and plain.facts,
        "planned": planned and planned.facts,
        "in_turn": _in_turn(plain, planned, steps) if plain and planned else None,
    }
    for process in filter(None, (plain, planned)):
        process.close()
    return row


def _in_turn(plain: StepProcess, planned: StepProcess, steps: int) -> dict[str, Any] | None:
    try:
        plain_s, step_s = in_turn(steps, (plain.step, planned.step))
    except CheckmateError:
        return None
    return {
        "plain_s": statistics.median(plain_s),
        "step_s": statistics.median(step_s),
        "ratio_quartiles": ratios(step_s, plain_s),
    }


def _largest(
    trained: Callable[[int], StepProcess | None], batch: int, enough: int | None = None
) -> StepProcess | None:
    """Returns the process of the largest batch that trains, given that all smaller ones do too.

    Args:
      trained: Batch -> process, None if it does not train.
      batch: The first to try.
      enough: No larger batch is tried; None or 0 for no end.
    """
    best: StepProcess | None = None
    low, high = 0, enough + 1 if enough else None
    while batch > low and (high is None or high - low > max(1, low // CLOSE)):
        found = trained(batch)
        if found:
            if best:
                best.close()
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
    timed = row["in_turn"]
    if not timed:
        return (*start, *("-" for _ in COLUMNS[len(start) :]))
    batches = plain["batch"], planned["batch"]
    times = batches[1] / batches[0]
    return (
        *start,
        f"{times:.2f}",
        *(
            f"{timed[kind] / batch:.3f}"
            for kind, batch in zip(("plain_s", "step_s"), batches, strict=True)
        ),
        f"{timed['ratio_quartiles'][1] / times:.2f}",
    )


def train(
    name: str, kind: str, steps: int, batch: int, cap_bytes: int, micro_batches: int | str
) -> None:
    """Trains a workload on a batch of this size in this process, in which TensorFlow has run
    nothing and which is a `StepProcess`, "plain" or "planned" with budget="auto" and this option
    `micro_batches`."""
    import keras
    import tensorflow as tf

    import checkmate
    from checkmate.bench.memory_limits import is_out_of_memory, limit_memory

    limit_memory(cap_bytes)
    from checkmate.bench.models import workload

    keras.utils.set_random_seed(0)
    optimizer = keras.optimizers.Adam(1e-4)
    failed = {"trained": False, "batch": batch}

    def timed() -> float:
        started = time.perf_counter()
        float(step(work.inputs, work.labels))
        return time.perf_counter() - started

    try:
        work = workload(name, batch)
        step: Any
        if kind == "planned":
            step = planned_loss_step(work, optimizer, "auto", micro_batches)
        else:
            step = tf.function(loss_step(work, optimizer))
        seconds = [timed() for _ in range(steps)]
    except (checkmate.InfeasibleBudgetError, checkmate.NoPlanFoundError):
        return take_steps(failed)
    except tf.errors.OpError as error:
        if not is_out_of_memory(error):
            raise
        return take_steps(failed)
    facts = {
        "trained": True,
        "batch": batch,
        "step_s": statistics.median(seconds[1:] or seconds),
        "micro_batches": slices_of(step) if kind == "planned" else None,
    }
    take_steps(facts, timed)


if __name__ == "__main__":
    model, way, count, examples, most, slices = sys.argv[1:]
    train(
        model,
        way,
        int(count),
        int(examples),
        int(most),
        slices if slices == "auto" else int(slices),
    )
