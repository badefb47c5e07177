"""batch_axes(): the one door to this folder; Binding: why a step cannot run in slices;
check_last_slice(): whether a shorter last slice goes together with the others.

traces of the step, whole and slice ── pairing ──► pairs of ops ── walk: the table's rules ──►
relation of each value ── phases ──► what runs early, in each slice, and late
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import tensorflow as tf

from checkmate.core.layer_names import layer_names
from checkmate.errors import TraceError
from checkmate.tf2.axes.keeping import Keeping, Rows
from checkmate.tf2.axes.pairing import arguments_of, paired
from checkmate.tf2.axes.phases import Handed, Phase, Phases
from checkmate.tf2.axes.rules import Draw
from checkmate.tf2.axes.walk import Walk
from checkmate.tf2.graph.graph_writer import reachable
from checkmate.tf2.graph.operations import is_argument
from checkmate.tf2.graph.trace import TracedStep
from checkmate.tf2.ops.call import Pair
from checkmate.tf2.ops.relation import SAME, Count, Kind, Relation, batch_axis, batched
from checkmate.tf2.ops.table import rule_of

Input = tuple[tf.Operation, int]


@dataclass(frozen=True, slots=True)
class Binding:
    """An op, in the graph of the whole batch, that needs the values of all examples at once.

    Attributes:
      layer: The layer of the model that it belongs to; "" if its name tells none.
    """

    operation: tf.Operation
    layer: str
    reason: str

    @property
    def sentence(self) -> str:
        layer = f" Layer {self.layer!r}:" if self.layer else ""
        return f"The examples of its batch are bound together.{layer} {self.reason}"


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

    Examples:
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
    from_whole = [(read, value) for read, value in walk.from_whole.items() if read[0] in inside]
    return BatchAxes(
        relations={pair: tuple(found) for pair, found in walk.relations.items()},
        early_ops=tuple(dict.fromkeys(pair.whole for pair in early)),
        in_each_slice=tuple(dict.fromkeys(pair.part for pair in each)),
        whole_ops=tuple(dict.fromkeys(pair.whole for pair in late)),
        fed={graphs.place(*read): handed for read, handed in phases.fed.items()},
        from_whole={graphs.place(*read): value for read, value in from_whole},
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


def binding_of(whole: TracedStep, walk: Walk) -> Binding | None:
    if walk.binding is None:
        return None
    operation = walk.binding.whole
    return Binding(operation, _layer(whole, operation), _reason(walk, walk.binding))


def _layer(whole: TracedStep, operation: tf.Operation) -> str:
    number = whole.numbers().get(operation)
    if number is not None:
        return layer_names(whole.graph)[number]
    scopes = re.sub(r"^(gradient_tape|gradients)/", "", operation.name).split("/")[:-1]
    layers = set(layer_names(whole.graph))
    return next((scope for scope in scopes if scope in layers), "".join(scopes[:1]))


def _reason(walk: Walk, pair: Pair) -> str:
    shown = f"{pair.whole.name!r} ({pair.whole.type})"
    examples, others = [], []
    for whole, part in walk.graphs.inputs(pair):
        source = Pair(whole.op, part.op)
        if walk.graphs.known(whole, part) is not None:
            continue
        kind = walk.relations[source][whole.value_index].kind
        if kind is Kind.WHOLE and source in walk.early:
            return f"{shown} reads {whole.op.name!r}, of which no part is known to be a slice's."
        if kind is Kind.BATCHED:
            examples.append(whole.op.name)
        elif kind in (Kind.WHOLE, Kind.SUMMED):
            others.append(whole.op.name)
    if not examples:
        return f"{shown} reads {others[0]!r}, a list of tensors of which each slice makes its own."
    read = f"{shown} reads {examples[0]!r}, which has a part for each example"
    if others:
        return f"{read}, together with {others[0]!r}, which is made of all examples."
    if rule_of(pair.whole.type).axes is None:
        return f"{read}, and ops of its type are not known to treat each example alone."
    return f"{shown} computes across the examples of {examples[0]!r}."


Ways = dict[str, str]
"""Names of values of the whole batch -> how they follow from those of slices, in words."""


def check_last_slice(axes: BatchAxes, last: BatchAxes, *, examples: tuple[int, int]) -> None:
    """Makes sure that a step can run in slices of which the last one has fewer examples.

    What runs once must be the same with both, and both must make the same values of the whole
    batch, in the same way; then one set of totals and rows takes what all slices hand on. A last
    slice of one example is taken only if, besides, each value follows from the slices in the same
    way: along an axis of length one an op may broadcast, and sums may be left out.

    Raises:
      TraceError: They do not go together, and why.
    """
    for each, found in zip(examples, (axes, last), strict=True):
        if found.binding is not None:
            raise _differ(examples, f"with {each} examples, {found.binding.reason}")
    for phase, ops, others in (
        ("before", set(axes.early_ops), set(last.early_ops)),
        ("after", set(axes.whole_ops), set(last.whole_ops)),
    ):
        computed = sorted(each.name for each in ops ^ others if not is_argument(each))
        if computed:
            text = f"{computed[0]!r} runs once {phase} the slices with one of them only."
            raise _differ(examples, text)
    _compare(examples, _handed(axes, examples[0]), _handed(last, examples[1]))
    fed = {handed.whole.ref() for handed in axes.fed.values()}
    for read in last.fed.values():
        if read.whole.ref() not in fed:
            raise _differ(examples, f"only the last reads {read.whole.op.name!r} of the whole.")
    if examples[1] == 1:
        _compare(examples, _values(axes, examples[0]), _values(last, examples[1]))


def _compare(examples: tuple[int, int], values: Ways, last: Ways) -> None:
    for name in [*values, *last]:
        ways = [found.get(name, "not made") for found in (values, last)]
        if ways[0] != ways[1]:
            raise _differ(examples, f"{name!r} of the whole is {ways[0]}, and {ways[1]}.")


def _handed(axes: BatchAxes, size: int) -> Ways:
    return {each.whole.name: _way(each.relation, size) for each in axes.handed_on}


def _values(axes: BatchAxes, size: int) -> Ways:
    return {
        tensor.name: _way(relation, size)
        for pair, relations in axes.relations.items()
        for tensor, relation in zip(pair.whole.outputs, relations, strict=True)
    }


def _way(relation: Relation, size: int) -> str:
    grows = Fraction(relation.offset, size)
    offset = f", by {grows} more with each example" if grows else ""
    blocks = max(relation.blocks, 1)
    return f"{replace(relation, offset=0, blocks=blocks)}{offset}"


def _differ(examples: tuple[int, int], found: str) -> TraceError:
    return TraceError(
        f"The last slice has {examples[1]} of the examples and the others have {examples[0]}, and"
        f" the step does not run in both alike: {found} Use a number of micro-batches that divides"
        " the number of examples."
    )
