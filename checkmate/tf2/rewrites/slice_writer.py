"""SliceWriter: the copies of a step's ops that run in a slice of the batch, written for slices of
one size."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from checkmate.tf2.axes.labels import Draw, Node, SliceBody, Use
from checkmate.tf2.graph.graph_writer import (
    ADD,
    MULTIPLY,
    RESHAPE,
    GraphWriter,
    names_of_inputs,
    reachable,
)
from checkmate.tf2.graph.operations import is_loop, reads_variable
from checkmate.tf2.ops.call import one_number
from checkmate.tf2.ops.relation import Kind, Relation, part_shape
from checkmate.tf2.ops.table import rule_of

_SHAPES = ("output_shapes", "_output_shapes")
_NO_SHAPE = (tf.variant, tf.resource)
_FIRST = "first_example:0"


FOLDED = 1024
"""A constant of one number and more elements is made where it is read: TensorFlow would keep it."""

OTHER_EXAMPLES = (
    "An op reads or adds to entries of other examples of the batch than those of its slice, by"
    " indices that are known when the step runs only. Train this step with micro_batches=1."
)


class SliceWriter:
    """Writes copies of ops for slices of `size` examples, which begin at multiples of `every`.

    What a slice reads of the whole batch's values, its own part or in full, has a name that
    `given` gives a value to. The arguments of a function within the step, which `gets_parts`, are
    the slice's own.
    """

    def __init__(
        self,
        graph: Any,
        known: Any,
        sizes: tuple[int, int, int],
        early: Sequence[tf.Tensor] = (),
        *,
        gets_parts: bool = False,
    ):
        self.writer = GraphWriter()
        self._graph, self._known, self._gets_parts = graph, known, gets_parts
        self._sizes = sizes
        self._examples, self._size, self._every = sizes
        self.reads_first = False
        self._names = names_of_inputs(graph)
        self._early = {tensor.ref(): f"early_{k}:0" for k, tensor in enumerate(early)}
        self._names |= self._early
        self._parts: dict[tuple[Any, Relation], tuple[str, tf.Tensor]] = {}
        self._constants: dict[tuple[Any, Relation | None], str] = {}
        self._firsts: dict[tuple[int, tf.DType], str] = {}
        self._counts: dict[tuple[int, int, tf.DType], tuple[str, str]] = {}
        self._made: dict[Node, list[str]] = {}
        self._copies: dict[tf.Operation, list[str]] = {}
        self._bodies: list[Any] = []

    def write(self, nodes: Iterable[Node], uses: Sequence[Use]) -> list[str]:
        """Writes the copies, in order, and returns the names of the values that are used."""
        for node in nodes:
            self._copy(node)
        return [self._read(use) for use in uses]

    def given(
        self, first: tf.Tensor | None, arguments: Sequence[tf.Tensor], early: Sequence[tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        """The values by their names, in the slice that begins with example `first`. `arguments` are
        those of the graph, captured ones last."""
        named = dict(zip(names_of_inputs(self._graph).values(), arguments, strict=True))
        named |= dict(zip(self._early.values(), early, strict=True))
        if first is None:
            return named
        named[_FIRST] = first
        for (_, relation), (name, tensor) in self._parts.items():
            source = self._names.get(tensor.ref())
            value = named[source] if source else tf.constant(self._known(tensor), tensor.dtype)
            named[name] = part_of(value, relation, first, self._examples, self._size)
        for (places, dtype), name in self._firsts.items():
            named[name] = tf.cast(first * places, dtype)
        for (numbers, group, dtype), (counts, rest) in self._counts.items():
            start = tf.cast(first, tf.int64) * numbers
            moved = tf.cast(start // group, dtype)
            named[counts] = tf.stack([moved, tf.zeros([], dtype)])
            named[rest] = tf.reshape(tf.cast(start % group, tf.int32), [1])
        return named

    def make(self, named: dict[str, tf.Tensor], outputs: Sequence[str]) -> list[tf.Tensor]:
        """Makes the ops in the graph that is being traced."""
        for body in self._bodies:
            body.add_to_graph(tf.compat.v1.get_default_graph())
        return self.writer.import_here(named, outputs)

    def _read(self, use: Use) -> str:
        if use.share:
            name = self._read(use._replace(share=False))
            return self._share(name, use.tensor.dtype)
        if use.node in self._made:
            return self._made[use.node][use.tensor.value_index]
        tensor, known = use.tensor, self._known(use.tensor)
        in_part = use.relation.kind is Kind.BATCHED
        if known is not None and (not in_part or one_number(known)):
            return self._constant(tensor, known, use.relation if in_part else None)
        if not in_part or (self._gets_parts and known is None):
            return self._whole(tensor)
        return self._part(tensor, use.relation)

    def _whole(self, tensor: tf.Tensor) -> str:
        """The name of a value that is the same for all slices."""
        return self._names[tensor.ref()]

    def _part(self, tensor: tf.Tensor, relation: Relation) -> str:
        """The name of the slice's part of such a value."""
        self.reads_first = True
        key = (tensor.ref(), relation)
        return self._parts.setdefault(key, (f"part_{len(self._parts)}:0", tensor))[0]

    def _first(self, places: int, dtype: tf.DType) -> str:
        """The name of the first of the slice's places, where each example has so many."""
        self.reads_first = True
        return self._firsts.setdefault((places, dtype), f"first_{len(self._firsts)}:0")

    def _count(self, draw: Draw, dtype: tf.DType, run: int) -> tuple[str, str]:
        """The names of the counts before the slice's random numbers, as they are added to the
        generator's, and of how many numbers of the next count are before them."""
        self.reads_first, k = True, len(self._counts)
        key = (draw.numbers, draw.group, dtype)
        return self._counts.setdefault(key, (f"counts_{k}:0", f"rest_{k}:0"))

    def _constant(self, tensor: tf.Tensor, known: Any, relation: Relation | None) -> str:
        key = (tensor.ref(), relation)
        if key not in self._constants:
            writer, shape = self.writer, list(known.shape)
            if relation:
                shape = part_shape(shape, relation, self._examples, self._size)
            if known.size > 1 and one_number(known):
                number = writer.constant(known.flat[0], tensor.dtype)
                if math.prod(shape) > FOLDED:
                    name = f"{tensor.op.name}/number"
                    number = writer.not_folded(number, tensor.dtype, name=name)
                read = [writer.constant(np.asarray(shape, np.int32), tf.int32), number]
                self._constants[key] = writer.add("Fill", read, tensor.dtype, name=tensor.op.name)
            else:
                self._constants[key] = self._written(known, tensor.dtype)
        return self._constants[key]

    def _written(self, known: Any, dtype: tf.DType) -> str:
        return self.writer.constant(known, dtype)

    def _copy(self, node: Node) -> None:
        operation, answer, writer = node.operation, node.answer, self.writer
        inputs = [self._read(use) for use in node.inputs]
        if all(not use.node and self._known(use.tensor) is not None for use in node.inputs):
            inputs = writer.held_back(operation, inputs)
        for k, entry in answer.scaled.items():
            value = np.array(self._known(operation.inputs[k]))
            value.flat[entry] = value.flat[entry] // self._examples * self._size
            inputs[k] = writer.constant(value, operation.inputs[k].dtype)
        after = [name for each in operation.control_inputs for name in self._after(each)]
        for k, places in answer.shifted.items():
            tensor, below = operation.inputs[k], places * self._size
            only = self._leading(tensor) if answer.leads else None
            inputs[k] = self._shifted(inputs[k], tensor.dtype, places, only)
            checked = inputs[k] if only is None else self._product(inputs[k], only, tensor.dtype)
            after.append(writer.require_below(checked, below, tensor, OTHER_EXAMPLES))
        if node.draw and node.draw.counter is not None:
            outputs = [self._drawn(node, inputs, after)]
        else:
            name = self._copied(node, inputs, after)
            outputs = [f"{name}:{k}" for k in range(len(operation.outputs))]
        if answer.average:
            outputs[0] = self._share(outputs[0], operation.outputs[0].dtype)
        self._made[node] = outputs

    def _name(self, operation: tf.Operation) -> str:
        return operation.name

    def _after(self, operation: tf.Operation) -> Sequence[str]:
        """The names of the copies of an op that others wait for."""
        return self._copies.get(operation, ())

    def _share(self, name: str, dtype: tf.DType) -> str:
        """The slice's share of a value, by its number of examples."""
        share = self.writer.constant(self._size / self._examples, dtype)
        return self.writer.add(MULTIPLY, [name, share], dtype, name="share")

    def _copied(self, node: Node, inputs: list[str], after: list[str]) -> str:
        operation, relations = node.operation, node.answer.outputs
        name = self.writer.copy(operation, inputs, after=after, name=self._name(operation))
        self._copies.setdefault(operation, []).append(name)
        definition = self.writer.nodes[-1]
        for attribute in _SHAPES:
            shapes = definition.attr[attribute].list.shape if attribute in definition.attr else ()
            for shape, relation in zip(shapes, relations, strict=False):
                self._scale(shape, relation)
        if relations and "shape" in definition.attr and definition.attr["shape"].HasField("shape"):
            self._scale(definition.attr["shape"].shape, relations[0])
        if operation.type == "Squeeze":  # an axis of one example is not squeezed
            axes = [k for k, size in enumerate(operation.inputs[0].shape) if size == 1]
            squeezed = definition.attr["squeeze_dims"].list
            if not squeezed.i:
                squeezed.i.extend(axes)
        if node.answer.bodies:
            self._replace_bodies(definition, node)
        return name

    def _scale(self, shape: Any, relation: Relation) -> None:
        if relation.kind is Kind.BATCHED and relation.axis < len(shape.dim):
            length = shape.dim[relation.axis]
            if length.size > 0:
                length.size = length.size // self._examples * self._size

    def _replace_bodies(self, definition: Any, node: Node) -> None:
        loops = is_loop(node.operation)
        functions, reads_first = functions_of(node.answer.bodies, self._sizes, loops=loops)
        self._bodies += functions
        names = [function.name for function in functions]
        if reads_first:
            self.reads_first = True
            self._pass_first(definition, node.operation)
        for attribute in rule_of(node.operation.type).functions:
            listed = definition.attr[attribute].list.func
            for each in listed or [definition.attr[attribute].func]:
                each.name = names.pop(0)

    def _pass_first(self, definition: Any, operation: tf.Operation) -> None:
        """Passes the number of the slice's first example to the functions that an op runs."""
        definition.input.insert(len(operation.inputs), _FIRST)
        if is_loop(operation):
            definition.attr["T"].list.type.append(tf.int32.as_datatype_enum)
            for attribute in _SHAPES:
                if attribute in definition.attr and definition.attr[attribute].list.shape:
                    definition.attr[attribute].list.shape.add()
        else:
            definition.attr["Tin"].list.type.append(tf.int32.as_datatype_enum)

    def _shifted(self, name: str, dtype: tf.DType, places: int, only: str | None) -> str:
        first = self._first(places, dtype)
        by = first if only is None else self._product(first, only, dtype)
        return self.writer.add("Sub", [name, by], dtype, name="place")

    def _leading(self, indices: tf.Tensor) -> str | None:
        """A mask of the first entry along the last axis; None if that is the only one."""
        depth = indices.shape[-1]
        return None if depth == 1 else self.writer.constant(np.eye(1, depth)[0], indices.dtype)

    def _product(self, first: str, second: str, dtype: tf.DType) -> str:
        return self.writer.add(MULTIPLY, [first, second], dtype, name="place")

    def _drawn(self, node: Node, inputs: list[str], after: list[str]) -> str:
        """The slice's part of random numbers, joined where it lies in several places."""
        draw, result, writer = node.draw, node.operation.outputs[0], self.writer
        assert draw is not None
        if draw.runs == 1 and not self._every * draw.numbers % draw.group:
            self._move(draw, node.operation, inputs, 0)
            return f"{self._copied(node, inputs, after)}:0"
        parts = [self._run(node, list(inputs), after, run) for run in range(draw.runs)]
        part = writer.concat(parts, 0, result.dtype, name="drawn")
        relation = node.answer.outputs[0]
        shape = part_shape(result.shape.as_list(), relation, self._examples, self._size)
        read = [part, writer.constant(shape, tf.int32)]
        return writer.add(RESHAPE, read, result.dtype, name="drawn")

    def _move(self, draw: Draw, operation: tf.Operation, inputs: list[str], run: int) -> str:
        """Has an op begin at the slice's count; returns how many numbers of that are before it."""
        k = draw.counter
        assert k is not None
        dtype = operation.inputs[k].dtype
        counts, rest = self._count(draw, dtype, run)
        inputs[k] = self.writer.add(ADD, [inputs[k], counts], dtype, name="counter")
        return rest

    def _run(self, node: Node, inputs: list[str], after: list[str], run: int) -> str:
        """The slice's numbers of one run, cut out of a few more where it begins within a count."""
        draw, operation, writer = node.draw, node.operation, self.writer
        assert draw is not None
        rest = self._move(draw, operation, inputs, run)
        needed, more = self._size * draw.numbers, draw.group - 1
        if not self._every * draw.numbers % draw.group:
            more = 0
        row = -(-(needed + more) // draw.group) * draw.group
        inputs[0] = writer.constant([row], operation.inputs[0].dtype)
        drawn = writer.copy(operation, inputs, after=after, name=self._name(operation))
        self._copies.setdefault(operation, []).append(drawn)
        if row == needed:
            return f"{drawn}:0"
        size = writer.constant([needed], tf.int32)
        dtype = operation.outputs[0].dtype
        part = writer.add("Slice", [f"{drawn}:0", rest, size], dtype, name="drawn")
        writer.nodes[-1].attr["Index"].type = tf.int32.as_datatype_enum
        return part

    def ensured(self, node: Node) -> None:
        """Tells the shape of a variable that a function reads, as its handle does not."""
        name, tensor = self._made[node][0], node.operation.outputs[0]
        self._made[node][0] = self.writer.wait((), name, tensor)


def functions_of(
    bodies: Sequence[Any], sizes: tuple[int, int, int], *, loops: bool = False
) -> tuple[list[Any], bool]:
    """The functions that an op runs in a slice, and whether their last argument is the number of
    the slice's first example. If it `loops`, the first of them returns that number, too."""
    writers = [_written(body, sizes) for body in bodies]
    reads_first = any(writer.reads_first for writer, _ in writers)
    functions = []
    for k, (body, (writer, names)) in enumerate(zip(bodies, writers, strict=True)):
        returned = [*names, _FIRST] if reads_first and loops and not k else names
        functions.append(_function(body, writer, returned, sizes, reads_first))
    return functions, reads_first


def _written(body: SliceBody, sizes: tuple[int, int, int]) -> tuple[SliceWriter, list[str]]:
    writer = SliceWriter(body.graph, body.value, sizes, gets_parts=True)
    for node in _needed(body):
        writer.write([node], ())
        if reads_variable(node.operation):
            writer.ensured(node)
    return writer, writer.write((), body.uses)


def _function(
    body: SliceBody,
    writer: SliceWriter,
    names: list[str],
    sizes: tuple[int, int, int],
    reads_first: bool,
) -> Any:
    examples, size, _ = sizes
    specs = []
    for tensor, relation in zip(body.graph.inputs, body.arguments, strict=True):
        shape = tensor.shape
        if shape.rank is not None and tensor.dtype not in _NO_SHAPE:
            lengths = [-1 if n is None else n for n in shape.as_list()]
            found = part_shape(lengths, relation, examples, size)
            shape = [None if n < 0 else n for n in found]
        specs.append(tf.TensorSpec(shape, tensor.dtype))

    def run(*arguments: tf.Tensor) -> list[tf.Tensor]:
        first = arguments[len(specs)] if reads_first else None
        return writer.make(writer.given(first, arguments[: len(specs)], ()), names)

    more = [tf.TensorSpec([], tf.int32)] if reads_first else []
    with tf.init_scope():
        return tf.function(run, autograph=False).get_concrete_function(*specs, *more)


def _needed(body: SliceBody) -> list[Node]:
    """The copies that a function needs, inputs first."""
    place = {operation: k for k, operation in enumerate(reachable(body.graph))}
    pending = [use.node for use in body.uses] + list(body.effects)
    found: set[Node] = set()
    while pending:
        node = pending.pop()
        if node is not None and node not in found:
            found.add(node)
            pending += [use.node for use in node.inputs]
    return sorted(found, key=lambda node: place[node.operation])


def part_of(
    value: tf.Tensor, relation: Relation, first: tf.Tensor, examples: int, size: int
) -> tf.Tensor:
    """The part of a value, which is BATCHED, that belongs to the slice of `size` examples which
    begins with example `first`."""
    shape = [-1 if size is None else size for size in value.shape.as_list()]
    block = shape[relation.axis] // relation.blocks
    unit = block // examples
    length = [*shape[: relation.axis], unit * size, *shape[relation.axis + 1 :]]
    parts = []
    for k in range(relation.blocks):
        begin: list[Any] = [0] * len(shape)
        begin[relation.axis] = k * block + first * unit
        parts.append(tf.slice(value, tf.stack(begin), length))
    return tf.concat(parts, relation.axis) if len(parts) > 1 else parts[0]
