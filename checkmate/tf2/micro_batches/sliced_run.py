"""SlicedRun: runs a planned step in slices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from checkmate.tf2.execution.replay import Replayed
from checkmate.tf2.execution.results import OutputBuffers
from checkmate.tf2.micro_batches.pieces import Pieces
from checkmate.tf2.micro_batches.slices import Slices


class SlicedRun:
    """Runs a step on a batch, flattened, slice after slice; see `micro_batches.parts`."""

    def __init__(
        self,
        slices: Slices,
        before: Callable[..., Any],
        each: Mapping[int, Callable[..., Any]],
        after: Callable[..., Any],
        pieces: Pieces,
    ):
        self._slices, self._before, self._each, self._after = slices, before, each, after
        self.pieces = pieces

    def __call__(self, *flat: tf.Tensor) -> Any:
        early = self._before(*flat)
        for first, size in self._slices:
            self._each[size](tf.constant(first), *flat, *early)
        return self._after(*flat, *early)

    def one_slice(self, *flat: tf.Tensor) -> None:
        """Runs the first slice alone, with what comes before it."""
        early = self._before(*flat)
        first, size = next(iter(self._slices))
        self._each[size](tf.constant(first), *flat, *early)

    @property
    def buffers(self) -> OutputBuffers | None:
        return self._after.buffers if isinstance(self._after, Replayed) else None
