"""The variables that a step refers to, those included of which it names the handle alone.

A `ConcreteFunction` lists a variable that is read by `ReadVariableOp`, or written by a method of
`tf.Variable`. Fused kernels such as `ResourceApplyAdam`, which the older optimizers of Keras 2
use, take handles, and the variables that nothing else reads are not listed.

This file alone makes a variable of a handle. It uses, none of it public,
`tensorflow.python.ops.resource_variable_ops.BaseResourceVariable` and the handles' `_handle_data`.
`test_variables` asserts that the installed TensorFlow has both; with another, a step with such
variables is refused, because they could not be put back after a measurement.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from checkmate.errors import TraceError


def variables_of(concrete: Any) -> tuple[tf.Variable, ...]:
    """The variables whose handles a `ConcreteFunction` captures, each once. Raises `TraceError` for
    a handle of no listed variable where this TensorFlow makes no variable of a handle."""
    listed = tuple(concrete.variables)
    seen = {id(variable.handle) for variable in listed}
    found = []
    for handle in concrete.captured_inputs:
        if handle.dtype == tf.resource and id(handle) not in seen:
            seen.add(id(handle))
            if _is_variable(handle):
                found.append(_of_handle(handle))
    return (*listed, *found)


def _is_variable(handle: tf.Tensor) -> bool:
    """False for the handle of a table or an iterator."""
    with tf.init_scope():
        return bool(tf.raw_ops.VarIsInitializedOp(resource=handle))


def _of_handle(handle: tf.Tensor) -> tf.Variable:
    try:
        from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable

        kind = handle._handle_data.shape_and_type[0]
        return BaseResourceVariable(
            handle=handle,
            shape=tf.TensorShape(kind.shape),
            dtype=tf.as_dtype(kind.dtype),
            name="variable",
            handle_name="variable",
            unique_id=f"handle_{id(handle)}",
            trainable=False,
            in_graph_mode=False,
        )
    except (ImportError, AttributeError, TypeError, IndexError) as error:
        raise TraceError(
            "The step updates a variable by its handle, as tf.raw_ops.ResourceApplyAdam does, and"
            f" TensorFlow {tf.__version__} does not tell its shape ({error}). Use an optimizer of"
            " Keras 3, or of tf_keras without `legacy`."
        ) from error
