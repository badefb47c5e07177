"""What one op needs: memory, cost, and the shapes and types of its outputs."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from checkmate.tf2.eager import private_api


class Made:
    """What is known of an output of an op before the op runs. There is one object for each shape
    and type.

    Attributes:
      bytes: What the allocator hands out for it; 0 for what is no number.
      signature: Shape and number of the type, as `private_api.signature_of` a real tensor.
      on_tapes: The same, as tapes ask for it.
    """

    __slots__ = ("bytes", "dtype", "on_tapes", "shape", "signature")

    def __init__(self, count: int, shape: tuple[int, ...], dtype: tf.DType):
        self.bytes, self.shape, self.dtype = count, shape, dtype
        self.signature = (shape, dtype.as_datatype_enum)
        self.on_tapes = private_api.on_tapes(shape, dtype)


class Needs:
    """What one op type needs at certain input shapes.

    Attributes:
      cost: Seconds, by a roofline.
      least_bytes: Its outputs.
      bytes: Outputs and scratch memory: a guess on the high side until `measured`, then what the
        allocator reported.
      made: Its outputs, or None where their shapes are not known before the op runs.
      steady: They are the same whenever it runs.
      is_view: Its first output shares the memory of its first input.
      measured: It has run so often (`runs`) that the allocator's report of the last run counts.
    """

    __slots__ = ("_runs", "bytes", "cost", "is_view", "least_bytes", "made", "measured", "steady")

    def __init__(
        self,
        cost: float,
        least_bytes: int,
        guess_bytes: int,
        made: list[Made] | None = None,
        *,
        steady: bool = False,
        is_view: bool = False,
        runs: int = 1,
    ):
        self.cost, self.least_bytes, self.bytes, self.made = cost, least_bytes, guess_bytes, made
        self.steady, self.is_view = steady or made is not None, is_view
        self.measured, self._runs = False, runs

    def learn(self, used_bytes: int, held_bytes: int) -> None:
        """The allocator reported a peak of `used_bytes`, and `held_bytes` in use after the op: its
        outputs, and what the holes they were given are larger."""
        self.bytes = (
            used_bytes
            if self.made is None
            else self.least_bytes + max(0, used_bytes - max(held_bytes, self.least_bytes))
        )
        self._runs -= 1
        self.measured = self._runs <= 0

    def raise_to(self, used_bytes: int) -> None:
        """The op took more than was known."""
        self.bytes = max(self.bytes, used_bytes)


Signature = tuple[Any, ...]
"""Shape and type of an input, and of a variable which one it is."""
