"""What a user is told when no plan fits: what binds, how much is missing, and what would fit
instead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from checkmate.core.replay import Floor, floor
from checkmate.errors import CheckmateError, InfeasibleBudgetError, NoPlanFoundError
from checkmate.tf2.graph.trace import trace
from checkmate.tf2.planning.plan_search import Found, PlanSearch
from checkmate.units import format_bytes, shown_bytes

CAREFUL = 1.1
"""Times what an example is reckoned to take where a smaller batch is named: what the allocator
loses differs from batch to batch."""

NAMED = 3
"""How many of the tensors that bind are named, the largest."""


@dataclass(slots=True, eq=False)
class Refusal:
    """Why a search found no plan within the budget.

    It is proven where what must be in memory together is above the budget, in whatever order ops
    run. What a solver proves of plans in one order, small values, batches that a pipeline may make,
    and what the allocator is expected to lose prove nothing.

    Attributes:
      explains: Whether to look for what would fit, which takes some seconds.
      taken_bytes: What the plan that takes least was measured to take, where one was run.
      smallest_bytes: A budget that is expected to be accepted; None where none was looked for, or
        found.
    """

    search: PlanSearch
    step: Callable[..., Any]
    name: str
    specs: tuple[Any, ...]
    explains: bool
    taken_bytes: int | None = None
    smallest_bytes: int | None = None

    def lowest_that_fits(self) -> Found | None:
        """Looks for the plan that takes least, and returns the step under it where it is within the
        budget after all."""
        search = self.search
        found = self._look_for_lowest() if self.explains else None
        run = [each for each in search.candidates if each.measured_bytes is not None]
        least = min(
            run, key=lambda each: search.expected(each) or each.measured_bytes, default=None
        )
        if least is not None:
            self.taken_bytes = search.expected(least) or least.measured_bytes
        if self.explains and self.smallest_bytes is None and self.taken_bytes:
            self.smallest_bytes = shown_bytes(search.memory.enough_bytes(self.taken_bytes))
        return found

    def _look_for_lowest(self) -> Found | None:
        search = self.search
        lowest = search.lowest()
        expected = lowest and search.expected(lowest)
        if not lowest or not expected:
            return None
        if expected <= search.limit_bytes:
            return search.run()
        if not search.can_measure:
            self.smallest_bytes = shown_bytes(search.memory.enough_bytes(expected))
            return None
        return search.confirm(lowest) if lowest.measured_bytes is None else None

    def error(self) -> InfeasibleBudgetError | NoPlanFoundError:
        """Returns the refusal in the user's terms, with what would work: the smallest budget, and
        the largest batch."""
        search, memory = self.search, self.search.memory
        budget, lowest, outside = memory.limit_bytes, floor(search.graph), search.outside_bytes
        counted = lowest.bytes + outside
        proven = counted - search.traced.small_bytes - memory.next_batch_bytes
        binds, advice = (
            self._binds(lowest),
            self._advice(max(counted, self.smallest_bytes or self.taken_bytes or 0)),
        )
        asked = f"{format_bytes(budget)} for {self.name!r}"
        if proven > budget:
            return InfeasibleBudgetError(
                f"No plan fits {asked}: at least {format_bytes(proven)} are needed,"
                f" {format_bytes(proven - budget)} more. {binds} {advice}",
                budget_bytes=budget,
                floor_bytes=proven,
                op=lowest.op,
                op_name=search.graph.ops[lowest.op].name,
                smallest_budget_bytes=self.smallest_bytes,
            )
        best = self.taken_bytes or getattr(search.refusal, "best_peak_bytes", None)
        return NoPlanFoundError(
            f"No plan within {asked}: {self._found(counted)} {binds} {advice}",
            best_peak_bytes=best,
            smallest_budget_bytes=self.smallest_bytes,
        )

    def _found(self, counted: int) -> str:
        search, budget, error = self.search, self.search.memory.limit_bytes, self.search.refusal
        if self.taken_bytes is not None and self.taken_bytes > budget:
            over = f"{format_bytes(self.taken_bytes - budget)} too much"
            return (
                f"the lowest that was made and run takes {format_bytes(self.taken_bytes)} by the"
                f" allocator's count, {over}."
            )
        if counted > budget:
            over = f"{format_bytes(counted - budget)} too much"
            return (
                "with small values and the next batch one is expected to take"
                f" {format_bytes(counted)} at least, {over}."
            )
        if self.taken_bytes is not None:
            return (
                f"the lowest that was made and run takes {format_bytes(self.taken_bytes)}, which"
                " leaves too little to spare."
            )
        if isinstance(error, InfeasibleBudgetError):
            least = format_bytes(error.floor_bytes + search.outside_bytes)
            return (
                f"one in this order of ops asks for {least} at least, and what is left is expected"
                " to be lost by the allocator, which is no proof."
            )
        solver = search.solver if isinstance(search.solver, str) else search.solver.name
        return f"solver {solver!r} found none in {search.time_limit_s:g} s, which proves nothing."

    def _binds(self, lowest: Floor) -> str:
        graph, memory, small = self.search.graph, self.search.memory, self.search.traced.small_bytes
        return (
            f"Op {lowest.op} {graph.ops[lowest.op].name!r} needs"
            f" {format_bytes(lowest.bytes - small)} whatever the plan,"
            f" {format_bytes(graph.fixed_bytes - small)} of it resident{self._held(lowest)};"
            f" {format_bytes(self.search.outside_bytes - memory.next_batch_bytes)} more is in use"
            f" on the device, {format_bytes(small)} are small values,"
            f" {format_bytes(memory.next_batch_bytes)} are left for the next batch, and"
            f" {format_bytes(memory.spare_bytes)} are spare."
        )

    def _held(self, lowest: Floor) -> str:
        """The largest values that have to be in memory together then."""
        ops = self.search.graph.ops
        sized = sorted(
            ((ops[i].output_bytes, ops[i].name) for i in lowest.held if ops[i].output_bytes),
            reverse=True,
        )
        sized += (
            [(ops[lowest.op].workspace_bytes, "workspace")]
            if ops[lowest.op].workspace_bytes
            else []
        )
        sized.sort(reverse=True)
        named = [f"{name} {format_bytes(size)}" for size, name in sized[:NAMED]]
        return (
            " (with"
            f" {', '.join(named)}{f' and {len(sized) - NAMED} more' if len(sized) > NAMED else ''})"
            if named
            else ""
        )

    def _advice(self, needed_bytes: int) -> str:
        budget_bytes = self.search.memory.limit_bytes
        batch, budget = self._batch_that_fits(needed_bytes), format_bytes(budget_bytes)
        smaller = (
            "or use a smaller batch."
            if batch is None
            else (
                f"or use a batch of at most {batch} within {budget}."
                if batch
                else f"as not even a batch of 1 would fit {budget}."
            )
        )
        if self.smallest_bytes is None or self.smallest_bytes <= budget_bytes:
            return f"Raise the budget, {smaller}"
        return (
            f"The smallest budget that a plan was found for is {format_bytes(self.smallest_bytes)}."
            f" Raise the budget to that, {smaller}"
        )

    def _batch_that_fits(self, needed_bytes: int) -> int | None:
        """The largest batch within the budget, what is needed taken to grow in a straight line from
        the floor of one example; None where that is unknown.
        """
        sizes = {spec.shape[0] for spec in tf.nest.flatten(self.specs) if spec.shape.rank}
        if len(sizes) != 1:
            return None
        batch = sizes.pop()
        if batch == 1:
            return 0
        single = tf.nest.map_structure(
            lambda spec: (
                tf.TensorSpec([1, *spec.shape[1:]], spec.dtype) if spec.shape.rank else spec
            ),
            self.specs,
        )
        try:
            least = (
                floor(trace(self.step, *single, name=self.name).graph).bytes
                + self.search.outside_bytes
            )
        except CheckmateError:
            return None
        per_example = max(CAREFUL * (needed_bytes - least) / (batch - 1), 1)
        return max(0, min(batch - 1, 1 + int((self.search.limit_bytes - least) // per_example)))
