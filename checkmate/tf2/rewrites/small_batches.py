"""SmallBatches: slices of the batch that are batches of their own, with one update on the average
of their gradients: for a number of micro-batches that is given by hand where examples are bound
together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from checkmate.errors import TraceError
from checkmate.tf2.axes.phases import Handed
from checkmate.tf2.deferred_update import Update, deferred_update
from checkmate.tf2.graph.graph_writer import copy_of
from checkmate.tf2.graph.operations import can_be_copied
from checkmate.tf2.graph.trace import TracedStep, analyse, python_of, trace
from checkmate.tf2.memory.scratch import Scratch
from checkmate.tf2.ops.relation import SAME, SUMMED, Relation, batched
from checkmate.tf2.rewrites.kept import Kept
from checkmate.tf2.rewrites.parts import concrete
from checkmate.tf2.rewrites.slice_writer import part_of
from checkmate.tf2.rewrites.slices import Slices, sliced_specs
from checkmate.tf2.rewrites.step import Applied, Equal, InSlices, Step
from checkmate.tf2.rewrites.tile import rewritten


@dataclass(frozen=True, slots=True, eq=False)
class Traced:
    """The step before its update, traced for some size; `step` returns the gradients that there
    are, then the results, which `structure` nests."""

    step: TracedStep
    update: Update
    structure: Any


@dataclass(slots=True, eq=False)
class SmallBatches:
    """The step on slices of `site` examples, each a batch of its own, with one update.

    Gradients, and results that are floating-point numbers, are averaged, a slice counting for as
    many examples as it has. A result with a part for each example is put together. Of all others,
    and of what comes from variables alone, such as a metric, the last slice's is taken. A step that
    does not update exactly once, or reads its weights after that, is refused.

    Args:
      scratch: The memory in which slices leave what they hand on; memory of its own by default.

    Examples:
      >>> SmallBatches().promise.name
      'STATISTICS'
    """

    scratch: Scratch = field(default_factory=Scratch)
    name: str = "small_batches"
    promise: Equal = Equal.STATISTICS

    def sites(self, step: Step) -> Iterator[int]:
        """Yields half of the batch, a quarter, and so on, down to two examples."""
        if not step.record:
            yield from (slices.size for slices in Slices.halved(step.examples))

    def apply(self, step: Step, site: int) -> Step:
        """The step on batches of `site` examples."""
        name, slices = step.traced.graph.name, Slices(step.examples, site)
        whole = _before_update(step, step.examples)
        for output in whole.step.flat.outputs:
            if not output.shape.is_fully_defined():
                raise TraceError(
                    f"What slices make is put together by its shape, and {output.name!r} of"
                    f" {name!r} has none that is known before the step runs: {output.shape}."
                )
        parts = {size: _before_update(step, size).step for size in slices.sizes}
        kept = Kept(_handed_on(whole, parts[site]), step.examples, self.scratch)
        tensors = whole.step.argument_tensors()
        specs = [tf.TensorSpec(each.shape, each.dtype) for each in tensors]

        def before(*batch: tf.Tensor) -> list[tf.Tensor]:
            kept.reset()
            return []

        count = f"{name} in {slices.count} micro-batches"
        each = {
            size: analyse(_each(whole.step, part, kept, step.examples, size, specs), name=count)
            for size, part in parts.items()
        }
        after = concrete(lambda *batch: _after(whole, kept), specs)
        in_slices = InSlices(
            slices,
            concrete(before, specs),
            each,
            analyse(after, name=f"the update of {name}"),
            (),
            kept.variables,
        )
        return rewritten(step, in_slices, Applied(self.name, site), self.promise, (NOTE,))

    def release(self) -> None:
        """Keeps nothing."""


def _handed_on(whole: Traced, part: TracedStep) -> list[Handed]:
    gradients = sum(each is not None for each in whole.update.gradients)
    computed, found = _of_arguments(part), []
    outputs = zip(whole.step.flat.outputs, part.flat.outputs, strict=True)
    for k, (output, own) in enumerate(outputs):
        relation = SUMMED if k < gradients else _relation(output, own, k in computed)
        found.append(Handed(output, relation, None))
    return found


def _before_update(step: Step, size: int) -> Traced:
    """The step up to its update, traced for `size` examples."""
    python, autograph = python_of(step.source)
    if autograph:
        python = tf.autograph.to_graph(python)
    found: list[Any] = []

    @tf.autograph.experimental.do_not_convert
    def part(*arguments: Any) -> list[tf.Tensor]:
        with deferred_update("In slices that are batches of their own") as asked:
            result = python(*arguments)
        update = asked.only()
        found[:] = update, result
        there = [each for each in update.gradients if each is not None]
        leaves = [each for each in tf.nest.flatten(result) if each is not None]
        return [tf.convert_to_tensor(each) for each in (*there, *leaves)]

    specs, name = sliced_specs(step.specs, size), step.traced.graph.name
    traced = trace(tf.function(part, autograph=False), *specs, name=name, as_written=True)
    return Traced(traced, *found)


def _each(
    whole: TracedStep,
    part: TracedStep,
    kept: Kept,
    examples: int,
    size: int,
    specs: Sequence[tf.TensorSpec],
) -> Any:
    pairs = zip(whole.argument_tensors(), part.argument_tensors(), strict=True)
    relations = [_of_shapes(a.shape, b.shape) for a, b in pairs]
    arguments, _ = part.function.structured_input_signature

    def each(first: tf.Tensor, *batch: tf.Tensor) -> None:
        own = [
            value if relation == SAME else part_of(value, relation, first, examples, size)
            for value, relation in zip(batch, relations, strict=True)
        ]
        values = part.function(*tf.nest.pack_sequence_as(arguments, own))
        weighted = [
            tf.cast(value, variable.dtype) * tf.constant(size / examples, variable.dtype)
            if handed.relation == SUMMED
            else value
            for value, handed, variable in zip(values, kept.handed_on, kept.variables, strict=True)
        ]
        kept.add(weighted, first)

    return concrete(each, [tf.TensorSpec([], tf.int32), *specs])


def _after(whole: Traced, kept: Kept) -> Any:
    update, values = whole.update, iter(kept.values())
    gradients = [None if each is None else next(values) for each in update.gradients]
    update.apply(gradients, update.variables)
    # What is returned must not lie where the next step writes.
    return tf.nest.map_structure(
        lambda leaf: None if leaf is None else _copied(next(values)), whole.structure
    )


NOTE = (
    "Each slice is a batch of its own: what is computed across examples, such as the statistics of"
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
