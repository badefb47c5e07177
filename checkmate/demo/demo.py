"""`checkmate demo`: trains a model plain and within a budget, each in a process of its own."""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from checkmate.demo.process import fresh_process
from checkmate.units import format_bytes

LOSS_TOLERANCE = 1e-3
"""Relative difference up to which losses count as equal: TensorFlow fuses and parallelizes the two
steps differently."""


def loss_difference(plain: Sequence[float], losses: Sequence[float]) -> float:
    """The largest relative difference of a loss from the plain step's; infinite where one is no
    number, or where there is another number of them."""
    if len(plain) != len(losses):
        return math.inf
    found = [abs(a - b) / (abs(a) or 1.0) for a, b in zip(plain, losses, strict=True)]
    return max((each if math.isfinite(each) else math.inf for each in found), default=0.0)


@dataclass(frozen=True, slots=True)
class Run:
    """One training: the allocator's peak over its steps, the median step, every loss; with `watch`
    (seconds, bytes in use from then on) over one more step, which the profiler slows down.

    The first of several plain steps is a warm-up: TensorFlow may try several algorithms of an op in
    it, which take more memory than the step needs. A planned step has run before.
    """

    peak_bytes: int
    step_s: float
    losses: list[float]
    in_use: list[tuple[float, int]] = field(default_factory=list, repr=False)


@dataclass(frozen=True, slots=True)
class Demo:
    """Both trainings, and the planned step's report."""

    model: str
    device: str
    budget_bytes: int
    plain: Run
    planned: Run
    report: str = ""

    @property
    def within_budget(self) -> bool:
        return self.planned.peak_bytes <= self.budget_bytes

    @property
    def losses_agree(self) -> bool:
        return loss_difference(self.plain.losses, self.planned.losses) <= LOSS_TOLERANCE

    def sentence(self) -> str:
        share = self.planned.peak_bytes / self.plain.peak_bytes
        farthest = loss_difference(self.plain.losses, self.planned.losses)
        losses = "the same" if self.losses_agree else f"DIFFERENT (by up to {farthest:.1e})"
        return (
            f"With a budget of {format_bytes(self.budget_bytes)}, {self.model} trained in"
            f" {format_bytes(self.planned.peak_bytes)} instead of"
            f" {format_bytes(self.plain.peak_bytes)} (measured, {share:.0%}), at"
            f" {self.planned.step_s / self.plain.step_s:.2f} times the step time, with {losses}"
            " losses."
        )


PHASES = {"training within the budget": 1, "training plain": 2}
"""The phases of `run_demo`, with their numbers."""


def run_demo(
    model: str,
    budget: str,
    steps: int,
    *,
    watch: bool = False,
    phase: Callable[[str], AbstractContextManager[Any]] = nullcontext,
) -> Demo:
    """Runs both trainings. `phase` is entered with the name of each phase. Raises `CheckmateError`
    if a process fails."""

    def training(*arguments: str) -> tuple[dict[str, Any], Run]:
        found = fresh_process("checkmate.demo.demo", list(arguments))
        return found, Run(
            found["peak_bytes"], found["step_s"], found["losses"], found.get("in_use", [])
        )

    watched = ["--watch"] if watch else []
    within, without = PHASES
    with phase(within):
        told, planned = training(*watched, model, str(steps), budget)
    with phase(without):
        _, plain = training(*watched, model, str(steps))
    return Demo(model, told["device"], told["budget_bytes"], plain, planned, told.get("report", ""))


def plain_step(work: Any, optimizer: Any) -> Any:
    import tensorflow as tf

    variables = work.model.trainable_variables
    optimizer.build(variables)

    @tf.function
    def step(inputs: Any, labels: Any) -> tuple[Any, Any]:
        with tf.GradientTape() as tape:
            prediction = work.model(inputs, training=True)
            loss = work.loss(labels, prediction)
        optimizer.apply(tape.gradient(loss, variables), variables)
        return prediction, loss

    return step


def planned_step(work: Any, optimizer: Any, budget: int | str) -> Any:
    import checkmate

    return checkmate.tf2.compile(
        work.model, work.loss, optimizer, work.inputs, work.labels, budget=budget
    )


def train(name: str, steps: int, budget: str | None, *, watch: bool = False) -> dict[str, Any]:
    """Trains a workload in this process. Returns the fields of `Run`, and device, budget and
    report."""
    import keras
    import tensorflow as tf

    from checkmate.demo.models import workload
    from checkmate.tf2 import device as devices
    from checkmate.tf2.memory.profiler import observe

    keras.utils.set_random_seed(0)
    work = workload(name)
    optimizer = keras.optimizers.Adam(1e-4)
    device = devices.training_device()
    step: Any = planned_step(work, optimizer, budget) if budget else plain_step(work, optimizer)
    tf.config.experimental.reset_memory_stats(device)
    seconds, losses = [], []
    for k in range(steps):
        if k == 1 and budget is None:
            devices.forget_peak(device)
        started = time.perf_counter()
        _, loss = step(work.inputs, work.labels)
        losses.append(float(loss))
        seconds.append(time.perf_counter() - started)
    peak_bytes = tf.config.experimental.get_memory_info(device)["peak"]
    return {
        "device": device,
        "budget_bytes": step.budget_bytes if budget else None,
        "peak_bytes": peak_bytes,
        "step_s": statistics.median(seconds[1:] or seconds),
        "losses": losses,
        "report": str(step.report()) if budget else "",
        "in_use": observe(lambda: step(work.inputs, work.labels)).in_use if watch else [],
    }


if __name__ == "__main__":
    model, count, *within = [word for word in sys.argv[1:] if not word.startswith("--")]
    print(
        json.dumps(
            train(model, int(count), within[0] if within else None, watch="--watch" in sys.argv)
        )
    )
