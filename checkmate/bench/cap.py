"""`checkmate bench cap`: the largest batch that trains under a memory cap, plain and planned.

The cap is the allocator's limit: on a GPU the `memory_limit` of its logical device, on a CPU
`TF_CPU_BFC_MEM_LIMIT_IN_MB`. A step that needs more memory ends with an error of TensorFlow, or
crashes in a kernel that does not check its allocation. So each batch is tried in a fresh process.

Both steps return the loss alone, as Keras's `fit` does: the predictions of a whole batch, such as
the logits of a language model, would otherwise be kept by either.

The two largest batches are then timed in turn in one process without the cap, the planned one
within the budget that it had: other work of the machine slows both.
"""

from __future__ import annotations

import functools
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from checkmate.bench.process import ProcessDiedError, fresh_process
from checkmate.bench.training import slices_cell
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
    batch, step_s (median), trained, micro_batches (None, or count and size of the slices) and
    budget_bytes; in_turn has plain_s, step_s and ratio_quartiles of both timed in turn, None if
    they were not.

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
    in_turn = _in_turn(name, steps, plain, planned) if plain and planned else None
    return {
        "model": name,
        "cap_bytes": cap_bytes,
        "plain": plain,
        "planned": planned,
        "in_turn": in_turn,
    }


def _in_turn(
    name: str, steps: int, plain: dict[str, Any], planned: dict[str, Any]
) -> dict[str, Any] | None:
    count = planned["micro_batches"]["count"] if planned["micro_batches"] else 1
    numbers = (steps, plain["batch"], planned["batch"], planned["budget_bytes"], count)
    try:
        return fresh_process("checkmate.bench.cap", [name, "in turn", *map(str, numbers)])
    except CheckmateError:
        return None


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
    name: str, steps: int, batch: int, cap_bytes: int, *, kind: str, micro_batches: int | str
) -> dict[str, Any]:
    """Trains a workload on a batch of this size in this process, in which TensorFlow has run
    nothing, "plain" or "planned" with budget="auto" and this option `micro_batches`."""
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
        "budget_bytes": step.budget_bytes if kind == "planned" else None,
    }


def time_in_turn(
    name: str, steps: int, plain_batch: int, batch: int, budget_bytes: int, micro_batches: int
) -> dict[str, Any]:
    """Times plain steps in turn with those of a larger batch, planned within a budget, in this
    process."""
    import keras
    import tensorflow as tf

    from checkmate.bench.models import workload
    from checkmate.bench.training import loss_step, measured, planned_loss_step, timed_in_turn

    keras.utils.set_random_seed(0)
    optimizer = keras.optimizers.Adam(1e-4)
    work = workload(name, batch)
    few = work.inputs[:plain_batch], work.labels[:plain_batch]
    beside = sum(each.dtype.size * each.shape.num_elements() for each in few)
    planned = planned_loss_step(work, optimizer, budget_bytes + beside, micro_batches)
    plain = tf.function(loss_step(work, optimizer))
    return timed_in_turn(
        steps,
        lambda: measured(lambda: plain(*few)),
        lambda: measured(lambda: planned(work.inputs, work.labels)),
    )


if __name__ == "__main__":
    model, way, *numbers, slices = sys.argv[1:]
    figures = [int(each) for each in numbers]
    asked = slices if slices == "auto" else int(slices)
    does: Any = time_in_turn if way == "in turn" else functools.partial(train, kind=way)
    print(json.dumps(does(model, *figures, micro_batches=asked)))
