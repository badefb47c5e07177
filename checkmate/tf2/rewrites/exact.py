"""same_bits(): whether an op in tiles makes the very bits that the whole op does on this device.

Kernels choose how to compute by the shapes of what they read: a product of one matrix may round
otherwise than the same product among several, and the last few of many exponentials otherwise than
the rest. Rules do not tell that, so it is tried, on random numbers of the shapes in question.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import tensorflow as tf

from checkmate.tf2 import device as devices
from checkmate.tf2.axes.labels import Node
from checkmate.tf2.graph import grappler
from checkmate.tf2.graph.graph_writer import GraphWriter
from checkmate.tf2.graph.known_functions import Function
from checkmate.tf2.graph.operations import role_of
from checkmate.tf2.ops.relation import Kind, Relation
from checkmate.tf2.ops.rule import Role
from checkmate.tf2.rewrites.tiles import Constants, Tile

_FOUND: dict[str, bool] = {}


def same_bits(function: Function, node: Node, tiles: int) -> bool:
    """True for an op whose first tile is equal to that part of the whole in all bits, or which does
    not fit in memory as a whole."""
    operation = node.operation
    if role_of(operation) is not Role.KERNEL:
        return True
    definition = operation.node_def
    definition.name = ""
    del definition.input[:]
    shapes = [str(tensor.shape) for tensor in operation.inputs]
    cut = [str(relation) for relation in node.answer.inputs]
    device = devices.training_device()
    key = f"{device} {tiles} {shapes} {cut} {definition}"
    if key not in _FOUND:
        _FOUND[key] = _try(_Alone(function, node, tiles))
    return _FOUND[key]


class _Alone:
    """An op alone, whole and in tiles."""

    def __init__(self, function: Function, node: Node, tiles: int):
        self.writer, self._value = GraphWriter(), function.value
        self.given = {
            tensor.ref(): f"given_{k}:0"
            for k, tensor in enumerate(node.operation.inputs)
            if function.value(tensor) is None
        }
        operation = node.operation
        made = self.writer.copy(operation, [self.whole(tensor) for tensor in operation.inputs])
        alone = replace(node, inputs=tuple(use._replace(node=None) for use in node.inputs))
        tile = Tile(self, function.graph, self._value, Constants(self.writer), tiles, 0)
        tile.write([alone], ())
        self.pairs = [
            (self._part(f"{made}:{k}", tensor, relation, tiles), tile.made(alone, tensor))
            for k, (tensor, relation) in enumerate(
                zip(operation.outputs, node.answer.outputs, strict=False)
            )
        ]

    def _part(self, whole: str, tensor: tf.Tensor, relation: Relation, tiles: int) -> str:
        """The first tile's part of a value."""
        if relation.kind is not Kind.BATCHED:
            return whole
        width = tensor.shape[relation.axis] // tiles
        return self.writer.cut(whole, tensor, relation.axis, 0, width, name="part")

    def whole(self, tensor: tf.Tensor) -> str:
        known = self._value(tensor)
        return (
            self.given[tensor.ref()] if known is None else self.writer.constant(known, tensor.dtype)
        )

    def after(self, operation: tf.Operation) -> Sequence[str]:
        return ()

    def is_split(self, operation: tf.Operation) -> bool:
        return False


def _try(alone: _Alone) -> bool:
    tensors = [ref.deref() for ref in alone.given]
    specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors]

    def both(*given: tf.Tensor) -> list[tf.Tensor]:
        names = dict(zip(alone.given.values(), given, strict=True))
        found = alone.writer.import_here(names, [name for pair in alone.pairs for name in pair])
        return [_equal(*pair) for pair in zip(found[::2], found[1::2], strict=True)]

    try:
        with tf.init_scope(), tf.device(devices.training_device()):
            function = tf.function(both, autograph=False).get_concrete_function(*specs)
            return all(bool(each) for each in grappler.run(function, *map(_numbers, specs)))
    except tf.errors.ResourceExhaustedError:
        return True


def _equal(whole: tf.Tensor, part: tf.Tensor) -> tf.Tensor:
    are_none = (whole != whole) & (part != part)  # such as the logarithm of a number below 0
    return tf.reduce_all((whole == part) | are_none)


def _numbers(spec: tf.TensorSpec) -> tf.Tensor:
    if not spec.dtype.is_floating:
        return tf.zeros(spec.shape, spec.dtype)  # such as places
    numbers = tf.random.stateless_uniform(spec.shape, (0, 1), -1.0, 1.0)
    return tf.cast(numbers, spec.dtype)
