"""The budget of eager mode: its options, how much of it is used by the allocator's count, whether
an op fits, and the errors where it cannot be kept.

An op needs what the allocator reported of ops like it, with a margin for what the allocator loses
in holes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from checkmate.dtr.heuristic import HEURISTICS, Heuristic
from checkmate.dtr.pool import Search
from checkmate.dtr.storage import Call, Storage, Tensor
from checkmate.errors import EvictionError, ThrashingError
from checkmate.tf2.eager import private_api
from checkmate.tf2.eager.op_kinds import Needs
from checkmate.tf2.eager.private_api import passing_through_keras
from checkmate.tf2.eager.storage import Cell, EagerCall, EagerStorage
from checkmate.units import format_bytes

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


@dataclass(frozen=True, slots=True)
class Tuning:
    """Numbers that change how fast the policy is and what it evicts, and never what ops compute.

    Args:
      small_share: Share of the budget that stays free for small tensors that programs make between
        ops, if `EagerOptions.strict`.
      margin_share: Share of the budget that stays free for what the allocator loses on an op, until
        a larger loss is seen, if not `EagerOptions.strict`.
      horizon_share: Share of the distance since the last backward pass that is added to every
        staleness: what is near in the program may be far in time.
      most_classes: Evictions leave classes that never go. Beyond this number they are made anew.
    """

    small_share: float = 1 / 1024
    margin_share: float = 1 / 32
    horizon_share: float = 1 / 8
    most_classes: int = 50_000


@dataclass(frozen=True, slots=True)
class EagerOptions:
    """How a context keeps its budget.

    Args:
      budget_bytes: The most bytes in use by the allocator's count, everything included; infinite
        for no limit.
      overhead_limit: The run is given up when recomputation has cost more than (overhead_limit - 1)
        times what ran first.
      strict: Memory above the budget is an error.
      smallest_bytes: Outputs below are left to TensorFlow and never evicted.
    """

    budget_bytes: float = math.inf
    heuristic: Heuristic = HEURISTICS["dtr_eq"]
    overhead_limit: float = math.inf
    strict: bool = False
    smallest_bytes: int = 4096
    search: Search = field(default_factory=Search)
    tuning: Tuning = field(default_factory=Tuning)

    @property
    def limited(self) -> bool:
        return not math.isinf(self.budget_bytes)


class Budget:
    """The budget, and what is known of the memory in use.

    Attributes:
      promised_bytes: The budget that the user gave.
      usable_bytes: The part of it that the allocator can give; less after it refused.
      overshoots: How often memory went above the budget: by an op that needed more than predicted,
        or by memory that was not an op's.
    """

    def __init__(self, allocator: Allocator, options: EagerOptions):
        self._allocator, self._tuning, self._strict = allocator, options.tuning, options.strict
        self.promised_bytes = self.usable_bytes = options.budget_bytes
        self.limited = options.limited
        self._margin_bytes = options.tuning.margin_share * options.budget_bytes
        self.before_bytes = self.overshoots = 0

    @property
    def over_bytes(self) -> float:
        """How far memory has been above the budget, as of the last question to the allocator; not
        positive if it has not."""
        return self._allocator.recent_peak - self.promised_bytes

    def fits_now(self, needs: Needs, name: str) -> bool:
        """Whether an op fits without an eviction. Counts memory above the budget that was not an
        op's."""
        in_use = self.before_bytes = self._allocator.in_use
        self.check_peak(f"before {name!r}")
        return self.fits(in_use, needs)

    def fits(self, in_use: int, needs: Needs) -> bool:
        """Whether an op fits with `in_use` bytes in use, and a margin: the allocator gives out a
        hole whole if it is less than twice what was asked for, and counts it whole.

        A margin as large as the op's needs always suffices. Where the budget need not be kept to
        the byte, the margin is the largest loss that was seen.
        """
        margin = (
            max(needs.bytes, self._tuning.small_share * self.usable_bytes)
            if self._strict
            else min(needs.bytes, self._margin_bytes)
        )
        return in_use + needs.bytes + margin <= self.usable_bytes

    def learn_loss(self, needs: Needs, held_bytes: int) -> None:
        if needs.outputs is not None:
            self._margin_bytes = max(self._margin_bytes, held_bytes - needs.least_bytes)

    def check_peak(self, when: str) -> None:
        """Counts memory above the budget that was not an op's, as of the last question to the
        allocator."""
        if self.over_bytes > 0:
            self.overshoot(
                f"{when}, by data, variables, a function that met new shapes, or an op whose"
                " outputs are as large as its inputs' values say",
            )

    def overshoot(self, why: str) -> None:
        """Counts that memory is above the budget; raises `EvictionError` where that is strict."""
        over = self.over_bytes
        self.count_overshoot()
        self._margin_bytes += over
        if self._strict:
            raise went_over(over, self.promised_bytes, why)

    def count_overshoot(self) -> None:
        self._allocator.forget_peak()
        self.overshoots += 1

    def explain(self, name: str, used: int) -> str:
        return (
            f"{name!r} took {format_bytes(used)}, more than was foreseen, in addition to"
            f" {format_bytes(self.before_bytes)}. Allocators give out whole holes, and the scratch"
            " memory of an op is known once it ran"
        )

    def close(self) -> None:
        self.limited, self.usable_bytes = False, math.inf


def does_not_fit(
    name: str, in_use: int, needed: int, budget_bytes: float, live: Iterable[EagerStorage]
) -> EvictionError:
    """An op needs more than can be evicted.

    Args:
      in_use: Bytes in use, none of which can be evicted.
      live: All storages; the error lists those that are locked.
    """
    locked = sorted(
        (storage for storage in live if storage.locks and storage.material),
        key=lambda storage: -storage.bytes,
    )
    listed = ", ".join(
        f"{storage.tensors[0].call.name} {format_bytes(storage.bytes)}" for storage in locked[:5]
    )
    inputs = sum(storage.bytes for storage in locked)
    error = EvictionError(
        f"{name!r} needs {format_bytes(needed)} in addition to {format_bytes(in_use)} that cannot"
        f" be evicted: together {format_bytes(in_use + needed)},"
        f" {format_bytes(in_use + needed - budget_bytes)} more than the budget of"
        f" {format_bytes(budget_bytes)}. Of it, {format_bytes(inputs)} are inputs of running ops"
        + (f" ({listed}{', ...' if len(locked) > 5 else ''})" if locked else "")
        + f", {format_bytes(max(0, in_use - inputs))} are variables, data and other tensors that"
        f" cannot be recomputed. The budget must be at least {format_bytes(in_use + needed)}; or"
        " make the batch smaller.",
        budget_bytes=budget_bytes,
        needed_bytes=in_use + needed,
    )
    return passing_through_keras(error)


def went_over(over: float, budget_bytes: float, why: str) -> EvictionError:
    error = EvictionError(
        f"Memory went {format_bytes(over)} above the budget of {format_bytes(budget_bytes)}: {why}."
        f" The budget must be at least {format_bytes(budget_bytes + over)} for what ran so far;"
        " strict=False goes on, and `stats.overshoots` counts.",
        budget_bytes=budget_bytes,
        needed_bytes=int(budget_bytes + over),
    )
    return passing_through_keras(error)


def thrashing(
    ratio: float, overhead_limit: float, budget_bytes: float, demand_bytes: int
) -> ThrashingError:
    """Recomputation has cost `ratio` times what ran first; `demand_bytes` would have been in use
    without eviction."""
    error = ThrashingError(
        f"Recomputation has cost {ratio:.1f} times what ran first, more than the overhead limit of"
        f" {overhead_limit:g} allows, within {format_bytes(budget_bytes)}. With"
        f" {format_bytes(demand_bytes)} nothing would have been recomputed so far; the smallest"
        " budget that works is between the two. Try"
        f" {format_bytes((budget_bytes + demand_bytes) / 2)}, or raise the overhead limit.",
        budget_bytes=budget_bytes,
        enough_bytes=demand_bytes,
    )
    return passing_through_keras(error)
