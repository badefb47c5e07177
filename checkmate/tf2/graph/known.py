"""known_values(): what a graph's ops make, as far as that is known before it runs, such as shapes
and what is computed from them."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from checkmate.tf2.graph.operations import has_bodies, is_constant, may_run_again, static_shape
from checkmate.tf2.ops.call import one_number
from checkmate.tf2.ops.table import rule_of

MOST_ELEMENTS = 2**16
"""Larger values are not computed here, but where all elements are one number."""

_NO_NUMBERS = (tf.resource, tf.variant, tf.string)

Known = dict[tf.Operation, list[np.ndarray | None]]


def known_values(operations: Sequence[tf.Operation]) -> Known:
    """For each op, inputs first, its outputs as arrays, or None where they are not known. An array
    of one number takes the memory of that number."""
    known: Known = {}
    for operation in operations:
        read = operation.inputs
        inputs = [known.get(t.op, [None] * len(t.op.outputs))[t.value_index] for t in read]
        found = _outputs(operation, inputs)
        if found is not None:
            known[operation] = found
    return known


def _outputs(operation: tf.Operation, inputs: list[Any]) -> list[np.ndarray | None] | None:
    shapes = [tensor.shape for tensor in operation.outputs]
    if any(tensor.dtype in _NO_NUMBERS for tensor in operation.outputs):
        return None
    if is_constant(operation):
        return [_constant(operation.get_attr("value"))]
    if rule_of(operation.type).of_shape:
        return [_of_shape(operation, k) for k in range(len(shapes))]
    defined = bool(shapes) and all(shape.is_fully_defined() for shape in shapes)
    number = _number(operation, inputs) if defined else None
    if number is not None:
        return [np.broadcast_to(number, shapes[0].as_list())]
    if not inputs or any(value is None for value in inputs):
        return None
    sizes = [shape.num_elements() or 0 for shape in shapes] + [value.size for value in inputs]
    may_run = may_run_again(operation) and not has_bodies(operation)
    return _run(operation, inputs) if shapes and max(sizes) <= MOST_ELEMENTS and may_run else None


def _constant(proto: Any) -> np.ndarray:
    count = len(proto.bool_val)
    if count < MOST_ELEMENTS:
        return tf.make_ndarray(proto)
    # TensorFlow reads truth values, such as those of a mask, one by one: their bytes come last.
    shape = [dim.size for dim in proto.tensor_shape.dim]
    for field in ("tensor_shape", "dtype", "version_number"):
        proto.ClearField(field)
    found = np.frombuffer(proto.SerializeToString()[-count:], bool)
    # The last one stands for all that follow.
    return np.pad(found, (0, math.prod(shape) - count), mode="edge").reshape(shape)


def _of_shape(operation: tf.Operation, output: int) -> np.ndarray | None:
    value = static_shape(operation, output)
    dtype = operation.outputs[output].dtype.as_numpy_dtype
    return None if value is None else np.asarray(value, dtype)


def _number(operation: tf.Operation, inputs: list[Any]) -> Any:
    """The number that all elements of an op's only output are, or None if that is not known."""
    dtype = operation.outputs[0].dtype
    rule = rule_of(operation.type)
    fills = not rule.stateless_if or operation.get_attr(rule.stateless_if)
    if rule.fills_with is not None and fills:
        return np.full((), rule.fills_with, dtype.as_numpy_dtype)
    source = rule.repeats
    if source is None or inputs[source] is None or not one_number(inputs[source]):
        return None
    return inputs[source].flat[0]


def _run(operation: tf.Operation, inputs: list[Any]) -> list[np.ndarray | None] | None:
    """Runs one op on arrays; None if TensorFlow does not run it alone."""
    run = getattr(tf.raw_ops, operation.type, None)
    if run is None:
        return None
    names = list(inspect.signature(run).parameters)
    left, arguments, inferred = list(inputs), {}, set()
    for k, each in enumerate(operation.op_def.input_arg):
        inferred |= {each.type_attr, each.number_attr, each.type_list_attr}
        name = each.name if each.name in names else names[k]
        if each.number_attr or each.type_list_attr:
            found = operation.get_attr(each.number_attr or each.type_list_attr)
            count = found if each.number_attr else len(found)
            arguments[name], left = left[:count], left[count:]
        else:
            arguments[name], left = left[0], left[1:]
    attributes = (each.name for each in operation.op_def.attr if each.name not in inferred)
    arguments |= {name: operation.get_attr(name) for name in attributes}
    try:
        with tf.init_scope(), tf.device("CPU:0"):
            return [np.asarray(tensor) for tensor in tf.nest.flatten(run(**arguments))]
    except (TypeError, ValueError, tf.errors.OpError):
        return None
