"""MemoryBudget: every kind of byte that a budget is spent on, each named once."""

from __future__ import annotations

import contextlib
import gc
import logging
import math
from dataclasses import dataclass

import tensorflow as tf

from checkmate.tf2 import device as devices
from checkmate.tf2.graph.sizes import known_bytes
from checkmate.tf2.graph.trace import TracedStep
from checkmate.tf2.memory.profiler import observe
from checkmate.tf2.ops.table import rule_of

log = logging.getLogger("checkmate")

AUTO_RESERVE = 0.1
"""Share of the free memory that `budget="auto"` leaves to others: the input pipeline, the CUDA
context, fragmentation."""

CAP_RESERVE = 0.04
"""The same of an allocator's own limit, which no other process can take from."""

_pool_limits: dict[str, int] = {}


def free_bytes(device: str) -> int:
    """The bytes that a training step could use now, those that this process has in memory included.

    The pool of a GPU has a limit, which follows from the GPU or its part (MIG), from `memory_limit`
    and from the memory that was free when TensorFlow began. By default the pool takes all of it at
    once. With memory growth, and with CUDA's own allocator, other processes may take it first: then
    it is at most the driver's free memory plus the pool's peak. Raises `DriverUnavailableError`,
    and `CheckmateError` while another profile is taken.
    """
    if device.startswith("GPU"):
        limit = pool_limit_bytes(device)
        if limit is not None and not devices.pool_grows(device):
            return limit
        there = driver_limit_bytes(device)
        return there if limit is None else min(limit, there)
    if limit := devices.cap_bytes(device):
        return limit
    import psutil

    own = psutil.Process().memory_info().rss
    return min([psutil.virtual_memory().available + own, *container_limits()])


def free_or_none(device: str) -> int | None:
    """As `free_bytes`; None where that cannot be found out."""
    try:
        return free_bytes(device)
    except Exception as error:  # NVML is another program's, and may be missing or refuse
        log.info("How much memory is free on %s is not known: %s", device, error)
        return None


def auto_budget(device: str) -> int:
    """The bytes of `budget="auto"`. Raises as `free_bytes`."""
    # Whether no other process can take from the memory that is there.
    is_its_own = devices.cap_bytes(device) is not None
    if device.startswith("GPU"):
        is_its_own = pool_limit_bytes(device) is not None and not devices.pool_grows(device)
    return int(free_bytes(device) * (1 - (CAP_RESERVE if is_its_own else AUTO_RESERVE)))


def driver_limit_bytes(device: str) -> int:
    """The free bytes of a GPU by its driver, plus the pool's: its limit where it grows. Raises
    `DriverUnavailableError`."""
    pool = tf.config.experimental.get_memory_info(device)["peak"]
    return devices.driver_free_bytes(device) + int(pool)


def pool_limit_bytes(device: str) -> int | None:
    """The limit of the device's allocator, as the profiler shows for one request; None if it shows
    none."""
    if device not in _pool_limits:

        def request() -> None:
            with tf.device(device):
                tf.raw_ops.Empty(shape=[2**10], dtype=tf.float32)

        events = observe(request).events if devices.requests_are_seen(device) else ()
        if not events:
            return None
        _pool_limits[device] = events[0].limit_bytes
    return _pool_limits[device]


def container_limits() -> list[int]:
    found = []
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError), open(path, encoding="utf-8") as file:
            found.append(int(file.read()))
    return found


BATCHES_MADE = 2
"""Batches for which memory is set aside at first where a pipeline makes the next batch while a step
runs: that batch, and the one of which it is made."""

MORE_BATCHES, SMALL_SHARE = 6, 0.04
"""How many more batches, where they take no more than this share of the plain step's peak: the
buffers of a pipeline can double within a step. With half the share, `fit` of a dense model from
arrays in 29,000,000 bytes was 1.3 % over in two of six runs, with this one in none of six. With
four more, `python tests/tf2/memory/fit_loop.py ema arrays 60%` was 0.5 % over in one of 13 runs,
with six in none of 15."""


def argument_bytes(traced: TracedStep) -> int:
    return known_bytes(traced.argument_tensors())


def given_bytes(traced: TracedStep) -> int:
    """The bytes of the batches that the step takes from iterators."""
    kinds = (
        zip(o.get_attr("output_shapes"), o.get_attr("output_types"), strict=True)
        for o in traced.flat.graph.get_operations()
        if rule_of(o.type).gives_batches
    )
    specs = (tf.TensorSpec(tf.TensorShape(shape), dtype) for each in kinds for shape, dtype in each)
    return known_bytes(specs)


def bytes_ahead(traced: TracedStep, batches: int) -> int:
    """The bytes of the batches that a pipeline makes while a step runs: of at least `batches`, none
    for 0."""
    one = argument_bytes(traced) + given_bytes(traced)
    return ahead(batches, one, traced.plain_peak_bytes())


def ahead(batches: int, batch_bytes: int, plain_peak_bytes: int) -> int:
    """The bytes that are set aside for batches: for more than asked for if they are small."""
    if not batches or not batch_bytes:
        return 0
    cheap = int(SMALL_SHARE * plain_peak_bytes) // batch_bytes
    return max(batches, min(batches + MORE_BATCHES, cheap)) * batch_bytes


@dataclass(frozen=True, slots=True)
class ReserveShares:
    """The share of the activation budget that a plan leaves as a reserve.

    Attributes:
      simulated: For a plan whose peak is simulated. A batch may come to lie where no simulated
        batch did.
      with_loops: For a step with loops, in which TensorFlow gives memory back at any time. With
        0.02, two of seven runs of an LSTM network were over budgets of 45 and 46 MiB that their
        first steps had kept, by up to 1.5 %.
      not_simulated: Where the allocator does not report.
    """

    simulated: float = 0.01
    with_loops: float = 0.05
    not_simulated: float = 0.2

    def of(self, traced: TracedStep) -> float:
        if not devices.allocator_reports(devices.training_device()):
            return self.not_simulated
        return self.with_loops if traced.has_loops else self.simulated


RESERVES = ReserveShares()


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """The kinds of bytes of a budget.

    Resident bytes, bytes for the next batches and the step's own fixed bytes are the same with any
    plan: together they are the fixed bytes. The activation budget is what the limit leaves beyond
    them; a reserve of it stays unused.

    Attributes:
      resident_bytes: In use on the device before planning: variables, optimizer slots, the batch,
        other tensors of the process.
      counted_bytes: The resident bytes that the step's graph counts: its variables and a batch.
      next_batch_bytes: For batches that an input pipeline may make, or the program keep, while a
        step runs.
      step_bytes: Always in memory in a step: results of two steps, constants, small values.
      uncounted_bytes: The resident bytes that the allocator does not count.
      start_bytes: The allocator's count before planning, a batch included: `resident_bytes` where
        the allocator counts everything.
    """

    limit_bytes: int
    resident_bytes: int
    counted_bytes: int
    batch_bytes: int
    next_batch_bytes: int
    step_bytes: int
    reserve_share: float
    start_bytes: int
    uncounted_bytes: int = 0
    device_limit_bytes: int | None = None

    @classmethod
    def of(
        cls,
        traced: TracedStep,
        limit_bytes: int,
        in_use_bytes: int,
        *,
        has_batch: bool = False,
        released_bytes: int = 0,
        next_batches: int,
    ) -> MemoryBudget:
        """When planning begins, with a batch of the step in use or not, and bytes in use that are
        released before the planned step runs."""
        counted = traced.before_bytes
        batch = argument_bytes(traced)
        start_bytes = in_use_bytes + (0 if has_batch else batch)
        left_bytes = start_bytes - released_bytes
        return cls(
            limit_bytes,
            max(left_bytes, counted),
            counted,
            batch,
            bytes_ahead(traced, next_batches),
            traced.graph.fixed_bytes - counted,
            RESERVES.of(traced),
            start_bytes,
            max(0, counted - left_bytes),
            free_or_none(devices.training_device()),
        )

    @property
    def fixed_bytes(self) -> int:
        return self.resident_bytes + self.next_batch_bytes + self.step_bytes

    @property
    def graph_fixed_bytes(self) -> int:
        return self.counted_bytes + self.step_bytes

    @property
    def other_bytes(self) -> int:
        """The fixed bytes that the step's graph does not count: other resident bytes, and the next
        batches."""
        return self.fixed_bytes - self.graph_fixed_bytes

    @property
    def activation_budget_bytes(self) -> int:
        return self.limit_bytes - self.fixed_bytes

    @property
    def reserve_bytes(self) -> int:
        return int(self.reserve_share * max(0, self.activation_budget_bytes))

    @property
    def peak_limit_bytes(self) -> int:
        return self.limit_bytes - self.reserve_bytes

    def smallest_limit_bytes(self, peak_bytes: int) -> int:
        """The smallest budget whose reserve a plan with this peak leaves unused."""
        return peak_bytes + math.ceil(
            self.reserve_share * (peak_bytes - self.fixed_bytes) / (1 - self.reserve_share)
        )

    def peak(self, allocated_bytes: int) -> int:
        """A peak by the allocator's count in the budget's terms."""
        return allocated_bytes - self.start_bytes + self.resident_bytes + self.next_batch_bytes


def other_bytes_in_use(traced: TracedStep) -> int:
    """Bytes in use that the step's graph does not count as resident: an input pipeline's batches,
    other tensors, and what chunks that were not split lost on all of them."""
    gc.collect()  # deleted models keep their variables in reference cycles
    return max(0, devices.bytes_in_use(devices.training_device()) - traced.before_bytes)
