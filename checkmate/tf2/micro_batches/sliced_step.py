"""SlicedStep: a training step on a batch, traced and analysed for slices of any size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from checkmate.tf2.axes.batch_axes import batch_axes
from checkmate.tf2.graph.sizes import known_bytes
from checkmate.tf2.graph.trace import TracedStep
from checkmate.tf2.graph.variables import variables_of
from checkmate.tf2.memory.scratch import Scratch
from checkmate.tf2.micro_batches.parts import Parts
from checkmate.tf2.micro_batches.slices import Slices, examples_of


@dataclass(frozen=True, slots=True, eq=False)
class Functions:
    """The functions of a step in slices; see `micro_batches.parts`.

    Attributes:
      early: The specs of the results of `before`.
    """

    before: Any
    each: dict[int, Any]
    after: Any
    early: tuple[tf.TensorSpec, ...]
    kept: tuple[tf.Variable, ...]
    notes: tuple[str, ...] = ()

    def arguments(self, specs: Any, *, of_slice: bool) -> tuple[tf.TensorSpec, ...]:
        """The specs of the arguments of `each`, or else of `after`, from those of the whole
        step."""
        first = [tf.TensorSpec([], tf.int32)] if of_slice else []
        return (*first, *tf.nest.flatten(specs), *self.early)

    @property
    def kept_bytes(self) -> int:
        return known_bytes(self.kept)


def not_read_bytes(whole: TracedStep, function: Any) -> int:
    """Bytes of the step's variables that one of its functions does not read, such as the slots of
    the optimizer, and which are in memory meanwhile."""
    read = {id(variable) for variable in variables_of(function)}
    return known_bytes(each for each in whole.variables if id(each) not in read)


class SlicedStep:
    """A traced step on a batch, of which the parts are made for any number of slices. Without
    `scratch`, what slices hand on has memory of its own; without `device`, it runs on the device
    that trains.

    Attributes:
      binding: The op that keeps the step from running in slices, or None.
    """

    def __init__(
        self, traced: TracedStep, scratch: Scratch | None = None, device: str | None = None
    ):
        self._whole = traced
        self._scratch, self._device = scratch or Scratch(), device
        self.examples = examples_of(traced.argument_tensors())
        self._axes = batch_axes(traced, self.examples)
        self.binding = self._axes.binding
        self._made: tuple[Parts, Any, Any] | None = None
        self._functions: tuple[Slices, Functions] | None = None

    def functions(self, slices: Slices) -> Functions:
        """The functions of the step in slices, where nothing binds its examples."""
        if self._functions is None or self._functions[0] != slices:
            if self._made is None:
                axes, scratch = self._axes, self._scratch
                parts = Parts(self._whole, axes, self.examples, scratch, self._device)
                self._made = parts, parts.before(), parts.after()
            parts, before, after = self._made
            each = {size: parts.each(size, slices.size) for size in slices.sizes}
            early = tuple(tf.nest.flatten(before.structured_outputs))
            kept, notes = parts.kept.variables, _notes(self._axes.other_draws)
            self._functions = slices, Functions(before, each, after, early, kept, notes)
        return self._functions[1]

    def release(self) -> None:
        self._made = self._functions = None


def _notes(others: Sequence[str]) -> tuple[str, ...]:
    if not others:
        return ()
    more = f" and {len(others) - 1} more ops" if len(others) > 1 else ""
    return (
        f"The random numbers of {others[0]!r}{more} are drawn for each slice: they are not those"
        " that the step on the whole batch draws.",
    )
