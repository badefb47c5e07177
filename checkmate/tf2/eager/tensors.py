"""Handles, which the program gets in place of tensors: they know shape and type, and find the value
when it is asked for, recomputed if need be."""



from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from checkmate.errors import CheckmateError
from checkmate.tf2.eager import private_api
from checkmate.tf2.eager.storage import Cell


class Values(Protocol):
    """The part of the runtime that handles use."""

    device_name: str

    def value(self, cell: Cell) -> Any:
        """The real tensor, recomputed if it was evicted."""

    def register(self, handle: Handle, cell: Cell) -> None: ...

    def unregister(self, handle: Handle, cell: Cell) -> None: ...


class _Abandoned(Cell):
    """In place of the cell of a handle that the runtime let go of."""

    __slots__ = ()

    def __init__(self) -> None:
        """Sets nothing: whatever is asked of it is an error."""

    def __getattr__(self, name: str) -> Any:
        raise CheckmateError(
            "This tensor was made while a gradient was computed that then failed, and is gone. Ask"
            " for the gradient again."
        )


class Handle(private_api.TensorMethods):
    """Stands for a tensor, and finds its value, recomputed if need be, when it is asked for."""

    __slots__ = (*private_api.HANDLE_FIELDS, "cell", "is_owner", "runtime")
    cell: Cell
    runtime: Values

    def __init__(self, runtime: Values, cell: Cell, *, owner: bool = False):
        self.runtime, self.cell, self.is_owner = runtime, cell, owner
        private_api.stand_for(self, cell, cell.spec.dtype)
        runtime.register(self, cell)

    def __del__(self) -> None:
        try:
            runtime, cell = self.runtime, self.cell
        except AttributeError:  # it was never made
            return
        runtime.unregister(self, cell)

    def real(self) -> Any:
        """The real tensor, recomputed if it was evicted."""
        return self.runtime.value(self.cell)

    def abandon(self) -> None:
        """Releases its value: whatever asks for it then gets an error."""
        self.cell = _Abandoned()
        del self.runtime

    @property
    def static_shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """The shape as a tuple."""
        return self.cell.spec.shape

    @property
    def shape(self):
        return tf.TensorShape(self.static_shape)

    @property
    def ndim(self):
        return len(self.static_shape)

    @property
    def device(self):
        return self.runtime.device_name

    @property
    def backing_device(self):
        return self.runtime.device_name

    is_packed = False

    def get_shape(self):
        return self.shape

    def set_shape(self, shape):
        if not self.shape.is_compatible_with(shape):
            raise ValueError(
                f"Tensor's shape {self.shape} is not compatible with supplied shape {shape}"
            )

    def numpy(self):
        return self.real().numpy()

    def __array__(self, dtype=None, copy=None):
        return np.array(self.real().numpy(), dtype=dtype, copy=copy)

    def __dlpack__(self, *args, **kwargs):
        return self.real().__dlpack__(*args, **kwargs)

    def __dlpack_device__(self):
        return self.real().__dlpack_device__()

    def __bool__(self):
        return bool(self.real())

    __nonzero__ = __bool__

    def __int__(self):
        return int(self.real())

    def __float__(self):
        return float(self.real())

    def __complex__(self):
        return complex(self.real())

    def __index__(self):
        return self.real().__index__()

    def __len__(self):
        if not self.static_shape:
            raise TypeError("Scalar tensor has no `len()`")
        return self.static_shape[0]

    def __iter__(self):
        if not self.static_shape:
            raise TypeError("Cannot iterate over a scalar tensor.")
        return (self[k] for k in range(self.static_shape[0]))

    def __format__(self, spec):
        return format(self.real(), spec)

    def __repr__(self):
        return repr(self.real())

    def __str__(self):
        return str(self.real())

    def __reduce__(self):
        return tf.constant, (self.numpy(),)

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self

    def cpu(self):
        return self.real().cpu()

    def gpu(self, gpu_index=0):
        return self.real().gpu(gpu_index)

    def consumers(self):
        raise NotImplementedError("A tensor has consumers in a graph only; ops run at once here.")

    @property
    def op(self):
        raise AttributeError("A tensor has an op in a graph only; ops run at once here.")

    @property
    def graph(self):
        if private_api.executing_eagerly():
            raise AttributeError("An op that runs at once makes no graph.")
        return None  # a function that captures a handle asks whether the handle is one of its own

    @property
    def name(self):
        raise AttributeError("A tensor has a name in a graph only; ops run at once here.")

    @property
    def value_index(self):
        raise AttributeError(
            "A tensor has a place among an op's outputs in a graph only; ops run at once here."
        )


class LazyTensor(Handle, private_api.Tensor, private_api.Value):
    """A handle while its context is open: a `tf.Tensor` that every op takes."""


def _converted(operator: str) -> Callable[..., Any]:
    def apply(self: Any, *args: Any) -> Any:
        return getattr(self.__tf_tensor__(), operator)(*args)

    return apply


_BINARY = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor"]
_OPERATORS = (
    *_BINARY,
    *(f"r{name}" for name in _BINARY),
    *["neg", "abs", "invert", "getitem", "lt", "le", "gt", "ge", "eq", "ne"],
)
_Operators: Any = type(
    "_Operators",
    (),
    {"__slots__": (), **{f"__{name}__": _converted(f"__{name}__") for name in _OPERATORS}},
)
"""A tensor's operators, on the value."""


def _linked(handle: Any, value: Any) -> Any:
    """A copy of a real tensor that tapes take for the result of `handle`; the tensor itself where
    no tape records the handle."""
    if not private_api.is_recording() or not private_api.tape_records([handle]):
        return value
    with private_api.tapes_stopped():
        copy = tf.identity(value)
    private_api.tape_record("Identity", [copy], [handle], lambda gradient: [gradient], None)
    return copy


class SettledTensor(Handle, _Operators):
    """A handle that has outlived its context. TensorFlow converts it to its value wherever it is
    used, as it does with NumPy arrays. Why it is no `tf.Tensor`: `private_api.become`.
    """

    __hash__ = object.__hash__
    __array_priority__ = private_api.Tensor.__array_priority__

    def __tf_tensor__(self, dtype=None, name=None):
        return _linked(self, self.real()).__tf_tensor__(dtype, name)

    def __tf_tracing_type__(self, context):
        return self.real().__tf_tracing_type__(context)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in Handle.__slots__:
            raise AttributeError(name)
        return getattr(self.real(), name)
