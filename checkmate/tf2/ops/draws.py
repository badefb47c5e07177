"""Draw: how a slice draws its part of the random numbers of the whole batch."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

import tensorflow as tf

from checkmate.tf2.ops.call import Pair
from checkmate.tf2.ops.relation import Relation
from checkmate.tf2.ops.table import rule_of

_ALGORITHM = 3
_PHILOX = (1, 3)
"""tf.random.Algorithm: Philox, and the choice of TensorFlow, which is Philox on CPUs and GPUs."""

_BYTES = 16
"""Random bits, in bytes, of one count."""


class Draw(NamedTuple):
    """How a slice draws its random numbers.

    Attributes:
      input: Index of the input with the generator's count, if a slice draws exactly its part of the
        whole's numbers when `counts` times the number of its first example is added to that count
        (to the first of its two numbers); None if the numbers of a step in slices are others than
        those of the whole.
      counts: By how much the count grows with each example.
    """

    input: int | None
    counts: Fraction = Fraction(0)

    @property
    def is_exact(self) -> bool:
        return self.input is not None


def is_random(operation: tf.Operation) -> bool:
    name = operation.type
    named = any(part in name for part in ("Random", "TruncatedNormal", "Multinomial"))
    return named and "GetKeyCounter" not in name


def draw_of(pair: Pair, relation: Relation, size: int, every: int) -> Draw:
    """How a slice of `size` examples, which begins at a multiple of `every`, draws its part of the
    numbers of an op."""
    operation = pair.part
    counter = rule_of(operation.type).counter
    if counter is None or relation.blocks != 1:
        return Draw(None)
    algorithm = tf.get_static_value(operation.inputs[_ALGORITHM])
    shape = operation.outputs[0].shape.as_list()
    group = _BYTES // max(4, operation.outputs[0].dtype.size)
    contiguous = math.prod(shape[: relation.axis]) == 1
    counts = Fraction(math.prod(shape), size * group)
    if algorithm not in _PHILOX or not contiguous or (every * counts).denominator > 1:
        return Draw(None)
    return Draw(counter, counts)
