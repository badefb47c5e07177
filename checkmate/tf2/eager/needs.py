"""How much memory an op needs before it runs, and what it costs: asked of TensorFlow's shape inference, then measured.

Eager TensorFlow says what an op made after it has run. A budget needs it before. The first time that an op type meets certain shapes, it is
put into a scratch graph, where TensorFlow infers its outputs; scratch memory is guessed. While it then runs, the allocator is watched, and
from the second time on its peak is known. Costs are a roofline's, not measured: the same program makes the same decisions in every run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from checkmate.tf2.eager import fence
from checkmate.tf2.eager.calls import EagerCall, flat
from checkmate.tf2.eager.op_kinds import OpKind
from checkmate.tf2.eager.tensors import Cell, Made
from checkmate.tf2.flat_graph import tensor_bytes
from checkmate.tf2.op_rules import NO_SCRATCH
from checkmate.tf2.profile import roofline_s

ALIGNMENT = 256
"""TensorFlow's allocators hand out multiples of so many bytes."""

_INT32 = tf.int32.as_datatype_enum
_SMALL = 16
"""Integer tensors of up to so many elements may be shapes and axes, which decide about sizes by value."""


def rounded(count: int) -> int:
    """`count` bytes as the allocator rounds it up."""
    return -(-count // ALIGNMENT) * ALIGNMENT


class Needs:
    """What one op type needs at certain input shapes.

    Attributes:
      cost: Seconds, by a roofline.
      least_bytes: Its outputs.
      bytes: Outputs and scratch memory: a guess on the high side until `measured`, then what the allocator said.
      made: Its outputs, or None where their shapes depend on values.
    """

    __slots__ = ("bytes", "cost", "least_bytes", "made", "measured")

    def __init__(self, cost: float, least_bytes: int, guess_bytes: int, made: list[Made] | None = None):
        self.cost, self.least_bytes, self.bytes, self.made = cost, least_bytes, guess_bytes, made
        self.measured = False

    def learn(self, used_bytes: int, held_bytes: int) -> None:
        """The allocator said that it took `used_bytes`, and still `held_bytes` when it was done: its outputs, and what holes were larger."""
        self.bytes = used_bytes if self.made is None else self.least_bytes + max(0, used_bytes - max(held_bytes, self.least_bytes))
        self.measured = True

    def raise_to(self, used_bytes: int) -> None:
        """It took more than was known."""
        self.bytes = max(self.bytes, used_bytes)


class NeedsTable:
    """The needs of all ops met so far, by type, attributes, shapes, types and the values of small integer inputs."""

    def __init__(self, device: str):
        self._device = device
        self._kind = device.split(":")[0]
        self._known: dict[Any, Needs] = {}
        self._made: dict[Any, Made] = {}

    def made(self, shape: tuple[int, ...], dtype: tf.DType) -> Made:
        """What is known of a tensor of this shape and type."""
        key = (shape, dtype)
        found = self._made.get(key)
        if found is None:
            stays = _may_be_shape(shape) and dtype == tf.int32  # TensorFlow asks for its value in the middle of functions
            number = dtype.is_floating or dtype.is_integer or dtype.is_bool or dtype.is_complex
            found = self._made[key] = Made(rounded(math.prod(shape) * dtype.size) if number and not stays else 0, shape, dtype)
        return found

    def of(self, call: EagerCall, signatures: Sequence[Any]) -> Needs:
        """The needs of running a call, of whose arguments `signatures` says what decides about them: `Made.signature`, or what is `described`."""
        key = _key(call.kind, call.lengths, call.attrs, signatures)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._asked(call)
        return found

    def known(self, kind: OpKind, lengths: tuple[int | None, ...], attrs: Any, signatures: Sequence[Any]) -> Needs | None:
        """The needs of a call that has been asked for before, or None."""
        return self._known.get(_key(kind, lengths, attrs, signatures))

    def of_opaque(self, op: str, values: Sequence[Any]) -> Needs:
        """The needs of a function, of which only its inputs are known before it first ran."""
        key = (op, *[(value._shape_tuple(), value.dtype) for value in values])
        if key not in self._known:
            self._known[key] = Needs(0.0, 0, 2 * sum(_bytes(value) for value in values))
        return self._known[key]

    def _asked(self, call: EagerCall) -> Needs:
        read = sum(_bytes(argument) for argument in call.arguments)
        try:
            operation = _scratch(call)
        except Exception:  # whatever a graph cannot express: the guess below is all that is lost
            return Needs(5e-6 + 3 * read / 8e9, 0, 2 * read)
        made = [tensor_bytes(tensor) for tensor in operation.outputs]
        outputs = sum(rounded(count if count is not None else read) for count in made)
        scratch = 0 if call.name in NO_SCRATCH else read
        known = [self.made(tuple(tensor.shape), tensor.dtype) for tensor in operation.outputs] if None not in made else None
        if call.kind.is_view:
            outputs = scratch = 0
        return Needs(roofline_s(operation, self._kind), outputs, outputs + scratch, known)


def _key(kind: OpKind, lengths: tuple[int | None, ...], attrs: Any, signatures: Sequence[Any]) -> Any:
    return (kind, lengths, attrs if kind.plain_attrs else repr(attrs), *signatures)


def described(tensor: Any) -> Any:
    """Shape and type of a real tensor, and its value if it may be a shape or an axis itself."""
    shape, dtype = tensor._shape_tuple(), tensor._datatype_enum()
    if dtype != _INT32:
        return shape, dtype
    value = _shape_like(tensor, shape)
    return (shape, dtype) if value is None else (shape, dtype, value.tobytes())


def _bytes(argument: Any) -> int:
    if type(argument) is Cell:
        return argument.made.bytes
    return rounded(math.prod(argument._shape_tuple()) * max(1, argument.dtype.size))


def _shape_like(tensor: Any, shape: tuple[int, ...]) -> Any:
    """The value of an integer tensor that may be a shape or an axis, or None."""
    return tensor._numpy() if _may_be_shape(shape) else None


def _may_be_shape(shape: tuple[int, ...]) -> bool:
    return not shape or (len(shape) == 1 and shape[0] <= _SMALL)


def _scratch(call: EagerCall) -> tf.Operation:
    """The op in a graph of its own, with a placeholder for each input that is no shape."""
    definition = fence.op_def(call.name)
    inferred = {name for names in call.kind.inputs for name in names}
    attrs = {name: value for name, value in zip(call.attrs[::2], call.attrs[1::2], strict=True) if name not in inferred}
    known = {attr.name for attr in definition.attr}
    with tf.Graph().as_default():
        rest = iter([_stand_in(argument) for argument in call.arguments])
        inputs = {
            argument.name: next(rest) if count is None else [next(rest) for _ in range(count)]
            for argument, count in zip(definition.input_arg, call.lengths, strict=True)
        }
        made = getattr(tf.raw_ops, call.name)(**inputs, **{name: value for name, value in attrs.items() if name in known})
        first = made if isinstance(made, tf.Operation) else flat(list(made) if isinstance(made, tuple) else made)[0]
        return first if isinstance(first, tf.Operation) else first.op


def _stand_in(argument: Any) -> tf.Tensor:
    if type(argument) is fence.EagerTensor and argument.dtype == tf.int32:
        value = _shape_like(argument, argument._shape_tuple())
        if value is not None:
            return tf.constant(value)
    known = argument.made if type(argument) is Cell else argument
    return tf.compat.v1.placeholder(known.dtype, known.shape)
