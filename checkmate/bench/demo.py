"""`checkmate demo`: a real model trained plain and under a budget, each in a process of its own, measured by the allocator."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from checkmate.bench.process import fresh_process
from checkmate.units import format_bytes

LOSS_TOLERANCE = 1e-3
"""Relative difference of losses that still counts as equal: TensorFlow fuses and parallelizes the two steps differently."""


@dataclass(frozen=True, slots=True)
class Run:
    """One process' training: the allocator's peak over all steps, the median step, every loss.

    Attributes:
      in_use: (seconds, bytes in use from then on) over one more step, if that was asked for; under TensorFlow's profiler, which slows it down.
    """

    peak_bytes: int
    step_s: float
    losses: list[float]
    in_use: list[tuple[float, int]] = field(default_factory=list, repr=False)


@dataclass(frozen=True, slots=True)
class Demo:
    """Both runs, what they show, and what the planned step reports of itself."""

    model: str
    device: str
    budget_bytes: int
    plain: Run
    planned: Run
    report: str = ""

    @property
    def within_budget(self) -> bool:
        """The measured peak, with everything resident in it, is within the budget."""
        return self.planned.peak_bytes <= self.budget_bytes

    @property
    def losses_agree(self) -> bool:
        """Every loss is that of the plain run, but for rounding."""
        pairs = zip(self.plain.losses, self.planned.losses, strict=True)
        return all(abs(a - b) <= LOSS_TOLERANCE * abs(a) for a, b in pairs)

    def sentence(self) -> str:
        """What happened, in one sentence."""
        share = self.planned.peak_bytes / self.plain.peak_bytes
        return (
            f"With a budget of {format_bytes(self.budget_bytes)}, {self.model} trained in {format_bytes(self.planned.peak_bytes)} instead of "
            f"{format_bytes(self.plain.peak_bytes)} ({share:.0%}), at {self.planned.step_s / self.plain.step_s:.2f} times the step time, "
            f"with {'the same' if self.losses_agree else 'DIFFERENT'} losses."
        )


def run_demo(model: str, budget: str, steps: int, *, watch: bool = False) -> Demo:
    """Runs both trainings; `watch` to see memory over a step. Raises `CheckmateError` when a process fails."""
    watched = ["--watch"] if watch else []
    planned = fresh_process("checkmate.bench.demo", [*watched, model, str(steps), budget])
    plain = fresh_process("checkmate.bench.demo", [*watched, model, str(steps)])
    first, second = (Run(found["peak_bytes"], found["step_s"], found["losses"], found.get("in_use", [])) for found in (plain, planned))
    return Demo(model, planned["device"], planned["budget_bytes"], first, second, planned.get("report", ""))


def train(name: str, steps: int, budget: str | None, *, watch: bool = False) -> dict[str, Any]:
    """Trains a workload in this process and returns what the allocator and the clock say."""
    import keras
    import tensorflow as tf

    import checkmate
    from checkmate.bench.models import workload
    from checkmate.tf2 import device as devices
    from checkmate.tf2.observe import observe

    keras.utils.set_random_seed(0)
    work = workload(name)
    optimizer = keras.optimizers.Adam(1e-4)
    device = devices.training_device()
    if budget is None:
        step, budget_bytes, report = plain_step(work, optimizer), None, ""
    else:
        step = checkmate.tf2.compile(work.model, work.loss, optimizer, work.inputs, work.labels, budget=budget)
        budget_bytes, report = step.budget_bytes, str(step.report())
    tf.config.experimental.reset_memory_stats(device)
    seconds, losses = [], []
    for _ in range(steps):
        started = time.perf_counter()
        _, loss = step(work.inputs, work.labels)
        losses.append(float(loss))
        seconds.append(time.perf_counter() - started)
    peak_bytes = tf.config.experimental.get_memory_info(device)["peak"]
    return {
        "device": device,
        "budget_bytes": budget_bytes,
        "peak_bytes": peak_bytes,
        "step_s": statistics.median(seconds[1:] or seconds),
        "losses": losses,
        "report": report,
        "in_use": observe(lambda: step(work.inputs, work.labels)).in_use if watch else [],
    }


def plain_step(work: Any, optimizer: Any, *, forward: Callable[[Any], Any] | None = None, jit_compile: bool = False) -> Any:
    """The training step as anyone would write it without us; `forward` in place of calling the model, `jit_compile` for XLA."""
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


if __name__ == "__main__":
    arguments = [argument for argument in sys.argv[1:] if argument != "--watch"]
    print(json.dumps(train(arguments[0], int(arguments[1]), arguments[2] if len(arguments) > 2 else None, watch="--watch" in sys.argv)))
