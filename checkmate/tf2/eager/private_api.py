"""Every name of TensorFlow and Keras that is not public and that the eager runtime uses; nothing
private is named in any other file.

`check` looks whether all of them are there and behave as they did in the versions this was written
against (2.16 and 2.21), on a small gradient with a forced eviction. If not, `checkmate.tf2.dtr`
refuses; nothing else of the library is touched.
"""

from __future__ import annotations

import importlib
from typing import Any

from checkmate.errors import EvictionError, UnsupportedError

PRIVATE: dict[str, tuple[str, ...]] = {
    "tensorflow.python.pywrap_tfe": (
        "TFE_GetMemoryInfo",
        "TFE_Py_FastPathExecute",  # every generated op looks it up here, at each call
        "TFE_Py_RegisterVSpace",  # how tapes add gradients up
        "TFE_Py_TapeSetDeleteTrace",
        "TFE_Py_TapeSetIsEmpty",
        "TFE_Py_TapeSetIsStopped",
        "TFE_Py_TapeSetRecordOperation",
        "TFE_Py_TapeSetRestartOnThread",
        "TFE_Py_TapeSetShouldRecordBackprop",
        "TFE_Py_TapeSetStopOnThread",
        "TFE_Py_TensorShapeSlice",  # takes EagerTensors only
    ),
    "tensorflow.python.eager.execute": (
        "execute",
        "execute_with_cancellation",
        "must_record_gradient",
    ),
    "tensorflow.python.eager.backprop": ("_MockOp", "_default_vspace", "record_gradient"),
    "tensorflow.python.eager.context": ("_context", "context"),
    "tensorflow.python.eager.core": ("_FallbackException", "_NotOkStatusException"),
    "tensorflow.python.eager.imperative_grad": ("imperative_grad",),
    "tensorflow.python.framework.ops": (
        "EagerTensor",
        "_gradient_registry",
        "dismantle_graph",  # graphs are in cycles, and hold memory until these are collected
        "raise_from_not_ok_status",
        "uid",
    ),
    "tensorflow.python.framework.op_def_library": (
        "apply_op",
    ),  # takes names as op definitions have them; tf.raw_ops renames some
    "tensorflow.python.framework.op_def_registry": ("get",),
    "tensorflow.python.framework.tensor": ("Tensor",),
    "tensorflow.python.types.core": ("Value",),
}

KERAS_PRIVATE = ("_keras_call_info_injected",)
"""An error that has it goes through Keras's layers as it is; any other is made anew by them, from
its message alone.

It is no reason to refuse where Keras does not know it: what is lost then are the error's figures.
"""

for _name in KERAS_PRIVATE:
    setattr(EvictionError, _name, True)


def missing() -> list[str]:
    """The names of the fence that this TensorFlow does not have."""
    gone = []
    for module, names in PRIVATE.items():
        try:
            found = importlib.import_module(module)
        except ImportError:
            gone.append(module)
            continue
        gone.extend(f"{module}.{name}" for name in names if not hasattr(found, name))
    return gone


def refuse(what: str) -> UnsupportedError:
    """The error that says that this TensorFlow is not one the fence was made for."""
    import tensorflow as tf

    return UnsupportedError(
        "checkmate.tf2.dtr uses parts of TensorFlow that are not public, and in TensorFlow"
        f" {tf.__version__} {what}. It is known to work with 2.16 and 2.21. Everything else in"
        " checkmate works without them: plan the step with checkmate.tf2.compile instead."
    )


_gone = missing()
if _gone:
    raise refuse(f"these are missing: {', '.join(_gone)}")

from tensorflow.python import pywrap_tfe as tfe  # noqa: E402
from tensorflow.python.eager import backprop, context, execute, imperative_grad  # noqa: E402
from tensorflow.python.eager.core import _FallbackException as FallbackException  # noqa: E402
from tensorflow.python.eager.core import _NotOkStatusException as NotOkStatusException  # noqa: E402
from tensorflow.python.framework import op_def_library, op_def_registry, ops  # noqa: E402
from tensorflow.python.framework.ops import EagerTensor  # noqa: E402
from tensorflow.python.framework.tensor import Tensor  # noqa: E402
from tensorflow.python.types.core import Value  # noqa: E402

__all__ = [
    "EagerTensor",
    "FallbackException",
    "NotOkStatusException",
    "Tensor",
    "Value",
    "check",
    "execute",
    "imperative_grad",
    "tfe",
]

# The real ones, from before anything is put in their place.
real_fast, real_execute = tfe.TFE_Py_FastPathExecute, execute.execute
real_execute_with_cancellation = execute.execute_with_cancellation
real_must_record, real_shape_slice = execute.must_record_gradient, tfe.TFE_Py_TensorShapeSlice
real_imperative_grad = imperative_grad.imperative_grad
tape_is_empty, tape_is_stopped = tfe.TFE_Py_TapeSetIsEmpty, tfe.TFE_Py_TapeSetIsStopped
tape_stop, tape_restart = tfe.TFE_Py_TapeSetStopOnThread, tfe.TFE_Py_TapeSetRestartOnThread
tape_records, tape_record, tape_forget = (
    tfe.TFE_Py_TapeSetShouldRecordBackprop,
    tfe.TFE_Py_TapeSetRecordOperation,
    tfe.TFE_Py_TapeSetDeleteTrace,
)
record_gradient, default_vspace, MockOp = (
    backprop.record_gradient,
    backprop._default_vspace,
    backprop._MockOp,
)
executing_eagerly = context.executing_eagerly
new_id, raise_status = ops.uid, ops.raise_from_not_ok_status
op_def, apply_op, dismantle_graph = (
    op_def_registry.get,
    op_def_library.apply_op,
    ops.dismantle_graph,
)


def gradient_function(op: str) -> Any:
    """The Python function that makes the gradient of an op type, or None; raises LookupError where
    none is registered."""
    return ops._gradient_registry.lookup(op)


def current_device() -> str:
    """The device that the program asks for, or ""."""
    return context._context.device_name


def thread_state() -> Any:
    """What the context keeps for this thread; its `device_name` is the device that the program asks
    for, or ""."""
    return context._context._thread_local_data


def memory_info(device: str) -> dict[str, int]:
    """`tf.config.experimental.get_memory_info` without its detours."""
    return tfe.TFE_GetMemoryInfo(context._context._context_handle, device)


def raw_context() -> Any:
    """What the fast path takes as its first argument."""
    return context._context


def eager_context() -> Any:
    """What the slow path takes as its context."""
    return context.context()


def is_refusal(error: BaseException) -> bool:
    """Whether an op failed because the allocator had no room for it."""
    import tensorflow as tf

    return (
        isinstance(error, tf.errors.ResourceExhaustedError)
        or getattr(error, "code", None) == tf.errors.RESOURCE_EXHAUSTED
    )


class Untaped:
    """A context in which no tape of this thread records."""

    def __enter__(self) -> None:
        self._stopped = not tape_is_empty() and not tape_is_stopped()
        if self._stopped:
            tape_stop()

    def __exit__(self, *exception: Any) -> None:
        if self._stopped:
            tape_restart()


def linked(handle: Any, value: Any) -> Any:
    """A real tensor of its own that tapes take for the result of `handle`."""
    import tensorflow as tf

    with Untaped():
        copy = tf.identity(value)
    tape_record("Identity", [copy], [handle], lambda gradient: [gradient], None)
    return copy


def is_accumulating() -> bool:
    """Whether some `tf.autodiff.ForwardAccumulator` is active now. Slow: asks every object there
    is."""
    import gc

    import tensorflow as tf

    return any(
        isinstance(thing, tf.autodiff.ForwardAccumulator) and getattr(thing, "_recording", False)
        for thing in gc.get_objects()
    )


_checked = False


def check() -> None:
    """Runs a small gradient by way of every patch, with everything evicted in between, once per
    process.

    Raises:
      UnsupportedError: The result is not TensorFlow's own.
    """
    global _checked
    if _checked:
        return
    import numpy as np
    import tensorflow as tf

    from checkmate.tf2.eager.interception import Interception
    from checkmate.tf2.eager.runtime import EagerRuntime

    def run() -> tuple[list[Any], list[Any]]:
        weights = tf.Variable(np.linspace(-1, 1, 256, dtype=np.float32).reshape(16, 16))
        with tf.GradientTape() as tape:
            hidden = tf.tanh(tf.matmul(weights, weights))
            loss = tf.reduce_sum(tf.concat([hidden * hidden, hidden], 0) * 0.5)
            evict()
        return [loss], [tape.gradient(loss, weights), hidden]

    evict = lambda: None  # noqa: E731
    plain = [np.array(value) for group in run() for value in group]
    try:
        runtime = EagerRuntime("CPU:0", smallest_bytes=0)
        evict = runtime.evict_all
        with Interception(runtime):
            found = [np.array(value) for group in run() for value in group]
    except Exception as error:
        raise refuse(f"a small gradient does not run: {type(error).__name__}: {error}") from error
    if not runtime.rematerializations or not all(
        np.array_equal(a, b) for a, b in zip(plain, found, strict=True)
    ):
        raise refuse("a small gradient does not come out as it should")
    _checked = True
