"""Kept: the variables in which slices of a batch add up sums, and concatenate what belongs to
single examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from checkmate.tf2.axes.phases import Handed
from checkmate.tf2.memory.scratch import Scratch
from checkmate.tf2.ops.relation import Kind, Relation

_WIDE = {tf.float16: tf.float32, tf.bfloat16: tf.float32}
"""The type of totals of values in whose own type small parts of a sum would be lost."""


class Kept:
    """Values that slices hand on, in memory of its own that stays between steps.

    Args:
      handed_on: The values: those that are BATCHED are concatenated, those that are SUMMED added
        up; of those that are the SAME any slice's will do.
    """

    def __init__(
        self,
        handed_on: Sequence[Handed],
        examples: int,
        scratch: Scratch,
        device: str | None = None,
    ):
        self.handed_on, self._examples = tuple(handed_on), examples
        self.variables = scratch.variables(list(map(_spec, handed_on)), device)

    def reset(self) -> None:
        """Writes zeros to the totals, without a change of their memory."""
        for each, variable in zip(self.handed_on, self.variables, strict=True):
            if each.relation.kind is Kind.SUMMED:
                zero = tf.zeros([], variable.dtype)
                _write(variable, zero, [0] * variable.shape.rank, variable.shape)

    def add(self, values: Sequence[tf.Tensor], first: tf.Tensor) -> None:
        """Adds the values of the slice that begins with example `first`."""
        for each, variable, value in zip(self.handed_on, self.variables, values, strict=True):
            if each.relation.kind is Kind.BATCHED:
                self._put(variable, value, each.relation, first)
            elif each.relation.kind is Kind.SUMMED:
                variable.assign_add(tf.cast(value, variable.dtype), read_value=False)
            else:
                variable.assign(value, read_value=False)

    def values(self) -> list[tf.Tensor]:
        return [
            tf.cast(variable.read_value(), each.whole.dtype)
            for each, variable in zip(self.handed_on, self.variables, strict=True)
        ]

    def _put(
        self, variable: tf.Variable, value: tf.Tensor, relation: Relation, first: tf.Tensor
    ) -> None:
        """Puts a slice's values in their place: one for each block."""
        blocks, axis = relation.blocks, relation.axis
        stride = variable.shape[axis] // blocks
        begin = first * (stride // self._examples)
        parts = tf.split(value, blocks, axis) if blocks > 1 else [value]
        for k, part in enumerate(parts):
            place = [0] * variable.shape.rank
            place[axis] = begin + k * stride
            _write(variable, part, place, part.shape)


def _spec(each: Handed) -> tf.TensorSpec:
    dtype = each.whole.dtype
    if each.relation.kind is not Kind.BATCHED:
        dtype = _WIDE.get(dtype, dtype)
    return tf.TensorSpec(each.whole.shape, dtype)


def _write(variable: tf.Variable, value: tf.Tensor, begin: Sequence[Any], shape: Any) -> None:
    """Writes to a part of a variable, whose memory stays the same. After it TensorFlow would copy
    the variable at each read; that is switched off again."""
    rank = variable.shape.rank
    start = tf.stack(begin) if rank else tf.zeros([0], tf.int32)
    written = tf.raw_ops.ResourceStridedSliceAssign(
        ref=variable.handle,
        begin=start,
        end=start + tf.constant(shape.as_list(), tf.int32, [rank]),
        strides=tf.ones([rank], tf.int32),
        value=value,
    )
    with tf.control_dependencies([written] if written is not None else []):
        tf.raw_ops.DisableCopyOnRead(resource=variable.handle)
