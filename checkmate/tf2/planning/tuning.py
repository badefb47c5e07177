"""What tunes the search for a plan: every constant of its algorithm."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SearchTuning:
    """The constants of `PlanSearch` and of `next_target`. Shares are of the activation budget.

    Attributes:
      first_reserve: The share that the first plan leaves to the allocator, before anything is known
        of its overhead. The allocator's overhead is a few percent.
      unused_share: The share that a plan may leave unused without another plan being asked for.
      close_share: Two amounts of memory that differ by less count as equal: the next target differs
        by more from all before.
      max_plans: How often the solver is called at most.
      max_plans_once_within: How often, once a plan is within the budget.
      plain_spread: The share of its activations by which the plain step, whose ops run in an order
        that differs from step to step, may take more than is predicted.
      plain_values: How many of its largest values it may take more, where that is more.
      min_time_s: The solver's time for a plan, unless the user gives one, is at least this.
      time_per_op_s: The same for each op of the graph.
      steps: How many steps training is taken to last at least. The default solver ends where the
        time that it has taken is more than what a cheaper plan could save in so many. A step then
        takes at most a thousandth of that time longer than with the cheapest plan, which is much of
        a search for a step of 20 ms, and next to nothing for one of a second.
      steepness: How many times what it cost to save a byte so far it can cost to save one more: the
        less memory a plan takes, the more the next byte costs.
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
    plain_values: int = 3
    min_time_s: float = 2.0
    time_per_op_s: float = 0.002
    steps: int = 1000
    steepness: float = 2.0
    worth_share: float = 0.005
    lowest_plan_s: float = 1.2
    batch_margin: float = 1.1


TUNING = SearchTuning()
