"""How much memory an op needs before it runs, and what it costs: asked of TensorFlow's shape
inference, then measured.

Eager TensorFlow says what an op made after it has run. A budget needs it before. The first time
that an op type meets certain shapes, it is put into a scratch graph, where TensorFlow infers its
outputs; scratch memory is guessed. While it then runs, the allocator is watched, and from the
second time on its peak is known. Costs are a roofline's, not measured: the same program makes the
same decisions in every run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from checkmate.tf2.costs.roofline import roofline_s
from checkmate.tf2.eager import private_api
from checkmate.tf2.eager.calls import EagerCall
from checkmate.tf2.eager.op_kinds import OpKind
from checkmate.tf2.eager.tensors import Cell, Made
from checkmate.tf2.graph.sizes import tensor_bytes
from checkmate.tf2.ops import rule_of

ALIGNMENT = 256
"""TensorFlow's allocators hand out multiples of so many bytes."""

_SMALL = 16
"""Vectors of up to so many elements, and scalars, may be shapes, axes and limits, which decide
about sizes by value."""

_RESOURCE = tf.resource.as_datatype_enum


def rounded(count: int) -> int:
    """`count` bytes as the allocator rounds it up."""
    return -(-count // ALIGNMENT) * ALIGNMENT


class Needs:
    """What one op type needs at certain input shapes.

    Attributes:
      cost: Seconds, by a roofline.
      least_bytes: Its outputs.
      bytes: Outputs and scratch memory: a guess on the high side until `measured`, then what the
        allocator said.
      made: Its outputs, or None where their shapes are not known before.
      steady: They are the same whenever it runs.
      is_view: Its first output shares the memory of its first input.
    """

    __slots__ = ("bytes", "cost", "is_view", "least_bytes", "made", "measured", "steady")

    def __init__(
        self,
        cost: float,
        least_bytes: int,
        guess_bytes: int,
        made: list[Made] | None = None,
        *,
        steady: bool = False,
        is_view: bool = False,
    ):
        self.cost, self.least_bytes, self.bytes, self.made = cost, least_bytes, guess_bytes, made
        self.steady, self.is_view = steady or made is not None, is_view
        self.measured = False

    def learn(self, used_bytes: int, held_bytes: int) -> None:
        """The allocator said that it took `used_bytes`, and still `held_bytes` when it was done:
        its outputs, and what holes were larger."""
        self.bytes = (
            used_bytes
            if self.made is None
            else self.least_bytes + max(0, used_bytes - max(held_bytes, self.least_bytes))
        )
        self.measured = True

    def raise_to(self, used_bytes: int) -> None:
        """It took more than was known."""
        self.bytes = max(self.bytes, used_bytes)


class NeedsTable:
    """The needs of all ops met so far, by type, attributes, shapes and types, and the values of
    small inputs where these decide about sizes."""

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
            # TensorFlow asks for its value in the middle of functions.
            stays = _may_be_shape(shape) and dtype == tf.int32
            number = dtype.is_floating or dtype.is_integer or dtype.is_bool or dtype.is_complex
            found = self._made[key] = Made(
                rounded(math.prod(shape) * dtype.size) if number and not stays else 0, shape, dtype
            )
        return found

    def of(self, call: EagerCall, signatures: Sequence[Any]) -> Needs:
        """The needs of running a call. `signatures` are those of its arguments: `Made.signature`,
        or `signature_of` what is no handle."""
        key = _key(call.kind, call.lengths, call.attrs, signatures)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._asked(call)
        if type(found) is _ByValue:
            which, key = found.which, (key, found.values(call.arguments))
            found = self._known.get(key)
            if found is None:
                found = self._known[key] = self._sized(call, which)
        return found

    def known(
        self,
        kind: OpKind,
        lengths: tuple[int | None, ...],
        attrs: Any,
        signatures: Sequence[Any],
        tensors: Sequence[Any],
    ) -> Needs | None:
        """The needs of a call that has been asked for before, or None."""
        key = _key(kind, lengths, attrs, signatures)
        found = self._known.get(key)
        return self._known.get((key, found.values(tensors))) if type(found) is _ByValue else found

    def of_opaque(self, op: str, values: Sequence[Any]) -> Needs:
        """The needs of a function, of which only its inputs are known before it first ran."""
        key = (op, *[(value._shape_tuple(), value.dtype) for value in values])
        if key not in self._known:
            self._known[key] = Needs(0.0, 0, 2 * sum(_bytes(value) for value in values))
        return self._known[key]

    def _asked(self, call: EagerCall) -> Needs | _ByValue:
        """The needs of a call as far as they do not hang on values; else which values, of inputs
        that are small, decide about all of them."""
        found = self._sized(call, ())
        small = tuple([k for k, argument in enumerate(call.arguments) if _may_decide(argument)])
        if found.steady or not small or not self._sized(call, small).steady:
            return found
        deciding = small
        for k in small:
            fewer = tuple([other for other in deciding if other != k])
            if self._sized(call, fewer).steady:
                deciding = fewer
        return _ByValue(deciding)

    def _sized(self, call: EagerCall, by_value: Sequence[int]) -> Needs:
        """What is inferred from shapes and types, and the values of some inputs."""
        read = sum(_bytes(argument) for argument in call.arguments)
        reads_variable = any(
            type(each) is private_api.EagerTensor and each.dtype == tf.resource
            for each in call.arguments
        )
        try:
            with _scratch(call, by_value) as operation:
                made = [tensor_bytes(tensor) for tensor in operation.outputs]
                known = (
                    [self.made(tuple(tensor.shape), tensor.dtype) for tensor in operation.outputs]
                    if None not in made
                    else None
                )
                cost = roofline_s(operation, self._kind)
        except Exception:  # whatever a graph cannot express: the guess below is all that is lost
            return Needs(
                5e-6 + 3 * read / 8e9, 0, 2 * read, steady=reads_variable, is_view=call.kind.is_view
            )
        outputs = sum(rounded(count if count is not None else read) for count in made)
        scratch = read if rule_of(call.name).scratch else 0
        is_view = call.kind.is_view or (
            call.kind.is_reduction and made[0] is not None and outputs == _bytes(call.arguments[0])
        )
        if is_view:
            outputs = scratch = 0
        return Needs(
            cost, outputs, outputs + scratch, known, steady=reads_variable, is_view=is_view
        )


class _ByValue:
    """In place of the needs of ops whose outputs are as large as the values of some inputs say:
    which."""

    __slots__ = ("which",)

    def __init__(self, which: tuple[int, ...]):
        self.which = which

    def values(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        """Those values; None for what is not there to be read."""
        return tuple(
            [
                arguments[k]._numpy().tobytes() if _may_decide(arguments[k]) else None
                for k in self.which
            ]
        )


def _key(
    kind: OpKind, lengths: tuple[int | None, ...], attrs: Any, signatures: Sequence[Any]
) -> Any:
    return (kind, lengths, attrs if kind.plain_attrs else repr(attrs), *signatures)


def signature_of(tensor: Any) -> Any:
    """Shape and type of a real tensor; of a variable's handle, which variable: its size is not
    known otherwise."""
    shape, dtype = tensor._shape_tuple(), tensor._datatype_enum()
    return (shape, dtype, tensor._id) if dtype == _RESOURCE else (shape, dtype)


def _may_decide(argument: Any) -> bool:
    """Whether it is a small numeric tensor, which may be a shape, an axis or a limit."""
    small = type(argument) is private_api.EagerTensor and _may_be_shape(argument._shape_tuple())
    return small and (argument.dtype.is_integer or argument.dtype.is_floating)


def _bytes(argument: Any) -> int:
    if type(argument) is Cell:
        return argument.made.bytes
    return rounded(math.prod(argument._shape_tuple()) * max(1, argument.dtype.size))


def _may_be_shape(shape: tuple[int, ...]) -> bool:
    return not shape or (len(shape) == 1 and shape[0] <= _SMALL)


@contextmanager
def _scratch(call: EagerCall, by_value: Sequence[int]) -> Iterator[tf.Operation]:
    """The op in a graph of its own, with constants for some inputs and placeholders for the others;
    gone afterwards, with what it holds."""
    definition = private_api.op_def(call.name)
    inferred = {name for names in call.kind.inputs for name in names}
    attrs = {
        name: value
        for name, value in zip(call.attrs[::2], call.attrs[1::2], strict=True)
        if name not in inferred
    }
    known = {attr.name for attr in definition.attr}
    graph = tf.Graph()
    try:
        with graph.as_default():
            rest = iter(
                [_stand_in(argument, k in by_value) for k, argument in enumerate(call.arguments)]
            )
            inputs = {
                argument.name: next(rest) if count is None else [next(rest) for _ in range(count)]
                for argument, count in zip(definition.input_arg, call.lengths, strict=True)
            }
            private_api.apply_op(
                call.name,
                **inputs,
                **{name: value for name, value in attrs.items() if name in known},
            )
        yield graph.get_operations()[-1]
    finally:
        private_api.dismantle_graph(graph)


def _stand_in(argument: Any, by_value: bool) -> tf.Tensor:
    if by_value and _may_decide(argument):
        return tf.constant(argument._numpy(), argument.dtype)
    known = argument.made if type(argument) is Cell else argument
    return tf.compat.v1.placeholder(known.dtype, known.shape)
