"""How much of the budget is used, by the allocator's count, and whether an op fits.

An op needs what the allocator reported of ops like it, with a margin for what the allocator loses
in holes.
"""

from __future__ import annotations

from checkmate.tf2.eager.allocator import Allocator
from checkmate.tf2.eager.eviction_errors import went_over
from checkmate.tf2.eager.needs import Needs
from checkmate.tf2.eager.options import EagerOptions
from checkmate.units import format_bytes


class Budget:
    """The budget, and what is known of the memory in use.

    Attributes:
      promised_bytes: The budget that the user gave.
      usable_bytes: What of it the allocator can give; less after it refused.
      limited: There is a budget.
      before_bytes: Bytes in use before the op that runs.
      calm: Memory has never come above a small share of the budget (`Tuning.calm_share`).
      overshoots: How often memory went above the budget: by an op that took more than was foreseen,
        or by what no op was seen to take.
    """

    def __init__(self, allocator: Allocator, options: EagerOptions):
        self._allocator, self._tuning, self._strict = allocator, options.tuning, options.strict
        self.promised_bytes = self.usable_bytes = options.budget_bytes
        self.limited = self.calm = options.limited
        self._margin_bytes = options.tuning.margin_share * options.budget_bytes
        self.before_bytes = self._foreseen_bytes = self._unasked = 0
        self.overshoots = 0

    @property
    def over_bytes(self) -> float:
        """How far memory has been above the budget, as of the last question to the allocator; not
        positive if it has not."""
        return self._allocator.recent_peak - self.promised_bytes

    def fits_now(self, needs: Needs, name: str) -> bool:
        """Whether an op fits without an eviction."""
        in_use = self.before_bytes = self._allocator.in_use
        self.check_peak(f"before {name!r}")
        self._foresee(in_use, needs)
        return self.fits(in_use, needs)

    def fits(self, in_use: int, needs: Needs) -> bool:
        """Whether an op fits with `in_use` bytes in use, and a margin: the allocator gives out a
        hole whole if it is less than twice what was asked for, and counts it whole.

        A margin as large as what the op takes always suffices. Where the budget need not be kept to
        the byte, the margin is the largest loss that was seen.
        """
        margin = (
            max(needs.bytes, self._tuning.small_share * self.usable_bytes)
            if self._strict
            else min(needs.bytes, self._margin_bytes)
        )
        return in_use + needs.bytes + margin <= self.usable_bytes

    def begin(self, in_use: int, needs: Needs) -> None:
        """An op runs, with `in_use` bytes in use before it."""
        self.before_bytes, self._foreseen_bytes = in_use, in_use + needs.bytes

    def is_calm(self, needs: Needs) -> bool:
        """Whether memory has been far below the budget all the time, and stays there with this op,
        and the hole it may be given."""
        self._unasked -= 1
        if (
            self._unasked < 0
            or self._foreseen_bytes + 2 * needs.bytes > self._tuning.calm_share * self.usable_bytes
        ):
            self._unasked = self._tuning.calm_ops
            self._foresee(self._allocator.in_use, needs)
        else:
            self._foreseen_bytes += needs.bytes
        return self.calm

    def _foresee(self, in_use: int, needs: Needs) -> None:
        self._foreseen_bytes = in_use + needs.bytes
        if (
            self._foreseen_bytes + needs.bytes > self._tuning.calm_share * self.usable_bytes
            or self.over_bytes > 0
        ):
            self.calm = False

    def has_plenty(self) -> bool:
        """Whether the allocator need not be asked after the op that ran."""
        plenty = self._tuning.plenty_share * self.usable_bytes
        return self._foreseen_bytes <= plenty and self.over_bytes <= 0

    def learn_loss(self, needs: Needs, held_bytes: int) -> None:
        """An op's outputs were given holes of `held_bytes` together."""
        if needs.made is not None:
            self._margin_bytes = max(self._margin_bytes, held_bytes - needs.least_bytes)

    def check_peak(self, when: str) -> None:
        """Counts memory above the budget that no op was seen to take, as of the last question to
        the allocator."""
        if self.over_bytes > 0:
            self.overshoot(
                f"{when}, by data, variables, a function that met new shapes, or an op whose"
                " outputs are as large as its inputs' values say",
            )

    def overshoot(self, why: str) -> None:
        """Counts that memory is above the budget; raises `EvictionError` if the budget is
        strict."""
        over = self.over_bytes
        self.count_overshoot()
        self._margin_bytes += over
        if self._strict:
            raise went_over(over, self.promised_bytes, why)

    def count_overshoot(self) -> None:
        """Counts, and has the allocator count its peak afresh."""
        self._allocator.forget_peak()
        self.overshoots += 1

    def explain(self, name: str, took: int, foreseen: int) -> str:
        """Why an op took more than was foreseen."""
        return (
            f"{name!r} took {format_bytes(took)} where {format_bytes(foreseen)} were foreseen,"
            f" in addition to {format_bytes(self.before_bytes)}. Allocators give out whole holes,"
            " and the scratch memory of an op is known once it ran"
        )

    def close(self) -> None:
        """No budget any more."""
        self.limited, self.usable_bytes = False, float("inf")
