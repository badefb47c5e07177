"""SlicedStep: a training step on a batch, traced and analysed for slices of any size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from checkmate.tf2.axes.batch_axes import BatchAxes, Binding, batch_axes, check_last_slice
from checkmate.tf2.graph.sizes import known_bytes
from checkmate.tf2.graph.trace import TracedStep, trace
from checkmate.tf2.graph.variables import variables_of
from checkmate.tf2.memory.scratch import Scratch
from checkmate.tf2.micro_batches.parts import Parts
from checkmate.tf2.micro_batches.slices import Slices, examples_of, sliced_specs


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
    """A step on a batch, of which the parts are made for any number of slices. Without `scratch`,
    what slices hand on has memory of its own; without `device`, it runs on the device that trains.
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
        self._slices: dict[tuple[int, int], tuple[TracedStep, BatchAxes]] = {}
        self._made: tuple[Parts, Any, Any] | None = None
        self._functions: tuple[Slices, Functions] | None = None

    def binding(self, slices: Slices) -> Binding | None:
        """The op that keeps the step from running in these slices, or None. Raises `TraceError`
        where the step has other ops for slices of this size."""
        found = (axes.binding for _, axes in self._of_each_size(slices).values())
        return next((each for each in found if each), None)

    def functions(self, slices: Slices) -> Functions:
        """The functions of the step in slices, where nothing binds its examples. Raises
        `TraceError` where the step has other ops for slices of this size, or a smaller last slice
        does not go together with the others."""
        if self._functions is not None and self._functions[0] == slices:
            return self._functions[1]
        analysed = self._of_each_size(slices)
        axes = analysed[slices.size][1]
        for size in [size for size in analysed if size != slices.size]:
            check_last_slice(axes, analysed[size][1], examples=(slices.size, size))
        parts, before, after = self._parts(axes)
        each = {size: parts.each(*found, size) for size, found in analysed.items()}
        early = tuple(tf.nest.flatten(before.structured_outputs))
        made = Functions(before, each, after, early, parts.kept.variables, _notes(axes))
        self._functions = slices, made
        return made

    def release(self) -> None:
        self._made = self._functions = None

    def _of_each_size(self, slices: Slices) -> dict[int, tuple[TracedStep, BatchAxes]]:
        return {size: self._slice(size, slices.size) for size in slices.sizes}

    def _slice(self, size: int, every: int) -> tuple[TracedStep, BatchAxes]:
        """The step on a slice, where a slice begins every `every` examples."""
        if (size, every) not in self._slices:
            specs = sliced_specs(self._specs, size)
            part = trace(self._step, *specs, name=self._name, as_written=True)
            axes = batch_axes(self._whole, part, examples=(self.examples, size), every=every)
            self._slices[size, every] = part, axes
        return self._slices[size, every]

    def _parts(self, axes: BatchAxes) -> tuple[Parts, Any, Any]:
        """The parts that do not depend on the size of slices: made once where they are the same."""
        if self._made is None or _handed_on(self._made[0].axes) != _handed_on(axes):
            parts = Parts(self._whole, axes, self.examples, self._scratch, self._device)
            self._made = parts, parts.before(), parts.after()
        return self._made


def _notes(axes: BatchAxes) -> tuple[str, ...]:
    others = [each.name for each, draw in axes.random_ops.items() if not draw.is_exact]
    if not others:
        return ()
    more = f" and {len(others) - 1} more ops" if len(others) > 1 else ""
    return (
        f"The random numbers of {others[0]!r}{more} are drawn for each slice: they are not those"
        " that the step on the whole batch draws.",
    )


def _handed_on(axes: BatchAxes) -> Any:
    """The values that slices hand on, and the ops that run but once: `Parts` are made of them."""
    handed = tuple((each.whole.ref(), each.relation) for each in axes.handed_on)
    fed = {each.whole.ref() for each in axes.fed.values()}
    return handed, axes.early_ops, axes.whole_ops, fed
