"""batch_axes(): the one door to this folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from checkmate.errors import TraceError
from checkmate.plot.layer_names import layer_names
from checkmate.tf2.axes.pairing import Pair, arguments_of, paired
from checkmate.tf2.axes.phases import Phase, Phases, in_order
from checkmate.tf2.axes.random_draws import Draw
from checkmate.tf2.axes.relation import SAME, Relation, batch_axis, batched
from checkmate.tf2.axes.walk import Read, Walk
from checkmate.tf2.graph.trace import TracedStep


@dataclass(frozen=True, slots=True)
class Binding:
    """An op that needs the values of all examples at once.

    Attributes:
      pair: The op.
      layer: The layer of the model that it belongs to; "" if it belongs to none.
      reason: A sentence that says why.
    """

    pair: Pair
    layer: str
    reason: str


@dataclass(frozen=True, slots=True)
class BatchAxes:
    """How a step on a batch follows from the same step on slices of the batch.

    An op stands for itself in the graph of the whole batch and in that of a slice: a `Pair`.

    Attributes:
      relations: The relation of each output of each op.
      early_ops: Ops of the whole batch's graph that run once, before the slices, in order.
      in_each_slice: Ops of a slice's graph that run in each slice, in order.
      whole_ops: Ops of the whole batch's graph that run once, after the slices, in order.
      fed: (op, input) of ops in each slice -> what is read there is the value computed early: in
        full if the relation is SAME, the slice's part of it if that is BATCHED.
      from_whole: (op, input) of ops in each slice -> the array to read there instead.
      averages: Ops in each slice -> the factor for their first output.
      random_ops: Ops in each slice that draw numbers for its examples -> how.
      handed_on: (op, output) in each slice that results and ops afterwards read: SUMMED values are
        added up, BATCHED ones are put in a row.
      binding: The first op that keeps the step from running in slices, or None.
    """

    relations: Mapping[Pair, tuple[Relation, ...]]
    early_ops: tuple[Pair, ...]
    in_each_slice: tuple[Pair, ...]
    whole_ops: tuple[Pair, ...]
    fed: Mapping[Read, Relation]
    from_whole: Mapping[Read, Any]
    averages: Mapping[Pair, float]
    random_ops: Mapping[Pair, Draw]
    handed_on: Mapping[tuple[Pair, int], Relation]
    binding: Binding | None


def batch_axes(whole: TracedStep, part: TracedStep, *, examples: tuple[int, int]) -> BatchAxes:
    """Finds how the values of a step on a batch follow from those of the step on slices.

    The analysis runs nothing. It holds for slices of equal size.

    Args:
      whole: The step, traced for the whole batch.
      part: The same step, traced for a slice.
      examples: The number of examples of the whole and of a slice; at least two slices.

    Returns:
      With `binding`, if the step cannot run in slices.

    Raises:
      TraceError: The two traces differ in more than the number of examples.

    Example:
      >>> axes = batch_axes(trace(step, *specs(64)), trace(step, *specs(16)), examples=(64, 16))
      ... # doctest: +SKIP
    """
    count, left = divmod(*examples)
    if left or count < 2:
        raise TraceError(
            f"A batch of {examples[0]} examples cannot run in equal slices of {examples[1]}. Use a"
            " number of micro-batches that divides the batch."
        )
    arguments = arguments_of(whole.flat, part.flat)
    graphs = paired(whole.flat.graph, part.flat.graph, arguments)
    walk = Walk(
        graphs,
        (whole.function.graph, part.function.graph),
        examples,
        {Pair(*each): _of_argument(*each, count) for each in arguments.items()},
        {tensor.ref() for tensor in whole.flat.outputs},
    )
    walk.run()
    phases = Phases(walk)
    if walk.binding is None:
        phases.find()
    runs = {phase: in_order(pairs, graphs.pairs) for phase, pairs in phases.ops.items()}
    inside = phases.ops[Phase.SLICE]
    return BatchAxes(
        relations={pair: tuple(found) for pair, found in walk.relations.items()},
        early_ops=runs[Phase.EARLY],
        in_each_slice=runs[Phase.SLICE],
        whole_ops=runs[Phase.LATE],
        fed=phases.fed,
        from_whole={
            read: value for read, value in walk.from_whole.items() if read[0] in inside
        },
        averages={pair: 1 / count for pair in walk.averages & inside},
        random_ops={pair: draw for pair, draw in walk.draws.items() if pair in inside},
        handed_on=phases.handed_on,
        binding=_binding(whole, walk),
    )


def _of_argument(whole: tf.Operation, part: tf.Operation, count: int) -> Relation:
    shapes = [each.outputs[0].shape for each in (whole, part)]
    if shapes[0].rank is None or shapes[0] == shapes[1]:
        return SAME
    axis = batch_axis(tuple(shapes[0]), tuple(shapes[1]), count)
    if axis is None:
        raise TraceError(
            f"An argument has the shape {shapes[0]} for the whole batch and {shapes[1]} for one of"
            f" {count} slices. Only the number of examples may differ."
        )
    return batched(axis)


def _binding(whole: TracedStep, walk: Walk) -> Binding | None:
    pair = walk.binding
    if pair is None:
        return None
    number = whole.numbers().get(pair.whole)
    layer = "" if number is None else layer_names(whole.graph)[number]
    inputs = ", ".join(str(walk.relations.get(Pair(a.op, b.op), [""] * 9)[a.value_index])
        for a, b in zip(pair.whole.inputs, pair.part.inputs, strict=True))
    reason = f"{pair.whole.name} ({pair.whole.type}) reads values of all examples at once: {inputs}"
    return Binding(pair, layer, reason)
