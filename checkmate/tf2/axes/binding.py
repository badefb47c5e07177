"""Binding: the op for which a step cannot run in slices, and why, in a sentence."""

from __future__ import annotations

import re
from dataclasses import dataclass

import tensorflow as tf

from checkmate.plot.layer_names import layer_names
from checkmate.tf2.axes.pairing import Pair
from checkmate.tf2.axes.relation import Kind
from checkmate.tf2.axes.table import TABLE
from checkmate.tf2.axes.walk import Walk
from checkmate.tf2.graph.trace import TracedStep


@dataclass(frozen=True, slots=True)
class Binding:
    """An op that needs the values of all examples at once.

    Attributes:
      operation: The op, in the graph of the whole batch.
      layer: The layer of the model that it belongs to; "" if its name tells none.
      reason: A sentence that says what binds the examples together.
    """

    operation: tf.Operation
    layer: str
    reason: str


def binding_of(whole: TracedStep, walk: Walk) -> Binding | None:
    """Returns the first op that binds the examples together, or None if none does."""
    if walk.binding is None:
        return None
    operation = walk.binding.whole
    return Binding(operation, _layer(whole, operation), _reason(walk, walk.binding))


def _layer(whole: TracedStep, operation: tf.Operation) -> str:
    number = whole.numbers().get(operation)
    if number is not None:
        return layer_names(whole.graph)[number]
    scopes = re.sub(r"^(gradient_tape|gradients)/", "", operation.name).split("/")[:-1]
    return "/".join(scopes[1:2] or scopes)


def _reason(walk: Walk, pair: Pair) -> str:
    examples, others = [], []
    for whole, part in walk.graphs.inputs(pair):
        if walk.graphs.known(whole, part) is None:
            relation = walk.relations[Pair(whole.op, part.op)][whole.value_index]
            if relation.kind is Kind.BATCHED:
                examples.append(whole.op.name)
            elif relation.kind in (Kind.WHOLE, Kind.SUMMED):
                others.append(whole.op.name)
    operation = pair.whole
    shown = f"{operation.name!r} ({operation.type})"
    if others:
        return (
            f"{shown} reads {examples[0]!r}, which has a part for each example, together with"
            f" {others[0]!r}, which is made of all examples."
        )
    if operation.type not in TABLE:
        return (
            f"{shown} reads {examples[0]!r}, which has a part for each example, and it is not known"
            f" whether ops of the type {operation.type} treat each example alone."
        )
    return f"{shown} computes across the examples of {examples[0]!r}."
