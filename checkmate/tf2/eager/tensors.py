"""What the program holds while tensors may be evicted: handles, which know shape and type and find
the value when it is wanted.

A `Cell` is what may be evicted and run again; a handle (`LazyTensor`) is a `tf.Tensor` that points
at one. Handles have ids of their own: an EagerTensor that dies takes its entry on all tapes with
it, and evicting means letting EagerTensors die.
"""

from __future__ import annotations

import math
from itertools import repeat
from typing import Any

import numpy as np

from checkmate.dtr.storage import Storage, Tensor
from checkmate.errors import CheckmateError
from checkmate.tf2.eager import private_api


class EagerStorage(Storage):
    """A storage of the runtime.

    Attributes:
      is_gradient: No tape records it, and having it back takes the whole backward pass.
      anchors: How many backward functions may ask for it although they are not known to read it.
      passing: It came back only so that another could.
    """

    __slots__ = ("anchors", "is_gradient", "passing")

    def __init__(self, count: int, cost: float, last_access: float, is_gradient: bool):
        # All fields of `Storage`, written out: one is made for every op that runs.
        self.bytes, self.cost, self.last_access, self.is_gradient = (
            count,
            cost,
            last_access,
            is_gradient,
        )
        self.tensors = []
        self.material, self.pinned, self.banished, self.passing = True, False, False, False
        self.locks = self.refs = self.anchors = 0
        self.before, self.after = {}, {}
        self.around = None
        self.slot = -1


class Made:
    """What is known of an output of an op before it runs: its bytes as the allocator counts, 0 if
    it is no number, shape and type.

    There is one object for each shape and type.

    Attributes:
      signature: Shape and number of the type, as `needs.signature_of` a real tensor.
      tape_dtype, tape_shape: What tapes ask for, without a detour through Python: an object with
        the type's number, a call for the shape.
    """

    __slots__ = ("bytes", "dtype", "shape", "signature", "tape_dtype", "tape_shape")

    def __init__(self, count: int, shape: tuple[int, ...], dtype: Any):
        self.bytes, self.shape, self.dtype = count, shape, dtype
        self.signature = (shape, dtype.as_datatype_enum)
        self.tape_dtype = _TapeType(dtype.as_datatype_enum)
        self.tape_shape = repeat(shape).__next__


class _TapeType:
    __slots__ = ("_type_enum",)

    def __init__(self, number: int):
        self._type_enum = number


class Cell(Tensor):
    """An output that may be evicted. Tapes take it for a tensor: they ask for `_id`,
    `dtype._type_enum` and `_shape_tuple()`.

    Attributes:
      value: The real tensor while it is in memory.
      index: Which output of its call it is.
      made: Its shape and type.
    """

    __slots__ = ("_id", "_shape_tuple", "dtype", "index", "made", "value")

    def __init__(
        self, call: Any, storage: EagerStorage, count: int, value: Any, index: int, made: Made
    ):
        self.call, self.storage, self.bytes = call, storage, count
        self.refs, self.defined = 0, True
        self.value, self.index, self.made = value, index, made
        self._id, self.dtype, self._shape_tuple = (
            private_api.new_id(),
            made.tape_dtype,
            made.tape_shape,
        )
        storage.tensors.append(self)


class _Abandoned:
    """In place of the cell of a handle that the runtime let go of."""

    def __getattr__(self, name: str) -> Any:
        raise CheckmateError(
            "This tensor was made while a gradient was computed that then failed, and is gone. Ask"
            " for the gradient again."
        )


class _Handle:
    """What stands for a tensor, and finds its value, recomputed if need be, when it is asked
    for."""

    # Of these TensorFlow's C++ asks for `_id` and `dtype`, at every op.
    __slots__ = (
        "_cell",
        "_id",
        "_owner",
        "_runtime",
        "dtype",
    )

    def __init__(self, runtime: Any, cell: Cell, owner: bool = False):
        self._runtime, self._cell, self._owner = runtime, cell, owner
        self._id, self.dtype = cell._id, cell.made.dtype
        runtime.hold(self, cell)

    def __del__(self) -> None:
        try:
            runtime, cell = self._runtime, self._cell
        except AttributeError:  # it was never made
            return
        runtime.let_go(self, cell)

    def _value(self) -> Any:
        return self._runtime.value(self._cell)

    def abandon(self) -> None:
        """Nothing stands behind it any more."""
        self._cell = _Abandoned()
        del self._runtime

    @property
    def shape(self):
        import tensorflow as tf

        return tf.TensorShape(self._cell.made.shape)

    @property
    def ndim(self):
        return len(self._cell.made.shape)

    @property
    def device(self):
        return self._runtime.device_name

    @property
    def backing_device(self):
        return self._runtime.device_name

    is_packed = False

    def get_shape(self):
        return self.shape

    def set_shape(self, shape):
        if not self.shape.is_compatible_with(shape):
            raise ValueError(
                f"Tensor's shape {self.shape} is not compatible with supplied shape {shape}"
            )

    def _shape_tuple(self):
        return self._cell.made.shape

    def _shape_as_list(self):
        return list(self._cell.made.shape)

    def _rank(self):
        return len(self._cell.made.shape)

    def _num_elements(self):
        return math.prod(self._cell.made.shape)

    def _datatype_enum(self):
        return self.dtype.as_datatype_enum

    def numpy(self):
        return self._value().numpy()

    def _numpy(self):
        return self._value()._numpy()

    def __array__(self, dtype=None, copy=None):
        return np.array(self._value().numpy(), dtype=dtype, copy=copy)

    def __dlpack__(self, *args, **kwargs):
        return self._value().__dlpack__(*args, **kwargs)

    def __dlpack_device__(self):
        return self._value().__dlpack_device__()

    def __bool__(self):
        return bool(self._value())

    __nonzero__ = __bool__

    def __int__(self):
        return int(self._value())

    def __float__(self):
        return float(self._value())

    def __complex__(self):
        return complex(self._value())

    def __index__(self):
        return self._value().__index__()

    def __len__(self):
        if not self._cell.made.shape:
            raise TypeError("Scalar tensor has no `len()`")
        return self._cell.made.shape[0]

    def __iter__(self):
        if not self._cell.made.shape:
            raise TypeError("Cannot iterate over a scalar tensor.")
        return (self[k] for k in range(self._cell.made.shape[0]))

    def __format__(self, spec):
        return format(self._value(), spec)

    def __repr__(self):
        return repr(self._value())

    def __str__(self):
        return str(self._value())

    def __reduce__(self):
        import tensorflow as tf

        return tf.constant, (self.numpy(),)

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self

    def _copy_to_device(self, device_name):
        return self._value()._copy_to_device(device_name)

    def _copy(self, *args, **kwargs):
        return self._value()._copy(*args, **kwargs)

    def cpu(self):
        return self._value().cpu()

    def gpu(self, gpu_index=0):
        return self._value().gpu(gpu_index)

    def _capture_as_const(self, name):
        return None  # a function takes it as an input, which may be evicted between calls

    def consumers(self):
        raise NotImplementedError("A tensor has consumers in a graph only; ops run at once here.")

    @property
    def op(self):
        raise AttributeError("A tensor has an op in a graph only; ops run at once here.")

    @property
    def graph(self):
        if private_api.executing_eagerly():
            raise AttributeError("An op that runs at once makes no graph.")
        return None  # a function that captures a handle looks whether it is its own

    @property
    def name(self):
        raise AttributeError("A tensor has a name in a graph only; ops run at once here.")

    @property
    def value_index(self):
        raise AttributeError(
            "A tensor has a place among an op's outputs in a graph only; ops run at once here."
        )


class LazyTensor(_Handle, private_api.Tensor, private_api.Value):
    """A handle while its context is open: a `tf.Tensor` that every op takes as it is."""


class SettledTensor(_Handle):
    """A handle that has outlived its context. TensorFlow converts it to its value wherever it is
    used, as it does with NumPy arrays.

    It is no `tf.Tensor` any more: TensorFlow hands those on to C++ without a look, which knows its
    own tensors only.
    """

    def __tf_tensor__(self, dtype=None, name=None):
        value = self._value()
        if (
            not private_api.tape_is_empty()
            and not private_api.tape_is_stopped()
            and private_api.tape_records([self])
        ):
            value = private_api.linked(self, value)
        return value.__tf_tensor__(dtype, name)

    def __tf_tracing_type__(self, context):
        return self._value().__tf_tracing_type__(context)

    def __getattr__(self, name):
        if name.startswith("__") or name in ("_runtime", "_cell", "_owner"):
            raise AttributeError(name)
        return getattr(self._value(), name)


def _converted(operator: str) -> Any:
    def apply(self, *args):
        return getattr(self.__tf_tensor__(), operator)(*args)

    return apply


_ARITHMETIC = (
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "matmul",
    "and",
    "or",
    "xor",
)
for _name in (
    *_ARITHMETIC,
    *(f"r{name}" for name in _ARITHMETIC),
    "neg",
    "abs",
    "invert",
    "getitem",
    "lt",
    "le",
    "gt",
    "ge",
    "eq",
    "ne",
):
    setattr(SettledTensor, f"__{_name}__", _converted(f"__{_name}__"))
SettledTensor.__hash__ = object.__hash__
SettledTensor.__array_priority__ = private_api.Tensor.__array_priority__
