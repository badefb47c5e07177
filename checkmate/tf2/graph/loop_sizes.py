"""What loops and conditions make: the sizes of outputs that a graph does not tell.

A loop hands on lists: one entry per iteration of each value that its gradient will read. What an
entry is, is seen in the loop's body; how many there will be, in its condition. What goes through a
loop unchanged is not made by it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from checkmate.tf2 import ops
from checkmate.tf2.graph.bodies import CONDITIONS, LOOPS, body_of

EMPTY_LISTS = frozenset({"EmptyTensorList", "TensorListReserve"})
_ENTRY_OF = {"TensorListPushBack": 1, "TensorListSetItem": 2}
"""Which input of an op that makes a list longer, or fills it, is the entry."""

_HANDED_ON = frozenset({"Identity", "TensorListPopBack", "TensorListResize"})

Sizes = Callable[[tf.Tensor], "int | None"]


class Kept:
    """Sizes of the outputs of loops and conditions of one graph.

    Args:
      graph: The graph of the step as it was traced, which has the bodies with all that is known of
        their shapes.
      size: Bytes of a tensor of that graph, or of a body of known shape; None where that is
        unknown.
    """

    def __init__(self, graph: tf.Graph, size: Sizes):
        self._graph, self._size = graph, size

    def bytes_of(self, operation: tf.Operation, output: int) -> int | None:
        """Bytes of an output of a loop or condition, or None where nothing tells."""
        if operation.type in CONDITIONS:
            names = ["then_branch", "else_branch"] if "If" in operation.type else []
            bodies = [body_of(self._graph, operation, name) for name in names]
            sizes = [self._size(body.outputs[output]) for body in bodies if body is not None]
            return None if not sizes or None in sizes else max(sizes)
        body = body_of(self._graph, operation, "body")
        if body is None:
            return None
        entry = _entry(body, body.outputs[output])
        others = (k for k in range(output) if operation.outputs[k].consumers())
        if entry is not None and any(_entry(body, body.outputs[k]) is entry for k in others):
            return 0  # another list holds the same tensors
        return self._in_list(operation, body, body.outputs[output])

    def _in_list(self, loop: tf.Operation, body: Any, tensor: tf.Tensor) -> int | None:
        """Bytes of a value at the end of a loop's last iteration, given what it is at the end of
        one."""
        if tensor.dtype != tf.variant:
            return self._size(tensor)
        operation = tensor.op
        if operation.type == "Placeholder":
            return self._size(loop.inputs[_number(body, tensor)])
        if operation.type in EMPTY_LISTS:
            return 0
        if operation.type in _ENTRY_OF:
            entry = operation.inputs[_ENTRY_OF[operation.type]]
            rounds, size = self.rounds(loop), 0 if _is_shared(body, entry) else self._size(entry)
            return None if rounds is None or size is None else rounds * size
        if operation.type in _HANDED_ON:
            return self._in_list(loop, body, operation.inputs[0])
        if operation.type in ("AddN", "AddV2"):
            sizes = [self._in_list(loop, body, each) for each in operation.inputs]
            return None if None in sizes else max(sizes)
        return None

    def rounds(self, loop: tf.Operation) -> int | None:
        """How often a loop runs at most, where its condition compares a counter with a number that
        is known."""
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
                start, end = (
                    self._number_outside(loop, condition, tensor) for tensor in operation.inputs
                )
                if end is not None:
                    bounds.append(max(0, end - (start or 0)))
        return min(bounds, default=None)

    def _number_outside(self, loop: tf.Operation, condition: Any, tensor: tf.Tensor) -> int | None:
        """A number that a condition compares: a constant, one given to the loop, or how often
        another loop ran."""
        tensor = ops.source(tensor)
        if tensor.op.type == "Placeholder":
            tensor = ops.source(loop.inputs[_number(condition, tensor)])
            if tensor.op.type in LOOPS:
                return self.rounds(tensor.op)
        value = _static_value(tensor)
        return None if value is None or value.ndim else int(value)


def _static_value(tensor: tf.Tensor) -> Any:
    """The value of a tensor where the graph tells it, also of one number out of several, such as a
    dimension of a shape; else None."""
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
    """What an iteration adds to a list, as the tensor of the body that made it in this iteration or
    the one before; None for other outputs."""
    tensor = ops.source(tensor)
    if tensor.op.type not in _ENTRY_OF:
        return None
    entry = ops.source(tensor.op.inputs[_ENTRY_OF[tensor.op.type]])
    return (
        ops.source(body.outputs[_number(body, entry)]) if entry.op.type == "Placeholder" else entry
    )


def _is_shared(body: Any, tensor: tf.Tensor) -> bool:
    """True for what is the same in all rounds: a variable's content, an entry of a list, or what
    goes through unchanged. All entries then share its memory."""
    tensor = ops.source(tensor)
    if tensor.op.type == "ReadVariableOp":
        return True
    if tensor.op.type == "TensorListGetItem":
        return _is_shared(body, tensor.op.inputs[0])
    return (
        tensor.op.type == "Placeholder"
        and ops.source(body.outputs[_number(body, tensor)]) is tensor
    )


def _number(body: Any, tensor: tf.Tensor) -> int:
    return next(k for k, each in enumerate(body.inputs) if each is tensor)
