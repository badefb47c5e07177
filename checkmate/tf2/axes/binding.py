"""Binding: the op for which a step cannot run in slices, and why, in a sentence."""

from __future__ import annotations

import re
from dataclasses import dataclass

import tensorflow as tf

from checkmate.plot.layer_names import layer_names
from checkmate.tf2.axes.walk import Walk
from checkmate.tf2.graph.trace import TracedStep
from checkmate.tf2.ops.call import Pair
from checkmate.tf2.ops.relation import Kind
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
