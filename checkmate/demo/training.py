"""Plain and planned training steps of a workload. TensorFlow is imported on the first call."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

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
