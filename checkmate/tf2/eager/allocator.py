"""TensorFlow's allocator and kernels as the backend of the policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from checkmate.dtr.storage import Call, Storage, Tensor
from checkmate.tf2.eager import private_api
from checkmate.tf2.eager.storage import Cell, EagerCall

REFUSALS = (private_api.NotOkStatusException, tf.errors.ResourceExhaustedError)
"""The types of error of an op that the allocator refused. Other errors have them, too."""


def is_refusal(error: BaseException) -> bool:
    """Whether an op failed because the allocator had no memory for it in one piece."""
    return (
        isinstance(error, tf.errors.ResourceExhaustedError)
        or getattr(error, "code", None) == tf.errors.RESOURCE_EXHAUSTED
    )


class Allocator:
    """Runs calls again, drops values, and reports the bytes in use.

    Args:
      counts: Whether to ask the allocator of `device`; not needed without a budget.

    Attributes:
      peak_bytes: The most bytes in use since the beginning, as of the last question.
      recent_peak: The same, since `forget_peak`.
    """

    def __init__(self, device: str, counts: bool):
        self.device, self._counts = device, counts
        self.managed_bytes = self.peak_bytes = self.recent_peak = 0

    @property
    def in_use(self) -> int:
        """Bytes in use now; 0 without a budget."""
        return self._ask()["current"] if self._counts else 0

    def _ask(self) -> dict[str, int]:
        info = private_api.memory_info(self.device)
        if info["peak"] > self.recent_peak:
            self.recent_peak = info["peak"]
            self.peak_bytes = max(self.peak_bytes, self.recent_peak)
        return info

    def forget_peak(self) -> None:
        self._ask()
        tf.config.experimental.reset_memory_stats(self.device)
        self.recent_peak = 0

    def compute(self, call: Call, duplicates: Sequence[Tensor]) -> None:
        """Runs a call again and keeps the outputs that are not in memory."""
        assert isinstance(call, EagerCall)
        values = call.run_again()
        for cell in call.outputs:
            if not cell.defined:
                cell.value = values[cell.index]
                self.managed_bytes += cell.bytes

    def free(self, storage: Storage) -> None:
        self.managed_bytes -= storage.bytes
        for cell in storage.tensors:
            assert isinstance(cell, Cell)
            cell.value = None

    def watched(self, run: Callable[[], Any], *, rehearse: bool = False) -> tuple[Any, int, int]:
        """Runs something and returns (its result, the peak while it ran and the bytes in use
        afterwards, both above the bytes in use before).

        Args:
          rehearse: Runs it once before, to no end: what the first run takes counts nowhere.
        """
        if rehearse:
            self._ask()
            run()
            tf.config.experimental.reset_memory_stats(self.device)
        before = self._ask()["current"]
        tf.config.experimental.reset_memory_stats(self.device)
        result = run()
        after = self._ask()
        return result, after["peak"] - before, after["current"] - before
