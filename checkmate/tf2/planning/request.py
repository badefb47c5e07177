"""What a user asks to have planned, for whatever shapes, and one planning of it for some shapes."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tensorflow as tf

from checkmate.core.graph import DFGraph
from checkmate.core.replay import replay
from checkmate.progress import Progress
from checkmate.tf2 import device as devices
from checkmate.tf2.graph.trace import TracedStep
from checkmate.tf2.memory.available import auto_budget, free_or_none
from checkmate.tf2.memory.budget import MemoryBudget, StartState
from checkmate.tf2.memory.pipeline import BATCHES_MADE
from checkmate.tf2.memory.plain_step import PlainStep, safe_bytes
from checkmate.tf2.memory.scratch import Scratch
from checkmate.tf2.options import PlanOptions
from checkmate.tf2.planning import plan_files
from checkmate.tf2.planning.planned import Clock
from checkmate.tf2.report import Report
from checkmate.units import is_share, parse_bytes

ANY_SIZE = 2**62
"""More bytes than any device has."""


@dataclass(frozen=True, slots=True, eq=False)
class PlanRequest:
    """A step and what is asked for it, independent of shapes.

    Attributes:
      step: The function to trace.
      explains: Whether a refusal says what would fit, which takes some seconds to find out.
      has_output_buffers: Whether results lie in buffers that outlive a step (see
        `execution.replay`): of the main step, unless its plan is replayed in another function.
      next_batches: How many further batches may be in memory while the step runs, as an input
        pipeline makes them or the program keeps them: memory is set aside for them. From one on,
        the step is planned anew where more comes to be in use; see `planning.in_use`.
      scratch: What a step leaves in memory between its functions.
      others: Device -> the same step there, for other devices of this process that run the plan.
    """

    step: Callable[..., Any]
    name: str
    options: PlanOptions
    explains: bool = True
    has_output_buffers: bool = True
    next_batches: int = BATCHES_MADE
    scratch: Scratch = field(default_factory=Scratch)
    others: Mapping[str, Callable[..., Any]] = field(default_factory=dict)

    def resolve(self, plain_peak_bytes: int, other_bytes: int) -> int:
        """Returns the budget in bytes. A share is one of what the step itself takes; the other
        bytes are in use with any plan, and added."""
        budget = self.options.budget
        if budget == "auto":
            return auto_budget(devices.training_device())
        own = parse_bytes(budget, percent_of=plain_peak_bytes - other_bytes)
        return own + other_bytes if is_share(budget) else own

    def path_of(self, traced: TracedStep) -> Path | None:
        """Where the folder of `options.plan` has the plan of a step; None without a folder."""
        folder = self.options.plan
        return plan_files.path_in(folder, traced, self.options.key) if folder else None


@dataclass(slots=True, eq=False)
class PlanTask:
    """The planning of one set of shapes.

    Attributes:
      specs: The nest of specs of the step's arguments.
      batch: The flattened arguments that steps are run on; None for made-up data.
      released_bytes: Bytes in use that are released once this plan is taken.
      is_main: The step of the largest batch, not of a smaller one.
      budget_bytes: The budget in bytes; 0 until it is known.
      plain: What the plain step was measured to take; None until it is known.
      in_use_bytes: The allocator's count when planning began.
    """

    request: PlanRequest
    traced: TracedStep
    specs: tuple[Any, ...]
    clock: Clock
    progress: Progress
    batch: Sequence[tf.Tensor] | None
    released_bytes: int
    is_main: bool
    budget_bytes: int
    plain: PlainStep | None
    in_use_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        gc.collect()  # deleted models keep their variables in reference cycles
        self.in_use_bytes = devices.bytes_in_use(devices.training_device())

    def memory(self, limit_bytes: int) -> MemoryBudget:
        """Returns the kinds of bytes of a budget."""
        start = StartState(self.in_use_bytes, self.batch is not None, self.released_bytes)
        return MemoryBudget.of(
            self.traced, limit_bytes, start, next_batches=self.request.next_batches
        )

    @property
    def other_bytes(self) -> int:
        """The fixed bytes that the step's graph does not count, whatever the budget."""
        return self.memory(0).other_bytes

    @property
    def start_bytes(self) -> int:
        """The allocator's count before the plan is run for the first time."""
        return self.memory(0).start_bytes - self.released_bytes

    @property
    def reports(self) -> bool:
        """True where the allocator reports what is in use."""
        return devices.allocator_reports(devices.training_device())

    def notes(self) -> tuple[str, ...]:
        """Cautions about the device."""
        if self.reports:
            return ()
        return (
            "This device's allocator does not report what is in use: the peak is predicted, and the"
            " reserve stands in for confirming it.",
        )

    def report(
        self, graph: DFGraph, memory: MemoryBudget, plain_peak_bytes: int, plain: PlainStep
    ) -> Report:
        """Returns the report of the step before a plan is made."""
        return Report(
            name=self.request.name,
            memory=memory,
            plain_peak_bytes=plain_peak_bytes,
            plain_measured_bytes=(
                None if plain.peak_bytes is None else plain.peak_bytes + memory.other_bytes
            ),
            plain_not_measured=plain.why_not,
            plain_seconds=plain.seconds,
            measured_peak_bytes=None,
            result=None,
            ops=len(graph),
            tensorflow_ops=len(self.traced.flat.graph.get_operations()),
            seconds={},
            notes=self.traced.notes,
            graph=graph,
            plain_plan=self.traced.plain_plan(),
        )

    def fetch_region(self) -> int:
        """Has the allocator fetch what the step will need in one piece, before the ops that are
        measured cut its pool into small pieces.

        Returns: The bytes that a step can have in one piece: half of the region where the allocator
          has a limit of its own, which is all that it ever fetches; else `ANY_SIZE`.
        """
        if not self.reports:
            return ANY_SIZE
        device, other = devices.training_device(), self.other_bytes
        plain = replay(self.traced.graph, self.traced.plain_plan()).peak_bytes + other
        needed = min(plain, self.budget_bytes or self.request.resolve(plain, other))
        # The system provides memory of a CPU when it is first written to, so that more costs
        # nothing.
        if device.startswith("CPU") and devices.cap_bytes(device) is None:
            safe = safe_bytes(self.traced, plain, other)
            needed = safe if safe <= (free_or_none(device) or 0) else needed
            needed += devices.UNSPLIT_BYTES
        fetched = devices.fetch_region(device, needed - other - self.traced.between_bytes)
        # The results' buffers are taken from the same region.
        return fetched // 2 if fetched and devices.cap_bytes(device) is not None else ANY_SIZE
