"""Call: what a rule is told of one op; what a rule may answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from checkmate.tf2.ops.relation import Count, Kind, Relation

Relations = list[Relation]


class Pair(NamedTuple):
    """An op of the step in the graph of the whole batch and in that of a slice."""

    whole: tf.Operation
    part: tf.Operation


@dataclass(frozen=True, slots=True)
class Call:
    """One op of the step, for the whole batch and for a slice, with the relations of its inputs.

    Attributes:
      known: Each input's value for the whole and for a slice, if known before the step runs.
      count: How many times as many examples the whole has as a slice.
      inside: Returns the relations of what functions return that the op runs, given the graphs of a
        function for the whole and for a slice, and the relations of its arguments; None if that
        needs the whole.
      bodies: The graphs of the functions that the op runs, for the whole and for a slice.
    """

    pair: Pair
    tensors: Sequence[tuple[tf.Tensor, tf.Tensor]]
    inputs: Sequence[Relation]
    known: Sequence[tuple[Any, Any] | None]
    count: Count
    inside: Callable[[Any, Any, Sequence[Relation]], Relations | None]
    bodies: Callable[[], Sequence[tuple[Any, Any]]]

    @property
    def type(self) -> str:
        return self.pair.whole.type

    def attr(self, name: str) -> Any:
        value = self.pair.whole.get_attr(name)
        return value.decode() if isinstance(value, bytes) else value

    def ranks(self) -> list[int]:
        return [len(shape_of(tensor)) for tensor, _ in self.tensors]

    def shapes(self, input_: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        whole, part = self.tensors[input_]
        return shape_of(whole), shape_of(part)

    def results(self, output: int = 0) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return shape_of(self.pair.whole.outputs[output]), shape_of(self.pair.part.outputs[output])

    def values(self, input_: int) -> tuple[Any, Any]:
        """The known value of an input for the whole and for a slice; or raises UnknownError."""
        found = self.known[input_]
        if found is None:
            raise UnknownError
        return found

    def value(self, input_: int) -> Any:
        """The known value of an input, if it is the same for both; or raises UnknownError."""
        whole, part = self.values(input_)
        if whole.shape != part.shape or (whole != part).any():
            raise UnknownError
        return whole


Rule = Callable[[Call], Any]
"""Returns a `Signature`, or the relation of each output; None if the outputs need the whole."""


class UnknownError(Exception):
    """A rule asked for a shape or a value that is not known before the step runs."""


def has_own(call: Call, k: int) -> bool:
    """True if an input is a shape or the like that a slice can take from its own graph."""
    own = (Kind.SAME, Kind.SIZE, Kind.ZERO)
    return call.known[k] is not None or call.inputs[k].kind in own


def shape_of(tensor: tf.Tensor) -> tuple[int, ...]:
    """The shape of a tensor, with -1 for the length of an axis that is not known. Raises
    `UnknownError` where the number of axes is not."""
    if tensor.shape.rank is None:
        raise UnknownError
    return tuple(-1 if size is None else size for size in tensor.shape.as_list())


def one_number(value: np.ndarray) -> bool:
    if value.size == 0:
        return False
    first = value.flat[0]
    return not any(value.strides) or bool((value == first).all())


def product(sizes: Sequence[int]) -> int:
    """The number of elements along some axes; raises UnknownError where one's length is not
    known."""
    if min(sizes, default=0) < 0:
        raise UnknownError
    return math.prod(sizes)
