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

    def add(
        self, values: Sequence[tf.Tensor], handed_on: Sequence[Handed], first: tf.Tensor, size: int
    ) -> None:
        """Adds the values of the slice of `size` examples that begins with example `first`;
        `handed_on` is in the order of the constructor's, for a slice of that size."""
        for each, variable, value in zip(handed_on, self.variables, values, strict=True):
            if each.relation.kind is Kind.BATCHED:
                if each.relation.offset:
                    value += tf.cast(first * each.relation.offset // size, value.dtype)
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
        blocks, axis = max(relation.blocks, 1), relation.axis
        stride = variable.shape[axis] // blocks
        begin = first * (stride // self._examples)
        parts = tf.split(value, blocks, axis) if blocks > 1 else [value]
        for k, part in enumerate(parts):
            place = [0] * variable.shape.rank
            place[axis] = begin + k * stride
            _write(variable, part, place, part.shape)


def part_of(
    value: tf.Tensor, relation: Relation, like: tf.Tensor, first: tf.Tensor, examples: int
) -> tf.Tensor:
    """The part of a value, in the shape of `like`, that belongs to the slice which begins with
    example `first`. Its relation to those of the slices is SAME, or BATCHED in one block."""
    if relation.kind is not Kind.BATCHED:
        return value
    begin: list[Any] = [0] * value.shape.rank
    begin[relation.axis] = first * (value.shape[relation.axis] // examples)
    return tf.slice(value, tf.stack(begin), like.shape.as_list())


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
