"""tiled(): a step whose largest ops run in tiles along an axis, within one function.

Each op of a region is copied once for each tile. A plan sees ordinary ops: it keeps the values of a
tile for the backward pass or computes them again, as it pays.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from checkmate.tf2.axes.labels import Draw, Node
from checkmate.tf2.axes.regions import Region, reads_part
from checkmate.tf2.graph.graph_writer import ADD, RESHAPE, GraphCopy, GraphWriter
from checkmate.tf2.graph.known_functions import Function
from checkmate.tf2.graph.operations import is_argument, is_constant, source_of
from checkmate.tf2.graph.sizes import known_bytes
from checkmate.tf2.graph.trace import TracedStep, rewritten
from checkmate.tf2.ops.relation import Kind, Relation, part_shape
from checkmate.tf2.rewrites.slice_writer import SliceWriter

SHARE_IN_PLACE = 1 / 8
"""A value that is put together and has at least this share of the bytes allowed is written part by
part into its memory."""

MOST_AXES = 7
"""TensorFlow's `Slice` takes tensors of no more."""

SMALL = 1 / 16
"""An output is small next to another of the same op up to this share."""


def tiled(
    traced: TracedStep, function: Function, regions: Sequence[Region], most_bytes: int
) -> TracedStep:
    """The step with the ops of regions in tiles.

    Args:
      function: What is known of the values of `traced.flat`.
      most_bytes: A value of about this size is put together in memory of its own.
    """
    copy = TiledCopy(traced, function, regions, most_bytes)
    flat = copy.writer.function_like(traced.flat, copy.write())
    return rewritten(traced, flat, copy.origins())


class TiledCopy(GraphCopy):
    """Copies the ops of a step; those of regions tile by tile, when the first value of a region is
    read."""

    def __init__(
        self, traced: TracedStep, function: Function, regions: Sequence[Region], most_bytes: int
    ):
        super().__init__(traced.flat)
        self._traced, self._most_bytes = traced, most_bytes
        self._region = {operation: region for region in regions for operation in region.nodes}
        self._place = {operation: k for k, operation in enumerate(traced.order)}
        self._known, constants = function.value, Constants(self.writer)
        self._wholes: dict[Node, list[Whole]] = {}
        new = partial(Tile, self, traced.flat, function.value, constants)
        self._tiles = {
            region: [new(region.tiles, k) for k in range(region.tiles)] for region in regions
        }

    def write(self) -> list[str]:
        """Writes all ops and returns the names of the outputs."""
        groups = {group[0]: group for group in self._traced.groups}
        for operation in self._traced.order:
            # First what a group needs: its ops may run within one kernel, which no op can divide.
            group = [o for o in groups.get(operation, ()) if o not in self._region]
            for tensor in (t for each in group for t in each.inputs):
                if source_of(tensor).op in self._region:
                    self.whole(tensor)
            # A constant of which tiles read parts alone is not needed.
            alone = is_argument(operation) or is_constant(operation)
            if not alone and operation not in self._region:
                self._copy_once(operation)
        return [self.whole(tensor) for tensor in self._traced.flat.outputs]

    def origins(self) -> dict[str, str]:
        like = self.writer.like.items()
        return {name: each.name for name, each in like if isinstance(each, tf.Operation)}

    def whole(self, tensor: tf.Tensor) -> str:
        """The name of a value as a whole."""
        if tensor.ref() not in self.names:
            operation = tensor.op
            if operation in self._region:
                self.names[tensor.ref()] = self._joined(tensor)
            else:
                self._copy_once(operation)
        return self.names[tensor.ref()]

    def is_split(self, operation: tf.Operation) -> bool:
        return operation in self._region

    def after(self, operation: tf.Operation) -> Sequence[str]:
        """The names of the copies of an op that others wait for."""
        if operation in self._region:
            self._run(operation)
            tiles = self._tiles[self._region[operation]]
            return [name for tile in tiles for name in tile.copies_of(operation)]
        if operation not in self.copies and not is_argument(operation):
            self._copy_once(operation)
        return self.copies.get(operation, ())

    def before(self, operation: tf.Operation) -> list[str]:
        return [name for each in operation.control_inputs for name in self.after(each)]

    def _copy_once(self, operation: tf.Operation) -> None:
        if operation not in self.copies:
            self.copy(operation, [self.whole(tensor) for tensor in operation.inputs])

    def _run(self, operation: tf.Operation) -> None:
        """Writes an op's copies, tile by tile, with all of its region and pass that can run."""
        region = self._region[operation]
        tiles = self._tiles[region]
        if tiles[0].copies_of(operation):
            return
        wanted = self._ancestors(operation)
        for each in sorted(wanted, key=self._place.__getitem__):
            self._prepare(region.nodes[each])
        forward = operation.name in self._traced.forward
        for each in sorted(region.nodes, key=self._place.__getitem__):
            same = (each.name in self._traced.forward) == forward
            if each not in wanted and same and self._is_ready(region.nodes[each], wanted):
                wanted.add(each)
        nodes = [region.nodes[o] for o in sorted(wanted, key=self._place.__getitem__)]
        for tile in tiles:
            for node in [each for each in nodes if not tile.copies_of(each.operation)]:
                tile.write([node], ())
                tile.take_apart(node)
                for whole in self._wholes_of(node):
                    whole.add(tile.made(node, whole.tensor))

    def _wholes_of(self, node: Node) -> list[Whole]:
        """The outputs of an op that are read as a whole. Their parts are put together tile by tile,
        so that they need not be in memory together."""
        if node not in self._wholes:
            region, results = self._region[node.operation], self._traced.flat.outputs
            self._wholes[node] = [
                Whole(self.writer, tensor, relation, region.tiles, self._is_large(tensor))
                for tensor, relation in zip(
                    node.operation.outputs, node.answer.outputs, strict=True
                )
                if any(tensor is each for each in results)
                or not all(reads_part(region, reader, tensor) for reader in tensor.consumers())
            ]
        return self._wholes[node]

    def _is_large(self, tensor: tf.Tensor) -> bool:
        return known_bytes([tensor]) >= SHARE_IN_PLACE * self._most_bytes

    def _prepare(self, node: Node) -> None:
        """Writes what a copy reads, or waits for, that is the same for all tiles."""
        for use in node.inputs:
            if use.node is None and self._known(use.tensor) is None:
                self.whole(use.tensor)
        for before in node.operation.control_inputs:
            if before not in self._region:
                self.after(before)

    def _ancestors(self, operation: tf.Operation) -> set[tf.Operation]:
        """The ops of its region that an op's copies read, and itself, as far as not written."""
        region = self._region[operation]
        found: set[tf.Operation] = set()
        pending = [operation]
        while pending:
            each = pending.pop()
            if each not in found and not self._tiles[region][0].copies_of(each):
                found.add(each)
                pending += [use.node.operation for use in region.nodes[each].inputs if use.node]
        return found

    def _is_ready(self, node: Node, wanted: set[tf.Operation]) -> bool:
        written = self._tiles[self._region[node.operation]][0].copies_of
        before = [o for o in node.operation.control_inputs if o not in self._region]
        return all(is_argument(o) or o in self.copies for o in before) and all(
            use.node.operation in wanted or bool(written(use.node.operation))
            if use.node
            else use.tensor.ref() in self.names or self._known(use.tensor) is not None
            for use in node.inputs
        )

    def _joined(self, tensor: tf.Tensor) -> str:
        operation = tensor.op
        self._run(operation)
        wholes = self._wholes_of(self._region[operation].nodes[operation])
        return next(each.name() for each in wholes if each.tensor is tensor)


class Whole:
    """A value that tiles make in parts, as a whole; with `in_place` each part is written into the
    memory of the whole."""

    def __init__(
        self,
        writer: GraphWriter,
        tensor: tf.Tensor,
        relation: Relation,
        tiles: int,
        in_place: bool,
    ):
        self.tensor, self._relation, self._writer = tensor, relation, writer
        self._name = f"{tensor.op.name}/joined"
        self._is_cut = relation.kind is Kind.BATCHED
        self._in_place = in_place and self._is_cut
        self._like, self._axis = tensor, relation.axis
        if self._is_cut and _needs_blocks(tensor, relation):
            self._like, self._axis = _in_blocks(tensor, relation), 2
        self._width = self._like.shape[self._axis] // tiles if self._is_cut else 0
        self._parts: list[str] = []
        self._count = 0

    def add(self, part: str) -> None:
        """Adds the part of the next tile."""
        writer, like, dtype, name = self._writer, self._like, self.tensor.dtype, self._name
        k, self._count = self._count, self._count + 1
        if like is not self.tensor:
            shape = [*like.shape[:2], self._width, like.shape[3]]
            part = _reshaped(writer, part, shape, dtype, name)
        if self._relation.kind is Kind.SUMMED and self._parts:
            self._parts = [writer.add(ADD, [*self._parts, part], dtype, name=name)]
        elif self._in_place:
            whole = self._parts[0] if self._parts else writer.allocate(like, name=name, zeros=True)
            axis, width = self._axis, self._width
            self._parts = [writer.update(whole, part, like, axis, k * width, width, name)]
        else:
            self._parts.append(part)

    def name(self) -> str:
        """The name of the whole, once all parts are there."""
        writer, whole, dtype = self._writer, self._parts[0], self.tensor.dtype
        if self._is_cut and not self._in_place:
            whole = writer.concat(self._parts, self._axis, dtype, name=self._name)
        if self._like is self.tensor:
            return whole
        return _reshaped(writer, whole, self.tensor.shape, dtype, self._name)


def _needs_blocks(tensor: tf.Tensor, relation: Relation) -> bool:
    """True for an axis that is two meanwhile, and for more axes than kernels cut."""
    return relation.blocks > 1 or tensor.shape.rank > MOST_AXES


def _in_blocks(tensor: tf.Tensor, relation: Relation) -> tf.TensorSpec:
    """A value as one of four axes: the tiles lie along each of the blocks."""
    shape, axis, blocks = tensor.shape.as_list(), relation.axis, relation.blocks
    before, after = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    return tf.TensorSpec([before, blocks, shape[axis] // blocks, after], tensor.dtype)


def _reshaped(writer: GraphWriter, value: str, shape: Any, dtype: tf.DType, name: str) -> str:
    return writer.add(RESHAPE, [value, writer.constant(list(shape), tf.int32)], dtype, name=name)


class Constants:
    """Constants and parts of them, written once each. TensorFlow would compute parts before the
    step and keep them all; tiles often have the same, such as the mask of each head."""

    def __init__(self, writer: GraphWriter):
        self._writer = writer
        self._names: dict[Any, str] = {}

    def parts(
        self, known: np.ndarray, axis: int, firsts: Sequence[int], width: int, dtype: tf.DType
    ) -> str:
        """The name of parts of a constant along an axis, joined."""
        before = (slice(None),) * axis
        parts = [known[(*before, slice(first, first + width))] for first in firsts]
        return self.of(np.concatenate(parts, axis), dtype)

    def of(self, value: np.ndarray, dtype: tf.DType) -> str:
        """The name of a constant."""
        key = (value.shape, dtype, hashlib.sha256(value.tobytes()).digest())
        if key not in self._names:
            self._names[key] = self._writer.constant(value, dtype)
        return self._names[key]


class Around(Protocol):
    """The writer of what is around tiles."""

    writer: GraphWriter

    def whole(self, tensor: tf.Tensor) -> str: ...

    def after(self, operation: tf.Operation) -> Sequence[str]: ...

    def is_split(self, operation: tf.Operation) -> bool: ...


class Tile(SliceWriter):
    """Writes the copies of tile `k` of `tiles`."""

    def __init__(
        self, around: Around, graph: Any, known: Any, constants: Constants, tiles: int, k: int
    ):
        super().__init__(graph, known, (tiles, 1, 1))
        self.writer, self._around, self._k = around.writer, around, k
        self._parts_of = constants
        self._cut: dict[tuple[Any, Relation], str] = {}

    def copies_of(self, operation: tf.Operation) -> list[str]:
        return self._copies.get(operation, [])

    def made(self, node: Node, tensor: tf.Tensor) -> str:
        return self._made[node][tensor.value_index]

    def take_apart(self, node: Node) -> None:
        """Copies small outputs of an op that has a larger one, such as the losses that are computed
        with the gradient of logits: who reads them need not have the others in memory."""
        outputs = node.operation.outputs
        largest = max(known_bytes([tensor]) for tensor in outputs)
        for k, tensor in enumerate(outputs):
            if tensor.consumers() and known_bytes([tensor]) <= SMALL * largest:
                read, name = self._made[node], f"{self._name(node.operation)}/output_{k}"
                read[k] = self.writer.add("Snapshot", [read[k]], tensor.dtype, name=name)

    def _name(self, operation: tf.Operation) -> str:
        return f"{operation.name}_tile{self._k}"

    def _after(self, operation: tf.Operation) -> Sequence[str]:
        # What is pure is waited for by those that read it.
        own = self.copies_of(operation)
        return own if self._around.is_split(operation) else self._around.after(operation)

    def _whole(self, tensor: tf.Tensor) -> str:
        return self._around.whole(tensor)

    def _part(self, tensor: tf.Tensor, relation: Relation) -> str:
        key = (tensor.ref(), relation)
        if key not in self._cut:
            self._cut[key] = self._cut_out(tensor, relation)
        return self._cut[key]

    def _cut_out(self, tensor: tf.Tensor, relation: Relation) -> str:
        writer, name, axis = self.writer, f"{tensor.op.name}_tile{self._k}", relation.axis
        width = tensor.shape[axis] // relation.blocks // self._examples
        if (known := self._known(tensor)) is not None:
            every = width * self._examples
            firsts = [k * every + self._k * width for k in range(relation.blocks)]
            return self._parts_of.parts(known, axis, firsts, width, tensor.dtype)
        whole = self._whole(tensor)
        if not _needs_blocks(tensor, relation):
            return writer.cut(whole, tensor, axis, self._k * width, width, name=name)
        like, dtype = _in_blocks(tensor, relation), tensor.dtype
        whole = _reshaped(writer, whole, like.shape, dtype, name)
        part = writer.cut(whole, like, 2, self._k * width, width, name=name)
        shape = part_shape(tensor.shape.as_list(), relation, self._examples, 1)
        return _reshaped(writer, part, shape, dtype, name)

    def _written(self, known: Any, dtype: tf.DType) -> str:
        return self._parts_of.of(known, dtype)

    def _first(self, places: int, dtype: tf.DType) -> str:
        return self.writer.constant(self._k * places, dtype)

    def _count(self, draw: Draw, dtype: tf.DType, run: int) -> tuple[str, str]:
        before = (run * self._examples + self._k) * draw.numbers
        count, rest = divmod(before, draw.group)
        return self.writer.constant([count, 0], dtype), self.writer.constant([rest], tf.int32)
