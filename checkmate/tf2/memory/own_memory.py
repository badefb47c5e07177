"""Variables in memory of their own, before anything is measured.

Variables that a step makes while it is traced (optimizer slots, moving averages, accumulators)
begin with equal values, and TensorFlow lets those share one buffer until each is first written.
What such a step keeps is then more than what is in use when it is measured.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import tensorflow as tf

from checkmate.tf2.graph.copying import copy_of
from checkmate.tf2.graph.operations import can_be_copied, can_be_filled


def give_own_memory(variables: Iterable[tf.Variable]) -> None:
    """Has each variable keep its value in a buffer that nothing else shares; values stay equal to
    the bit.

    TensorFlow copies a shared buffer before it writes to it. An empty slice is written to each
    variable: a variable that shares gets a copy, one after another; a variable that does not share
    keeps its buffer.
    """
    for variable in variables:
        if not _has_value(variable):
            continue
        if can_be_filled(variable) and variable.shape.rank <= _MAX_DIMENSIONS:
            _write_nothing(variable)
        elif can_be_copied(variable.dtype):
            # No kernel writes a part of such a variable: it gets a copy, which frees the buffer
            # that it had.
            variable.assign(copy_of(variable.read_value()), read_value=False)


_MAX_DIMENSIONS = 7
"""What TensorFlow's kernel of strided slices takes."""


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


def _has_value(variable: tf.Variable) -> bool:
    return bool(tf.raw_ops.VarIsInitializedOp(resource=variable.handle))
