"""paired(): which op of the whole batch's graph and which op of a slice's graph are the same op of
the step.

The graph optimizer folds constants by their size and merges those that happen to be equal, so that
one op of a graph may have several partners in the other. From results and side effects backwards,
ops are partners if they have the same type and their readers are partners; where both values are
known before the step runs, such as shapes and what is computed from them (`known_values`), what
they are made of does not count.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from checkmate.errors import TraceError
from checkmate.tf2.graph.graph_writer import argument_tensors, captured_tensors, reachable
from checkmate.tf2.graph.operations import (
    has_bodies,
    is_argument,
    is_constant,
    is_stateful,
    may_run_again,
    static_shape,
)
from checkmate.tf2.ops.call import Pair, one_number
from checkmate.tf2.ops.table import rule_of

MOST_ELEMENTS = 2**16
"""Larger values are not computed here, but where all elements are one number."""

Known = dict[tf.Operation, list[np.ndarray | None]]

Arguments = dict[tf.Operation, tf.Operation]


class Graphs(NamedTuple):
    """Both graphs of a step, or of the body of a loop.

    Attributes:
      pairs: Their ops, inputs first.
      swapped: Pairs of a commutative op whose two inputs are in the other order for a slice.
    """

    whole: Any
    part: Any
    pairs: list[Pair]
    known_whole: Known
    known_part: Known
    swapped: set[Pair]

    def inputs(self, pair: Pair) -> list[tuple[tf.Tensor, tf.Tensor]]:
        others = list(pair.part.inputs)
        swapped = pair in self.swapped
        return list(zip(pair.whole.inputs, others[::-1] if swapped else others, strict=True))

    def place(self, pair: Pair, k: int) -> tuple[tf.Operation, int]:
        """The slice's op and the index of its input that is input k of the whole's op."""
        return pair.part, 1 - k if pair in self.swapped else k

    def known(self, whole: tf.Tensor, part: tf.Tensor) -> tuple[Any, Any] | None:
        found = (_of(self.known_whole, whole), _of(self.known_part, part))
        return None if any(value is None for value in found) else found


def paired(whole: Any, part: Any, arguments: Arguments) -> Graphs:
    """The pairs of ops of two graphs of functions. `arguments` has the argument of a slice's graph
    that each argument of the whole's graph is. Raises `TraceError` where they differ in more than
    sizes."""
    if len(whole.outputs) != len(part.outputs):
        raise TraceError(
            f"The step returns {len(whole.outputs)} tensors for the whole batch and"
            f" {len(part.outputs)} for a slice. Return a fixed number to train it in micro-batches."
        )
    operations, others = reachable(whole), reachable(part)
    graphs = Graphs(whole, part, [], known_values(operations), known_values(others), set())
    pending = _roots(whole, part)
    pending += [Pair(a.op, b.op) for a, b in _unknown(graphs, whole.outputs, part.outputs)]
    seen: set[Pair] = set()
    while pending:
        pair = pending.pop()
        if pair in seen:
            continue
        seen.add(pair)
        _check(pair, arguments)
        if rule_of(pair.whole.type).commutes and _swapped_fits_better(graphs, pair):
            graphs.swapped.add(pair)
        whole_inputs, part_inputs = (
            zip(*graphs.inputs(pair), strict=True) if pair.whole.inputs else ((), ())
        )
        inputs = _unknown(graphs, whole_inputs, part_inputs)
        if any(a.value_index != b.value_index for a, b in inputs):
            raise _differ(pair.whole, pair.part)
        pending += [Pair(a.op, b.op) for a, b in inputs]
    place = {operation: k for k, operation in enumerate(operations)}
    other = {operation: k for k, operation in enumerate(others)}
    graphs.pairs.extend(sorted(seen, key=lambda pair: (place[pair.whole], other[pair.part])))
    return graphs


def _swapped_fits_better(graphs: Graphs, pair: Pair) -> bool:
    """True if the inputs of a slice's op have to be swapped to be like those of the whole's."""
    first, second = pair.part.inputs
    return _likeness(graphs, pair, (second, first)) > _likeness(graphs, pair, (first, second))


def _likeness(
    graphs: Graphs, pair: Pair, part: tuple[tf.Tensor, tf.Tensor]
) -> tuple[int, int, int]:
    """The numbers of inputs that are known in both graphs or in neither, of one type, of one
    name."""
    found = [0, 0, 0]
    for a, b in zip(pair.whole.inputs, part, strict=True):
        found[0] += (_of(graphs.known_whole, a) is None) == (_of(graphs.known_part, b) is None)
        found[1] += a.op.type == b.op.type
        found[2] += a.op.name == b.op.name
    return (found[0], found[1], found[2])


def _roots(whole: Any, part: Any) -> list[Pair]:
    """The ops with side effects, which have the same names or the same order."""
    effects, others = ([o for o in g.control_outputs if is_stateful(o)] for g in (whole, part))
    named = {operation.name: operation for operation in others}
    if {operation.name for operation in effects} == set(named):
        return [Pair(operation, named[operation.name]) for operation in effects]
    if [o.type for o in effects] != [o.type for o in others]:
        pairs = zip_longest(effects, others)
        a, b = next((a, b) for a, b in pairs if not a or not b or a.type != b.type)
        there, here = (f"{o.name!r} ({o.type})" if o else "none" for o in (b, a))
        raise TraceError(
            "The step has other side effects for a slice of the batch than for the whole: of the"
            f" ops that write or print, one is {there} instead of {here}. Train it without"
            " micro-batches."
        )
    return [Pair(*each) for each in zip(effects, others, strict=True)]


def _unknown(
    graphs: Graphs, whole: Sequence[tf.Tensor], part: Sequence[tf.Tensor]
) -> list[tuple[tf.Tensor, tf.Tensor]]:
    pairs = list(zip(whole, part, strict=True))
    return [each for each in pairs if graphs.known(*each) is None]


def arguments_of(whole: Any, part: Any) -> Arguments:
    """The argument of one function that each argument of another is, by position, or by the
    variable or tensor that it stands for."""
    found = zip(argument_tensors(whole), argument_tensors(part), strict=True)
    pairs = {a.op: b.op for a, b in found}
    captured = {id(value): tensor.op for tensor, value in captured_tensors(part)}
    for tensor, value in captured_tensors(whole):
        if id(value) in captured:
            pairs[tensor.op] = captured[id(value)]
    return pairs


def _of(known: Known, tensor: tf.Tensor) -> Any:
    return known[tensor.op][tensor.value_index] if tensor.op in known else None


def _check(pair: Pair, arguments: Arguments) -> None:
    whole, part = pair
    same = (whole.type, len(whole.inputs), len(whole.outputs)) == (
        part.type,
        len(part.inputs),
        len(part.outputs),
    )
    same = same and _settings(whole) == _settings(part)
    if not same or (is_argument(whole) and arguments.get(whole) != part):
        raise _differ(whole, part)


def _settings(operation: tf.Operation) -> dict[str, Any]:
    """The attributes that decide how an op computes: all but shapes, values and functions."""
    return {
        name: value
        for name, value in operation.node_def.attr.items()
        if not name.startswith("_")
        and name not in ("num_elements", "seed", "seed2", "token")
        and (value.WhichOneof("value") in ("b", "f", "i", "s", "type") or _is_setting(value.list))
    }


def _is_setting(values: Any) -> bool:
    return bool(values.i or values.f or values.b or values.s or values.type)


def _differ(whole: tf.Operation, part: tf.Operation) -> TraceError:
    return TraceError(
        "The step has other ops for a slice of the batch than for the whole: where one has"
        f" {part.name!r} ({part.type}), the other has {whole.name!r} ({whole.type}). Train it"
        " without micro-batches, or with slices of another size."
    )


def known_values(operations: Sequence[tf.Operation]) -> Known:
    """For each op, inputs first, its outputs as arrays, or None where they are not known. An array
    of one number takes the memory of that number."""
    known: Known = {}
    for operation in operations:
        read = operation.inputs
        inputs = [known.get(t.op, [None] * len(t.op.outputs))[t.value_index] for t in read]
        found = _outputs(operation, inputs)
        if found is not None:
            known[operation] = found
    return known


def _outputs(operation: tf.Operation, inputs: list[Any]) -> list[np.ndarray | None] | None:
    shapes = [tensor.shape for tensor in operation.outputs]
    if any(tensor.dtype in (tf.resource, tf.variant) for tensor in operation.outputs):
        return None
    if is_constant(operation):
        return [tf.make_ndarray(operation.get_attr("value"))]
    if rule_of(operation.type).of_shape:
        return [_of_shape(operation, k) for k in range(len(shapes))]
    defined = bool(shapes) and all(shape.is_fully_defined() for shape in shapes)
    number = _number(operation, inputs) if defined else None
    if number is not None:
        return [np.broadcast_to(number, shapes[0].as_list())]
    if not inputs or any(value is None for value in inputs):
        return None
    sizes = [shape.num_elements() or 0 for shape in shapes] + [value.size for value in inputs]
    may_run = may_run_again(operation) and not has_bodies(operation)
    return _run(operation, inputs) if shapes and max(sizes) <= MOST_ELEMENTS and may_run else None


def _of_shape(operation: tf.Operation, output: int) -> np.ndarray | None:
    value = static_shape(operation, output)
    dtype = operation.outputs[output].dtype.as_numpy_dtype
    return None if value is None else np.asarray(value, dtype)


def _number(operation: tf.Operation, inputs: list[Any]) -> Any:
    """The number that all elements of an op's only output are, or None if that is not known."""
    dtype = operation.outputs[0].dtype
    if dtype == tf.string:
        return None
    rule = rule_of(operation.type)
    fills = not rule.stateless_if or operation.get_attr(rule.stateless_if)
    if rule.fills_with is not None and fills:
        return np.full((), rule.fills_with, dtype.as_numpy_dtype)
    source = rule.repeats
    if source is None or inputs[source] is None or not one_number(inputs[source]):
        return None
    return inputs[source].flat[0]


def _run(operation: tf.Operation, inputs: list[Any]) -> list[np.ndarray | None] | None:
    """Runs one op on arrays; None if TensorFlow does not run it alone."""
    run = getattr(tf.raw_ops, operation.type, None)
    if run is None:
        return None
    names = list(inspect.signature(run).parameters)
    left, arguments, inferred = list(inputs), {}, set()
    for k, each in enumerate(operation.op_def.input_arg):
        inferred |= {each.type_attr, each.number_attr, each.type_list_attr}
        name = each.name if each.name in names else names[k]
        if each.number_attr or each.type_list_attr:
            found = operation.get_attr(each.number_attr or each.type_list_attr)
            count = found if each.number_attr else len(found)
            arguments[name], left = left[:count], left[count:]
        else:
            arguments[name], left = left[0], left[1:]
    attributes = (each.name for each in operation.op_def.attr if each.name not in inferred)
    arguments |= {name: operation.get_attr(name) for name in attributes}
    try:
        with tf.init_scope(), tf.device("CPU:0"):
            return [np.asarray(tensor) for tensor in tf.nest.flatten(run(**arguments))]
    except (TypeError, ValueError, tf.errors.OpError):
        return None
