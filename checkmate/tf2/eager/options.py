"""The options of eager dynamic rematerialization."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from checkmate.dtr.heuristic import HEURISTICS, Heuristic
from checkmate.dtr.pool import Search


@dataclass(frozen=True, slots=True)
class Tuning:
    """Numbers that change how fast the policy is and what it evicts, and never what ops compute.

    Args:
      calm_share: Until memory first comes above this share of the budget, ops are TensorFlow's own:
        they take less time, and what they make is not evicted.
      calm_ops: While calm, the allocator is asked before each op that comes after this many others.
      plenty_share: Below this share of the budget the allocator is not asked after an op. What the
        op took too much is found before the next one.
      small_share: Share of the budget that stays free for small tensors that programs make between
        ops, if `EagerOptions.strict`.
      margin_share: Share of the budget that stays free for what the allocator loses on an op, until
        a larger loss is seen, if not `EagerOptions.strict`.
      horizon_share: Share of the distance since the last backward pass that is added to every
        staleness: what is near in the program may be far in time.
      most_classes, most_stale: Evictions leave classes that never go, and scores to work out again.
        Beyond these numbers both are put in order.
    """

    calm_share: float = 1 / 8
    calm_ops: int = 3
    plenty_share: float = 0.75
    small_share: float = 1 / 1024
    margin_share: float = 1 / 32
    horizon_share: float = 1 / 8
    most_classes: int = 50_000
    most_stale: int = 4096


@dataclass(frozen=True, slots=True)
class EagerOptions:
    """How a context keeps its budget.

    Args:
      budget_bytes: The most bytes in use by the allocator's count, everything included; infinite
        for no limit.
      heuristic: The score by which tensors are evicted.
      overhead_limit: The run is given up when recomputation has cost more than (overhead_limit - 1)
        times what ran first.
      strict: Memory above the budget is an error.
      smallest_bytes: Outputs below are left to TensorFlow and never evicted.
      search: Which candidates an eviction compares.
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
        """Whether there is a budget."""
        return not math.isinf(self.budget_bytes)
