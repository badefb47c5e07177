"""paired(): which op of the whole batch's graph and which op of a slice's graph are the same op of
the step.

The graph optimizer folds constants by their size and merges those that happen to be equal, so that
one op of a graph may have several partners in the other. From results and side effects backwards,
ops are partners if they have the same type and their readers are partners; where both values are
known before the step runs, what they are made of does not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import tensorflow as tf

from checkmate.errors import TraceError
from checkmate.tf2.axes.static_values import Known, known_values
from checkmate.tf2.graph.graph_writer import argument_tensors, captured_tensors, reachable
from checkmate.tf2.graph.operations import is_argument, is_stateful
from checkmate.tf2.ops.call import Pair
from checkmate.tf2.ops.table import rule_of

Arguments = dict[tf.Operation, tf.Operation]


class Graphs(NamedTuple):
    """Both graphs of a step, or of the body of a loop.

    Attributes:
      pairs: Their ops, inputs first.
      known_whole, known_part: The values that are known before the step runs.
      swapped: Pairs of a commutative op whose two inputs are in the other order for a slice.
    """

    whole: Any
    part: Any
    pairs: list[Pair]
    known_whole: Known
    known_part: Known
    swapped: set[Pair]

    def inputs(self, pair: Pair) -> list[tuple[tf.Tensor, tf.Tensor]]:
        """The inputs of a pair, as pairs, in the order of the whole's op."""
        others = list(pair.part.inputs)
        return list(
            zip(pair.whole.inputs, others[::-1] if pair in self.swapped else others, strict=True)
        )

    def place(self, pair: Pair, k: int) -> tuple[tf.Operation, int]:
        """The slice's op and the index of its input that is input k of the whole's op."""
        return pair.part, 1 - k if pair in self.swapped else k

    def known(self, whole: tf.Tensor, part: tf.Tensor) -> tuple[Any, Any] | None:
        """The values of two tensors, if both are known."""
        found = (_of(self.known_whole, whole), _of(self.known_part, part))
        return None if any(value is None for value in found) else found


def paired(whole: Any, part: Any, arguments: Arguments) -> Graphs:
    """Returns the pairs of ops of two graphs of functions.

    Args:
      arguments: The argument of a slice's graph that each argument of the whole's graph is.

    Raises:
      TraceError: The graphs differ in more than sizes.
    """
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
    """The pairs of tensors that are not both known."""
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
