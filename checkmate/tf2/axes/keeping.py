"""Keeping: the values of single examples that are kept for the whole batch, for ops that run after
the slices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from checkmate.tf2.axes.rows import Rows
from checkmate.tf2.graph.sizes import tensor_bytes

KEPT_BYTES = 64
"""Values of at most this many bytes per example are kept for the whole batch."""


@dataclass(slots=True)
class Keeping:
    """Which values may be kept: results of the step, which are there anyway; small ones
    (`KEPT_BYTES`); those that can be computed early, or are no larger than the variables, if the
    examples end in the op that reads them, as in an update, or the op makes a result; and the
    gradients of a table's rows with their indices on the way into an update by index, whatever
    their size: they have one row for each token, where the activations of a model have many
    (`Rows`). Rows that are only added up, in a gradient of the table's shape, are not kept: a slice
    hands on their sum.

    Attributes:
      results: References of the step's results.
    """

    examples: int
    results: set[Any]
    variable_bytes: int
    rows: Rows

    def has_results_only(self, operation: tf.Operation) -> bool:
        return all(tensor.ref() in self.results for tensor in operation.outputs)

    def is_there(self, tensor: tf.Tensor) -> bool:
        return tensor.ref() in self.results or self.is_small(tensor)

    def is_small(self, tensor: tf.Tensor) -> bool:
        size = tensor_bytes(tensor)
        return size is not None and size <= KEPT_BYTES * self.examples

    def may_keep(self, operation: tf.Operation, k: int, *, early: bool, last: bool) -> bool:
        """True if the input `k` of a late op may be kept.

        Args:
          early: It can be computed before the slices.
          last: The examples end in the op, or the op makes results.
        """
        size = tensor_bytes(operation.inputs[k])
        affordable = size is not None and (early or size <= self.variable_bytes)
        return (affordable and last) or self.rows.keep(operation, k)
