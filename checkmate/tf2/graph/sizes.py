"""Bytes that the allocator hands out for tensors, and for all that an op makes.

A size that shapes do not tell is estimated from the op's inputs, as the table of op types says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from checkmate.core.allocator import UNIT_BYTES, rounded_up
from checkmate.tf2.graph.loop_sizes import LoopSizes
from checkmate.tf2.graph.operations import has_bodies, is_loop, role_of, source_of
from checkmate.tf2.ops.rule import Role, Size
from checkmate.tf2.ops.table import rule_of

SMALL_SHARE = 0.001
"""Tensors that together make up at most this share of all bytes of a step count as small."""

SIDE_OUTPUT_SHARE = 0.01
"""An output of at most this share of the largest output of the same op counts as resident, such as
the loss that is computed with the gradient of the logits."""

RESERVE_FACTOR = 6
"""The reserve space of a recurrent kernel of cuDNN, by its output; cuDNN alone knows the size. The
gradient of an LSTM reads four gates, the state and what dropout left of it, each as large as the
output: this is a generous guess for one layer, so that plans do not count on memory that is not
there."""


def tensor_bytes(tensor: tf.Tensor) -> int | None:
    """Returns the bytes that the allocator hands out for a tensor, or None if its shape or dtype
    does not tell."""
    count = tensor.shape.num_elements()
    if tensor.dtype in (tf.resource, tf.string):
        return 0
    if count is None or tensor.dtype == tf.variant:
        return None
    return rounded_up(count * tensor.dtype.size)


class OpSizes:
    """Sizes of what the ops of a function make.

    Args:
      operations: The ops, inputs first.
      graph: The graph of the step as it was traced; its functions have the inferred shapes.

    Attributes:
      total: Bytes of all outputs of each op.
      estimated: The ops of which an output is estimated.
      small_bytes: The size up to which a tensor is small.
    """

    def __init__(self, operations: Sequence[tf.Operation], graph: tf.Graph):
        self.total: dict[tf.Operation, int] = {}
        self.estimated: list[tf.Operation] = []
        self._estimates: dict[Any, int] = {}
        self._loops = LoopSizes(
            graph, lambda tensor: self._estimates.get(tensor.ref(), tensor_bytes(tensor))
        )
        for operation in operations:
            self.total[operation] = self._all_outputs(operation)
        kernels = (operation for operation in operations if role_of(operation) is Role.KERNEL)
        self.small_bytes = _small_threshold([size for o in kernels for size in self._sizes(o)])

    def of_outputs(self, operation: tf.Operation) -> tuple[int, ...]:
        """Returns the bytes of each output of an op; 0 for what only a loop's next iteration
        reads."""
        return tuple(
            0 if is_loop(operation) and not tensor.consumers() else self._size_of(tensor)
            for tensor in operation.outputs
        )

    def is_small(self, operation: tf.Operation) -> bool:
        """Returns whether all outputs of an op are small."""
        return all(size <= self.small_bytes for size in self._sizes(operation))

    def small_outputs(self, operation: tf.Operation) -> int:
        """Returns the bytes of the small outputs of an op that also has a larger one, else 0."""
        sizes = self._sizes(operation)
        largest = max(sizes, default=0)
        small = max(self.small_bytes, SIDE_OUTPUT_SHARE * largest)
        return sum(size for size in sizes if size <= small) if largest > self.small_bytes else 0

    def _all_outputs(self, operation: tf.Operation) -> int:
        total = 0
        for k, tensor in enumerate(operation.outputs):
            if is_loop(operation) and not tensor.consumers():
                # Only the next iteration reads it. It is freed with the last one.
                continue
            if (size := tensor_bytes(tensor)) is None:
                size = self._estimates[tensor.ref()] = self._estimate(operation, k)
                self.estimated.append(operation)
            total += size
        return total

    def _sizes(self, operation: tf.Operation) -> list[int]:
        """Bytes of each output; the outputs of a loop or condition count as one."""
        if has_bodies(operation):
            return [self.total[operation]]
        return [self._size_of(tensor) for tensor in operation.outputs]

    def _estimate(self, operation: tf.Operation, output: int) -> int:
        """Bytes of an output whose shape is not known before the step runs."""
        rule = rule_of(operation.type)
        if rule.size is Size.EMPTY:
            return 0
        if rule.size is Size.NUMBERS:
            return UNIT_BYTES
        if rule.size is Size.MASK:
            numbers = operation.inputs[0].shape.num_elements()
            if numbers is not None:
                return rounded_up(numbers // 2)
        if rule.size is Size.RESERVE:
            is_reserve = operation.outputs[output].dtype.is_floating
            return (
                RESERVE_FACTOR * self._size_of(operation.outputs[0]) if is_reserve else UNIT_BYTES
            )
        if has_bodies(operation):
            size = self._loops.bytes_of(operation, output)
            if size is not None:
                return size
        if rule.size is Size.SHAPE_READ:
            shape = source_of(operation.inputs[0])
            if role_of(shape.op) is Role.SHAPE and shape.shape.rank == 1:
                return self._size_of(shape.op.inputs[shape.value_index])
        sizes = [self._size_of(tensor) for tensor in operation.inputs]
        return max(sizes) if rule.is_elementwise else sum(sizes)

    def _size_of(self, tensor: tf.Tensor) -> int:
        """Bytes of a tensor of an op before, known or estimated."""
        size = tensor_bytes(tensor)
        return self._estimates.get(tensor.ref(), 0) if size is None else size


def _small_threshold(sizes: list[int]) -> int:
    """The largest size such that all tensors up to it together are at most SMALL_SHARE of all
    bytes. Of equally large tensors either all are small or none is."""
    allowed = SMALL_SHARE * sum(sizes)
    threshold = total = 0
    for size in sorted(sizes):
        total += size
        if total > allowed:
            break
        threshold = size
    if sum(size for size in sizes if size <= threshold) <= allowed:
        return threshold
    return max((size for size in sizes if size < threshold), default=0)
