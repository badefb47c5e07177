"""The budget loop on paper: for which budget the solver is asked next, given what its plans so far
are predicted to take.

A solver counts the bytes that ops ask for. The allocator rounds them up, hands out larger chunks
than needed and leaves holes, by a few percent that differ from plan to plan. So a plan is first
asked for with a little less than there is, and then for what the predicted peaks leave.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

FIRST_RESERVE = 0.05
"""Share of the activation budget that the first plan leaves to the allocator, before anything is
known of what it loses."""

UNUSED_SHARE = 0.015
"""Share of the activation budget that a plan may leave unused without another one being asked
for."""

CLOSE_SHARE = 0.005
"""Share of the activation budget within which two amounts of memory count as equal: the next target
differs by more from all before."""

PLANS, PLANS_ONCE_WITHIN = 8, 3
"""How often the solver is asked at most, and how often once a plan is within the budget."""


@dataclass(frozen=True, slots=True)
class Tried:
    """A plan that the solver was asked for.

    Attributes:
      target_bytes: The budget that the solver was given.
      asked_bytes: What the plan's ops ask for at its peak; None where the solver found no plan.
      peak_bytes: What it is predicted to take, or was measured to; None where memory runs out, or
        there is no plan.
      recomputes: Whether it computes anything again. One that does not cannot become cheaper.
    """

    target_bytes: int
    asked_bytes: int | None
    peak_bytes: int | None
    recomputes: bool = True

    def within(self, limit_bytes: int) -> bool:
        """True for a plan that takes no more than that."""
        return self.peak_bytes is not None and self.peak_bytes <= limit_bytes


def next_target(
    limit_bytes: int, fixed_bytes: int, tried: Sequence[Tried], asks: int | None = None
) -> int | None:
    """Returns the budget to ask the solver for next, or None where another plan is not worth it.

    Args:
      limit_bytes: The most that a plan may take by the allocator's count.
      fixed_bytes: What of it every plan takes.
      tried: The plans so far, in order.
      asks: How often the solver was asked for them, where an answer can be more than one plan.
    """
    room = max(0, limit_bytes - fixed_bytes)
    if not tried:
        return limit_bytes - int(FIRST_RESERVE * room)
    if not room:
        return None
    within = [each for each in tried if each.within(limit_bytes)]
    if any(
        not each.recomputes or limit_bytes - each.peak_bytes <= UNUSED_SHARE * room
        for each in within
        if each.peak_bytes is not None
    ):
        return None
    if (len(tried) if asks is None else asks) >= (PLANS_ONCE_WITHIN if within else PLANS):
        return None
    hopeless = [each.target_bytes for each in tried if each.asked_bytes is None]
    low = max([fixed_bytes, *hopeless, *(each.target_bytes for each in within)])
    above = [each.target_bytes for each in tried if each.target_bytes > low]
    high = min([limit_bytes + 1, *above])
    step = max(1, int(CLOSE_SHARE * room))
    last = tried[-1]
    target = (low + high) // 2
    if last.asked_bytes is not None and last.peak_bytes is None:
        target = last.asked_bytes - int(FIRST_RESERVE * room)
    elif last.asked_bytes is not None and last.peak_bytes is not None:
        # What the allocator adds grows with what is allocated.
        aim = (1 - UNUSED_SHARE / 2) * room
        target = fixed_bytes + int(
            (last.asked_bytes - fixed_bytes) * aim / max(1, last.peak_bytes - fixed_bytes)
        )
    if high - low > 2 * step:
        return min(max(target, low + step), high - step)
    # A plan for more can take less, as other values lie in memory: where none is within the budget,
    # between those that were tried one may be.
    gaps = [(b - a, (a + b) // 2) for a, b in pairwise(sorted({low, *above, limit_bytes}))]
    widest, middle = max(gaps, default=(0, 0))
    return middle if not within and widest > 2 * step else None
