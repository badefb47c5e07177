"""outputs_of(): the relations of an op's outputs, by the op's row of the table, checked against
shapes; Draw: how a slice draws its part of the random numbers of the whole batch."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from checkmate.tf2.ops.call import (
    Call,
    Pair,
    Relations,
    UnknownError,
    has_own,
    one_number,
    shape_of,
)
from checkmate.tf2.ops.positions import has_positions, without_positions
from checkmate.tf2.ops.relation import (
    SAME,
    SIZE,
    WHOLE,
    ZERO,
    Count,
    Kind,
    Relation,
    batch_axis,
    batched,
    fits,
)
from checkmate.tf2.ops.signature import OWN, Signature, relate
from checkmate.tf2.ops.table import rule_of

_ALGORITHM = 3
_PHILOX = (1, 3)
"""tf.random.Algorithm: Philox, and the choice of TensorFlow, which is Philox on CPUs and GPUs."""

_BYTES = 16
"""Random bits, in bytes, of one count."""


class Found(NamedTuple):
    """The relations of an op's outputs.

    Attributes:
      read: Indices of the inputs whose values are read as numbers, and not as shapes or the like.
      average: The outputs are sums of those of the slices, each divided by `Call.count`.
    """

    outputs: Relations
    read: frozenset[int]
    average: bool = False


def outputs_of(call: Call) -> Found | None:
    """The relations of an op's outputs, or None if they need the whole batch."""
    as_numbers = [
        SAME if relation == SIZE and known is not None else relation
        for relation, known in zip(call.inputs, call.known, strict=True)
    ]
    row, answer = rule_of(call.type), None
    rule = row.list_axes if _is_list(call) else row.axes
    positions = has_positions(call)
    if rule is not None:
        try:
            answer = rule(without_positions(call) if positions else call)
        except UnknownError:
            answer = None
    read = frozenset(range(len(call.inputs)))
    average = False
    if isinstance(answer, Signature):
        read = frozenset(k for k, labels in enumerate(answer.inputs) if labels is not OWN)
        outputs = relate(answer, without_positions(replace(call, inputs=as_numbers)))
        own = [k for k in range(len(call.inputs)) if k not in read]
        if not all(has_own(call, k) and (k in answer.shapes or _is_equal(call, k)) for k in own):
            outputs = None
        average = answer.averages and call.inputs[0].kind is Kind.BATCHED
    else:
        outputs = answer
        read -= {k for k, relation in enumerate(call.inputs) if relation == SIZE}
    if positions:
        outputs = row.positions(call, outputs) if row.positions else None
    if outputs is None and all(relation in (SAME, ZERO) for relation in call.inputs):
        outputs = [SAME] * len(call.pair.whole.outputs)
    if outputs is None or not _fit(outputs, call):
        return None
    missing = len(call.pair.whole.outputs) - len(outputs)
    average = average and outputs[0].kind is Kind.SUMMED
    return Found([*outputs, *[WHOLE] * missing], read, average)


def _is_equal(call: Call, k: int) -> bool:
    """True if an input has one value for the whole and for a slice, as each reads its own: only a
    shape of the result may differ."""
    known = call.known[k]
    return call.inputs[k].kind in (Kind.SAME, Kind.ZERO) if known is None else _equal(*known)


def _equal(whole: np.ndarray, part: np.ndarray) -> bool:
    return whole.shape == part.shape and bool((whole == part).all())


def _is_list(call: Call) -> bool:
    """True for an op that returns a list of tensors first; a loop is none."""
    outputs = call.pair.whole.outputs
    lists = rule_of(call.type).list_axes is not None
    return bool(outputs) and outputs[0].dtype == tf.variant and lists


def _fit(outputs: Relations, call: Call) -> bool:
    for relation, whole, part in zip(
        outputs, call.pair.whole.outputs, call.pair.part.outputs, strict=False
    ):
        if whole.dtype in (tf.variant, tf.resource):
            continue
        if whole.shape.rank is None or part.shape.rank is None:
            return False
        if not fits(relation, shape_of(whole), shape_of(part), call.count):
            return False
    return True


def _offset(parts: list[np.ndarray]) -> int:
    """How much each part of whole numbers exceeds the one before; 0 if they are no such numbers."""
    if parts[0].dtype.kind not in "iu" or not parts[0].size:
        return 0
    offset = int(parts[1].flat[0]) - int(parts[0].flat[0])
    counts = all(np.array_equal(parts[0] + k * offset, each) for k, each in enumerate(parts))
    return offset if counts else 0


def relation_of_known(whole: np.ndarray, part: np.ndarray, count: Count) -> tuple[Relation, Any]:
    """The relation of a value that is known before the step runs, and the value that a slice has to
    read instead of its own, if it reads it as numbers. WHOLE: each slice needs another part."""
    if whole.shape == part.shape:
        if np.array_equal(whole, part):
            return (SAME if whole.size == 0 or whole.any() else ZERO), None
        return SIZE, whole
    axis = batch_axis(whole.shape, part.shape, count)
    if axis is None:
        return WHOLE, None
    if one_number(whole) and one_number(part):
        number = whole.flat[0]
        if number == part.flat[0]:
            return (batched(axis, 0) if number else ZERO), None
        return batched(axis, 0), np.broadcast_to(number, part.shape)
    unit = math.gcd(whole.shape[axis], part.shape[axis])  # any slice begins at a multiple of it
    units = np.split(whole, whole.shape[axis] // unit, axis)
    first = np.take(whole, range(part.shape[axis]), axis)
    if any(not np.array_equal(units[0], each) for each in units[1:]):
        offset = _offset(units) * (part.shape[axis] // unit) if (first == part).all() else 0
        return (batched(axis, 1, offset) if offset else WHOLE), None
    constant = (whole == np.take(whole, [0], axis)).all()
    instead = None if np.array_equal(first, part) else first
    return batched(axis, 0 if constant else 1), instead


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
