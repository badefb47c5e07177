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

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import tensorflow as tf

from checkmate.tf2.axes.batch_axes import BatchAxes
from checkmate.tf2.graph.graph_writer import ADD, MULTIPLY, GraphCopy, copy_of, reachable
from checkmate.tf2.graph.operations import can_be_copied, is_argument, role_of
from checkmate.tf2.graph.trace import TracedStep
from checkmate.tf2.memory.scratch import Scratch
from checkmate.tf2.micro_batches.kept import Kept, part_of
from checkmate.tf2.ops.relation import SAME, Relation, batched, unequal_axes
from checkmate.tf2.ops.rule import Role

Input = tuple[tf.Operation, int]


class OpCopies(GraphCopy):
    """Copies ops, with what they need of what is known before the step runs, such as constants.

    Args:
      given: Tensors of the function whose values the caller has.
      instead: Inputs of ops that read a value of the caller's.
      added: Inputs of ops to which a value of the caller's is added.
    """

    def __init__(
        self,
        flat: Any,
        chosen: Iterable[tf.Operation],
        given: Sequence[tf.Tensor] = (),
        instead: Sequence[Input] = (),
        added: Sequence[Input] = (),
    ):
        super().__init__(flat)
        self._flat = flat
        self._inputs = list(self.names.values())
        self._given = [f"value_{k}:0" for k in range(len(given))]
        self._instead = {read: f"instead_{k}:0" for k, read in enumerate(instead)}
        self._added = {read: f"added_{k}:0" for k, read in enumerate(added)}
        self.names |= {t.ref(): name for t, name in zip(given, self._given, strict=True)}
        self._chosen = set(chosen)

    def write(
        self,
        outputs: Iterable[tf.Tensor],
        constants: Mapping[Input, np.ndarray] | None = None,
        factors: Mapping[tf.Operation, float] | None = None,
    ) -> OpCopies:
        """Writes the ops that `make` needs to return `outputs`, with `constants` to read in the
        place of inputs, and `factors` for first outputs."""
        writer, names = self.writer, self.names
        instead = dict(self._instead)
        for (operation, k), value in (constants or {}).items():
            instead[operation, k] = writer.constant(value, operation.inputs[k].dtype)
        self._outputs = list(outputs)
        for operation in self._needed(instead):
            inputs = [
                self._counted(operation, k, instead.get((operation, k)) or names[tensor.ref()])
                for k, tensor in enumerate(operation.inputs)
            ]
            kept = {t.ref(): names[t.ref()] for t in operation.outputs if t.ref() in names}
            self.copy(operation, inputs)
            if factor := (factors or {}).get(operation):
                first = operation.outputs[0]
                read = [names[first.ref()], writer.constant(factor, first.dtype)]
                names[first.ref()] = writer.add(MULTIPLY, read, first.dtype, name="averaged")
            names |= kept
        return self

    def make(
        self,
        arguments: Sequence[tf.Tensor],
        given: Sequence[tf.Tensor] = (),
        instead: Sequence[tf.Tensor] = (),
        added: Sequence[tf.Tensor] = (),
    ) -> list[tf.Tensor]:
        """Makes the ops and returns the outputs; values are in the order of the constructor's."""
        named = dict(zip(self._inputs, [*arguments, *self._flat.captured_inputs], strict=True))
        named |= dict(zip(self._given, given, strict=True))
        named |= dict(zip(self._instead.values(), instead, strict=True))
        named |= dict(zip(self._added.values(), added, strict=True))
        return self.writer.import_here(named, [self.names[t.ref()] for t in self._outputs])

    def _counted(self, operation: tf.Operation, k: int, name: str) -> str:
        """The name of an op's input, with the value that is added there."""
        more = self._added.get((operation, k))
        if more is None:
            return name
        return self.writer.add(ADD, [name, more], operation.inputs[k].dtype, name="moved")

    def _needed(self, instead: Mapping[Input, str]) -> list[tf.Operation]:
        """The chosen ops and those that they and the outputs read, inputs first."""
        order = reachable(self._flat.graph)
        needed = {*self._chosen, *(t.op for t in self._outputs if t.ref() not in self.names)}
        for operation in reversed(order):
            if operation in needed:
                needed |= {
                    tensor.op
                    for k, tensor in enumerate(operation.inputs)
                    if (operation, k) not in instead and tensor.ref() not in self.names
                }
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
        made = set(axes.early_ops) - set(axes.whole_ops)
        read = [t for o in axes.whole_ops for t in o.inputs] + list(self.whole.flat.outputs)
        early = [handed.whole for handed in axes.fed.values()]
        early += [tensor for tensor in read if tensor.op in made]
        self._early = list({tensor.ref(): tensor for tensor in early}.values())

    def before(self) -> Any:
        copies = OpCopies(self.whole.flat, self.axes.early_ops).write(self._early)

        def before(*batch: tf.Tensor) -> list[tf.Tensor]:
            self.kept.reset()
            return copies.make(batch)

        return concrete(before, self.specs)

    def each(self, part: TracedStep, axes: BatchAxes, size: int) -> Any:
        """The function that runs for a slice of `size` examples. The axes of a shorter last slice
        must fit to those of the others (`check_last_slice`)."""
        draws = {(o, d.input): d for o, d in axes.random_ops.items() if d.input is not None}
        read = {"instead": list(axes.fed), "added": list(draws)}
        copies = OpCopies(part.flat, axes.in_each_slice, **read)
        made = {handed.whole.ref(): handed for handed in axes.handed_on}
        handed_on = [made[handed.whole.ref()] for handed in self.kept.handed_on]
        copies.write([h.part for h in handed_on], axes.from_whole, axes.averages)
        arguments = self._arguments(part)
        place = {tensor.ref(): k for k, tensor in enumerate(self._early)}

        def each(first: tf.Tensor, *given: tf.Tensor) -> None:
            batch, early = given[: len(arguments)], given[len(arguments) :]

            def own(value: tf.Tensor, relation: Relation, like: tf.Tensor) -> tf.Tensor:
                return part_of(value, relation, like, first, self.examples)

            slices = [own(value, *of) for value, of in zip(batch, arguments, strict=True)]
            fed = [own(early[place[h.whole.ref()]], h.relation, h.part) for h in axes.fed.values()]
            counts = [
                _counts(first, draw.counts, operation.inputs[k])
                for (operation, k), draw in draws.items()
            ]
            values = copies.make(slices, instead=fed, added=counts)
            self.kept.add(values, handed_on, first, size)

        return concrete(each, [tf.TensorSpec([], tf.int32), *self.specs, *_specs(self._early)])

    def after(self) -> Any:
        axes = self.axes
        given = [*(h.whole for h in axes.handed_on), *self._early]
        copies = OpCopies(self.whole.flat, axes.whole_ops, given).write(self.whole.flat.outputs)
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

    def _arguments(self, part: TracedStep) -> list[tuple[Relation, tf.Tensor]]:
        pairs = zip(self.whole.argument_tensors(), part.argument_tensors(), strict=True)
        return [(relation_of(a.shape, b.shape), b) for a, b in pairs]


def relation_of(whole: tf.TensorShape, part: tf.TensorShape) -> Relation:
    """Returns how an argument and the slices of it belong together: they differ along one axis."""
    unequal = unequal_axes(whole, part)
    return batched(unequal[0]) if unequal else SAME


def _viewed(tensor: tf.Tensor) -> tf.Tensor:
    """The tensor in whose memory this one lies."""
    while role_of(tensor.op) in (Role.ALIAS, Role.VIEW):
        tensor = tensor.op.inputs[tensor.value_index]
    return tensor


def _counts(first: tf.Tensor, counts: Fraction, like: tf.Tensor) -> tf.Tensor:
    """The addend of the slice that begins with example `first` to a random generator's count, which
    grows by `counts` with each example."""
    moved = tf.cast(first, tf.int64) * counts.numerator // counts.denominator
    moved = tf.cast(moved, like.dtype)
    return tf.stack([moved, tf.zeros([], like.dtype)])


def _specs(tensors: Sequence[tf.Tensor]) -> list[tf.TensorSpec]:
    return [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors]


def concrete(run: Callable[..., Any], specs: Sequence[tf.TensorSpec]) -> Any:
    return tf.function(run, autograph=False).get_concrete_function(*specs)
