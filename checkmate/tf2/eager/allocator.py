"""TensorFlow's allocator as the accountant of the policy, and its kernels as what the policy
decides about."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from checkmate.dtr.storage import Call, Storage, Tensor
from checkmate.tf2.eager import private_api
from checkmate.tf2.eager.calls import EagerCall


class Allocator:
    """The backend of the policy: runs calls again, lets values go, and says what is in use.

    Args:
      counts: Whether the allocator of `device` says what it gives out; without a budget nobody
        asks.

    Attributes:
      peak_bytes: The most bytes in use since the beginning, as of the last look.
      recent_peak: The same, since it was last forgotten.
      refused: What to do with (a call, the error, how to run it again) when it has no room in one
        piece.
    """

    refused: Callable[[EagerCall, Exception, Callable[[], Any]], Any]

    def __init__(self, device: str, counts: bool):
        self.device, self._counts = device, counts
        self.peak_bytes = self.recent_peak = 0

    @property
    def in_use(self) -> int:
        """Bytes in use now; 0 where nobody counts."""
        return self._ask()["current"] if self._counts else 0

    def _ask(self) -> dict[str, int]:
        info = private_api.memory_info(self.device)
        if info["peak"] > self.recent_peak:
            self.recent_peak = info["peak"]
            self.peak_bytes = max(self.peak_bytes, self.recent_peak)
        return info

    def forget_peak(self) -> None:
        """Has the allocator count its peak afresh."""
        self._ask()
        tf.config.experimental.reset_memory_stats(self.device)
        self.recent_peak = 0

    def compute(self, call: Call, duplicates: Sequence[Tensor]) -> None:
        """Runs a call again and takes over the outputs that are not there."""
        assert isinstance(call, EagerCall)
        try:
            made = call.run_again()
        except tf.errors.ResourceExhaustedError as error:
            made = self.refused(call, error, call.run_again)
        for cell in call.outputs:
            if not cell.defined:
                cell.value = made[cell.index]

    def free(self, storage: Storage) -> None:
        """Lets the values go."""
        for cell in storage.tensors:
            cell.value = None

    def watched(self, run: Callable[[], Any]) -> tuple[Any, int, int]:
        """Runs something and returns (its result, the most bytes it had in use above what was
        before, those it has in use afterwards)."""
        before = self._ask()["current"]
        tf.config.experimental.reset_memory_stats(self.device)
        result = run()
        after = self._ask()
        return result, after["peak"] - before, after["current"] - before
