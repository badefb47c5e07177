"""same_bits(): whether an op in tiles makes the very bits that the whole op does on this device.

Kernels choose how to compute by the shapes of what they read: a product of one matrix may round
otherwise than the same product among several, and the last few of many exponentials otherwise than
the rest. Rules do not tell that, so it is tried, on random numbers of the shapes in question.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import tensorflow as tf

from checkmate.tf2 import device as devices
from checkmate.tf2.axes.labels import Node, Use
from checkmate.tf2.graph import grappler
from checkmate.tf2.graph.graph_writer import GraphWriter
from checkmate.tf2.graph.known_functions import Function
from checkmate.tf2.graph.operations import role_of
from checkmate.tf2.ops.rule import Role
from checkmate.tf2.rewrites.tiles import Constants, Tile

ENOUGH, MOST_TRIES = 2**22, 64
"""Numbers of which so many are enough, and tries: kernels round otherwise at a few places alone,
such as the last rows, and there not all numbers."""

DRAWN = 1_000_003
"""So many numbers are drawn, and repeated for larger values: no length of an axis divides it. Each
value begins at another of them."""

_FOUND: dict[str, bool] = {}


def same_bits(function: Function, node: Node, tiles: int) -> bool:
    """True for an op whose tiles are equal to those parts of the whole in all bits, or which does
    not fit in memory as a whole."""
    operation = node.operation
    if role_of(operation) is not Role.KERNEL:
        return True
    definition = operation.node_def
    definition.name = ""
    del definition.input[:]
    inputs = [f"{tensor.shape} {function.value(tensor)}" for tensor in operation.inputs]
    relations = [str(each) for each in (*node.answer.inputs, *node.answer.outputs)]
    key = f"{devices.training_device()} {tiles} {inputs} {relations} {definition}"
    if key not in _FOUND:
        _FOUND[key] = _try(_Alone(function, node, tiles))
    return _FOUND[key]


class _Alone:
    """An op alone, whole and in tiles: the first and the last, as kernels treat what is at an end
    otherwise."""

    def __init__(self, function: Function, node: Node, tiles: int):
        self.writer, self._value = GraphWriter(), function.value
        operation = node.operation
        tensors = (*operation.inputs, *operation.outputs)
        self.numbers = max((tensor.shape.num_elements() or 0 for tensor in tensors), default=0)
        self.given = {
            tensor.ref(): f"given_{k}:0"
            for k, tensor in enumerate(operation.inputs)
            if function.value(tensor) is None
        }
        made = self.writer.copy(operation, [self.whole(tensor) for tensor in operation.inputs])
        self._made = {tensor.ref(): f"{made}:{k}" for k, tensor in enumerate(operation.outputs)}
        alone = replace(node, inputs=tuple(use._replace(node=None) for use in node.inputs))
        outputs = list(zip(operation.outputs, node.answer.outputs, strict=False))
        constants = Constants(self.writer)
        self.pairs: list[tuple[str, str]] = []
        for k in (0,) if node.answer.shifted else (0, tiles - 1):
            tile = Tile(self, function.graph, self._value, constants, tiles, k)
            parts = tile.write([alone], [Use(*output, None) for output in outputs])
            self.pairs += zip(parts, [tile.made(alone, each) for each, _ in outputs], strict=True)

    def whole(self, tensor: tf.Tensor) -> str:
        known = self._value(tensor)
        if known is not None:
            return self.writer.constant(known, tensor.dtype)
        return self.given.get(tensor.ref()) or self._made[tensor.ref()]

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
            tries = (
                grappler.run(function, *[_numbers(spec, (k, t)) for k, spec in enumerate(specs)])
                for t in range(min(MOST_TRIES, ENOUGH // max(alone.numbers, 1) + 1))
            )
            return all(bool(each) for found in tries for each in found)
    except tf.errors.ResourceExhaustedError:
        return True
    except tf.errors.OpError:  # such as of a matrix that must be symmetric
        return False


def _equal(whole: tf.Tensor, part: tf.Tensor) -> tf.Tensor:
    are_none = (whole != whole) & (part != part)  # such as the logarithm of a number below 0
    return tf.reduce_all((whole == part) | are_none)


def _numbers(spec: tf.TensorSpec, seed: tuple[int, int]) -> tf.Tensor:
    """Numbers of which sums and products are rounded, others for each input."""
    if spec.dtype.is_complex:
        real = tf.TensorSpec(spec.shape, spec.dtype.real_dtype)
        return tf.complex(_numbers(real, seed), _numbers(real, (~seed[0], seed[1])))
    if not spec.dtype.is_floating:
        return tf.zeros(spec.shape, spec.dtype)  # such as places
    first = hash(seed) % DRAWN
    size = spec.shape.num_elements()
    found = tf.constant(_drawn()[first : first + min(size, DRAWN)], spec.dtype)
    return tf.reshape(tf.tile(found, [-(-size // DRAWN)])[:size], spec.shape)


@cache
def _drawn() -> np.ndarray:
    return np.tile(np.random.default_rng(0).standard_normal(DRAWN, np.float32), 2)
