"""tiled(): a step whose largest ops run in tiles along an axis, within one function.

Each op of a region is copied once for each tile. A plan sees ordinary ops: it keeps the values of a
tile for the backward pass or computes them again, as it pays.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from checkmate.tf2.axes.labels import Draw, Node
from checkmate.tf2.axes.regions import Region, regions_of
from checkmate.tf2.graph.graph_writer import ADD, RESHAPE, GraphCopy
from checkmate.tf2.graph.known_functions import Function
from checkmate.tf2.graph.operations import is_argument
from checkmate.tf2.graph.sizes import known_bytes
from checkmate.tf2.graph.trace import TracedStep, rewritten
from checkmate.tf2.ops.relation import Kind, Relation
from checkmate.tf2.rewrites.slice_writer import SliceWriter

SHARE_IN_PLACE = 1 / 8
"""A value that is put together and has at least this share of the bytes allowed is written part by
part into its memory."""


def tiled(
    traced: TracedStep, function: Function, most_bytes: int, *, sums: bool = False
) -> TracedStep | None:
    """The step with ops that read and make more than `most_bytes` in tiles, as far as rules tell
    how; None where they do of none.

    Args:
      function: What is known of the values of `traced.flat`.
      sums: Whether values may be added up over tiles, which gives other last bits.
    """
    regions = regions_of(traced, function, most_bytes, sums=sums)
    if not regions:
        return None
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
        self._constants: dict[Any, str] = {}
        new = partial(_Tile, self, traced.flat, function.value)
        self._tiles = {
            region: [new(region.tiles, k) for k in range(region.tiles)] for region in regions
        }

    def write(self) -> list[str]:
        """Writes all ops and returns the names of the outputs."""
        for operation in self._traced.order:
            if not is_argument(operation) and operation not in self._region:
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

    def constant(
        self, known: np.ndarray, axis: int, firsts: Sequence[int], width: int, dtype: tf.DType
    ) -> str:
        """The name of parts of a constant, joined. TensorFlow would compute each part before the
        step and keep them all; tiles often have the same, such as the mask of each head."""
        parts = [known.take(range(first, first + width), axis) for first in firsts]
        value = np.concatenate(parts, axis)
        key = (value.shape, dtype, hashlib.sha256(value.tobytes()).digest())
        if key not in self._constants:
            self._constants[key] = self.writer.constant(value, dtype)
        return self._constants[key]

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
            tile.write([node for node in nodes if not tile.copies_of(node.operation)], ())

    def _prepare(self, node: Node) -> None:
        """Writes what a copy reads, or waits for, that is the same for all tiles."""
        for use in node.inputs:
            if use.node is None:
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
            else use.tensor.ref() in self.names
            for use in node.inputs
        )

    def _joined(self, tensor: tf.Tensor) -> str:
        operation, writer = tensor.op, self.writer
        self._run(operation)
        region = self._region[operation]
        relation = region.nodes[operation].answer.outputs[tensor.value_index]
        node = region.nodes[operation]
        parts = [tile.made(node, tensor) for tile in self._tiles[region]]
        name = f"{operation.name}/joined"
        if relation.kind is Kind.SUMMED:
            total = parts[0]
            for part in parts[1:]:
                total = writer.add(ADD, [total, part], tensor.dtype, name=name)
            return total
        if relation.kind is not Kind.BATCHED:
            return parts[0]
        if relation.blocks > 1:
            return self._in_blocks(tensor, relation, parts)
        if known_bytes([tensor]) < SHARE_IN_PLACE * self._most_bytes:
            return writer.concat(parts, relation.axis, tensor.dtype, name=name)
        value, shape = writer.zeros(tensor, name=name), tensor.shape.as_list()
        width = shape[relation.axis] // region.tiles
        for k, part in enumerate(parts):
            value = writer.update(value, part, tensor, relation.axis, k * width, width, name)
        return value

    def _in_blocks(self, tensor: tf.Tensor, relation: Relation, parts: list[str]) -> str:
        """Parts joined that are of each of the blocks of an axis, which is two axes meanwhile."""
        writer, dtype, name = self.writer, tensor.dtype, f"{tensor.op.name}/joined"
        shape, axis, blocks = tensor.shape.as_list(), relation.axis, relation.blocks
        width = shape[axis] // blocks // len(parts)
        split = writer.constant([*shape[:axis], blocks, width, *shape[axis + 1 :]], tf.int32)
        split_parts = [writer.add(RESHAPE, [part, split], dtype, name=name) for part in parts]
        joined = writer.concat(split_parts, axis + 1, dtype, name=name)
        return writer.add(RESHAPE, [joined, writer.constant(shape, tf.int32)], dtype, name=name)


class _Tile(SliceWriter):
    """Writes the copies of tile `k`."""

    def __init__(self, copy: TiledCopy, graph: Any, known: Any, tiles: int, k: int):
        super().__init__(graph, known, (tiles, 1, 1))
        self.writer, self._copy_of_step, self._k = copy.writer, copy, k
        self._cut: dict[tuple[Any, Relation], str] = {}

    def copies_of(self, operation: tf.Operation) -> list[str]:
        return self._copies.get(operation, [])

    def made(self, node: Node, tensor: tf.Tensor) -> str:
        return self._made[node][tensor.value_index]

    def _name(self, operation: tf.Operation) -> str:
        return f"{operation.name}_tile{self._k}"

    def _after(self, operation: tf.Operation) -> Sequence[str]:
        # What is pure is waited for by those that read it.
        own = self.copies_of(operation)
        return (
            own if self._copy_of_step.is_split(operation) else self._copy_of_step.after(operation)
        )

    def _whole(self, tensor: tf.Tensor) -> str:
        return self._copy_of_step.whole(tensor)

    def _part(self, tensor: tf.Tensor, relation: Relation) -> str:
        key = (tensor.ref(), relation)
        if key not in self._cut:
            self._cut[key] = self._cut_out(tensor, relation)
        return self._cut[key]

    def _cut_out(self, tensor: tf.Tensor, relation: Relation) -> str:
        writer, name, axis = self.writer, f"{tensor.op.name}_tile{self._k}", relation.axis
        block = tensor.shape[axis] // relation.blocks
        width = block // self._examples
        firsts = [k * block + self._k * width for k in range(relation.blocks)]
        if (known := self._known(tensor)) is not None:
            return self._copy_of_step.constant(known, axis, firsts, width, tensor.dtype)
        whole = self._whole(tensor)
        parts = [writer.cut(whole, tensor, axis, first, width, name=name) for first in firsts]
        return writer.concat(parts, axis, tensor.dtype, name=name) if parts[1:] else parts[0]

    def _first(self, places: int, dtype: tf.DType) -> str:
        return self.writer.constant(self._k * places, dtype)

    def _count(self, draw: Draw, dtype: tf.DType) -> tuple[str, str]:
        count, rest = divmod(self._k * draw.numbers, draw.group)
        return self.writer.constant([count, 0], dtype), self.writer.constant([rest], tf.int32)
