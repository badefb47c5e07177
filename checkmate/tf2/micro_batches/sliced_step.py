"""SlicedStep: a training step on a batch, traced and analysed for slices of any size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from checkmate.tf2.axes.batch_axes import BatchAxes, batch_axes
from checkmate.tf2.axes.binding import Binding
from checkmate.tf2.axes.last_slice import check_last_slice
from checkmate.tf2.graph.sizes import tensor_bytes
from checkmate.tf2.graph.trace import TracedStep, trace
from checkmate.tf2.memory.scratch import Scratch
from checkmate.tf2.micro_batches.parts import Parts
from checkmate.tf2.micro_batches.slices import Slices, examples_of, sliced_specs


@dataclass(frozen=True, slots=True, eq=False)
class Functions:
    """The functions of a step in slices; see `micro_batches.parts`.

    Attributes:
      before, after: As concrete functions.
      each: For each size of a slice.
      early: The specs of what `before` returns.
      kept: The variables in which slices leave what they hand on.
    """

    before: Any
    each: dict[int, Any]
    after: Any
    early: tuple[tf.TensorSpec, ...]
    kept: tuple[tf.Variable, ...]

    @property
    def kept_bytes(self) -> int:
        """Bytes of the variables."""
        return sum(tensor_bytes(variable) or 0 for variable in self.kept)


class SlicedStep:
    """A step on a batch, of which the parts are made for any number of slices.

    Args:
      step: The step.
      specs: The specs of its arguments, for the whole batch.
      name: Its name.
      scratch: The memory in which slices leave what they hand on; None for memory of its own.
      device: Where it runs; None for the device that trains.

    Attributes:
      examples: How many examples the batch has.
    """

    def __init__(
        self,
        step: Callable[..., Any],
        specs: Any,
        name: str,
        scratch: Scratch | None = None,
        device: str | None = None,
    ):
        self._step = step if hasattr(step, "get_concrete_function") else tf.function(step)
        self._specs, self._name = specs, name
        self._scratch, self._device = scratch or Scratch(), device
        self.examples = examples_of(specs)
        # Without the graph optimizer, which folds other ops for other sizes.
        self._whole = trace(self._step, *specs, name=name, as_written=True)
        self._slices: dict[int, tuple[TracedStep, BatchAxes]] = {}
        self._made: tuple[Parts, Any, Any] | None = None

    def binding(self, slices: Slices) -> Binding | None:
        """Returns what keeps the step from running in these slices, or None.

        Raises:
          TraceError: The step has other ops for slices of this size.
        """
        return next((axes.binding for _, axes in map(self._slice, slices.sizes)
                     if axes.binding), None)  # fmt: skip

    def functions(self, slices: Slices) -> Functions:
        """Returns the functions of the step in slices to which nothing binds its examples.

        Raises:
          TraceError: The step has other ops for slices of this size, or a smaller last slice does
            not go together with the others.
        """
        main, *last = map(self._slice, slices.sizes)
        for _, axes in last:
            size, rest = slices.sizes
            check_last_slice(main[1], axes, examples=(size, rest))
        parts, before, after = self._parts(main[1])
        each = {size: parts.each(*self._slice(size), size) for size in slices.sizes}
        early = tuple(tf.nest.flatten(before.structured_outputs))
        return Functions(before, each, after, early, parts.kept.variables)

    def _slice(self, size: int) -> tuple[TracedStep, BatchAxes]:
        if size not in self._slices:
            specs = sliced_specs(self._specs, size)
            part = trace(self._step, *specs, name=self._name, as_written=True)
            axes = batch_axes(self._whole, part, examples=(self.examples, size))
            self._slices[size] = part, axes
        return self._slices[size]

    def _parts(self, axes: BatchAxes) -> tuple[Parts, Any, Any]:
        """What does not depend on the size of slices: made once where it is the same."""
        if self._made is None or _handed_on(self._made[0].axes) != _handed_on(axes):
            parts = Parts(self._whole, axes, self.examples, self._scratch, self._device)
            self._made = parts, parts.before(), parts.after()
        return self._made


def _handed_on(axes: BatchAxes) -> Any:
    """What the slices hand on, and what runs but once: what `Parts` are made of."""
    handed = tuple((each.whole.ref(), each.relation) for each in axes.handed_on)
    return handed, axes.early_ops, axes.whole_ops
