"""Runs a step on a batch, and again in slices as `batch_axes` says, and compares every value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from checkmate.tf2.axes.batch_axes import BatchAxes, batch_axes
from checkmate.tf2.axes.pairing import known_values
from checkmate.tf2.graph.graph_writer import GraphWriter, names_of_inputs, reachable
from checkmate.tf2.graph.operations import is_argument
from checkmate.tf2.graph.trace import TracedStep, trace
from checkmate.tf2.ops.call import Pair
from checkmate.tf2.ops.relation import Kind, Relation


@dataclass
class Slices:
    """What the comparison found.

    Attributes:
      axes: What `batch_axes` says.
      errors: For each value that is not as it says, a line of text.
      compared: How many values were compared.
    """

    axes: BatchAxes
    errors: list[str]
    compared: int


def in_slices(step: Any, batch: Any, examples: int, *, tolerance: float = 1e-5) -> Slices:
    """Runs a step on a batch, and in slices of `examples`, from the same variables."""
    size = tf.nest.flatten(batch)[0].shape[0]
    function = tf.function(step)

    def specs(count):
        return tf.nest.map_structure(lambda t: tf.TensorSpec([count, *t.shape[1:]], t.dtype), batch)

    function.get_concrete_function(*specs(size))
    whole, part = trace(function, *specs(size)), trace(function, *specs(examples))
    axes = batch_axes(whole, part, examples=(size, examples))
    if axes.binding is not None:
        return Slices(axes, [axes.binding.reason], 0)
    return _Comparison(axes, whole, part, batch, size // examples, tolerance).run()


class _Comparison:
    def __init__(self, axes, whole: TracedStep, part: TracedStep, batch, count: int, tolerance):
        self.axes, self.whole, self.part, self.count = axes, whole, part, count
        self.batch = [tf.convert_to_tensor(leaf) for leaf in tf.nest.flatten(batch)]
        self.tolerance = tolerance
        self.errors: list[str] = []
        self.compared = 0
        self.known = known_values(reachable(whole.flat.graph))

    def run(self) -> Slices:
        before = self._variables()
        pairs = list(self.axes.relations)
        operations = [pair.whole for pair in pairs]
        reference = _run(self.whole.flat, operations, self.batch)
        trained = self._variables()
        self._restore(before)
        early = _run(self.whole.flat, self.axes.early_ops, self.batch)
        slices = [self._slice(s, early) for s in range(self.count)]
        inside = set(self.axes.in_each_slice)
        for pair, relations in self.axes.relations.items():
            for k, relation in enumerate(relations):
                if pair.part in inside and (pair.part, k) in slices[0]:
                    values = [found[pair.part, k] for found in slices]
                    self._compare(pair, relation, reference[pair.whole, k], values)
        results = self._after(early, slices)
        for (operation, k), value in results.items():
            self._close(f"after the slices, {operation.name}", reference[operation, k], value)
        after = self._variables()
        for name in trained:
            self._close(f"variable {name}", trained[name], after[name])
        self._restore(before)
        return Slices(self.axes, self.errors, self.compared)

    def _slice(self, s: int, early: dict) -> dict:
        length = self.batch[0].shape[0] // self.count
        batch = [leaf[s * length : (s + 1) * length] for leaf in self.batch]
        instead = dict(self.axes.from_whole)
        for read, handed in self.axes.fed.items():
            source, k = handed.whole.op, handed.whole.value_index
            value = early[source, k] if (source, k) in early else self.known[source][k]
            if handed.relation.kind is Kind.BATCHED:
                value = np.split(value, self.count, handed.relation.axis)[s]
            instead[read] = value
        return _run(
            self.part.flat,
            self.axes.in_each_slice,
            batch,
            instead=instead,
            factors=self.axes.averages,
            added={
                (operation, draw.input): np.array([s * length * draw.counts, 0], np.uint64)
                for operation, draw in self.axes.random_ops.items()
                if draw.is_exact
            },
        )

    def _after(self, early: dict, slices: list[dict]) -> dict:
        """The whole's ops after the slices, on what the slices hand on."""
        given = {}
        for whole, part, relation in self.axes.handed_on:
            values = [found[part.op, part.value_index] for found in slices]
            given[whole.op, whole.value_index] = combined(relation, values)
        chosen = set(self.axes.whole_ops)
        given |= {key: value for key, value in early.items() if key[0] not in chosen}
        instead = {
            (operation, k): given[tensor.op, tensor.value_index]
            for operation in chosen
            for k, tensor in enumerate(operation.inputs)
            if (tensor.op, tensor.value_index) in given
        }
        return _run(self.whole.flat, list(chosen), self.batch, instead=instead)

    def _compare(self, pair: Pair, relation: Relation, whole: Any, parts: list[Any]) -> None:
        name = f"{pair.whole.name} ({pair.whole.type}), {relation}"
        if relation.kind is Kind.SAME:
            for value in parts:
                self._close(name, whole, value)
        elif relation.kind in (Kind.BATCHED, Kind.SUMMED):
            self._close(name, whole, combined(relation, parts), sum(map(np.abs, parts)))
        elif relation.kind is Kind.ZERO:
            for value in (whole, *parts):
                self._close(name, np.zeros_like(value), value)

    def _close(self, name: str, wanted: Any, found: Any, terms: Any = 0.0) -> None:
        self.compared += 1
        wanted, found = np.asarray(wanted), np.asarray(found)
        if wanted.shape != found.shape:
            self.errors.append(f"{name}: shapes {wanted.shape} and {found.shape}")
            return
        if wanted.dtype.kind not in "fcV" and wanted.dtype != tf.bfloat16.as_numpy_dtype:
            if not np.array_equal(wanted, found):
                self.errors.append(f"{name}: {wanted.ravel()[:4]} and {found.ravel()[:4]}")
            return
        wide = np.complex128 if wanted.dtype.kind == "c" else np.float64
        wanted, found = wanted.astype(wide), found.astype(wide)
        scale = max(np.abs(wanted).max(initial=1e-6), np.max(np.abs(terms), initial=0.0))
        error = np.abs(wanted - found).max(initial=0.0) / scale
        if not (error <= self.tolerance or np.array_equal(wanted, found, equal_nan=True)):
            self.errors.append(f"{name}: off by {error:.1e}")

    def _variables(self) -> dict[str, np.ndarray]:
        return {f"{k} {v.name}": v.read_value().numpy() for k, v in enumerate(self.whole.variables)}

    def _restore(self, values: dict[str, np.ndarray]) -> None:
        for variable, value in zip(self.whole.variables, values.values(), strict=True):
            variable.assign(value)


def combined(relation: Relation, parts: list[Any]) -> Any:
    if relation.kind is Kind.SUMMED:
        return np.sum(parts, 0).astype(parts[0].dtype)
    if relation.kind is Kind.BATCHED:
        if relation.offset:
            parts = [part + s * relation.offset for s, part in enumerate(parts)]
        blocks = [np.split(part, max(relation.blocks, 1), relation.axis) for part in parts]
        return np.concatenate(
            [block for each in zip(*blocks, strict=True) for block in each], relation.axis
        )
    return parts[0]


def _run(flat: Any, operations: list, batch: list, *, instead=(), factors=(), added=()) -> dict:
    """Runs some ops of a function and returns the values of their outputs that are numbers.

    Args:
      instead: (op, input) -> an array to read there.
      factors: op -> a factor for its output.
      added: (op, input) -> an array that is added there.
    """
    instead, factors, added = dict(instead), dict(factors), dict(added)
    every = reachable(flat.graph)
    chosen, known = set(operations), known_values(every)
    writer, names, copies = GraphWriter(), dict(names_of_inputs(flat)), {}
    fetched = []
    for operation in every:
        if operation not in chosen:
            for tensor, value in zip(operation.outputs, known.get(operation, ()), strict=False):
                if value is not None:
                    names[tensor.ref()] = writer.constant(value, tensor.dtype)
        if operation not in chosen or is_argument(operation):
            continue
        inputs = []
        for k, tensor in enumerate(operation.inputs):
            if (operation, k) in instead:
                name = writer.constant(instead[operation, k], tensor.dtype)
            else:
                name = names[tensor.ref()]
            if (operation, k) in added:
                more = writer.constant(added[operation, k], tensor.dtype)
                name = writer.add("AddV2", [name, more], tensor.dtype, name="counted")
            inputs.append(name)
        after = [copies[before] for before in operation.control_inputs if before in copies]
        copies[operation] = writer.copy(operation, inputs, after=after)
        for k, tensor in enumerate(operation.outputs):
            names[tensor.ref()] = f"{copies[operation]}:{k}"
            if operation in factors and not k:
                factor = writer.constant(factors[operation], tensor.dtype)
                names[tensor.ref()] = writer.add(
                    "Mul", [names[tensor.ref()], factor], tensor.dtype, name="averaged"
                )
            if tensor.dtype not in (tf.resource, tf.variant, tf.string):
                fetched.append((operation, k, names[tensor.ref()]))
    found = writer.function_like(flat, [name for _, _, name in fetched])(*batch)
    found = found if isinstance(found, (list, tuple)) else [found]
    return {(o, k): value.numpy() for (o, k, _), value in zip(fetched, found, strict=True)}
