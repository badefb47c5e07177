"""MemoryBudget: every kind of byte that a budget is for, each named once."""

from __future__ import annotations

import gc
import math
from dataclasses import dataclass

from checkmate.tf2 import device as devices
from checkmate.tf2.graph.trace import TracedStep
from checkmate.tf2.memory.pipeline import argument_bytes, bytes_ahead
from checkmate.tf2.memory.plain_step import free_or_none

SPARE_SHARE = 0.01
"""Share of the activation budget that a plan leaves unused, as a batch may come to lie where no
simulated one did."""

LOOP_SPARE_SHARE = 0.05
"""The same for a step with loops: TensorFlow gives the values within them back at any time. With
0.02, two of seven runs of an LSTM net were over budgets of 45 and 46 MiB that their confirming
steps had kept, by up to 1.5 %."""


UNCHECKED_RESERVE = 0.2
"""The same where the allocator does not report, so that nothing can be confirmed."""


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """What a budget is spent on, in bytes.

    Attributes:
      limit_bytes: The budget.
      resident_bytes: In use on the device before planning: variables, optimizer slots, the batch,
        other tensors of the process.
      next_batch_bytes: Left for batches that an input pipeline may make while a step runs.
      step_bytes: What the step itself has in memory all the time: results of two steps, constants,
        small values.
      spare_share: Share of the activation budget that a plan leaves unused.
      device_limit_bytes: What the device has for this process, all in all; None where that is not
        known.
      start_bytes: The allocator's count before planning, a batch included: `resident_bytes` where
        it counts everything.
    """

    limit_bytes: int
    resident_bytes: int
    next_batch_bytes: int
    step_bytes: int
    spare_share: float
    start_bytes: int
    device_limit_bytes: int | None = None

    @classmethod
    def of(
        cls,
        traced: TracedStep,
        limit_bytes: int,
        *,
        in_use_bytes: int,
        has_batch: bool,
        gone_bytes: int,
        next_batches: int,
    ) -> MemoryBudget:
        """Returns the budget of a step.

        Args:
          in_use_bytes: The allocator's count before planning.
          has_batch: A batch of the step is among these.
          gone_bytes: What of these will not be in use once the step runs.
        """
        start = in_use_bytes + (0 if has_batch else argument_bytes(traced))
        resident = max(start - gone_bytes, traced.before_bytes)
        ahead = bytes_ahead(traced, next_batches)
        step = traced.graph.fixed_bytes - traced.before_bytes
        share = UNCHECKED_RESERVE
        if devices.allocator_reports(devices.training_device()):
            share = LOOP_SPARE_SHARE if traced.has_loops else SPARE_SHARE
        return cls(
            limit_bytes,
            resident,
            ahead,
            step,
            share,
            start,
            free_or_none(devices.training_device()),
        )

    @property
    def fixed_bytes(self) -> int:
        """What any plan takes."""
        return self.resident_bytes + self.next_batch_bytes + self.step_bytes

    @property
    def activation_bytes(self) -> int:
        """What is left for activations, gradients and workspaces, what is spare of it included."""
        return self.limit_bytes - self.fixed_bytes

    @property
    def spare_bytes(self) -> int:
        """What a plan leaves unused."""
        return int(self.spare_share * max(0, self.activation_bytes))

    def enough_bytes(self, peak_bytes: int) -> int:
        """Returns a budget of which a plan with this peak leaves enough unused."""
        return peak_bytes + math.ceil(
            self.spare_share * (peak_bytes - self.fixed_bytes) / (1 - self.spare_share)
        )

    @property
    def most_bytes(self) -> int:
        """The highest peak that is aimed at."""
        return self.limit_bytes - self.spare_bytes

    def outside_bytes(self, traced: TracedStep) -> int:
        """What of the resident bytes the step's graph does not count, and the next batches."""
        return self.resident_bytes - traced.before_bytes + self.next_batch_bytes

    def peak(self, counted_bytes: int) -> int:
        """A peak by the allocator's count in the budget's terms."""
        return counted_bytes - self.start_bytes + self.resident_bytes + self.next_batch_bytes


def outside_bytes(traced: TracedStep) -> int:
    """Returns what is in use on the device beyond what the step counts as resident.

    That is what an input pipeline holds, other tensors of the process, and what the allocator lost
    on all of them by chunks that it did not split.
    """
    gc.collect()  # models that nobody has any more hold their variables in cycles
    return max(0, devices.bytes_in_use(devices.training_device()) - traced.before_bytes)
