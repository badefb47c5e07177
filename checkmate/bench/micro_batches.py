"""`checkmate bench steps --micro-batches`: recomputation, gradient accumulation, and both chosen
together, at the same budgets.

Recomputation is a plan of this library for the whole batch. Accumulation is Keras's own, the
optimizer's `gradient_accumulation_steps`, without this library: the batch comes in equal parts, as
few as keep the measured peak within the budget. Both is the option `micro_batches="auto"`.

Each way trains in a process of its own, in which plain steps on the whole batch are timed in turn
with it. Memory is the allocator's peak, everything resident included (variables, optimizer slots,
accumulated gradients, the batch). All steps return the loss alone.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from checkmate.bench.process import fresh_process, last_line
from checkmate.bench.training import (
    MIB,
    loss_step,
    measured,
    plain_prediction,
    planned_loss_step,
    slices_cell,
    slices_of,
    timed_in_turn,
)
from checkmate.errors import CheckmateError
from checkmate.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from checkmate.tf2.models import Workload

NAMES = ("mobilenet_ln", "encoder", "decoder", "unet_without_norm")
RECOMPUTATION, ACCUMULATION, BOTH = "recomputation", "accumulation", "both"
TITLE = (
    "recomputation, gradient accumulation and both; memory is the allocator's peak, everything"
    " resident included"
)
COLUMNS = (
    "model",
    "budget",
    "way",
    "slices",
    "peak MiB",
    "budget MiB",
    "s per example",
    "/ plain",
    "/ better",
)


def measure(name: str, budgets: str, steps: int) -> Iterator[dict[str, Any]]:
    """Yields a row per budget and way.

    `ratio` is the median step time divided by the plain step's; `of_better` that of both divided
    by the lower one of the others, None if neither has one. A way without a step within the budget
    has `error` instead of figures.
    """
    process = functools.partial(_process, name, steps)
    plain = process("plain")
    accumulated = functools.cache(lambda parts: process("accumulation", parts))
    for budget in budgets.split(","):
        above = parse_bytes(budget, percent_of=plain["predicted_bytes"])
        budget_bytes = plain["fixed_bytes"] + above
        ways: dict[str, Callable[[], dict[str, Any]]] = {
            RECOMPUTATION: functools.partial(process, "planned", 1, budget_bytes),
            ACCUMULATION: functools.partial(
                fewest_parts, accumulated, plain["batch"], budget_bytes
            ),
            BOTH: functools.partial(process, "planned", "auto", budget_bytes),
        }
        ratios: list[float] = []
        for way, trained in ways.items():
            row = {"model": name, "budget": budget, "budget_bytes": budget_bytes, "way": way}
            row["batch"] = plain["batch"]
            try:
                found = trained()
            except CheckmateError as error:
                yield {**row, "error": last_line(error)}
                continue
            better = found["ratio"] / min(ratios) if way == BOTH and ratios else None
            ratios.append(found["ratio"])
            yield {**row, **found, "of_better": better}


def _process(name: str, steps: int, *way: Any) -> dict[str, Any]:
    return fresh_process("checkmate.bench.micro_batches", [name, str(steps), *map(str, way)])


def fewest_parts(
    accumulated: Callable[[int], dict[str, Any]], batch: int, budget_bytes: int
) -> dict[str, Any]:
    """Returns the figures of the fewest equal parts of a batch whose peak is within the budget.

    Args:
      accumulated: Number of parts -> figures.

    Raises:
      CheckmateError: One example at a time takes more.
    """
    least = 0
    for parts in (each for each in range(1, batch + 1) if batch % each == 0):
        found = accumulated(parts)
        if found["peak_bytes"] <= budget_bytes:
            return found
        least = min(least or found["peak_bytes"], found["peak_bytes"])
    raise CheckmateError(
        f"Gradient accumulation takes {format_bytes(least)} at least, in parts of a batch of"
        f" {batch}: {format_bytes(least - budget_bytes)} more than the budget of"
        f" {format_bytes(budget_bytes)}."
    )


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """A row under `COLUMNS`."""
    start = (row["model"], row["budget"], row["way"])
    if "error" in row:
        return (*start, row["error"][:100])
    better = row["of_better"]
    return (
        *start,
        slices_cell(row["micro_batches"]),
        f"{row['peak_bytes'] / MIB:.0f}",
        f"{row['budget_bytes'] / MIB:.0f}",
        f"{row['step_s'] / row['batch']:.4f}",
        f"{row['ratio']:.3f}",
        f"{better:.3f}" if better else "-",
    )


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """Returns the table in a sentence."""
    within = [
        row for row in rows if "error" not in row and row["peak_bytes"] <= row["budget_bytes"]
    ]
    both = [row for row in within if row["way"] == BOTH]
    others = {(row["model"], row["budget"]) for row in within if row["way"] != BOTH}
    compared = [row["of_better"] for row in both if row["of_better"]]
    longest = (
        f" It takes at most {max(compared):.3f} times as long as the better of them."
        if compared
        else ""
    )
    return (
        f"Both together is within {len(both)} budgets, one of the others within {len(others)}, of"
        f" {sum(row['way'] == BOTH for row in rows)}.{longest}"
    )


def run(name: str, steps: int, way: str, *numbers: str) -> dict[str, Any]:
    """Trains a workload one way in this process, and returns the figures.

    Args:
      way: "plain", "accumulation" or "planned".
      numbers: Of accumulation the parts; of a planned step the option `micro_batches`, and the
        budget in bytes.
    """
    import keras

    from checkmate.bench.models import workload

    keras.utils.set_random_seed(0)
    work = workload(name)
    if way == "plain":
        report = planned_loss_step(work, keras.optimizers.Adam(1e-4), "1000%", 1).report()
        return {"batch": len(work.labels), **plain_prediction(report)}
    if way == "accumulation":
        return _accumulated(work, steps, int(numbers[0]))
    slices, budget_bytes = numbers
    return _planned(work, steps, slices if slices == "auto" else int(slices), int(budget_bytes))


def _planned(
    work: Workload, steps: int, micro_batches: int | str, budget_bytes: int
) -> dict[str, Any]:
    import keras
    import tensorflow as tf

    optimizer = keras.optimizers.Adam(1e-4)
    step = planned_loss_step(work, optimizer, budget_bytes, micro_batches)
    plain = tf.function(loss_step(work, optimizer))
    found = _figures(
        steps,
        lambda: step(work.inputs, work.labels),
        lambda: lambda: plain(work.inputs, work.labels),
    )
    slices = slices_of(step) or {"count": 1, "size": len(work.labels)}
    return {**found, "micro_batches": slices, "recomputed": len(step.plan.recomputed)}


def _accumulated(work: Workload, steps: int, parts: int) -> dict[str, Any]:
    import keras
    import tensorflow as tf

    more = {"gradient_accumulation_steps": parts} if parts > 1 else {}
    step = tf.function(loss_step(work, keras.optimizers.Adam(1e-4, **more)))
    batch = list(zip(tf.split(work.inputs, parts), tf.split(work.labels, parts), strict=True))
    slices = {"count": parts, "size": len(work.labels) // parts}
    work = replace(work, inputs=None, labels=None)  # the parts alone stay in memory

    def plain() -> Callable[[], Any]:
        whole = [tf.concat(each, 0) for each in zip(*batch, strict=True)]
        step = tf.function(loss_step(work, keras.optimizers.Adam(1e-4)))
        return lambda: step(*whole)

    found = _figures(steps, lambda: tf.reduce_mean([step(*each) for each in batch]), plain)
    return {**found, "micro_batches": slices, "recomputed": 0}


def _figures(
    steps: int, step: Callable[[], Any], make_plain: Callable[[], Callable[[], Any]]
) -> dict[str, Any]:
    """Measures a step, then times it in turn with the plain one, which is made after the peak was
    measured."""
    peak_bytes = max(measured(step).peak_bytes for _ in range(steps))
    plain = make_plain()
    times = timed_in_turn(steps, lambda: measured(plain), lambda: measured(step))
    return {**times, "ratio": times["ratio_quartiles"][1], "peak_bytes": peak_bytes}


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])))
