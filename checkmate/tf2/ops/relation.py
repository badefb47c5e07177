"""Relation: how a value of the whole batch follows from the values of its slices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

Shape = Sequence[int]


class Kind(Enum):
    """How a value v of the whole batch and the values v_s of the slices belong together.

    SAME: v = v_s for every s. BATCHED: v is the v_s concatenated along an axis. SUMMED: v is the
    sum of the v_s. ZERO: v and the v_s are all zeros, which fits each of the others. SIZE: v and
    v_s are shapes of the entries of a list, each of its own. WHOLE: v does not follow from the v_s.
    """

    SAME = "same"
    BATCHED = "batched"
    SUMMED = "summed"
    ZERO = "zero"
    SIZE = "size"
    WHOLE = "whole"


@dataclass(frozen=True, slots=True)
class Relation:
    """How a value of the whole batch follows from those of the slices.

    Attributes:
      axis: The axis along which the slices lie, for BATCHED.
      blocks: The parts into which that axis is split: each part is the corresponding parts of the
        slices, concatenated.
      places: The entries of example i are numbers from i times this number on, below i + 1 times
        it: places along an axis on which each example has so many. 0 if they are not known to be.
      leading: The same of the first entries along the last axis: the entries along it are places on
        the first axes of a tensor.

    Examples:
      >>> str(batched(1)), str(batched(0, 4)), str(SAME)
      ('batched along axis 1', 'batched along axis 0 in 4 blocks', 'same')
    """

    kind: Kind
    axis: int = 0
    blocks: int = 1
    places: int = field(default=0, compare=False)
    leading: int = field(default=0, compare=False)

    @property
    def named(self) -> tuple[int, int]:
        return self.places, self.leading

    def __str__(self) -> str:
        if self.kind is not Kind.BATCHED:
            return self.kind.value
        blocks = f" in {self.blocks} blocks" if self.blocks > 1 else ""
        return f"batched along axis {self.axis}{blocks}"


SAME, SUMMED, ZERO, SIZE, WHOLE = (
    Relation(kind) for kind in (Kind.SAME, Kind.SUMMED, Kind.ZERO, Kind.SIZE, Kind.WHOLE)
)


def batched(axis: int, blocks: int = 1, places: int = 0, leading: int = 0) -> Relation:
    return Relation(Kind.BATCHED, axis, blocks, places, leading)


def moved(relation: Relation, by: int) -> Relation:
    """The relation of a value with `by` more axes before those of this one; WHOLE if the axis of
    the examples is then gone."""
    if relation.kind is not Kind.BATCHED:
        return relation
    axis = relation.axis + by
    return batched(axis, relation.blocks, relation.places) if axis >= 0 else WHOLE


def fits(relation: Relation, shape: Shape, examples: int) -> bool:
    """True if a value of the whole batch of so many examples may have this relation."""
    if relation.kind is not Kind.BATCHED:
        return True
    along = shape[relation.axis] if relation.axis < len(shape) else 0
    return along > 0 and not along % (examples * relation.blocks)


def part_shape(shape: Shape, relation: Relation, examples: int, size: int) -> list[int]:
    """The shape of a value in a slice of `size` examples, by its shape for all."""
    found = list(shape)
    if relation.kind is Kind.BATCHED:
        found[relation.axis] = found[relation.axis] // examples * size
    return found


def join(first: Relation, second: Relation) -> Relation:
    """The relation of a value that is one of two values, as in a loop or condition. One that is the
    same for all slices can be cut into parts, or into shares of a sum."""
    if first == second:
        alike = first.named == second.named
        return first if alike else replace(first, places=0, leading=0)
    for one, other in ((first, second), (second, first)):
        if other.kind is Kind.ZERO:
            return one
        if other.kind is Kind.SAME and one.kind in (Kind.BATCHED, Kind.SUMMED):
            return one
    return WHOLE
