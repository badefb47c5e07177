"""What benchmarks share that train: plain and planned steps of a workload, and how one is measured.

TensorFlow is imported on the first call.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

MIB = 2**20

LOSS_TOLERANCE = 1e-3
"""Relative difference up to which losses count as equal: TensorFlow fuses and parallelizes the two
steps differently."""


def loss_difference(plain: Sequence[float], losses: Sequence[float]) -> float:
    """Returns the largest difference of a loss from the plain step's, relative to that; infinite
    where one is no number."""
    found = [abs(a - b) / (abs(a) or 1.0) for a, b in zip(plain, losses, strict=True)]
    return max(each if math.isfinite(each) else math.inf for each in found)


def plain_step(
    work: Any,
    optimizer: Any,
    *,
    forward: Callable[[Any], Any] | None = None,
    jit_compile: bool = False,
) -> Any:
    """Returns the usual training step of a workload, without this library.

    Args:
      forward: Replaces the call of the model.
      jit_compile: Whether XLA compiles the step.
    """
    import tensorflow as tf

    forward = forward or (lambda inputs: work.model(inputs, training=True))
    optimizer.build(work.model.trainable_variables)

    @tf.function(jit_compile=jit_compile)
    def step(inputs: Any, labels: Any) -> tuple[Any, Any]:
        with tf.GradientTape() as tape:
            prediction = forward(inputs)
            loss = work.loss(labels, prediction)
        variables = work.model.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)
        return prediction, loss

    return step


def loss_step(work: Any, optimizer: Any) -> Callable[[Any, Any], Any]:
    """Returns the usual training step of a workload as a Python function that returns the loss
    alone, as Keras's `fit` does: the predictions of a whole batch need not be kept."""
    import tensorflow as tf

    variables = work.model.trainable_variables
    optimizer.build(variables)

    def step(inputs: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = work.loss(labels, work.model(inputs, training=True))
        optimizer.apply(tape.gradient(loss, variables), variables)
        return loss

    return step


def planned_step(work: Any, optimizer: Any, budget: int | str, **options: Any) -> Any:
    """Returns the step of `checkmate.tf2.compile` for a workload."""
    import checkmate

    return checkmate.tf2.compile(
        work.model, work.loss, optimizer, work.inputs, work.labels, budget=budget, **options
    )


def planned_loss_step(
    work: Any, optimizer: Any, budget: int | str, micro_batches: int | str
) -> Any:
    """Returns the step of `loss_step`, planned for the workload's batch."""
    import checkmate

    return checkmate.tf2.function(
        loss_step(work, optimizer),
        work.inputs,
        work.labels,
        budget=budget,
        micro_batches=micro_batches,
    )


def slices_of(step: Any) -> dict[str, int] | None:
    """Returns how many slices of a batch a planned step runs, and how many examples each has; None
    where it runs the whole batch at once."""
    found = step.report().micro_batches
    return found and {"count": found.count, "size": found.size}


def slices_cell(slices: dict[str, int] | None) -> str:
    """What `slices_of` returns in a cell."""
    return f"{slices['count']} of {slices['size']}" if slices else "-"


def plain_prediction(report: Any) -> dict[str, int]:
    """Returns what a step's report predicts of the plain step: its resident bytes, and its peak
    above them."""
    resident = report.fixed_bytes + report.outside_bytes
    return {"fixed_bytes": resident, "predicted_bytes": report.plain_peak_bytes - resident}


class Timed(NamedTuple):
    """One step: how long it took, the allocator's peak, everything resident included, what of that
    was in use before, and the loss."""

    seconds: float
    peak_bytes: int
    resting_bytes: int
    loss: float

    @property
    def above_resting_bytes(self) -> int:
        """The peak without what was in use before."""
        return self.peak_bytes - self.resting_bytes


def timed(step: Any, work: Any) -> Timed:
    """Runs a step once that returns the prediction and the loss."""
    return measured(lambda: step(work.inputs, work.labels)[1])


def measured(call: Callable[[], Any]) -> Timed:
    """Runs a step once that returns the loss."""
    from checkmate.tf2 import device as devices

    started = time.perf_counter()
    loss, before, peak = devices.peak_above(devices.training_device(), lambda: float(call()))
    return Timed(time.perf_counter() - started, peak, before, loss)


def timed_in_turn(
    steps: int, plain: Callable[[], Timed], other: Callable[[], Timed]
) -> dict[str, Any]:
    """Times two kinds of steps in turn, so that other work of the machine slows both; the first
    pair is a warm-up.

    Args:
      steps: How many pairs are timed, two or more.

    Returns: The medians "plain_s" and "step_s", and "ratio_quartiles" of the pairs' ratios, the
      second of which is their median.
    """
    plain_s, step_s = in_turn(steps, (lambda: plain().seconds, lambda: other().seconds))
    return {
        "plain_s": statistics.median(plain_s),
        "step_s": statistics.median(step_s),
        "ratio_quartiles": ratios(step_s, plain_s),
    }


def in_turn(steps: int, taken: Sequence[Callable[[], float]]) -> list[list[float]]:
    """Takes a step of each kind in turn, so that other work of the machine slows all; the first
    round is a warm-up.

    Args:
      steps: How many rounds are timed.
      taken: For each kind, what takes a step and returns its seconds.

    Returns: The seconds of each kind, round by round.
    """
    rounds = [[step() for step in taken] for _ in range(steps + 1)][1:]
    return [list(each) for each in zip(*rounds, strict=True)]


def ratios(one: Sequence[float], other: Sequence[float]) -> list[float]:
    """Returns the quartiles of the ratios of two kinds of steps that were taken in turn; the second
    is their median."""
    of_rounds = [above / below for above, below in zip(one, other, strict=True)]
    return statistics.quantiles(of_rounds, n=4, method="inclusive")
