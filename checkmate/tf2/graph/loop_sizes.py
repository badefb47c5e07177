"""Sizes of what loops and conditions return, where the step's graph does not tell.

A loop returns lists with one entry per iteration for each value that its gradient reads. The loop's
body tells the size of an entry, its condition the number of iterations. A value that passes through
a loop unchanged is not made by the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from checkmate.tf2.graph.bodies import bodies_of, body_of
from checkmate.tf2.graph.operations import is_argument, is_loop, reads_variable, source_of
from checkmate.tf2.ops.rule import ListOp
from checkmate.tf2.ops.table import rule_of

Sizes = Callable[[tf.Tensor], "int | None"]


class LoopSizes:
    """Sizes of the outputs of loops and conditions of one graph.

    Args:
      graph: The graph of the step as it was traced; its bodies have the inferred shapes.
      size: Returns the bytes of a tensor of that graph or of a body, or None if its shape is not
        known.
    """

    def __init__(self, graph: tf.Graph, size: Sizes):
        self._graph, self._size = graph, size

    def bytes_of(self, operation: tf.Operation, output: int) -> int | None:
        """Returns the bytes of an output of a loop or condition, or None if they are not known."""
        if not is_loop(operation):
            bodies = bodies_of(self._graph, operation)
            return _largest([self._size(b.outputs[output]) for b in bodies if b is not None])
        body = body_of(self._graph, operation, "body")
        if body is None:
            return None
        entry = _entry(body, body.outputs[output])
        others = (k for k in range(output) if operation.outputs[k].consumers())
        if entry is not None and any(_entry(body, body.outputs[k]) is entry for k in others):
            return 0  # another list holds the same tensors
        return self._at_end(operation, body, body.outputs[output])

    def iterations(self, loop: tf.Operation) -> int | None:
        """Returns the largest possible number of iterations of a loop whose condition compares a
        counter with a number that is known, else None."""
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
            return None if count is None or size is None else count * size
        if rule.list_op is ListOp.SAME:
            return self._at_end(loop, body, operation.inputs[0])
        if rule.list_op is ListOp.SUM:
            return _largest([self._at_end(loop, body, each) for each in operation.inputs])
        return None

    def _compared(self, loop: tf.Operation, condition: Any, tensor: tf.Tensor) -> int | None:
        """A number that a condition compares: a constant, an input of the loop, or the number of
        iterations of another loop."""
        tensor = source_of(tensor)
        if is_argument(tensor.op):
            tensor = source_of(loop.inputs[_index(condition, tensor)])
            if is_loop(tensor.op):
                return self.iterations(tensor.op)
        value = _static_value(tensor)
        return None if value is None or value.ndim else int(value)


def _largest(sizes: list[int | None]) -> int | None:
    """The largest of some sizes; None if there is none, or one is not known."""
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
    """The tensor that an iteration adds to a list, made in this iteration or in the one before;
    None if `tensor` is no list that gets an entry."""
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
