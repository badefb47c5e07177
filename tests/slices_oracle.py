"""Runs a step on a batch, and again in slices of it, from the same variables, and compares all that
it returns and writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from checkmate.tf2.axes.batch_axes import BatchAxes, Binding
from checkmate.tf2.axes.labels import Labels, SliceBody
from checkmate.tf2.graph.known_functions import Function
from checkmate.tf2.graph.trace import TracedStep, trace
from checkmate.tf2.ops.relation import Kind, Relation
from checkmate.tf2.rewrites.slice_writer import functions_of
from checkmate.tf2.rewrites.step import Step
from checkmate.tf2.rewrites.tile import Tile


@dataclass
class Compared:
    """What the comparison found.

    Attributes:
      axes: What `batch_axes` says.
      errors: For each value that is another, a line of text.
      compared: How many values were compared.
    """

    axes: BatchAxes
    errors: list[str]
    compared: int

    @property
    def binding(self) -> Binding | None:
        return self.axes.binding


def traced_on(step: Any, batch: Any) -> TracedStep:
    function = step if hasattr(step, "get_concrete_function") else tf.function(step)
    specs = tf.nest.map_structure(
        lambda leaf: tf.TensorSpec(leaf.shape, tf.as_dtype(leaf.dtype)), batch
    )
    return trace(function, *specs)


def in_slices(step: Any, batch: Any, examples: int, *, tolerance: float = 1e-9) -> Compared:
    """Runs a step on a batch, and in slices of `examples`. Numbers with a fraction may be off by
    `tolerance` of the largest of a value."""
    written, tile = Step.of(step, batch, traced_on(step, batch)), Tile()
    axes = tile.axes(written)
    if axes.binding is not None:
        return Compared(axes, [axes.binding.reason], 0)
    return Compared(axes, *compared(tile.apply(written, examples), batch, tolerance))


def compared(step: Step, batch: Any, tolerance: float) -> tuple[list[str], int]:
    """Runs a rewritten step and the step as it was written: a line for each value that is another,
    and how many were compared."""
    traced, ran = step.traced, step.in_slices
    flat = [tf.convert_to_tensor(leaf) for leaf in tf.nest.flatten(batch)]
    start = _values(traced)
    expected = tf.nest.flatten(traced.function(*batch))
    trained = _values(traced)
    _restore(traced, start)
    early = ran.before(*flat)
    for first, size in ran.slices:
        ran.each[size].function(tf.constant(first), *flat, *early)
    found = tf.nest.flatten(ran.after.function(*flat, *early))
    errors = []
    pairs = [("results", *pair) for pair in zip(expected, found, strict=True)]
    pairs += [
        (v.name, *pair) for v, *pair in zip(traced.variables, trained, _values(traced), strict=True)
    ]
    for k, (name, wanted, value) in enumerate(pairs):
        line = _difference(np.asarray(wanted), np.asarray(value), tolerance)
        errors += [f"{k} {name}: {line}"] if line else []
    _restore(traced, start)
    return errors, len(pairs)


def _difference(wanted: np.ndarray, found: np.ndarray, tolerance: float) -> str:
    if wanted.shape != found.shape:
        return f"shapes {wanted.shape} and {found.shape}"
    if wanted.dtype.kind not in "fcV" and wanted.dtype != tf.bfloat16.as_numpy_dtype:
        same = np.array_equal(wanted, found)
        return "" if same else f"{wanted.ravel()[:4]} and {found.ravel()[:4]}"
    wide = np.complex128 if wanted.dtype.kind == "c" else np.float64
    wanted, found = wanted.astype(wide), found.astype(wide)
    if np.array_equal(wanted, found, equal_nan=True):
        return ""
    error = np.abs(wanted - found).max(initial=0.0) / np.abs(wanted).max(initial=1e-6)
    return "" if error <= tolerance else f"off by {error:.1e}"


def _values(traced: TracedStep) -> list[np.ndarray]:
    return [variable.read_value().numpy() for variable in traced.variables]


def _restore(traced: TracedStep, values: list[np.ndarray]) -> None:
    for variable, value in zip(traced.variables, values, strict=True):
        variable.assign(value)


def in_parts(
    graph: Any, relations: list[Relation], count: int = 2, asked: list[Relation] | None = None
) -> tuple[SliceBody, Any] | None:
    """A function as it is for each of `count` equal parts of each value that is BATCHED, of the
    number of the part and the arguments, with the relations of its arguments and results, which may
    be `asked`; None if it needs the whole."""
    body = Labels(Function(graph, graph), count, {}).inside(
        Function(graph, graph), relations, asked
    )
    if body is None:
        return None
    (function,), reads_first = functions_of([body], (count, 1, 1))
    return body, lambda k, *given: function(*given, *[tf.constant(k)] * reads_first)


def cut(relation: Relation, value: Any, count: int) -> list[Any]:
    """The values of the parts of one that is BATCHED or SAME."""
    if relation.kind is not Kind.BATCHED:
        return [value] * count
    pieces = np.split(value, count * relation.blocks, relation.axis)
    return [np.concatenate(pieces[part::count], relation.axis) for part in range(count)]


def combined(relation: Relation, parts: list[Any]) -> Any:
    """The value of the whole batch, by its relation to those of the slices."""
    if relation.kind is Kind.SUMMED:
        return np.sum(parts, 0).astype(parts[0].dtype)
    if relation.kind is Kind.BATCHED:
        blocks = [np.split(part, relation.blocks, relation.axis) for part in parts]
        return np.concatenate(
            [block for each in zip(*blocks, strict=True) for block in each], relation.axis
        )
    return parts[0]
