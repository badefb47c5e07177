"""How much memory an op needs before it runs, and what it costs: asked of TensorFlow's shape inference, then measured.

Eager TensorFlow says what an op made after it has run. A budget needs it before. The first time that an op type meets certain shapes, it is
put into a scratch graph, where TensorFlow infers its outputs; scratch memory is guessed. While it then runs, the allocator is watched, and
from the second time on its peak is known. Costs are a roofline's, not measured: the same program makes the same decisions in every run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from checkmate.tf2.eager import fence
from checkmate.tf2.eager.op_kinds import Recipe, flat
from checkmate.tf2.flat_graph import tensor_bytes
from checkmate.tf2.op_rules import NO_SCRATCH
from checkmate.tf2.profile import roofline_s

ALIGNMENT = 256
"""TensorFlow's allocators hand out multiples of so many bytes."""

_INT32 = tf.int32.as_datatype_enum
_SMALL = 16
"""Integer tensors of up to so many elements may be shapes and axes, which decide about sizes by value."""


def rounded(count: int) -> int:
    """`count` bytes as the allocator rounds it up."""
    return -(-count // ALIGNMENT) * ALIGNMENT


class Needs:
    """What one op type needs at certain input shapes.

    Attributes:
      cost: Seconds, by a roofline.
      least_bytes: Its outputs.
      bytes: Outputs and scratch memory: a guess on the high side until `measured`, then the most that the allocator said.
    """

    __slots__ = ("bytes", "cost", "least_bytes", "measured")

    def __init__(self, cost: float, least_bytes: int, guess_bytes: int):
        self.cost, self.least_bytes, self.bytes = cost, least_bytes, guess_bytes
        self.measured = False

    def learn(self, used_bytes: int) -> None:
        """The allocator said that it took `used_bytes`."""
        self.bytes = max(used_bytes, self.bytes) if self.measured else used_bytes
        self.measured = True


class NeedsTable:
    """The needs of all ops met so far, by type, shapes, types and the values of small integer inputs."""

    def __init__(self, device: str):
        self._device = device
        self._kind = device.split(":")[0]
        self._known: dict[Any, Needs] = {}

    def of(self, recipe: Recipe, arguments: Sequence[Any]) -> Needs:
        """The needs of running a recipe on these cells and real tensors."""
        key = (
            recipe.kind.name,
            recipe.lengths,
            *[_described(argument) if type(argument) is fence.EagerTensor else argument.signature for argument in arguments],
        )
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._asked(recipe, arguments)
        return found

    def of_opaque(self, op: str, values: Sequence[Any]) -> Needs:
        """The needs of a function, of which only its inputs are known before it first ran."""
        key = (op, *[(value._shape_tuple(), value.dtype) for value in values])
        if key not in self._known:
            self._known[key] = Needs(0.0, 0, 2 * sum(_bytes(value) for value in values))
        return self._known[key]

    def _asked(self, recipe: Recipe, arguments: Sequence[Any]) -> Needs:
        read = sum(_bytes(argument) for argument in arguments)
        try:
            operation = _scratch(recipe, arguments)
        except Exception:  # whatever a graph cannot express: the guess below is all that is lost
            return Needs(5e-6 + 3 * read / 8e9, 0, 2 * read)
        made = [tensor_bytes(tensor) for tensor in operation.outputs]
        outputs = sum(rounded(count if count is not None else read) for count in made)
        scratch = 0 if recipe.kind.name in NO_SCRATCH else read
        return Needs(roofline_s(operation, self._kind), outputs, outputs + scratch)


def _described(tensor: Any) -> Any:
    shape, value = tensor._shape_tuple(), None
    if tensor._datatype_enum() == _INT32:
        value = _shape_like(tensor, shape)
    return (shape, tensor._datatype_enum()) if value is None else (shape, _INT32, value.tobytes())


def _bytes(argument: Any) -> int:
    count = 1
    for size in argument._shape_tuple() if type(argument) is fence.EagerTensor else argument.shape:
        count *= size
    return rounded(count * max(1, argument.dtype.size))


def _shape_like(tensor: Any, shape: tuple[int, ...]) -> Any:
    """The value of a tensor that may be a shape or an axis, or None."""
    if tensor.dtype == tf.int32 and len(shape) <= 1 and (not shape or shape[0] <= _SMALL):
        return tensor.numpy()
    return None


def _scratch(recipe: Recipe, arguments: Sequence[Any]) -> tf.Operation:
    """The op in a graph of its own, with a placeholder for each input that is no shape."""
    definition = fence.op_def(recipe.kind.name)
    inferred = {name for names in recipe.kind.inputs for name in names}
    attrs = {name: value for name, value in zip(recipe.attrs[::2], recipe.attrs[1::2], strict=True) if name not in inferred}
    known = {attr.name for attr in definition.attr}
    with tf.Graph().as_default():
        rest = iter([_stand_in(argument) for argument in arguments])
        inputs = {
            argument.name: next(rest) if count is None else [next(rest) for _ in range(count)]
            for argument, count in zip(definition.input_arg, recipe.lengths, strict=True)
        }
        made = getattr(tf.raw_ops, recipe.kind.name)(**inputs, **{name: value for name, value in attrs.items() if name in known})
        first = made if isinstance(made, tf.Operation) else flat(list(made) if isinstance(made, tuple) else made)[0]
        return first if isinstance(first, tf.Operation) else first.op


def _stand_in(argument: Any) -> tf.Tensor:
    if type(argument) is fence.EagerTensor:
        value = _shape_like(argument, argument._shape_tuple())
        if value is not None:
            return tf.constant(value)
    return tf.compat.v1.placeholder(argument.dtype, argument.shape)
