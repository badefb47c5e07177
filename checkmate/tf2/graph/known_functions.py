"""Function: the graph of a step, or of a function that one of its loops, conditions or calls runs,
with what is known of its values before the step runs.

A function that captures the number of examples, as in `tf.zeros([n, 16])` in the body of a loop,
was traced without knowing it. Here it is a constant in the function, and TensorFlow infers the
shapes that follow from it: those of the function's values, of what a condition returns, and of the
entries that a loop's gradient takes from the lists of the loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import numpy as np
import tensorflow as tf

from checkmate.tf2.graph import bodies
from checkmate.tf2.graph.graph_writer import GraphCopy, GraphWriter, reachable, tell_shapes
from checkmate.tf2.graph.known import Known, known_values
from checkmate.tf2.graph.operations import has_bodies, is_argument, is_call, is_loop, source_of
from checkmate.tf2.ops.call import one_number
from checkmate.tf2.ops.rule import ListOp
from checkmate.tf2.ops.table import rule_of


class Entry(NamedTuple):
    """A kind of entries of a list: their shape and their value, each None if it is not known."""

    shape: tf.TensorShape | None
    value: Any


Entries = tuple[Entry, ...] | None
"""Of a list, an entry of every kind that it may have; None if that is not known."""

Lists = Mapping[Any, Entries]

_MOST_ROUNDS = 8


@dataclass(slots=True, eq=False)
class Function:
    """A graph and what is known of its values.

    Attributes:
      library: The graph that has the functions which its ops run.
      lists: What is known of the entries of arguments that are lists.
      order: Its ops, inputs first.
    """

    graph: Any
    library: Any
    lists: Lists = field(default_factory=dict)
    order: list[tf.Operation] = field(init=False)
    _known: Known = field(init=False)
    _inner: dict[tf.Operation, list[Function | None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.order = reachable(self.graph)
        self._known = known_values(self.order)

    def value(self, tensor: tf.Tensor) -> Any:
        """The value of a tensor, or None if it is not known."""
        found = self._known.get(tensor.op)
        return found[tensor.value_index] if found else None

    def inner(self, operation: tf.Operation) -> list[Function | None]:
        """The functions that an op runs; None for one that TensorFlow does not give."""
        if operation not in self._inner:
            self._inner[operation] = self._with_known(operation)
        return self._inner[operation]

    def _with_known(self, operation: tf.Operation) -> list[Function | None]:
        found = graphs_of(self.library, operation)
        if None in found:
            return [None] * len(found)
        branches = not is_loop(operation) and not is_call(operation)
        inputs = list(operation.inputs)[branches:]
        changed = set()
        if is_loop(operation):
            pairs = enumerate(zip(found[0].outputs, found[0].inputs, strict=True))
            changed = {k for k, (result, given) in pairs if _list_of(result) is not given}
        values = [None if k in changed else self.value(t) for k, t in enumerate(inputs)]
        shapes = [_better(t, given) for t, given in zip(inputs, found[0].inputs, strict=True)]
        made: list[Function | None] = []
        for number, body in enumerate(found):
            taken = (operation.inputs[0].ref(), number) if branches else None
            lists = [
                None if k in changed or t.dtype != tf.variant else self._entries(t, {}, taken)
                for k, t in enumerate(inputs)
            ]
            function = _with_constants(body, values, lists, shapes)
            while is_loop(operation) and not number and (left := _not_kept(function, shapes)):
                shapes = [None if k in left else shape for k, shape in enumerate(shapes)]
                function = _with_constants(body, values, lists, shapes)
            made.append(function)
        return made

    def _entries(
        self, tensor: tf.Tensor, given: Lists, taken: tuple[Any, int] | None = None
    ) -> Entries:
        """The entries of a list, by those of arguments that are `given` ones. Of conditions on the
        value that is `taken`, the branch of the number that is told runs."""
        tensor = source_of(tensor)
        operation, rule = tensor.op, rule_of(tensor.op.type)
        if is_argument(operation):
            return given.get(tensor.ref(), self.lists.get(tensor.ref()))
        if rule.list_op is ListOp.EMPTY:
            # What is read of a list of a given length, before it is written, is zeros.
            return (Entry(None, None),) if operation.type == "TensorListReserve" else ()
        if rule.list_entry is not None:
            added = operation.inputs[rule.list_entry]
            one = (Entry(added.shape, self.value(added)),)
            others = operation.inputs[:1] if len(operation.inputs) > 1 else ()
            if others and not rule.list_entry:
                return None  # an optional of several values
            return _united([*(self._entries(other, given, taken) for other in others), one])
        if operation.type == "TensorListPopBack" and tensor.value_index == 0:
            return self._entries(operation.inputs[0], given, taken)
        if not has_bodies(operation) or None in (inner := self.inner(operation)):
            return None
        if is_loop(operation):
            body, k = cast("Function", inner[0]), tensor.value_index
            before = self._entries(operation.inputs[k], given, taken)
            at_start = {body.graph.inputs[k].ref(): before}
            return _united([before, body._entries(body.graph.outputs[k], at_start)])
        if taken and operation.inputs[0].ref() == taken[0]:
            inner = [inner[taken[1]]]
        results = ((each, each.graph.outputs[tensor.value_index]) for each in inner if each)
        return _united([each._entries(result, {}) for each, result in results])

    def told(self) -> dict[Any, Entry]:
        """Tells, where TensorFlow does not infer it, the shapes of values that loops, conditions
        and calls return, and shapes and values of those taken from lists."""
        found: dict[Any, Entry] = {}
        for operation in self.order:
            for tensor in operation.outputs:
                if tensor.dtype in (tf.variant, tf.resource) or not tensor.consumers():
                    continue
                if self.value(tensor) is not None:
                    continue
                told = self._told(tensor)
                new = told.shape is not None and told.shape.is_fully_defined()
                if told.value is not None or (new and not tensor.shape.is_fully_defined()):
                    found[tensor.ref()] = told
        return found

    def _told(self, tensor: tf.Tensor) -> Entry:
        operation = tensor.op
        if rule_of(operation.type).list_op in (ListOp.ENTRY, ListOp.SAME):
            return _common(self._entries(operation.inputs[0], {}))
        inner = []
        if has_bodies(operation) or is_call(operation):
            inner = self.inner(operation)[: 1 if is_loop(operation) else None]
        results = [each.graph.outputs[tensor.value_index] for each in inner if each]
        if not results or len(results) < len(inner):
            return Entry(None, None)
        if is_loop(operation):  # it may take no turn
            results.append(operation.inputs[tensor.value_index])
        return _common(tuple(Entry(result.shape, None) for result in results))


def _list_of(tensor: tf.Tensor) -> tf.Tensor:
    """The list that an op takes entries from, or the value itself."""
    tensor = source_of(tensor)
    while tensor.op.type == "TensorListPopBack" and tensor.value_index == 0:
        tensor = source_of(tensor.op.inputs[0])
    return tensor


def _united(all_entries: Sequence[Entries]) -> Entries:
    if None in all_entries:
        return None
    return tuple(entry for entries in all_entries for entry in entries or ())


def _common(entries: Entries) -> Entry:
    """An entry in which that is known which holds for all of them."""
    shapes = [entry.shape for entry in entries or () if entry.shape is not None]
    values = [entry.value for entry in entries or ()]
    shape = shapes[0] if shapes and all(each == shapes[0] for each in shapes) else None
    known = bool(values) and all(each is not None for each in values)
    alike = known and all(np.array_equal(each, values[0]) for each in values)
    return Entry(shape, values[0] if alike else None)


def with_known_shapes(concrete: Any, library: Any) -> Any:
    """The same `ConcreteFunction` with what is known of the values that its loops, conditions and
    calls return; `library` is the graph that has their functions. One in which TensorFlow knows all
    their shapes stays as it is."""
    for _ in range(_MOST_ROUNDS):
        if not any(map(_is_unknown, concrete.graph.get_operations())):
            break
        function = Function(concrete.graph, library)
        told = function.told()
        if not told:
            break
        copy = _copied(function, GraphCopy(concrete), told)
        names = [copy.names[tensor.ref()] for tensor in concrete.outputs]
        try:
            concrete = copy.writer.function_like(concrete, names)
        except ValueError:  # TensorFlow infers another shape
            break
    return concrete


def graphs_of(library: Any, operation: tf.Operation) -> list[Any]:
    """The graphs of the functions that an op runs; None for one that TensorFlow does not give. A
    graph in the place of whose calls their bodies stand does not have the functions of these."""
    if is_call(operation):
        names = [operation.get_attr("f").name]
    else:
        names = [each.name for each in bodies.functions_of(operation, operation.node_def)]
    return [bodies.named(library, name) or bodies.of_process(name) for name in names]


def constant(writer: GraphWriter, value: np.ndarray, dtype: tf.DType, name: str = "number") -> str:
    """Writes an array; one of a single number without all of its elements."""
    if value.size <= 1 or not one_number(value):
        return writer.constant(value, dtype)
    read = [writer.constant(value.shape, tf.int32), writer.constant(value.flat[0], dtype)]
    return writer.add("Fill", read, dtype, name=name)


def _is_unknown(operation: tf.Operation) -> bool:
    return has_bodies(operation) and not all(
        tensor.shape.is_fully_defined() for tensor in operation.outputs
    )


def _better(given: tf.Tensor, argument: tf.Tensor) -> tf.TensorShape | None:
    """The shape that a function's argument is given, where it was traced without it."""
    if given.dtype in (tf.variant, tf.resource) or argument.shape.is_fully_defined():
        return None
    return given.shape if given.shape.is_fully_defined() else None


def _not_kept(body: Function, shapes: list[Any]) -> set[int]:
    """Indices of those shapes that the values of a loop have before a turn, and not after it."""
    pairs = enumerate(zip(body.graph.outputs, shapes, strict=True))
    return {k for k, (result, shape) in pairs if shape is not None and result.shape != shape}


def _with_constants(
    body: Any, values: list[Any], lists: list[Entries], shapes: list[Any]
) -> Function:
    """A function with constants in the place of the arguments that are known, and with arguments of
    these shapes, if not None."""
    function = _function(body, body, lists)
    known, told = values, function.told()
    for _ in range(_MOST_ROUNDS):
        if not told and all(each is None for each in (*known, *shapes)):
            break
        copy = GraphCopy(function.graph)
        for tensor, value in zip(function.graph.inputs, known, strict=True):
            if value is not None:
                copy.names[tensor.ref()] = constant(copy.writer, value, tensor.dtype)
        try:
            graph = _traced(function, _copied(function, copy, told), shapes)
        except ValueError:  # TensorFlow infers another shape
            break
        function, known = _function(graph, body, lists), [None] * len(values)
        shapes = known
        told = function.told()
    return function


def _function(graph: Any, library: Any, lists: list[Entries]) -> Function:
    references = [tensor.ref() for tensor in graph.inputs]
    return Function(graph, library, dict(zip(references, lists, strict=True)))


def _copied(function: Function, copy: GraphCopy, told: Mapping[Any, Entry]) -> GraphCopy:
    """Copies all ops with the shapes that they have, and with what is told of their values."""
    for operation in function.order:
        if is_argument(operation):
            continue
        copy.copy(operation, copy.inputs(operation))
        node = copy.writer.nodes[-1]
        tell_shapes(node, operation)
        for k, tensor in enumerate(operation.outputs):
            known = told.get(tensor.ref())
            if known and known.value is not None:
                number = constant(copy.writer, known.value, tensor.dtype)
                copy.names[tensor.ref()] = number
            elif known and known.shape is not None:
                node.attr["_output_shapes"].list.shape[k].CopyFrom(known.shape.as_proto())
    return copy


def _traced(function: Function, copy: GraphCopy, shapes: list[Any]) -> Any:
    inputs, outputs = function.graph.inputs, function.graph.outputs
    results = [copy.names[tensor.ref()] for tensor in outputs]
    arguments = [f"given_{k}:0" for k in range(len(inputs))]

    def run(*given: tf.Tensor) -> list[tf.Tensor]:
        return copy.writer.import_here(dict(zip(arguments, given, strict=True)), results)

    pairs = zip(inputs, shapes, strict=True)
    specs = [tf.TensorSpec(shape or tensor.shape, tensor.dtype) for tensor, shape in pairs]
    with tf.init_scope():
        return tf.function(run, autograph=False).get_concrete_function(*specs).graph
