"""AccumulatedStep: a step whose slices are batches of their own, with one update on the average of
their gradients: for a number of micro-batches that is given by hand where examples are bound
together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from checkmate.errors import TraceError
from checkmate.tf2.axes.phases import Handed
from checkmate.tf2.deferred_update import Update, deferred_updates
from checkmate.tf2.graph.graph_writer import copy_of
from checkmate.tf2.graph.operations import can_be_copied
from checkmate.tf2.graph.trace import TracedStep, python_of, trace
from checkmate.tf2.memory.scratch import Scratch
from checkmate.tf2.micro_batches.kept import Kept
from checkmate.tf2.micro_batches.parts import concrete
from checkmate.tf2.micro_batches.slice_writer import part_of
from checkmate.tf2.micro_batches.sliced_step import Functions
from checkmate.tf2.micro_batches.slices import Slices, examples_of, sliced_specs
from checkmate.tf2.ops.relation import SAME, SUMMED, Relation, batched


@dataclass(frozen=True, slots=True, eq=False)
class Traced:
    """The step before its update, traced for some size; `step` returns the gradients that there
    are, then the results, which `structure` nests."""

    step: TracedStep
    update: Update
    structure: Any


class AccumulatedStep:
    """A step, of which the parts are made for any number of slices; the interface is that of
    `SlicedStep`.

    Gradients, and results that are floating-point numbers, are averaged, a slice counting for as
    many examples as it has. A result with a part for each example is put together. Of all others,
    and of what comes from variables alone, such as a metric, the last slice's is taken.

    Args:
      reason: Why it is not split exactly, as a sentence.
      scratch: The memory in which slices leave what they hand on; None for memory of its own.

    Raises:
      TraceError: The step does not update exactly once, or reads its weights after that.
    """

    def __init__(
        self,
        step: Callable[..., Any],
        specs: Any,
        name: str,
        reason: str,
        scratch: Scratch | None = None,
    ):
        self._scratch = scratch or Scratch()
        self._step, self._specs, self._name = step, specs, name
        self.examples = examples_of(specs)
        self._whole = self._traced(self.examples)
        for output in self._outputs:
            if not output.shape.is_fully_defined():
                raise TraceError(
                    f"What slices make is put together by its shape, and {output.name!r} of"
                    f" {name!r} has none that is known before the step runs: {output.shape}."
                )
        self.note = NOTE.format(name, reason)

    def functions(self, slices: Slices) -> Functions:
        traced = {size: self._traced(size) for size in slices.sizes}
        main = traced[slices.size].step
        computed = _of_arguments(main)
        handed_on = []
        for k, (whole, part) in enumerate(zip(self._outputs, main.flat.outputs, strict=True)):
            is_sum = k < self._gradients
            relation = SUMMED if is_sum else _relation(whole, part, k in computed)
            handed_on.append(Handed(whole, relation, None))
        kept = Kept(handed_on, self.examples, self._scratch)
        tensors = self._whole.step.argument_tensors()
        specs = [tf.TensorSpec(each.shape, each.dtype) for each in tensors]

        def before(*batch: tf.Tensor) -> list[tf.Tensor]:
            kept.reset()
            return []

        return Functions(
            before=concrete(before, specs),
            each={size: self._each(size, one.step, kept, specs) for size, one in traced.items()},
            after=concrete(lambda *batch: self._after(kept), specs),
            early=(),
            kept=kept.variables,
            notes=(self.note,),
        )

    @property
    def _outputs(self) -> list[tf.Tensor]:
        return self._whole.step.flat.outputs

    @property
    def _gradients(self) -> int:
        return sum(each is not None for each in self._whole.update.gradients)

    def _traced(self, size: int) -> Traced:
        python, autograph = python_of(self._step)
        if autograph:
            python = tf.autograph.to_graph(python)
        found: list[Any] = []

        @tf.autograph.experimental.do_not_convert
        def part(*arguments: Any) -> list[tf.Tensor]:
            with deferred_updates("In slices that are batches of their own") as asked:
                result = python(*arguments)
            update = asked.only()
            found[:] = update, result
            there = [each for each in update.gradients if each is not None]
            leaves = [each for each in tf.nest.flatten(result) if each is not None]
            return [tf.convert_to_tensor(each) for each in (*there, *leaves)]

        specs = sliced_specs(self._specs, size)
        step = trace(tf.function(part, autograph=False), *specs, name=self._name, as_written=True)
        return Traced(step, *found)

    def _each(self, size: int, part: TracedStep, kept: Kept, specs: Sequence[tf.TensorSpec]) -> Any:
        pairs = zip(self._whole.step.argument_tensors(), part.argument_tensors(), strict=True)
        relations = [_of_shapes(whole.shape, own.shape) for whole, own in pairs]
        arguments, _ = part.function.structured_input_signature

        def each(first: tf.Tensor, *batch: tf.Tensor) -> None:
            own = [
                value if relation == SAME else part_of(value, relation, first, self.examples, size)
                for value, relation in zip(batch, relations, strict=True)
            ]
            values = part.function(*tf.nest.pack_sequence_as(arguments, own))
            weighted = [
                tf.cast(value, variable.dtype) * tf.cast(size / self.examples, variable.dtype)
                if handed.relation == SUMMED
                else value
                for value, handed, variable in zip(
                    values, kept.handed_on, kept.variables, strict=True
                )
            ]
            kept.add(weighted, first)

        return concrete(each, [tf.TensorSpec([], tf.int32), *specs])

    def _after(self, kept: Kept) -> Any:
        update, values = self._whole.update, iter(kept.values())
        gradients = [None if each is None else next(values) for each in update.gradients]
        update.apply(gradients, update.variables)
        # What is returned must not lie where the next step writes.
        return tf.nest.map_structure(
            lambda leaf: None if leaf is None else _copied(next(values)), self._whole.structure
        )


NOTE = (
    "{!r} cannot be split exactly. {} With the number of micro-batches given by hand, each slice is"
    " a batch of its own: what is computed across examples, such as the statistics of"
    " BatchNormalization or a loss of pairs, is that of a slice, moving averages and metrics are"
    " updated by each slice, and gradients are averaged over the examples, as for a loss that is a"
    " mean over them."
)


def _relation(whole: tf.Tensor, part: tf.Tensor, averaged: bool) -> Relation:
    relation = _of_shapes(whole.shape, part.shape)
    return SUMMED if relation == SAME and whole.dtype.is_floating and averaged else relation


def _of_shapes(whole: tf.TensorShape, part: tf.TensorShape) -> Relation:
    """The relation of a value by its shapes for the whole and for a slice, which differ along one
    axis."""
    unequal = [k for k, (a, b) in enumerate(zip(whole, part, strict=True)) if a != b]
    return batched(unequal[0]) if unequal else SAME


def _of_arguments(traced: TracedStep) -> set[int]:
    """Numbers of the outputs that are computed from the arguments. All others come from variables,
    as what a metric returns does."""
    reached = {tensor.op for tensor in traced.argument_tensors()}
    for operation in traced.flat.graph.get_operations():  # inputs come first
        if any(tensor.op in reached for tensor in operation.inputs):
            reached.add(operation)
    return {k for k, tensor in enumerate(traced.flat.outputs) if tensor.op in reached}


def _copied(value: tf.Tensor) -> tf.Tensor:
    return copy_of(value) if can_be_copied(value.dtype) else value
