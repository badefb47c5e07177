"""Memory and cost of an op before it runs: asked of TensorFlow's shape inference, then measured.

In eager TensorFlow the outputs of an op are known after it ran; a budget needs them before. When an
op type meets shapes for the first time, it is put into a scratch graph, where TensorFlow infers its
outputs; its scratch memory is guessed. While the op then runs, the allocator is watched, and its
peak is known from the second time on. Costs are a roofline's, not measured, so that the same
program makes the same decisions in every run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from checkmate.core.allocator import rounded_up
from checkmate.tf2.costs.roofline import LAUNCH_S, rates_of, roofline_s
from checkmate.tf2.eager import private_api
from checkmate.tf2.eager.op_kinds import Needs, OutputSpec, Signature
from checkmate.tf2.eager.storage import Cell, EagerCall
from checkmate.tf2.graph.sizes import tensor_bytes
from checkmate.tf2.ops.table import rule_of

_SMALL = 16
"""Vectors of up to this many elements, and scalars, may be shapes, axes and limits, whose values
determine sizes."""


class NeedsTable:
    """The needs of all ops met so far, by type, attributes, shapes and types, and by the values of
    small inputs where these determine sizes."""

    def __init__(self, device: str):
        self._rates = rates_of(device)
        self._known: dict[Any, Needs | _ByValue] = {}
        self._opaque: dict[Any, Needs] = {}
        self._specs: dict[Any, OutputSpec] = {}

    def spec(self, shape: tuple[int, ...], dtype: tf.DType) -> OutputSpec:
        key = (shape, dtype)
        found = self._specs.get(key)
        if found is None:
            # TensorFlow asks for values of shapes inside of functions, where nothing can come back.
            stays = _may_be_shape(shape) and dtype == tf.int32
            number = dtype.is_floating or dtype.is_integer or dtype.is_bool or dtype.is_complex
            found = self._specs[key] = OutputSpec(
                rounded_up(math.prod(shape) * dtype.size) if number and not stays else 0,
                shape,
                dtype,
            )
        return found

    def of(self, call: EagerCall, signatures: Sequence[Signature]) -> Needs:
        attrs = call.attrs if call.kind.plain_attrs else repr(call.attrs)
        key: tuple[Any, ...] = (call.kind, call.lengths, attrs, *signatures)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._asked(call)
        if isinstance(found, Needs):
            return found
        key = (key, found.values(call.arguments))
        needs = self._known.get(key)
        if needs is None:
            needs = self._known[key] = self._sized(call, found.which)
        assert isinstance(needs, Needs)
        return needs

    def of_opaque(self, op: str, values: Sequence[Any]) -> Needs:
        """The needs of a function, of which only its inputs are known before it first ran."""
        key = (op, *[(private_api.shape_of(value), value.dtype) for value in values])
        if key not in self._opaque:
            # The first run of a function traces it, and on a GPU tries the algorithms of its
            # convolutions.
            guess = 2 * sum(_bytes(value) for value in values)
            self._opaque[key] = Needs(0.0, 0, guess, runs=2)
        return self._opaque[key]

    def _asked(self, call: EagerCall) -> Needs | _ByValue:
        """The needs of a call, if they do not depend on values of small inputs; else on which
        ones."""
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
        """The needs inferred from shapes and types, and the values of some inputs."""
        read = sum(_bytes(argument) for argument in call.arguments)
        reads_variable = any(
            type(each) is private_api.EagerTensor and each.dtype == tf.resource
            for each in call.arguments
        )
        try:
            with _scratch(call, by_value) as operation:
                made = [tensor_bytes(tensor) for tensor in operation.outputs]
                known = (
                    [self.spec(tuple(tensor.shape), tensor.dtype) for tensor in operation.outputs]
                    if None not in made
                    else None
                )
                cost = roofline_s(operation, self._rates)
        except Exception:  # a graph cannot express the op: a guess takes the place of the sizes
            return Needs(
                LAUNCH_S + 3 * read / self._rates.bytes_per_s,
                0,
                2 * read,
                steady=reads_variable,
                is_view=call.kind.is_view,
            )
        outputs = sum(rounded_up(count if count is not None else read) for count in made)
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
    """In place of the needs of ops whose sizes depend on the values of some inputs: which ones."""

    __slots__ = ("which",)

    def __init__(self, which: tuple[int, ...]):
        self.which = which

    def values(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        """Those values; None for what is not there to be read."""
        return tuple(
            [
                private_api.numpy_of(arguments[k]).tobytes() if _may_decide(arguments[k]) else None
                for k in self.which
            ]
        )


def _may_decide(argument: Any) -> bool:
    """Whether it is a small numeric tensor, which may be a shape, an axis or a limit."""
    small = type(argument) is private_api.EagerTensor and _may_be_shape(
        private_api.shape_of(argument)
    )
    return small and (argument.dtype.is_integer or argument.dtype.is_floating)


def _bytes(argument: Any) -> int:
    if type(argument) is Cell:
        return argument.spec.bytes
    return rounded_up(math.prod(private_api.shape_of(argument)) * max(1, argument.dtype.size))


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
        return tf.constant(private_api.numpy_of(argument), argument.dtype)
    known = argument.spec if type(argument) is Cell else argument
    return tf.compat.v1.placeholder(known.dtype, known.shape)
