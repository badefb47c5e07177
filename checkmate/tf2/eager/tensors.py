"""Handles, which the program gets in place of tensors: they know shape and type, and find the value
when it is asked for, recomputed if need be."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import get_ident
from typing import Any, Protocol
from weakref import ref

import numpy as np
import tensorflow as tf

from checkmate.errors import CheckmateError
from checkmate.tf2.eager import private_api
from checkmate.tf2.eager.policy import EagerPolicy
from checkmate.tf2.eager.storage import Cell


class Values(Protocol):
    device_name: str
    references: References

    def value(self, cell: Cell) -> Any:
        """The real tensor, recomputed if it was evicted."""


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


def _in_graphs_only(fact: str) -> property:
    def get(self: Any) -> Any:
        raise AttributeError(f"A tensor has {fact} in a graph only; ops run at once here.")

    return property(get)


def _of_value(name: str) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.real(), name)(*args, **kwargs)

    return call


def _methods(make: Callable[[str], Callable[..., Any]], *names: str) -> Any:
    return type("_Methods", (), {"__slots__": (), **{name: make(name) for name in names}})


_OfValue: Any = _methods(
    _of_value,
    *("numpy", "cpu", "gpu", "__dlpack__", "__dlpack_device__", "__bool__", "__int__"),
    *("__float__", "__complex__", "__index__", "__format__", "__repr__", "__str__"),
)


class Handle(private_api.TensorMethods, _OfValue):
    """Stands for a tensor, and finds its value, recomputed if need be, when it is asked for."""

    __slots__ = (*private_api.HANDLE_FIELDS, "cell", "is_owner", "runtime")
    cell: Cell
    runtime: Values

    def __init__(self, runtime: Values, cell: Cell, *, owner: bool = False):
        self.runtime, self.cell, self.is_owner = runtime, cell, owner
        private_api.stand_for(self, cell, cell.spec.dtype)
        runtime.references.register(self, cell)

    def __del__(self) -> None:
        try:
            runtime, cell = self.runtime, self.cell
        except AttributeError:  # it was never made
            return
        runtime.references.unregister(self, cell)

    def real(self) -> Any:
        return self.runtime.value(self.cell)

    def abandon(self) -> None:
        """Releases its value: whatever asks for it then gets an error."""
        self.cell = _Abandoned()
        del self.runtime

    @property
    def static_shape(self) -> tuple[int, ...]:  # type: ignore[override]
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

    backing_device = device
    is_packed = False

    def get_shape(self):
        return self.shape

    def set_shape(self, shape):
        if not self.shape.is_compatible_with(shape):
            raise ValueError(
                f"Tensor's shape {self.shape} is not compatible with supplied shape {shape}"
            )

    def __array__(self, dtype=None, copy=None):
        return np.array(self.real().numpy(), dtype=dtype, copy=copy)

    def __nonzero__(self):
        return bool(self)

    def __len__(self):
        if not self.static_shape:
            raise TypeError("Scalar tensor has no `len()`")
        return self.static_shape[0]

    def __iter__(self):
        if not self.static_shape:
            raise TypeError("Cannot iterate over a scalar tensor.")
        return (self[k] for k in range(self.static_shape[0]))

    def __reduce__(self):
        return tf.constant, (self.numpy(),)

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self

    def consumers(self):
        raise NotImplementedError("A tensor has consumers in a graph only; ops run at once here.")

    op, name = _in_graphs_only("an op"), _in_graphs_only("a name")
    value_index = _in_graphs_only("a place among an op's outputs")

    @property
    def graph(self):
        if private_api.executing_eagerly():
            raise AttributeError("An op that runs at once makes no graph.")
        return None  # a function that captures a handle asks whether the handle is one of its own


class LazyTensor(Handle, private_api.Tensor, private_api.Value):
    """A handle while its context is open: a `tf.Tensor` that every op takes."""


def _converted(operator: str) -> Callable[..., Any]:
    def apply(self: Any, *args: Any) -> Any:
        return getattr(self.__tf_tensor__(), operator)(*args)

    return apply


_BINARY = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor"]
_UNARY = ["neg", "abs", "invert", "getitem", "lt", "le", "gt", "ge", "eq", "ne"]
_Operators: Any = _methods(
    _converted, *(f"__{name}__" for name in (*_BINARY, *(f"r{name}" for name in _BINARY), *_UNARY))
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


class References:
    """Tells the policy of references, when no op is running and in the thread of the context.

    Attributes:
      depth: How many ops are running, one inside of another.
    """

    def __init__(self, policy: EagerPolicy):
        self._policy = policy
        self.thread = get_ident()
        self.depth = 0
        self._deferred: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._handles: dict[int, ref[Handle]] = {}

    def register(self, handle: Handle, cell: Cell) -> None:
        self._handles[id(handle)] = ref(handle)
        self._policy.retain(cell)

    def unregister(self, handle: Handle, cell: Cell) -> None:
        """A handle is dying. The one that came out of its op takes the tensor off all tapes, as an
        EagerTensor does."""
        self._handles.pop(id(handle), None)
        self.defer(self._forget if handle.is_owner else self._policy.release, cell)

    def abandon(self, first: int) -> None:
        """Releases all handles of calls from number `first` on, which a gradient that failed has
        left in TensorFlow's C++."""
        for reference in list(self._handles.values()):
            handle = reference()
            if handle is not None and handle.cell.call.number >= first:
                self.unregister(handle, handle.cell)
                handle.abandon()

    def settle(self) -> None:
        """Makes all handles that are still alive convertible: no `tf.Tensor`s any more, which
        TensorFlow converts when they are used."""
        for reference in list(self._handles.values()):
            handle = reference()
            if type(handle) is LazyTensor:
                private_api.become(handle, SettledTensor)

    def _forget(self, cell: Cell) -> None:
        private_api.tape_forget(cell)
        self._policy.release(cell)

    def defer(self, act: Callable[..., None], *arguments: Any) -> None:
        """Acts once no op is running, in the thread of the context."""
        if self.depth or get_ident() != self.thread:
            self._deferred.append((act, arguments))
            return
        self.depth = 1
        try:
            act(*arguments)
        finally:
            self.depth = 0
        if self._deferred:
            self.run_deferred()

    def end_op(self) -> None:
        self.depth -= 1
        if self._deferred and not self.depth:
            self.run_deferred()

    def run_deferred(self) -> None:
        if self.depth:
            return
        self.depth = 1
        try:
            while self._deferred:
                act, arguments = self._deferred.popleft()
                act(*arguments)
        finally:
            self.depth = 0
