"""Call: what a rule is told of one op; Answer: what it says of the op's copy in a slice."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from checkmate.tf2.ops.relation import Kind, Relation

Relations = list[Relation]


class Body(Protocol):
    """A function that an op runs, as it is for a slice: the relations of its arguments and of its
    results."""

    @property
    def arguments(self) -> Relations: ...

    @property
    def results(self) -> Relations: ...


@dataclass(frozen=True, slots=True)
class Answer:
    """An op's copy in a slice.

    Attributes:
      outputs: The relation of each output; those that are missing need the whole.
      inputs: The relation in which the copy reads each input.
      scaled: Index of an input -> index of the entry in it, a part of a shape, that is as many
        times smaller in a slice as there are fewer examples.
      shifted: Index of an input, of places along the axis of the examples -> how many places each
        example has there: in a slice they count from its first example on.
      leads: Of the shifted inputs only the first entries along the last axis are such places.
      average: The outputs are averages: each slice counts by its share of the examples.
      bodies: The functions that the copy runs.
    """

    outputs: Relations
    inputs: Relations
    scaled: Mapping[int, int] = field(default_factory=dict)
    shifted: Mapping[int, int] = field(default_factory=dict)
    leads: bool = False
    average: bool = False
    bodies: tuple[Body, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """One op of the step, for the whole batch, with the relations of its inputs.

    Attributes:
      known: Each input's value, if known before the step runs.
      examples: The number of examples of the batch.
      inside: Returns a function that the op runs as it is for a slice, given its graph, and the
        relations of its arguments and of its results, which may be others; None if that needs the
        whole.
      bodies: The graphs of the functions that the op runs.
      asked: Index of an output -> the relation that it shall have, where inputs that are the same
        for all slices do not tell.
    """

    operation: tf.Operation
    inputs: Relations
    known: Sequence[Any]
    examples: int
    inside: Callable[[Any, Relations, Relations | None], Body | None]
    bodies: Callable[[], Sequence[Any]]
    asked: Mapping[int, Relation] = field(default_factory=dict)

    @property
    def type(self) -> str:
        return self.operation.type

    def attr(self, name: str) -> Any:
        value = self.operation.get_attr(name)
        return value.decode() if isinstance(value, bytes) else value

    def ranks(self) -> list[int]:
        return [len(shape_of(tensor)) for tensor in self.operation.inputs]

    def shape(self, input_: int) -> tuple[int, ...]:
        return shape_of(self.operation.inputs[input_])

    def result(self, output: int = 0) -> tuple[int, ...]:
        return shape_of(self.operation.outputs[output])

    def value(self, input_: int) -> Any:
        """The known value of an input; or raises UnknownError."""
        if self.known[input_] is None:
            raise UnknownError
        return self.known[input_]

    def places(self, input_: int, axis: int = 0) -> int:
        """How many places each example has that the entries of an input along `axis` name."""
        relation, known = self.inputs[input_], self.known[input_]
        if relation.kind is Kind.BATCHED:
            return relation.places if relation.axis == axis else 0
        return 0 if known is None else counted(known, axis, self.examples)

    def leading(self, input_: int, axis: int = 0) -> int:
        """The same of the first entries along the last axis."""
        relation, known = self.inputs[input_], self.known[input_]
        if self.shape(input_)[-1:] == (1,):
            return self.places(input_, axis)
        if relation.kind is Kind.BATCHED:
            return relation.leading if relation.axis == axis else 0
        return 0 if known is None else counted(known[..., :1], axis, self.examples)

    def scaled(self, input_: int, entry: int) -> dict[int, int]:
        """The entry of a shape that is smaller in a slice, if there is one and it can be; raises
        UnknownError where it cannot."""
        if self.inputs[input_].kind is Kind.SIZE:
            return {}
        shape = np.ravel(self.value(input_))
        if not np.ndim(self.known[input_]) and entry:
            return {}
        if entry < shape.size and shape[entry] in (-1, 1):
            return {}
        if entry >= shape.size or shape[entry] % self.examples:
            raise UnknownError
        return {input_: entry}


Rule = Callable[[Call], Any]
"""Returns a `Signature`, an `Answer`, or the relations of the outputs, where each input is read as
it is; None if the outputs need the whole."""


class UnknownError(Exception):
    """A rule asked for a shape or a value that is not known before the step runs."""


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


def counted(value: np.ndarray, axis: int, examples: int) -> int:
    """How many places each example has that whole numbers name along an axis; 0 if they do not."""
    if value.dtype.kind not in "iu" or axis >= value.ndim or value.shape[axis] % examples:
        return 0
    parts = np.split(value.astype(np.int64), examples, axis)
    if examples < 2 or not value.size:
        return 0
    places = int(parts[1].flat[0] - parts[0].flat[0])
    alike = all(np.array_equal(parts[0] + k * places, part) for k, part in enumerate(parts))
    return places if alike and parts[0].min() >= 0 and parts[0].max() < places else 0


def product(sizes: Sequence[int]) -> int:
    """The number of elements along some axes; raises UnknownError where one's length is not
    known."""
    if min(sizes, default=0) < 0:
        raise UnknownError
    return math.prod(sizes)
