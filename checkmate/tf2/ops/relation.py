"""Relation: how a value of the whole batch follows from the values of its slices."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from fractions import Fraction

Shape = tuple[int, ...]

Count = int | Fraction
"""How many times as many examples the whole has as a slice: the number of slices, if all are
equal."""


class Kind(Enum):
    """How a value v of the whole batch and the values v_s of the slices belong together.

    SAME: v = v_s for every s. BATCHED: v is the v_s concatenated along an axis. SUMMED: v is the
    sum of the v_s. ZERO: v and the v_s are all zeros, which fits each of the others. SIZE: v and
    v_s are known before the step runs and differ, as the number of examples does. WHOLE: v does
    not follow from the v_s.
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
        slices, concatenated. 0 if all entries along the axis are equal, which fits any number of
        parts.
      offset: The entries of slice s are those of the whole less s times this number: they count
        examples, and each slice counts its own.

    Examples:
      >>> str(batched(1)), str(batched(0, 4)), str(SAME)
      ('batched along axis 1', 'batched along axis 0 in 4 blocks', 'same')
    """

    kind: Kind
    axis: int = 0
    blocks: int = 1
    offset: int = 0

    def __str__(self) -> str:
        if self.kind is not Kind.BATCHED:
            return self.kind.value
        blocks = f" in {self.blocks} blocks" if self.blocks > 1 else ""
        offset = f", less {self.offset} per slice" if self.offset else ""
        return f"batched along axis {self.axis}{blocks}{offset}"


SAME, SUMMED, ZERO, SIZE, WHOLE = (
    Relation(kind) for kind in (Kind.SAME, Kind.SUMMED, Kind.ZERO, Kind.SIZE, Kind.WHOLE)
)


def batched(axis: int, blocks: int = 1, offset: int = 0) -> Relation:
    return Relation(Kind.BATCHED, axis, blocks, offset)


def unequal_axes(whole: Iterable[int], part: Iterable[int]) -> list[int]:
    return [k for k, (a, b) in enumerate(zip(whole, part, strict=True)) if a != b]


def batch_axis(whole: Shape, part: Shape, count: Count) -> int | None:
    """The only axis along which two shapes differ, if the whole is `count` times as long there;
    None for any other pair of shapes."""
    if len(whole) != len(part):
        return None
    unequal = unequal_axes(whole, part)
    if len(unequal) != 1 or whole[unequal[0]] != count * part[unequal[0]]:
        return None
    return unequal[0]


def fits(relation: Relation, whole: Shape, part: Shape, count: Count) -> bool:
    if relation.kind in (Kind.SAME, Kind.SUMMED, Kind.SIZE):
        return whole == part
    if relation.kind is Kind.BATCHED:
        along = batch_axis(whole, part, count)
        blocks = max(relation.blocks, 1)
        return along == relation.axis and not (part[along] % blocks or whole[along] % blocks)
    return True


def same_blocks(blocks: set[int]) -> int | None:
    """The number of blocks that several values along one axis have, or None if they differ."""
    found = blocks - {0}
    return None if len(found) > 1 else next(iter(found), 0)


def join(first: Relation, second: Relation) -> Relation:
    """The relation of a value that is one of two values, as in a loop or condition."""
    if first == second or second.kind is Kind.ZERO:
        return first
    if first.kind is Kind.ZERO:
        return second
    alike = first.axis == second.axis and first.offset == second.offset
    if first.kind is second.kind is Kind.BATCHED and alike:
        blocks = same_blocks({first.blocks, second.blocks})
        return WHOLE if blocks is None else replace(first, blocks=blocks)
    return WHOLE
