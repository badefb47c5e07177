"""Bytes that the allocator hands out for tensors, and for all that an op makes.

A size that shapes do not tell is estimated from the op's inputs, as the table of op types says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from checkmate.core.allocator import UNIT_BYTES, rounded_up
from checkmate.tf2.graph.bodies import bodies_of, body_of
from checkmate.tf2.graph.operations import (
    can_be_copied,
    has_bodies,
    is_argument,
    is_constant,
    is_loop,
    reads_variable,
    role_of,
    source_of,
)
from checkmate.tf2.ops.rule import ListOp, Role, Size
from checkmate.tf2.ops.table import rule_of

# A loop returns lists with one entry per iteration for each value that its gradient reads. The
# loop's body tells the size of an entry, its condition the number of iterations. A value that
# passes through a loop unchanged is not made by the loop.

Sizes = Callable[[tf.Tensor], "int | None"]


class LoopSizes:
    """Bytes of the outputs of loops and conditions, None where they are not known.

    Args:
      size: The bytes of a tensor of that graph or of a body, or None.
    """

    def __init__(self, graph: tf.Graph, size: Sizes):
        self._graph, self._size = graph, size

    def bytes_of(self, operation: tf.Operation, output: int) -> int | None:
        if not is_loop(operation):
            bodies = bodies_of(self._graph, operation)
            return _largest([self._size(b.outputs[output]) for b in bodies if b is not None])
        body = body_of(self._graph, operation, "body")
        if body is None:
            return None
        entry = _entry(body, body.outputs[output])
        after = range(output + 1, len(operation.outputs))  # stacks, which live longest, come last
        others = (k for k in after if operation.outputs[k].consumers())
        if entry is not None and any(_entry(body, body.outputs[k]) is entry for k in others):
            return 0  # another list holds the same tensors
        return self._at_end(operation, body, body.outputs[output])

    def iterations(self, loop: tf.Operation) -> int | None:
        """The largest possible number of iterations of a loop whose condition compares a counter
        with a number that is known, else None."""
        condition = body_of(self._graph, loop, "cond")
        if condition is None:
            return None
        bounds = []
        pending = [condition.outputs[0].op]
        while pending:
            operation = pending.pop()
            if operation.type in ("LogicalAnd", "Identity"):
                pending.extend(tensor.op for tensor in operation.inputs)
            elif operation.type == "Less":
                start, end = (self._compared(loop, condition, each) for each in operation.inputs)
                if end is not None:
                    bounds.append(max(0, end - (start or 0)))
        return min(bounds, default=None)

    def _at_end(self, loop: tf.Operation, body: Any, tensor: tf.Tensor) -> int | None:
        """Bytes, after the last iteration, of a value that the body returns."""
        if tensor.dtype != tf.variant:
            return self._size(tensor)
        tensor = source_of(tensor)
        operation = tensor.op
        rule = rule_of(operation.type)
        if is_argument(operation):
            return self._size(loop.inputs[_index(body, tensor)])
        if rule.list_op is ListOp.EMPTY:
            return 0
        if rule.list_entry is not None:
            entry = operation.inputs[rule.list_entry]
            count, size = self.iterations(loop), 0 if _is_shared(body, entry) else self._size(entry)
            if rule.list_entry > 1 and is_constant(source_of(operation.inputs[1]).op):
                count = 1  # each iteration sets it anew
            return None if count is None or size is None else count * size
        if rule.list_op is ListOp.SAME:
            return self._at_end(loop, body, operation.inputs[0])
        if rule.list_op is ListOp.SUM:
            return _largest([self._at_end(loop, body, each) for each in operation.inputs])
        return None

    def _compared(self, loop: tf.Operation, condition: Any, tensor: tf.Tensor) -> int | None:
        """A number that a condition compares: a constant, an input, or the iterations of another
        loop."""
        tensor = source_of(tensor)
        if is_argument(tensor.op):
            tensor = source_of(loop.inputs[_index(condition, tensor)])
            if is_loop(tensor.op):
                return self.iterations(tensor.op)
        value = _static_value(tensor)
        return None if value is None or value.ndim else int(value)


def _largest(sizes: list[int | None]) -> int | None:
    known = [size for size in sizes if size is not None]
    return max(known) if known and len(known) == len(sizes) else None


def _static_value(tensor: tf.Tensor) -> Any:
    """The value of a tensor if the graph tells it, also of one number taken from a vector, such as
    a dimension of a shape; else None."""
    operation = tensor.op
    if (
        operation.type != "StridedSlice"
        or operation.inputs[0].shape.rank != 1
        or operation.get_attr("shrink_axis_mask") != 1
    ):
        return tf.get_static_value(tensor)
    numbers, place = map(tf.get_static_value, operation.inputs[:2])
    return None if numbers is None or place is None else numbers[place[0]]


def _entry(body: Any, tensor: tf.Tensor) -> tf.Tensor | None:
    """The tensor that an iteration adds to a list, made in this iteration or in the one before, or
    None."""
    operation = source_of(tensor).op
    index = rule_of(operation.type).list_entry
    if index is None:
        return None
    entry = source_of(operation.inputs[index])
    return source_of(body.outputs[_index(body, entry)]) if is_argument(entry.op) else entry


def _is_shared(body: Any, tensor: tf.Tensor) -> bool:
    """True for a value that is the same in all iterations, so that all entries share its memory: a
    variable's content, an entry of another list, or a value that passes through unchanged."""
    tensor = source_of(tensor)
    if reads_variable(tensor.op):
        return True
    if rule_of(tensor.op.type).list_op is ListOp.ENTRY:
        return _is_shared(body, tensor.op.inputs[0])
    return is_argument(tensor.op) and source_of(body.outputs[_index(body, tensor)]) is tensor


def _index(body: Any, tensor: tf.Tensor) -> int:
    return next(k for k, each in enumerate(body.inputs) if each is tensor)


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
    """Bytes that the allocator hands out for a tensor; None if shape and dtype do not tell."""
    count = tensor.shape.num_elements()
    if tensor.dtype in (tf.resource, tf.string):
        return 0
    if count is None or tensor.dtype == tf.variant:
        return None
    return rounded_up(count * tensor.dtype.size)


def exact_bytes(tensor: tf.Tensor) -> int:
    """The bytes that an op requests for a tensor; 0 if its shape is not known."""
    count = tensor.shape.num_elements()
    return count * tensor.dtype.size if count and can_be_copied(tensor.dtype) else 0


def known_bytes(tensors: Iterable[tf.Tensor]) -> int:
    return sum(tensor_bytes(tensor) or 0 for tensor in tensors)


class OpSizes:
    """Sizes of all that the ops of a function make.

    Args:
      graph: The graph of the step as it was traced; its functions have the inferred shapes.

    Attributes:
      estimated: The ops of which an output is estimated.
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
        """Bytes of each output of an op; 0 for one that only a loop's next iteration reads."""
        replaced = is_replaced(operation)
        return tuple(
            0
            if replaced or (is_loop(operation) and not tensor.consumers())
            else self._size_of(tensor)
            for tensor in operation.outputs
        )

    def is_small(self, operation: tf.Operation) -> bool:
        return all(size <= self.small_bytes for size in self._sizes(operation))

    def small_outputs(self, operation: tf.Operation) -> int:
        """Bytes of the small outputs of an op that also has a larger one, else 0."""
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
        return 0 if is_replaced(operation) else total

    def _sizes(self, operation: tf.Operation) -> list[int]:
        """Bytes of each output; the outputs of a loop or condition count as one."""
        if has_bodies(operation):
            return [self.total[operation]]
        return [self._size_of(tensor) for tensor in operation.outputs]

    def _estimate(self, operation: tf.Operation, output: int) -> int:
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
        size = tensor_bytes(tensor)
        return self._estimates.get(tensor.ref(), 0) if size is None else size


def is_replaced(operation: tf.Operation) -> bool:
    """True for a list of zeros that only a loop reads, which returns it with other entries: one by
    one they take the place of the zeros, and count as the loop's."""
    lists = bool(operation.outputs) and operation.outputs[0].dtype == tf.variant
    if not lists or rule_of(operation.type).fills_with != 0:
        return False
    readers = operation.outputs[0].consumers()
    return len(readers) == 1 and is_loop(readers[0])


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
