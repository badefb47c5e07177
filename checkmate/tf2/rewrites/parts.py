"""Parts: a step in slices as functions of flattened arguments, to run before the slices, in each,
and after; OpCopies: their ops, made again on other values.

    before(batch)              -> what is computed once and early, such as random seeds; totals are
                                  set to zero
    each(first, batch, *early) -> the slice that begins with example `first`: adds its part of each
                                  sum to the total, and writes its rows of what is needed for all
    after(batch, *early)       -> the update of the optimizer, and what the step returns

All take the whole batch, and each slice reads its part of it, so that planning sees what is in
memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from checkmate.tf2.axes.batch_axes import BatchAxes
from checkmate.tf2.axes.labels import Use
from checkmate.tf2.graph.graph_writer import GraphCopy, copy_of, reachable
from checkmate.tf2.graph.operations import can_be_copied, is_argument, role_of
from checkmate.tf2.graph.trace import TracedStep
from checkmate.tf2.memory.scratch import Scratch
from checkmate.tf2.ops.rule import Role
from checkmate.tf2.rewrites.kept import Kept
from checkmate.tf2.rewrites.slice_writer import SliceWriter


class OpCopies(GraphCopy):
    """Copies whole ops, with what they need of what is known before the step runs, such as
    constants.

    Args:
      given: Tensors of the function whose values the caller has.
    """

    def __init__(self, flat: Any, chosen: Iterable[tf.Operation], given: Sequence[tf.Tensor] = ()):
        super().__init__(flat)
        self._flat = flat
        self._inputs = list(self.names.values())
        self._given = [f"value_{k}:0" for k in range(len(given))]
        self.names |= {t.ref(): name for t, name in zip(given, self._given, strict=True)}
        self._chosen = set(chosen)

    def write(self, outputs: Iterable[tf.Tensor]) -> OpCopies:
        """Writes the ops that `make` needs to return `outputs`."""
        names = self.names
        self._outputs = list(outputs)
        for operation in self._needed():
            kept = {t.ref(): names[t.ref()] for t in operation.outputs if t.ref() in names}
            self.copy(operation, self.inputs(operation))
            names |= kept
        return self

    def make(
        self, arguments: Sequence[tf.Tensor], given: Sequence[tf.Tensor] = ()
    ) -> list[tf.Tensor]:
        """Makes the ops and returns the outputs; values are in the order of the constructor's."""
        named = dict(zip(self._inputs, [*arguments, *self._flat.captured_inputs], strict=True))
        named |= dict(zip(self._given, given, strict=True))
        return self.writer.import_here(named, [self.names[t.ref()] for t in self._outputs])

    def _needed(self) -> list[tf.Operation]:
        """The chosen ops and those that they and the outputs read, inputs first."""
        order = reachable(self._flat.graph)
        needed = {*self._chosen, *(t.op for t in self._outputs if t.ref() not in self.names)}
        for operation in reversed(order):
            if operation in needed:
                read = (t for t in operation.inputs if t.ref() not in self.names)
                needed |= {tensor.op for tensor in read}
        return [each for each in order if each in needed and not is_argument(each)]


@dataclass(slots=True, eq=False)
class Parts:
    """A step on a batch, in slices."""

    whole: TracedStep
    axes: BatchAxes
    examples: int
    scratch: Scratch
    device: str | None = None
    kept: Kept = field(init=False)
    _early: list[tf.Tensor] = field(init=False)

    def __post_init__(self) -> None:
        axes = self.axes
        self.kept = Kept(axes.handed_on, self.examples, self.scratch, self.device)
        made = set(axes.early_ops) - set(axes.late_ops)
        read = [t for o in axes.late_ops for t in o.inputs] + list(self.whole.flat.outputs)
        early = [*axes.fed, *(tensor for tensor in read if tensor.op in made)]
        self._early = list({tensor.ref(): tensor for tensor in early}.values())

    def before(self) -> Any:
        copies = OpCopies(self.whole.flat, self.axes.early_ops).write(self._early)

        def before(*batch: tf.Tensor) -> list[tf.Tensor]:
            self.kept.reset()
            return copies.make(batch)

        return concrete(before, self.specs)

    def each(self, size: int, every: int) -> Any:
        """The function that runs for a slice of `size` examples, which begins at a multiple of
        `every`."""
        axes, flat, count = self.axes, self.whole.flat, len(self.specs)
        labels, kept = axes.labels, self.kept
        writer = SliceWriter(flat, labels.value, (self.examples, size, every), self._early)
        uses = [Use(each.whole, each.relation, each.node) for each in axes.handed_on]
        names = writer.write(axes.nodes, uses)

        def each(first: tf.Tensor, *given: tf.Tensor) -> None:
            arguments = [*given[:count], *flat.captured_inputs]
            named = writer.given(first, arguments, given[count:])
            kept.add(writer.make(named, names), first)

        return concrete(each, [tf.TensorSpec([], tf.int32), *self.specs, *_specs(self._early)])

    def after(self) -> Any:
        axes = self.axes
        given = [*(h.whole for h in axes.handed_on), *self._early]
        copies = OpCopies(self.whole.flat, axes.late_ops, given).write(self.whole.flat.outputs)
        count, kept = len(self.specs), {_viewed(h.whole).ref() for h in axes.handed_on}

        def result(tensor: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
            # A value that is returned must not lie where the next step writes.
            is_kept = _viewed(tensor).ref() in kept
            return copy_of(value) if is_kept and can_be_copied(value.dtype) else value

        def after(*values: tf.Tensor) -> Any:
            batch, early = values[:count], values[count:]
            outputs = copies.make(batch, given=[*self.kept.values(), *early])
            return self.whole.pack(list(map(result, self.whole.flat.outputs, outputs)))

        return concrete(after, [*self.specs, *_specs(self._early)])

    @property
    def specs(self) -> list[tf.TensorSpec]:
        return _specs(self.whole.argument_tensors())


def _viewed(tensor: tf.Tensor) -> tf.Tensor:
    """The tensor in whose memory this one lies."""
    while role_of(tensor.op) in (Role.ALIAS, Role.VIEW):
        tensor = tensor.op.inputs[tensor.value_index]
    return tensor


def _specs(tensors: Sequence[tf.Tensor]) -> list[tf.TensorSpec]:
    return [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors]


def concrete(run: Callable[..., Any], specs: Sequence[tf.TensorSpec]) -> Any:
    return tf.function(run, autograph=False).get_concrete_function(*specs)
