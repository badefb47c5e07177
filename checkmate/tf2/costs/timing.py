"""How long calls of functions take on the device that trains."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from checkmate.tf2 import device as devices
from checkmate.tf2.graph import grappler

REPEATS, MOST_REPEATS, REPEAT_FOR_S = 3, 50, 0.003
"""Each function is timed at least REPEATS times, and until it has run for REPEAT_FOR_S seconds
together or MOST_REPEATS times."""


def call_overhead_s(device: str) -> float:
    """Returns the seconds that a call of any function takes, measured on one that does next to
    nothing. They are not part of an op's cost."""
    with tf.device(device):
        nothing = tf.function(lambda x: x + 1.0, autograph=False).get_concrete_function(
            tf.TensorSpec((), tf.float32)
        )
        value = tf.constant(1.0)
        return statistics.median(_seconds(lambda: grappler.run(nothing, value)) for _ in range(30))


def seconds_of_calls(call: Callable[[], Any]) -> list[float]:
    """Returns the seconds that each of some calls takes."""
    seconds: list[float] = []
    while len(seconds) < REPEATS or (sum(seconds) < REPEAT_FOR_S and len(seconds) < MOST_REPEATS):
        seconds.append(_seconds(call))
    return seconds


def _seconds(call: Callable[[], Any]) -> float:
    """The seconds that a call takes, until its result is freed."""
    started = time.perf_counter()
    call()
    devices.synchronize()
    return time.perf_counter() - started
