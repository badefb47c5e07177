"""The budget loop, without TensorFlow: for which budget the solver is called next, given what its
plans so far are predicted to take.

A solver counts the bytes that ops ask for. The allocator rounds them up, gives out larger chunks
than needed and leaves holes, by a few percent that differ from plan to plan. The first plan is
therefore asked for with a reserve, and the next ones for what the predicted peaks leave.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class SearchTuning:
    """The constants of `PlanSearch` and of `next_target`. Shares are of the activation budget.

    Attributes:
      first_reserve: The share that the first plan leaves to the allocator, before anything is known
        of its overhead. The allocator's overhead is a few percent.
      unused_share: The share that a plan may leave unused without another plan being asked for.
      close_share: Two amounts of memory that differ by less count as equal: the next target differs
        by more from all before.
      max_plans, max_plans_once_within: Calls of the solver, at most; once a plan is within the
        budget.
      plain_spread: The share of its activations by which the plain step, whose ops run in an order
        that differs from step to step, may take more than is predicted.
      paper_spread: The same for a device that is not here, where no step confirms it: by `python -m
        benchmarks fits`, up to 0.29.
      plain_values: How many of its largest values it may take more, where that is more.
      min_time_s, time_per_op_s: The solver's time for a plan, at least and for each op of the
        graph, unless the user gives one.
      steps: Training is taken to last at least so many. The default solver ends once its own time
        is more than a cheaper plan could save in them. A step then lasts at most a thousandth of
        that time longer than with the cheapest plan, which is much of a search for a step of 20 ms,
        and next to nothing for one of a second.
      steepness: How many times what it cost to save a byte so far it can cost to save one more: the
        less memory a plan takes, the more the next byte costs.
      split_share: Ops are split first where one needs more than this share of the room that the
        budget leaves beyond fixed bytes.
      split_worth: They are split where a plan lasts longer than the plain step by more than this
        share; where they were split first, the step as it was written is then planned, too.
      worth_share: The share of its cost by which another plan must be cheaper to take the place of
        one that steps ran under.
      lowest_plan_s: Seconds for the search for the smallest budget that has a plan.
      batch_margin: What one more example is expected to take, times this, where a refusal names a
        smaller batch: the allocator's overhead differs from batch to batch.
    """

    first_reserve: float = 0.05
    unused_share: float = 0.015
    close_share: float = 0.005
    max_plans: int = 8
    max_plans_once_within: int = 3
    plain_spread: float = 0.1
    paper_spread: float = 0.3
    plain_values: int = 3
    min_time_s: float = 2.0
    time_per_op_s: float = 0.002
    steps: int = 1000
    steepness: float = 2.0
    split_share: float = 0.5
    split_worth: float = 0.1
    worth_share: float = 0.005
    lowest_plan_s: float = 4.0
    batch_margin: float = 1.1


TUNING = SearchTuning()


@dataclass(frozen=True, slots=True)
class Attempt:
    """A call of the solver for a plan. `asked_bytes` are requested by the plan's ops at its peak,
    None without a plan; `peak_bytes` is its predicted or measured peak, None where memory runs out.
    A plan without recomputation cannot become cheaper. `reached_bytes` is the solver's lowest peak,
    where it found no plan."""

    target_bytes: int
    asked_bytes: int | None
    peak_bytes: int | None
    recomputes: bool = True
    reached_bytes: int | None = None

    def within(self, limit_bytes: int) -> bool:
        return self.peak_bytes is not None and self.peak_bytes <= limit_bytes


def next_target(limit_bytes: int, fixed_bytes: int, tried: Sequence[Attempt]) -> int | None:
    """The budget for the solver's next call, or None where another plan is not worth it.
    `limit_bytes` is the highest peak of a plan by the allocator's count, `fixed_bytes` the part of
    it that every plan needs."""
    activation_bytes = max(0, limit_bytes - fixed_bytes)
    if not tried:
        return limit_bytes - int(TUNING.first_reserve * activation_bytes)
    if not activation_bytes:
        return None
    within = [each for each in tried if each.within(limit_bytes)]
    if any(
        not each.recomputes
        or limit_bytes - each.peak_bytes <= TUNING.unused_share * activation_bytes
        for each in within
        if each.peak_bytes is not None
    ):
        return None
    most = TUNING.max_plans_once_within if within else TUNING.max_plans
    if len(tried) >= most:
        return None
    without_plan = [each.target_bytes for each in tried if each.asked_bytes is None]
    low = max([fixed_bytes, *without_plan, *(each.target_bytes for each in within)])
    above = [each.target_bytes for each in tried if each.target_bytes > low]
    high = min([limit_bytes + 1, *above])
    if len(without_plan) == len(tried) and (reached := tried[-1].reached_bytes or 0) > low:
        # Where the lowest peak of all is above the limit, further calls find no plan either.
        return reached if reached <= limit_bytes else None
    step = max(1, int(TUNING.close_share * activation_bytes))
    if high - low > 2 * step:
        # The allocator's overhead grows from one plan to a smaller one.
        margin = TUNING.unused_share / 2 * len(tried)
        target = _aimed(tried[-1], fixed_bytes, activation_bytes, margin)
        target = (low + high) // 2 if target is None else target
        return min(max(target, low + step), high - step)
    # A plan for a larger budget can take less, as other values are in memory at its peak: where no
    # plan is within the budget, one between the targets so far may be.
    gaps = [(b - a, (a + b) // 2) for a, b in pairwise(sorted({low, *above, limit_bytes}))]
    widest, middle = max(gaps, default=(0, 0))
    return middle if not within and widest > 2 * step else None


def could_save(
    cost: float,
    plain_cost: float,
    costs_above: Sequence[float],
    unused_bytes: int,
    saved_bytes: int,
) -> float:
    """How much less another plan is expected to cost at most than the cheapest within the limit.
    None within it is expected to be cheaper than those above it (`costs_above`). The cheapest
    leaves `unused_bytes` of the limit, and needs `saved_bytes` less than the plain step."""
    by_bytes = TUNING.steepness * (cost - plain_cost) * unused_bytes / max(1, saved_bytes)
    return max(0.0, min(cost - min(costs_above, default=plain_cost), by_bytes))


def _aimed(last: Attempt, fixed_bytes: int, activation_bytes: int, margin: float) -> int | None:
    """The target at which a plan would just fit, extrapolated from the last plan with a margin;
    None without one."""
    if last.asked_bytes is None:
        return None
    if last.peak_bytes is None:
        return last.asked_bytes - int(TUNING.first_reserve * activation_bytes)
    aim = (1 - margin) * activation_bytes
    return fixed_bytes + int(
        (last.asked_bytes - fixed_bytes) * aim / max(1, last.peak_bytes - fixed_bytes)
    )
