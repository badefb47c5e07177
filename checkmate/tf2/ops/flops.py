"""Floating-point operations of the op types that arithmetic bounds; a multiply-add counts as two.

Each function raises ValueError or IndexError where a shape that it reads is not known.
"""

from __future__ import annotations

import math

import tensorflow as tf


def matrix_product(operation: tf.Operation) -> float:
    inner = _shape(operation.inputs[0])[0 if operation.get_attr("transpose_a") else 1]
    return 2.0 * _elements(operation.outputs[0]) * inner


def batch_product(operation: tf.Operation) -> float:
    inner = _shape(operation.inputs[0])[-2 if operation.get_attr("adj_x") else -1]
    return 2.0 * _elements(operation.outputs[0]) * inner


def einsum(operation: tf.Operation) -> float:
    """The product of the lengths of all labels; axes of an ellipsis are those of the output."""
    left, _, right = operation.get_attr("equation").decode().replace(" ", "").partition("->")
    lengths: dict[str, int] = {}
    for text, tensor in zip(left.split(","), operation.inputs, strict=True):
        before, _, after = text.partition("...")
        shape = _shape(tensor)
        lengths |= dict(zip(before, shape, strict=False))
        lengths |= dict(zip(reversed(after), reversed(shape), strict=False))
    contracted = math.prod(lengths[each] for each in lengths.keys() - set(right))
    return 2.0 * _elements(operation.outputs[0]) * contracted


def convolution(operation: tf.Operation, outer: int = 1) -> float:
    """`outer` of the filter's last dimensions belong to the output."""
    return 2.0 * _elements(operation.outputs[0]) * math.prod(_shape(operation.inputs[1])[:-outer])


def input_gradient(operation: tf.Operation, outer: int = 1) -> float:
    """Of (sizes, filter, gradient)."""
    per_output = math.prod(_shape(operation.inputs[1])[:-outer])
    return 2.0 * math.prod(_shape(operation.inputs[2])) * per_output


def filter_gradient(operation: tf.Operation, outer: int = 1) -> float:
    """Of (input, sizes, gradient)."""
    per_output = math.prod(_shape(operation.outputs[0])[:-outer])
    return 2.0 * math.prod(_shape(operation.inputs[2])) * per_output


def _elements(tensor: tf.Tensor) -> int:
    return tensor.shape.num_elements() or 0


def _shape(tensor: tf.Tensor) -> list[int]:
    if not tensor.shape.is_fully_defined():
        raise ValueError(f"The shape of {tensor.name} is not known.")
    return tensor.shape.as_list()
