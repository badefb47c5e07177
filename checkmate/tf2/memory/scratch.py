"""Scratch: variables that steps write before they read them, shared by steps that run one after
another."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf

from checkmate.tf2 import device as devices
from checkmate.tf2.graph.graph_writer import copy_of
from checkmate.tf2.graph.operations import can_be_copied, can_be_filled

# Variables that a step makes while it is traced (optimizer slots, moving averages, accumulators)
# begin with equal values, and TensorFlow lets those share one buffer until each is first written.
# What such a step keeps is then more than what is in use when it is measured.


def give_own_memory(variables: Iterable[tf.Variable]) -> None:
    """Has each variable keep its value in a buffer that nothing else shares; values stay equal to
    the bit.

    TensorFlow copies a shared buffer before it writes to it. An empty slice is written to each
    variable: a variable that shares gets a copy, one after another; a variable that does not share
    keeps its buffer.
    """
    for variable in variables:
        if not tf.raw_ops.VarIsInitializedOp(resource=variable.handle):
            continue
        if can_be_filled(variable) and variable.shape.rank <= _MAX_DIMENSIONS:
            _write_nothing(variable)
        elif can_be_copied(variable.dtype):
            # No kernel writes a part of such a variable: it gets a copy, which frees the buffer
            # that it had.
            variable.assign(copy_of(variable.read_value()), read_value=False)


_MAX_DIMENSIONS = 7
"""The limit of TensorFlow's kernel of strided slices."""


def _write_nothing(variable: tf.Variable) -> None:
    rank = variable.shape.rank
    first, stride = np.zeros(rank, np.int32), np.ones(rank, np.int32)
    with tf.device(variable.device):
        # A single number has no part but itself.
        nothing = tf.zeros([0] * rank, variable.dtype) if rank else variable.numpy()
        tf.raw_ops.ResourceStridedSliceAssign(
            ref=variable.handle, begin=first, end=first, strides=stride, value=nothing
        )
        # The write enabled it.
        tf.raw_ops.DisableCopyOnRead(resource=variable.handle)


class Scratch:
    """Variables by device, shape and type, kept while a step refers to them. Sums of gradients are
    as large for a batch of any size, and so need no further memory for another one."""

    def __init__(self) -> None:
        self._made: dict[Any, weakref.ref[tf.Variable]] = {}

    def variables(
        self, specs: Sequence[tf.TensorSpec], device: str | None = None
    ) -> tuple[tf.Variable, ...]:
        """A variable for each spec, no two the same, on `device` (by default the one that
        trains)."""
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
    """A variable of one device. In the scope of a strategy, which is a thread's, it would be one of
    all replicas."""
    if not tf.distribute.has_strategy():
        return _zeros(spec, device)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_zeros, spec, device).result()


def _zeros(spec: tf.TensorSpec, device: str) -> tf.Variable:
    with tf.init_scope(), tf.device(device):
        return tf.Variable(lambda: tf.zeros(spec.shape, spec.dtype), trainable=False)
