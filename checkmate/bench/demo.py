"""`checkmate demo`: a real model trained plain and under a budget, each in a process of its own,
measured by the allocator."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from checkmate.bench.process import fresh_process
from checkmate.units import format_bytes

LOSS_TOLERANCE = 1e-3
"""Relative difference of losses that still counts as equal: TensorFlow fuses and parallelizes the
two steps differently."""


@dataclass(frozen=True, slots=True)
class Run:
    """One process' training: the allocator's peak over all steps, the median step, every loss.

    Attributes:
      in_use: (seconds, bytes in use from then on) over one more step, if that was asked for; under
        TensorFlow's profiler, which slows it down.
    """

    peak_bytes: int
    step_s: float
    losses: list[float]
    in_use: list[tuple[float, int]] = field(default_factory=list, repr=False)


@dataclass(frozen=True, slots=True)
class Demo:
    """Both runs, what they show, and what the planned step reports of itself.

    Attributes:
      moved: The plain training again, from weights that are each moved to the next number, where
        the losses differ by more than `LOSS_TOLERANCE`.
    """

    model: str
    device: str
    budget_bytes: int
    plain: Run
    planned: Run
    report: str = ""
    moved: Run | None = None

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
        losses = "the same losses" if self.losses_agree else "DIFFERENT losses"
        if self.moved is not None:
            losses += (
                f": by up to {self._farthest(self.planned):.1e}, and its own by"
                f" {self._farthest(self.moved):.1e} when weights begin a last bit off"
            )
        return (
            f"With a budget of {format_bytes(self.budget_bytes)}, {self.model} trained in"
            f" {format_bytes(self.planned.peak_bytes)} instead of"
            f" {format_bytes(self.plain.peak_bytes)} ({share:.0%}), at"
            f" {self.planned.step_s / self.plain.step_s:.2f} times the step time, with {losses}."
        )

    def _farthest(self, run: Run) -> float:
        return max(
            abs(a - b) / (abs(a) or 1.0) for a, b in zip(self.plain.losses, run.losses, strict=True)
        )


def run_demo(model: str, budget: str, steps: int, *, watch: bool = False) -> Demo:
    """Runs both trainings, and the plain one from moved weights where they differ; `watch` to see
    memory over a step.

    Raises `CheckmateError` when a process fails.
    """

    def training(*arguments: str) -> tuple[dict[str, Any], Run]:
        found = fresh_process("checkmate.bench.demo", list(arguments))
        return found, Run(
            found["peak_bytes"], found["step_s"], found["losses"], found.get("in_use", [])
        )

    watched = ["--watch"] if watch else []
    told, planned = training(*watched, model, str(steps), budget)
    _, plain = training(*watched, model, str(steps))
    found = Demo(
        model, told["device"], told["budget_bytes"], plain, planned, told.get("report", "")
    )
    return (
        found
        if found.losses_agree
        else replace(found, moved=training("--moved", model, str(steps))[1])
    )


def train(
    name: str, steps: int, budget: str | None, *, watch: bool = False, moved: bool = False
) -> dict[str, Any]:
    """Trains a workload in this process, from weights a last bit off if `moved`, and returns what
    the allocator and the clock say."""
    import keras
    import tensorflow as tf

    import checkmate
    from checkmate.bench.models import workload
    from checkmate.tf2 import device as devices
    from checkmate.tf2.execution.differences import move_weights
    from checkmate.tf2.memory.profiler import observe

    keras.utils.set_random_seed(0)
    work = workload(name)
    if moved:
        move_weights(variable.value for variable in work.model.trainable_variables)
    optimizer = keras.optimizers.Adam(1e-4)
    device = devices.training_device()
    if budget is None:
        step, budget_bytes, report = plain_step(work, optimizer), None, ""
    else:
        step = checkmate.tf2.compile(
            work.model, work.loss, optimizer, work.inputs, work.labels, budget=budget
        )
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


def plain_step(
    work: Any,
    optimizer: Any,
    *,
    forward: Callable[[Any], Any] | None = None,
    jit_compile: bool = False,
) -> Any:
    """The training step as anyone would write it without us; `forward` in place of calling the
    model, `jit_compile` for XLA."""
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
    arguments = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    asked = {"watch": "--watch" in sys.argv, "moved": "--moved" in sys.argv}
    print(
        json.dumps(
            train(
                arguments[0],
                int(arguments[1]),
                arguments[2] if len(arguments) > 2 else None,
                **asked,
            )
        )
    )
