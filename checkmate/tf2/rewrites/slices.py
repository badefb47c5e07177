"""Slices: how a batch is cut."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from checkmate.errors import TraceError


@dataclass(frozen=True, slots=True)
class Slices:
    """The slices of a batch, of `size` examples each but for the last, which may be smaller.

    Examples:
      >>> list(Slices(10, 4)), Slices.of(10, 3).sizes
      ([(0, 4), (4, 4), (8, 2)], {4: 2, 2: 1})
    """

    examples: int
    size: int

    @classmethod
    def of(cls, examples: int, count: int) -> Slices:
        """Returns at most `count` slices."""
        if count > examples:
            raise TraceError(
                f"A batch of {examples} cannot run in {count} micro-batches: each has one example"
                " at least."
            )
        return cls(examples, -(-examples // count))

    @classmethod
    def halved(cls, examples: int) -> Iterator[Slices]:
        """Yields slices of half the batch, a quarter and so on, down to two examples: what an op
        does with a single one does not tell whether it treats each example alone."""
        size = -(-examples // 2)
        while 2 <= size < examples:
            yield cls(examples, size)
            size = -(-size // 2)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for first in range(0, self.examples, self.size):
            yield first, min(self.size, self.examples - first)

    @property
    def count(self) -> int:
        return -(-self.examples // self.size)

    @property
    def sizes(self) -> dict[int, int]:
        whole, left = divmod(self.examples, self.size)
        return {self.size: whole} | ({left: 1} if left else {})


def examples_of(specs: Any) -> int:
    """The first dimension of a step's first argument that has one, by a nest of specs."""
    for spec in tf.nest.flatten(specs):
        if spec.shape.rank:
            return spec.shape[0]
    raise TraceError(
        "Micro-batches are slices along the first dimension of a step's arguments, and this step"
        " has no argument with a dimension. Train it with micro_batches=1."
    )


def sliced_specs(specs: Any, size: int) -> Any:
    """The specs for a slice of `size` examples. An argument whose first dimension is not the number
    of examples is the same for each slice."""
    examples = examples_of(specs)

    def one(spec: tf.TensorSpec) -> tf.TensorSpec:
        if not spec.shape.rank or spec.shape[0] != examples:
            return spec
        return tf.TensorSpec([size, *spec.shape[1:]], spec.dtype)

    return tf.nest.map_structure(one, specs)
