"""Whether TensorFlow's private parts behave as `private_api` expects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from checkmate.tf2.eager.budget import EagerOptions
from checkmate.tf2.eager.interception import Interception
from checkmate.tf2.eager.private_api import refuse
from checkmate.tf2.eager.runtime import EagerRuntime

_passed = False


def check(device: str, *, again: bool = False) -> None:
    """Runs a small gradient by way of everything in `private_api`, with all tensors evicted between
    the forward and the backward pass; once per process, or `again`.

    Raises:
      UnsupportedError: The result is not TensorFlow's own.
    """
    global _passed
    if _passed and not again:
        return
    try:
        with tf.device(device):
            plain = _small_gradient(lambda: None)
            runtime = EagerRuntime(device, EagerOptions(smallest_bytes=0))
            with Interception(runtime):
                found = _small_gradient(runtime.policy.evict_all)
    except Exception as error:
        raise refuse(f"a small gradient does not run: {type(error).__name__}: {error}") from error
    equal = all(np.array_equal(a, b) for a, b in zip(plain, found, strict=True))
    if not runtime.policy.rematerializations or not equal:
        raise refuse("a small gradient does not come out as it should")
    _passed = True


def _small_gradient(evict: Callable[[], Any]) -> list[np.ndarray]:
    weights = tf.Variable(np.linspace(-1, 1, 256, dtype=np.float32).reshape(16, 16))
    with tf.GradientTape() as tape:
        hidden = tf.tanh(tf.matmul(weights, weights))
        loss = tf.reduce_sum(tf.concat([hidden * hidden, hidden], 0) * 0.5)
        evict()
    return [np.array(value) for value in (loss, tape.gradient(loss, weights), hidden)]
