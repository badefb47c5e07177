"""Scratch: variables that steps write before they read them, shared by steps that run one after
another."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tensorflow as tf

from checkmate.tf2 import device as devices
from checkmate.tf2.memory.own_memory import give_own_memory


class Scratch:
    """Variables by device, shape and type, each for as long as a step refers to it. Sums of
    gradients are as large for a batch of any size, and take no further memory for another one."""

    def __init__(self) -> None:
        self._made: dict[Any, weakref.ref[tf.Variable]] = {}

    def variables(
        self, specs: Sequence[tf.TensorSpec], device: str | None = None
    ) -> tuple[tf.Variable, ...]:
        """Returns a variable for each spec, no two of them the same.

        Args:
          device: Where they are; None for the device that trains.
        """
        place = device or devices.training_device()
        counts: Counter[Any] = Counter()
        found = []
        for spec in specs:
            key = place, spec.dtype, tuple(spec.shape)
            counts[key] += 1
            numbered = *key, counts[key]
            made = self._made.get(numbered)
            variable = made() if made else None
            if variable is None:
                variable = _outside_of_strategies(spec, place)
                self._made[numbered] = weakref.ref(variable)
            found.append(variable)
        give_own_memory(found)
        return tuple(found)


def _outside_of_strategies(spec: tf.TensorSpec, device: str) -> tf.Variable:
    """A variable of one device. In the scope of a strategy, which is that of a thread, it would be
    one of all replicas."""
    if not tf.distribute.has_strategy():
        return _zeros(spec, device)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_zeros, spec, device).result()


def _zeros(spec: tf.TensorSpec, device: str) -> tf.Variable:
    with tf.init_scope(), tf.device(device):
        return tf.Variable(lambda: tf.zeros(spec.shape, spec.dtype), trainable=False)
