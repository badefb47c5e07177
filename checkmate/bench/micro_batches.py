"""`checkmate bench steps --micro-batches`: recomputation, gradient accumulation, and both chosen
together, at the same budgets.

Recomputation is a plan of this library for the whole batch. Accumulation is Keras's own, the
optimizer's `gradient_accumulation_steps`, without this library: the batch comes in equal parts, as
few as keep the measured peak within the budget. Both is the option `micro_batches="auto"`.

Each way trains in a process of its own, and so do plain steps on the whole batch; the steps of all
are timed in turn. Memory is the allocator's peak, everything resident included (variables,
optimizer slots, accumulated gradients, the batch). All steps return the loss alone.
"""

from __future__ import annotations

import contextlib
import functools
import json
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from checkmate.bench.process import StepProcess, fresh_process, last_line, take_steps
from checkmate.bench.training import (
    MIB,
    in_turn,
    loss_step,
    measured,
    plain_prediction,
    planned_loss_step,
    ratios,
    slices_cell,
    slices_of,
)
from checkmate.errors import CheckmateError
from checkmate.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from checkmate.tf2.models import Workload

MODULE = "checkmate.bench.micro_batches"
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

    `ratio_quartiles` are those of a way's step times divided by the plain step's; `of_better` is
    the median of those of both divided by the better one's of the others, None if neither has one.
    A way without a step within the budget has `error` instead of figures.
    """
    figures = fresh_process(MODULE, [name, str(steps), "figures"])
    accumulation = Accumulation(functools.partial(_process, name, steps), figures["batch"])
    with contextlib.closing(_process(name, steps, ACCUMULATION, 1)) as plain:
        for budget in budgets.split(","):
            above = parse_bytes(budget, percent_of=figures["predicted_bytes"])
            budget_bytes = figures["fixed_bytes"] + above
            asked = {"model": name, "budget": budget, "budget_bytes": budget_bytes}
            asked["batch"] = figures["batch"]
            makes = {
                RECOMPUTATION: functools.partial(_process, name, steps, "planned", 1, budget_bytes),
                ACCUMULATION: functools.partial(accumulation.within, budget_bytes),
                BOTH: functools.partial(_process, name, steps, "planned", "auto", budget_bytes),
            }
            yield from ({**asked, **row} for row in _rows(makes, steps, plain))


def _process(name: str, steps: int, *way: Any) -> StepProcess:
    return StepProcess(MODULE, [name, str(steps), *map(str, way)])


def _rows(
    makes: Mapping[str, Callable[[], StepProcess]], steps: int, plain: StepProcess
) -> Iterator[dict[str, Any]]:
    """The rows of one budget, from what makes the process of each way."""
    with contextlib.ExitStack() as running:
        ways, refused = {}, {}
        for way, make in makes.items():
            try:
                ways[way] = running.enter_context(contextlib.closing(make()))
            except CheckmateError as error:
                refused[way] = last_line(error)
        plain_s, *seconds = in_turn(steps, (plain.step, *(each.step for each in ways.values())))
        taken = dict(zip(ways, seconds, strict=True))
    for way in makes:
        if way in refused:
            yield {"way": way, "error": refused[way]}
            continue
        others = [taken[each] for each in taken if each != BOTH] if way == BOTH else []
        better = min(others, key=statistics.median, default=None)
        yield {
            "way": way,
            **ways[way].facts,
            "plain_s": statistics.median(plain_s),
            "step_s": statistics.median(taken[way]),
            "ratio_quartiles": ratios(taken[way], plain_s),
            "of_better": ratios(taken[way], better)[1] if better else None,
        }


class Accumulation:
    """Finds the fewest equal parts of a batch that are within a budget.

    Args:
      process: Makes the process of a number of parts.
      batch: Examples in the batch.
    """

    def __init__(self, process: Callable[..., StepProcess], batch: int):
        self._process, self._batch = process, batch
        self._peaks: dict[int, int] = {}

    def within(self, budget_bytes: int) -> StepProcess:
        """Returns the process of the fewest parts whose peak is within the budget.

        Raises:
          CheckmateError: One example at a time takes more.
        """
        for parts in (each for each in range(1, self._batch + 1) if self._batch % each == 0):
            if self._peaks.get(parts, 0) > budget_bytes:
                continue
            found = self._process(ACCUMULATION, parts)
            self._peaks[parts] = found.facts["peak_bytes"]
            if self._peaks[parts] <= budget_bytes:
                return found
            found.close()
        least = min(self._peaks.values())
        raise CheckmateError(
            f"Gradient accumulation takes {format_bytes(least)} at least, in parts of a batch of"
            f" {self._batch}: {format_bytes(least - budget_bytes)} more than the budget of"
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
        f"{row['ratio_quartiles'][1]:.3f}",
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


def figures(name: str) -> dict[str, Any]:
    """Returns the figures of a workload's plain step."""
    import keras

    from checkmate.bench.models import workload

    work = workload(name)
    report = planned_loss_step(work, keras.optimizers.Adam(1e-4), "1000%", 1).report()
    return {"batch": len(work.labels), **plain_prediction(report)}


def run(name: str, steps: int, way: str, *numbers: str) -> None:
    """Trains a workload one way in this process, which is a `StepProcess`, after some steps in
    which its peak is measured.

    Args:
      way: "accumulation" or "planned".
      numbers: Of accumulation the parts; of a planned step the option `micro_batches`, and the
        budget in bytes.
    """
    import keras

    from checkmate.bench.models import workload

    keras.utils.set_random_seed(0)
    work = workload(name)
    if way == ACCUMULATION:
        facts, step = accumulated(work, int(numbers[0]))
    else:
        slices, budget_bytes = numbers
        facts, step = planned(work, slices if slices == "auto" else int(slices), int(budget_bytes))
    del work
    peak_bytes = max(measured(step).peak_bytes for _ in range(steps))
    take_steps({**facts, "peak_bytes": peak_bytes}, lambda: measured(step).seconds)


def planned(
    work: Workload, micro_batches: int | str, budget_bytes: int
) -> tuple[dict[str, Any], Callable[[], Any]]:
    """Returns the slices and recomputations of a planned step, and the step on the whole batch."""
    import keras

    step = planned_loss_step(work, keras.optimizers.Adam(1e-4), budget_bytes, micro_batches)
    facts = {
        "micro_batches": slices_of(step) or {"count": 1, "size": len(work.labels)},
        "recomputed": len(step.plan.recomputed),
    }
    return facts, lambda: step(work.inputs, work.labels)


def accumulated(work: Workload, parts: int) -> tuple[dict[str, Any], Callable[[], Any]]:
    """Returns the same of Keras's gradient accumulation; in one part, the plain step."""
    import keras
    import tensorflow as tf

    more = {"gradient_accumulation_steps": parts} if parts > 1 else {}
    batch = list(zip(tf.split(work.inputs, parts), tf.split(work.labels, parts), strict=True))
    facts = {
        "micro_batches": {"count": parts, "size": len(work.labels) // parts},
        "recomputed": 0,
    }
    work = replace(work, inputs=None, labels=None)  # the parts alone stay in memory
    step = tf.function(loss_step(work, keras.optimizers.Adam(1e-4, **more)))
    return facts, lambda: tf.reduce_mean([step(*each) for each in batch])


if __name__ == "__main__":
    model, count, *way = sys.argv[1:]
    if way == ["figures"]:
        print(json.dumps(figures(model)))
    else:
        run(model, int(count), *way)
