"""How far the values of two steps differ, and whether rounding explains it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

TOLERATED = 10.0
"""Differences up to this many times the model's own sensitivity count as rounding."""

LAST_BITS = 4
"""So do differences of this many units in the last place of the largest number."""


@dataclass(frozen=True, slots=True)
class Difference:
    """How far a tensor of the planned step is from that of the plain step.

    Attributes:
      what: The name of the tensor.
      planned: The largest difference, relative to the largest plain value (of a variable: to its
        largest change in the step).
      sensitivity: The same between plain steps, one of which began with every trainable weight
        moved to the next number.
      tolerated: What counts as rounding: ten times the sensitivity, and the last bits of a number;
        for integers nothing.
    """

    what: str
    planned: float
    sensitivity: float
    tolerated: float

    @property
    def is_rounding(self) -> bool:
        """True for equal values, and for differences that rounding also makes in the plain step."""
        return self.planned <= self.tolerated


def compare(
    what: str,
    plain: np.ndarray,
    ours: np.ndarray,
    others: Sequence[np.ndarray],
    start: Any,
    sums: float = 0.0,
) -> Difference:
    """Compares a tensor of the planned step with that of the plain step.

    Args:
      what: The name of the tensor.
      plain: Its value after the plain step.
      ours: Its value after the planned step.
      others: Its values after other plain steps.
      start: Its value before the step; 0 for what did not exist.
      sums: A relative difference that counts as rounding, too, where sums are added up in another
        order.
    """
    if plain.dtype.kind in "OSUiub" and plain.dtype.name != "bfloat16":
        return Difference(what, 0.0 if np.array_equal(plain, ours) else np.inf, 0.0, 0.0)
    kind = plain.dtype if plain.dtype.kind == "f" else np.float32
    bits = np.finfo(kind).eps if plain.dtype.name != "bfloat16" else 2.0**-7
    reference = plain.astype(np.float64)
    change = float(np.max(np.abs(reference - start), initial=0.0)) or 1.0
    sensitivity = max((_largest(reference, other) for other in others), default=0.0)
    last_bits = LAST_BITS * bits * float(np.max(np.abs(reference), initial=0.0))
    return Difference(
        what,
        _largest(reference, ours) / change,
        sensitivity / change,
        max(max(TOLERATED * sensitivity, last_bits) / change, sums),
    )


def move_weights(variables: Iterable[Any]) -> None:
    """Moves every trainable number to the next one. How that changes a step's results is the step's
    sensitivity to rounding."""
    for variable in variables:
        if variable.dtype.is_floating and variable.trainable:
            value = variable.numpy()
            moved = np.nextafter(value, np.full_like(value, np.inf))
            variable.assign(moved, read_value=False)


@contextmanager
def as_written() -> Iterator[None]:
    """Switches TensorFlow's graph optimizer, which fuses and replaces ops, off in this process."""
    name = "disable_meta_optimizer"
    before = tf.config.optimizer.get_experimental_options().get(name, False)
    tf.config.optimizer.set_experimental_options({name: True})
    try:
        yield
    finally:
        tf.config.optimizer.set_experimental_options({name: before})


def _largest(plain: np.ndarray, other: np.ndarray) -> float:
    other = other.astype(np.float64)
    if np.array_equal(plain, other, equal_nan=True):
        return 0.0
    difference = float(np.max(np.abs(plain - other)))
    return np.inf if np.isnan(difference) else difference
