"""`checkmate demo`: a real model trained plain and under a budget, each in a process of its own, measured by the allocator."""

from __future__ import annotations

import json
import statistics
import sys
import time
from dataclasses import dataclass
from typing import Any

from checkmate.bench.process import fresh_process
from checkmate.units import format_bytes

LOSS_TOLERANCE = 1e-3
"""Relative difference of losses that still counts as equal: TensorFlow fuses and parallelizes the two steps differently."""


@dataclass(frozen=True, slots=True)
class Run:
    """One process' training: the allocator's peak over all steps, the median step, every loss."""

    peak_bytes: int
    step_s: float
    losses: list[float]


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


def run_demo(model: str, budget: str, steps: int) -> Demo:
    """Runs both trainings. Raises `CheckmateError` when a process fails."""
    planned = fresh_process("checkmate.bench.demo", [model, str(steps), budget])
    plain = fresh_process("checkmate.bench.demo", [model, str(steps)])
    first, second = (Run(found["peak_bytes"], found["step_s"], found["losses"]) for found in (plain, planned))
    return Demo(model, planned["device"], planned["budget_bytes"], first, second, planned.get("report", ""))


def train(name: str, steps: int, budget: str | None) -> dict[str, Any]:
    """Trains a workload in this process and returns what the allocator and the clock say."""
    import keras
    import tensorflow as tf

    import checkmate
    from checkmate.bench.models import workload
    from checkmate.tf2 import device as devices

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
    return {
        "device": device,
        "budget_bytes": budget_bytes,
        "peak_bytes": tf.config.experimental.get_memory_info(device)["peak"],
        "step_s": statistics.median(seconds[1:] or seconds),
        "losses": losses,
        "report": report,
    }


def plain_step(work: Any, optimizer: Any) -> Any:
    """The training step as anyone would write it without us."""
    import tensorflow as tf

    optimizer.build(work.model.trainable_variables)

    @tf.function
    def step(inputs: Any, labels: Any) -> tuple[Any, Any]:
        with tf.GradientTape() as tape:
            prediction = work.model(inputs, training=True)
            loss = work.loss(labels, prediction)
        variables = work.model.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)
        return prediction, loss

    return step


if __name__ == "__main__":
    print(json.dumps(train(sys.argv[1], int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None)))
