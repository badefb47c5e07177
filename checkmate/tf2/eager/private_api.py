"""The adapter module: all private names of TensorFlow and Keras that this package uses.

The names are listed in `PRIVATE`, `TENSOR_METHODS`, `FIELDS` and `KERAS_PRIVATE`; a test reads the
other files of this package and finds none of them there. Importing this file refuses a TensorFlow
that lacks a module or function of `PRIVATE`; `selftest.check` refuses one in which they behave
otherwise. The code was written against TensorFlow 2.16 and 2.21.
"""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import repeat
from operator import attrgetter, methodcaller
from typing import Any, TypeVar

import tensorflow as tf

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

TENSOR_METHODS = (
    "_capture_as_const", "_copy", "_copy_to_device", "_datatype_enum", "_num_elements", "_numpy",
    "_rank", "_shape_as_list", "_shape_tuple",
)  # fmt: skip
"""Private methods of EagerTensors, which TensorFlow calls and `TensorMethods` answers."""

FIELDS = ("_context_handle", "_id", "_recording", "_replace", "_thread_local_data", "_type_enum")
"""Private fields of TensorFlow's objects."""

KERAS_PRIVATE = ("_keras_call_info_injected",)
"""Keras's layers pass an error on unchanged that has this; any other they make anew from its
message. A Keras without it loses the figures of an error, and nothing else."""


def missing() -> list[str]:
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
from tensorflow.python.eager.core import _FallbackException as FallbackException  # noqa: E402, F401
from tensorflow.python.eager.core import _NotOkStatusException as NotOkStatusException  # noqa: E402, F401
from tensorflow.python.framework import op_def_library, op_def_registry, ops  # noqa: E402
from tensorflow.python.framework.ops import EagerTensor  # noqa: E402, F401
from tensorflow.python.framework.tensor import Tensor  # noqa: E402, F401
from tensorflow.python.types.core import Value  # noqa: E402, F401

# The real functions, from before anything is put in their place.
real_fast, real_execute = tfe.TFE_Py_FastPathExecute, execute.execute
real_execute_with_cancellation = execute.execute_with_cancellation
real_must_record, real_shape_slice = execute.must_record_gradient, tfe.TFE_Py_TensorShapeSlice
real_imperative_grad = imperative_grad.imperative_grad
tape_is_empty, tape_is_stopped = tfe.TFE_Py_TapeSetIsEmpty, tfe.TFE_Py_TapeSetIsStopped
tape_stop, tape_restart = tfe.TFE_Py_TapeSetStopOnThread, tfe.TFE_Py_TapeSetRestartOnThread
tape_records = tfe.TFE_Py_TapeSetShouldRecordBackprop
tape_record = tfe.TFE_Py_TapeSetRecordOperation
record_gradient = backprop.record_gradient
default_vspace: Any = backprop._default_vspace
MockOp: Any = backprop._MockOp
executing_eagerly, eager_context = context.executing_eagerly, context.context
raise_status = ops.raise_from_not_ok_status
op_def, apply_op = op_def_registry.get, op_def_library.apply_op
dismantle_graph = ops.dismantle_graph
gradient_function: Callable[[str], Any] = ops._gradient_registry.lookup
"""The function that makes an op type's gradient, or None; LookupError if none is registered."""


def is_recording() -> bool:
    return not tape_is_empty() and not tape_is_stopped()


@contextmanager
def tapes_stopped() -> Iterator[None]:
    was_recording = is_recording()
    if was_recording:
        tape_stop()
    try:
        yield
    finally:
        if was_recording:
            tape_restart()


def thread_state() -> Any:
    """The context's state of this thread; its `device_name` is what the program asks for, or ""."""
    return context._context._thread_local_data


def memory_info(device: str) -> dict[str, int]:
    """`tf.config.experimental.get_memory_info`, cheaper."""
    return tfe.TFE_GetMemoryInfo(context._context._context_handle, device)


def raw_context() -> Any:
    """The first argument of the fast path."""
    return context._context


_Error = TypeVar("_Error", bound=EvictionError)


def passing_through_keras(error: _Error) -> _Error:
    """The same error, which Keras's layers pass on unchanged."""
    for name in KERAS_PRIVATE:
        setattr(error, name, True)
    return error


def is_accumulating() -> bool:
    """Whether some `tf.autodiff.ForwardAccumulator` is active now. Slow: asks every object."""
    return any(
        isinstance(thing, tf.autodiff.ForwardAccumulator) and getattr(thing, "_recording", False)
        for thing in gc.get_objects()
    )


def vector_space(adding: Callable[..., Any], **makers: Callable[..., Any]) -> Any:
    """How tapes add gradients up: five at a time, whatever their size, and by `adding`; `makers` of
    zeros and ones are named as in TensorFlow."""
    return default_vspace._replace(
        num_elements_fn=lambda gradient: 1 << 34, aggregate_fn=adding, **makers
    )


TAPE_FIELDS = ("_id", "_shape_tuple", "dtype")
"""Fields that tapes read of a tensor; of its `dtype` they read `_type_enum`."""

HANDLE_FIELDS = ("_id", "dtype")
"""Fields that TensorFlow's C++ reads of a handle at every op."""


class _TapeType:
    __slots__ = ("_type_enum",)

    def __init__(self, number: int):
        self._type_enum = number


def on_tapes(shape: tuple[int, ...], dtype: tf.DType) -> tuple[Any, Any]:
    """Type and shape as tapes ask for them, without a call into Python: an object with the type's
    number, and a C function that returns the shape."""
    return _TapeType(dtype.as_datatype_enum), repeat(shape).__next__


def show_to_tapes(cell: Any, facts: tuple[Any, Any]) -> None:
    """Gives an object with `TAPE_FIELDS` an id of its own, and type and shape."""
    cell._id = ops.uid()
    cell.dtype, cell._shape_tuple = facts


def stand_for(handle: Any, cell: Any, dtype: tf.DType) -> None:
    """Gives a handle with `HANDLE_FIELDS` the id of a cell: tapes take one for the other."""
    handle._id, handle.dtype = cell._id, dtype


def tape_forget(cell: Any) -> None:
    tfe.TFE_Py_TapeSetDeleteTrace(cell._id)


id_of, shape_of, numpy_of = attrgetter("_id"), methodcaller("_shape_tuple"), methodcaller("_numpy")
"""Of a real tensor or handle: its id, its shape, and its value, which may share its memory."""

_RESOURCE = tf.resource.as_datatype_enum


def signature_of(tensor: Any) -> tuple[Any, ...]:
    """Shape and type of a real tensor; of a variable's handle also which variable it is, since its
    size is not known otherwise."""
    shape, dtype = tensor._shape_tuple(), tensor._datatype_enum()
    return (shape, dtype, tensor._id) if dtype == _RESOURCE else (shape, dtype)


class TensorMethods:
    """The private methods that TensorFlow calls on tensors, for handles that have `static_shape`,
    `dtype` and `real()`, which returns the value."""

    __slots__ = ()
    static_shape: tuple[int, ...]
    real: Callable[[], Any]
    dtype: tf.DType

    def _shape_tuple(self) -> tuple[int, ...]:
        return self.static_shape

    def _shape_as_list(self) -> list[int]:
        return list(self.static_shape)

    def _rank(self) -> int:
        return len(self.static_shape)

    def _num_elements(self) -> int:
        return tf.TensorShape(self.static_shape).num_elements()

    def _datatype_enum(self) -> int:
        return self.dtype.as_datatype_enum

    def _numpy(self) -> Any:
        return self.real()._numpy()

    def _copy_to_device(self, device_name: str) -> Any:
        return self.real()._copy_to_device(device_name)

    def _copy(self, *args: Any, **kwargs: Any) -> Any:
        return self.real()._copy(*args, **kwargs)

    def _capture_as_const(self, name: str) -> None:
        """A function takes the handle as an input, which may be evicted between calls."""


def become(handle: Any, kind: type) -> None:
    """Makes a handle an object of another class, when its context is left.

    TensorFlow forces this: `TensorSpec.cast` and others return whatever is a `tf.Tensor` unchanged,
    and the C++ behind them takes EagerTensors only. So a handle must be a `tf.Tensor` while its
    context is open, and none afterwards, when nothing catches it before the C++ does.
    """
    handle.__class__ = kind


def replace(
    undo: ExitStack,
    *,
    fast: Callable[..., Any],
    slow: Callable[..., Any],
    cancellable: Callable[..., Any],
    must_record: Callable[[], bool],
    shape_slice: Callable[[Any, int], Any],
    gradients: Callable[..., Any],
    vector_space: Any,
) -> None:
    """Puts functions in the place of TensorFlow's, with the same arguments; `undo` puts these back.

    `must_record` says whether the slow path is to record.
    """
    places: Sequence[tuple[Any, str, Any]] = (
        (tfe, "TFE_Py_FastPathExecute", fast),
        (tfe, "TFE_Py_TensorShapeSlice", shape_slice),
        (execute, "execute", slow),
        (execute, "execute_with_cancellation", cancellable),
        (execute, "must_record_gradient", must_record),
        (imperative_grad, "imperative_grad", gradients),
    )
    for owner, name, function in places:
        undo.callback(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, function)
    undo.callback(tfe.TFE_Py_RegisterVSpace, default_vspace)
    tfe.TFE_Py_RegisterVSpace(vector_space)
