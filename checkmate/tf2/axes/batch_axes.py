"""batch_axes(): the one door to this folder.

traces of the step, whole and slice ── pairing ──► pairs of ops ── walk: the table's rules ──►
relation of each value ── phases ──► what runs early, in each slice, and late
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import tensorflow as tf

from checkmate.errors import TraceError
from checkmate.tf2.axes.binding import Binding, binding_of
from checkmate.tf2.axes.keeping import Keeping
from checkmate.tf2.axes.pairing import arguments_of, paired
from checkmate.tf2.axes.phases import Handed, Phase, Phases
from checkmate.tf2.axes.rows import Rows
from checkmate.tf2.axes.walk import Walk
from checkmate.tf2.graph.graph_writer import reachable
from checkmate.tf2.graph.trace import TracedStep
from checkmate.tf2.ops.call import Pair
from checkmate.tf2.ops.draws import Draw
from checkmate.tf2.ops.relation import SAME, Count, Relation, batch_axis, batched

Input = tuple[tf.Operation, int]
"""An op of a slice's graph, and the index of one of its inputs."""


@dataclass(frozen=True, slots=True)
class BatchAxes:
    """How a step on a batch follows from the same step on slices of the batch.

    To run the step in slices: run `early_ops`; run `in_each_slice` for each slice, with the changes
    of `fed`, `from_whole`, `averages` and `random_ops`; add up or put together what is `handed_on`;
    run `whole_ops` on it. A value that is computed early is not computed again. Values that the
    graph knows before it runs are listed nowhere: each op makes its constants where it runs.

    Attributes:
      early_ops, whole_ops: Ops of the whole batch's graph that run once, before the slices and
        after them, in order.
      in_each_slice: Ops of a slice's graph that run in each slice, in order.
      fed: Inputs in a slice -> the tensor of the whole batch's graph, computed early, that is read
        there: in full if its relation is SAME, the slice's part of it if that is BATCHED. It may be
        made of constants.
      from_whole: Inputs in a slice -> the array to read there, such as a divisor that counts all
        examples.
      averages: Ops of a slice's graph -> the factor for their output.
      random_ops: Ops of a slice's graph that draw numbers for its examples -> how, so that they are
        those of the whole batch.
      handed_on: Tensors of a slice's graph that are read afterwards -> the tensor of the whole
        batch's graph that they make: those that are SUMMED by addition, those that are BATCHED by
        concatenation; of those that are SAME any will do.
      binding: The first op that keeps the step from running in slices, or None. If there is one,
        nothing is said of phases.
    """

    relations: Mapping[Pair, tuple[Relation, ...]]
    early_ops: tuple[tf.Operation, ...]
    in_each_slice: tuple[tf.Operation, ...]
    whole_ops: tuple[tf.Operation, ...]
    fed: Mapping[Input, Handed]
    from_whole: Mapping[Input, Any]
    averages: Mapping[tf.Operation, float]
    random_ops: Mapping[tf.Operation, Draw]
    handed_on: tuple[Handed, ...]
    binding: Binding | None


def batch_axes(
    whole: TracedStep, part: TracedStep, *, examples: tuple[int, int], every: int | None = None
) -> BatchAxes:
    """Finds how the values of a step on a batch follow from those of the step on slices.

    The analysis runs nothing. It holds for slices of at least two examples: along an axis of length
    one an op may broadcast. If the last slice has fewer examples, it is another `part`, and
    `check_last_slice` tells whether both analyses fit together.

    Args:
      whole, part: The step, traced for the whole batch and for a slice.
      examples: Their numbers of examples.
      every: The slices begin at multiples of this number of examples: for a shorter last slice the
        number that the others have. By default the number that this one has.

    Raises:
      TraceError: The two traces differ in more than the number of examples. The graph optimizer
        folds constants up to a size, and may do so for a slice only; traces that leave it out, by
        `as_written`, then have the same ops. Or a slice has not fewer examples than the whole.

    Example:
      >>> from checkmate.tf2.graph.trace import trace
      >>> step = lambda x: tf.reduce_sum(tf.tanh(x @ tf.ones((8, 4))))
      >>> traced = [trace(step, tf.TensorSpec((size, 8))) for size in (6, 2)]
      >>> axes = batch_axes(*traced, examples=(6, 2))
      >>> axes.binding is None, [str(each.relation) for each in axes.handed_on]
      (True, ['summed'])
    """
    size, each = examples
    if not 0 < each < size:
        raise TraceError(
            f"A batch of {size} examples cannot run in slices of {each}. Use at least two"
            " micro-batches, and no more than there are examples."
        )
    count = Fraction(size, each)
    arguments = arguments_of(whole.flat, part.flat)
    walk = Walk(
        paired(whole.flat.graph, part.flat.graph, arguments),
        (whole.function.graph, part.function.graph),
        examples,
        every or each,
        {Pair(*each): _of_argument(*each, count) for each in arguments.items()},
        _keeping(whole, size),
    )
    walk.run()
    phases = Phases(walk)
    if walk.binding is None:
        phases.find()
    return _result(walk, phases, binding_of(whole, walk))


def _keeping(whole: TracedStep, examples: int) -> Keeping:
    results = {tensor.ref() for tensor in whole.flat.outputs}
    shapes = [tuple(variable.shape.as_list()) for variable in whole.variables]
    size = sum(v.shape.num_elements() * v.dtype.size for v in whole.variables)
    rows = Rows.of(reachable(whole.flat.graph), results, shapes)
    return Keeping(examples, results, size, rows)


def _result(walk: Walk, phases: Phases, binding: Binding | None) -> BatchAxes:
    graphs = walk.graphs
    inside = phases.ops[Phase.SLICE]
    early, each, late = (
        [pair for pair in graphs.pairs if pair in phases.ops[phase]]
        for phase in (Phase.EARLY, Phase.SLICE, Phase.LATE)
    )
    _check_unique(walk, each)
    return BatchAxes(
        relations={pair: tuple(found) for pair, found in walk.relations.items()},
        early_ops=tuple(dict.fromkeys(pair.whole for pair in early)),
        in_each_slice=tuple(dict.fromkeys(pair.part for pair in each)),
        whole_ops=tuple(dict.fromkeys(pair.whole for pair in late)),
        fed={graphs.place(*read): handed for read, handed in phases.fed.items()},
        from_whole={
            graphs.place(*read): value
            for read, value in walk.from_whole.items()
            if read[0] in inside
        },
        averages={pair.part: float(1 / walk.count) for pair in walk.averages & inside},
        random_ops={pair.part: draw for pair, draw in walk.draws.items() if pair in inside},
        handed_on=tuple(phases.handed_on.values()),
        binding=binding,
    )


def _check_unique(walk: Walk, pairs: list[Pair]) -> None:
    """Refuses an op of a slice that is several ops of the whole and must do something else for
    each."""
    found: dict[tf.Operation, tuple[Any, ...]] = {}
    for pair in pairs:
        instead = [walk.from_whole.get((pair, k)) for k in range(len(pair.whole.inputs))]
        texts = tuple(None if value is None else value.tobytes() for value in instead)
        does = (tuple(walk.relations[pair]), pair in walk.averages, texts)
        if found.setdefault(pair.part, does) != does:
            raise TraceError(
                f"For a slice of the batch, the op {pair.part.name!r} stands for several ops of the"
                f" whole, {pair.whole.name!r} among them, which do not have the same values. Train"
                " the step without micro-batches, or with slices of another size."
            )


def _of_argument(whole: tf.Operation, part: tf.Operation, count: Count) -> Relation:
    shapes = [each.outputs[0].shape for each in (whole, part)]
    if shapes[0].rank is None or shapes[0] == shapes[1]:
        return SAME
    axis = batch_axis(tuple(shapes[0]), tuple(shapes[1]), count)
    if axis is None:
        raise TraceError(
            f"An argument has the shape {shapes[0]} for the whole batch and {shapes[1]} for a"
            " slice. Only the number of examples may differ, by the same factor in each argument."
        )
    return batched(axis)
