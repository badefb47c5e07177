"""batch_axes(): the one door to this folder; Binding: why a step cannot run in slices.

traced step ── Labels: the table's rules ──► relation of each value, copies of ops for a slice
── Phases ──► what runs early, in each slice, and late
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import tensorflow as tf

from checkmate.core.layer_names import layer_names
from checkmate.tf2.axes.keeping import Keeping, Rows
from checkmate.tf2.axes.labels import Labels, Node, Of
from checkmate.tf2.axes.phases import Handed, Phases
from checkmate.tf2.graph.graph_writer import reachable
from checkmate.tf2.graph.known_functions import Function
from checkmate.tf2.graph.trace import TracedStep
from checkmate.tf2.ops.relation import WHOLE, Kind, Relation, batched
from checkmate.tf2.ops.table import rule_of


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
    """How a step on a batch is the same step on slices of the batch, of any size.

    To run the step in slices: run `early_ops`; run `nodes` for each slice, whose copies read each
    other's values, parts of the arguments, of constants and of `fed`; add up or put together what
    is `handed_on`; run `late_ops` on it. A value that is computed early is not computed again.
    Values that the graph knows before it runs are listed nowhere: each op makes its constants where
    it runs.

    Attributes:
      early_ops, late_ops: Ops that run once, before the slices and after them, in order.
      nodes: Copies of ops that run in each slice, in order.
      fed: Tensors that are computed early and read in slices.
      binding: The first op that keeps the step from running in slices, or None. If there is one,
        nothing is said of phases.
    """

    labels: Labels
    early_ops: tuple[tf.Operation, ...] = ()
    nodes: tuple[Node, ...] = ()
    late_ops: tuple[tf.Operation, ...] = ()
    fed: tuple[tf.Tensor, ...] = ()
    handed_on: tuple[Handed, ...] = ()
    binding: Binding | None = None

    @property
    def other_draws(self) -> list[str]:
        """Names of ops that draw other random numbers in slices than for the whole batch."""
        draws = (node for node in self.nodes if node.draw and node.draw.counter is None)
        return [node.operation.name for node in draws]


def batch_axes(traced: TracedStep, examples: int) -> BatchAxes:
    """Finds how a step on a batch is the same step on slices of it.

    An argument whose first dimension is `examples` has one entry for each along it; all others are
    the same for each slice. The analysis runs and traces nothing. In a slice only shapes are
    smaller: all numbers, such as a divisor that counts the examples, stay those of the whole batch.

    Examples:
      >>> from checkmate.tf2.graph.trace import trace
      >>> step = lambda x: tf.reduce_sum(tf.tanh(x @ tf.ones((8, 4))))
      >>> axes = batch_axes(trace(step, tf.TensorSpec((6, 8))), 6)
      >>> axes.binding is None, [str(each.relation) for each in axes.handed_on]
      (True, ['summed'])
    """
    flat = traced.flat
    arguments = {
        tensor.op: batched(0)
        for tensor in traced.argument_tensors()
        if tensor.shape.rank and tensor.shape[0] == examples
    }
    once: set[tf.Operation] = set()
    parts: dict[tf.Operation, dict[int, Relation]] = {}
    function = Function(flat.graph, traced.function.graph)
    while True:
        keeping = _keeping(traced, examples)
        labels = Labels(function, examples, arguments, keeping, once, parts)
        labels.run()
        if labels.asked.keys() - parts.keys():
            # One copy of a loop serves those who read its results in full, as well.
            parts = labels.asked | parts
            continue
        if labels.binding is not None:
            return BatchAxes(labels, binding=_binding(traced, labels, labels.binding))
        phases = Phases(labels)
        phases.find()
        if not phases.nodes:
            return BatchAxes(labels, binding=_binding(traced, labels, _first_on_all(phases)))
        unknown = [h.whole for h in phases.handed_on.values() if not h.has_shape]
        if unknown:
            return BatchAxes(labels, binding=_of_unknown_shape(traced, unknown[0]))
        twice = _drawn_twice(phases)
        if not twice:
            break
        once |= twice
    place = {operation: k for k, operation in enumerate(labels.order)}

    def in_order(operations: set[tf.Operation]) -> tuple[tf.Operation, ...]:
        return tuple(sorted(operations, key=place.__getitem__))

    return BatchAxes(
        labels,
        in_order(phases.early),
        tuple(sorted(phases.nodes, key=lambda node: place[node.operation])),
        in_order(phases.late),
        tuple(phases.fed.values()),
        tuple(phases.handed_on.values()),
    )


def _first_on_all(phases: Phases) -> tf.Operation:
    """The first op that runs on all examples, of a step of which nothing runs in slices."""
    late = [operation for operation in phases.labels.order if operation in phases.late]
    early = phases.labels.early
    on_all = (o for o in late if any(early.get(t.op) is Of.EXAMPLES for t in o.inputs))
    return next(on_all, late[0] if late else phases.labels.order[-1])


def _drawn_twice(phases: Phases) -> set[tf.Operation]:
    """Ops that would draw numbers in slices, and once more for the whole batch or in other
    parts."""
    drawn = [n.operation for n in phases.nodes if n.draw and n.draw.counter is None]
    once = phases.early | phases.late
    return {each for each in drawn if each in once or drawn.count(each) > 1}


def _keeping(traced: TracedStep, examples: int) -> Keeping:
    results = {tensor.ref() for tensor in traced.flat.outputs}
    shapes = [tuple(variable.shape.as_list()) for variable in traced.variables]
    size = sum(v.shape.num_elements() * v.dtype.size for v in traced.variables)
    rows = Rows.of(reachable(traced.flat.graph), results, shapes)
    return Keeping(examples, results, size, rows)


def _of_unknown_shape(traced: TracedStep, tensor: tf.Tensor) -> Binding:
    operation = tensor.op
    reason = (
        f"{operation.name!r} ({operation.type}) is needed for all of them, and its shape is known"
        f" when the step runs only: {tensor.shape}."
    )
    return Binding(operation, _layer(traced, operation), reason)


def _binding(traced: TracedStep, labels: Labels, operation: tf.Operation) -> Binding:
    return Binding(operation, _layer(traced, operation), _reason(labels, operation))


def _layer(whole: TracedStep, operation: tf.Operation) -> str:
    number = whole.numbers().get(operation)
    if number is not None:
        return layer_names(whole.graph)[number]
    scopes = re.sub(r"^(gradient_tape|gradients)/", "", operation.name).split("/")[:-1]
    layers = set(layer_names(whole.graph))
    return next((scope for scope in scopes if scope in layers), "".join(scopes[:1]))


def _reason(labels: Labels, operation: tf.Operation) -> str:
    shown = f"{operation.name!r} ({operation.type})"
    examples, others = [], []
    for tensor in operation.inputs:
        if labels.value(tensor) is not None:
            continue
        relation = labels.relations[tensor.op][tensor.value_index]
        if relation == WHOLE and tensor.op in labels.early:
            return f"{shown} reads {tensor.op.name!r}, of which no part is known to be a slice's."
        if relation.kind is Kind.BATCHED:
            examples.append(tensor.op.name)
        elif relation.kind in (Kind.WHOLE, Kind.SUMMED):
            others.append(tensor.op.name)
    if not examples:
        made = others or [tensor.op.name for tensor in operation.inputs]
        return f"{shown} reads {made[0]!r}, a list of tensors of which each slice makes its own."
    read = f"{shown} reads {examples[0]!r}, which has a part for each example"
    if others:
        return f"{read}, together with {others[0]!r}, which is made of all examples."
    if rule_of(operation.type).axes is None:
        return f"{read}, and ops of its type are not known to treat each example alone."
    return f"{shown} computes across the examples of {examples[0]!r}."
