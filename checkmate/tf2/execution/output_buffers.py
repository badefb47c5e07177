"""OutputBuffers: double-buffered memory in which the early results of steps stay."""

from __future__ import annotations

from itertools import cycle

import tensorflow as tf

from checkmate.tf2 import device as devices
from checkmate.tf2.graph.sizes import tensor_bytes
from checkmate.tf2.graph.trace import TracedStep


class OutputBuffers:
    """Two buffers for each early result of a step, which successive steps fill in turn.

    Attributes:
      bytes: Bytes of all buffers.
      batch_area: The tensor that keeps memory apart for batches (see `memory.batch_area`), if any;
        it lives as long as the buffers.
    """

    def __init__(self, traced: TracedStep):
        self.batch_area: tf.Tensor | None = None
        outputs = zip(traced.flat.outputs, traced.early, strict=True)
        results = [tensor for tensor, early in outputs if early]
        with tf.init_scope(), tf.device(devices.training_device()):
            both = [
                [tf.Variable(tf.zeros(each.shape, each.dtype), trainable=False) for each in results]
                for _ in range(2)
            ]
        self.bytes = 2 * sum(tensor_bytes(each) or 0 for each in results)
        self._turns = cycle(both)

    def handles(self) -> list[tf.Tensor]:
        """Returns the handles of the variables that the next step fills."""
        return [variable.handle for variable in next(self._turns)]
