"""Choice: the number of micro-batches and the plan that together cost least within a budget."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from checkmate.core.replay import floor
from checkmate.errors import InfeasibleBudgetError, NoPlanFoundError, TraceError
from checkmate.tf2.micro_batches.joined import PlainFigures, bound_of, cost_of, joined
from checkmate.tf2.micro_batches.pieces import PiecePlanner
from checkmate.tf2.micro_batches.sliced_run import SlicedRun
from checkmate.tf2.micro_batches.sliced_step import SlicedStep
from checkmate.tf2.micro_batches.slices import Slices, examples_of
from checkmate.tf2.planning.in_use import function_bytes
from checkmate.tf2.planning.planned import Planned
from checkmate.tf2.planning.request import PlanTask
from checkmate.tf2.report_figures import TriedSlices
from checkmate.units import Bytes

log = logging.getLogger("checkmate")

SMALLEST = 2
"""The smallest slice that is looked at: what an op does with a single example does not tell whether
it treats each example alone."""

Refused = (InfeasibleBudgetError, NoPlanFoundError)


@dataclass(slots=True, eq=False)
class Choice:
    """The search over numbers of micro-batches: one, two, four and so on.

    A number costs at least what the kernels of its slices take, each run once, as measured at that
    size. No plan is made where that is more than the cheapest plan so far; nor are smaller slices
    looked at then, since smaller kernels are no more efficient.

    Attributes:
      task: The planning of the whole step, whose budget is known.
      plain: What is known of the plain step.
      why_not: Why the batch is not split, as a sentence.
      released_bytes: Those of `task` when the search begins.
      unsplit: Plans the step without micro-batches, for a budget.
    """

    task: PlanTask
    plain: PlainFigures
    unsplit: Callable[[Bytes], Planned]
    best: Planned | None = None
    tried: list[TriedSlices] = field(default_factory=list)
    why_not: str = ""
    refusal: InfeasibleBudgetError | NoPlanFoundError | None = None
    released_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.released_bytes = self.task.released_bytes

    def run(self) -> Planned:
        """Returns the cheapest step found.

        Raises:
          InfeasibleBudgetError: None fits.
          NoPlanFoundError: None was found.
        """
        self._try_unsplit()
        if self.best is not None and self.best.result is None:
            return self.best
        self._try_slices()
        if self.best is None:
            self._refuse()
        assert self.best is not None
        return self._said(self.best)

    def _try_unsplit(self) -> None:
        task = self.task
        least = floor(task.traced.graph).bytes - task.traced.small_bytes
        if least > task.budget_bytes:
            return
        try:
            self.best = self.unsplit(task.budget_bytes)
        except Refused as refusal:
            self.refusal = refusal
        if self.best is not None:
            self._note(1, self.best)
        elif self.plain.cost is not None and isinstance(self.refusal, NoPlanFoundError):
            self.tried.append(TriedSlices(1, self.plain.cost))

    def _try_slices(self) -> None:
        """Looks at slices, smaller and smaller."""
        request, slices = self.task.request, Slices.of(examples_of(self.task.specs), 2)
        try:
            step = SlicedStep(request.step, self.task.specs, request.name, request.scratch)
        except TraceError as error:
            self.why_not = str(error)
            return
        planner, goes_on = PiecePlanner(self.task, step), True
        while goes_on and slices.size >= SMALLEST:
            try:
                binding = step.binding(slices)
                self.why_not = binding.sentence if binding else ""
                goes_on = not binding and self._look_at(planner, slices)
            except TraceError as error:  # slices of this size have other ops
                self.why_not = str(error)
            slices = Slices(step.examples, -(-slices.size // 2))

    def _look_at(self, planner: PiecePlanner, slices: Slices) -> bool:
        """Plans slices if they may be best; False if smaller ones cannot be."""
        self.task.released_bytes = self.released_bytes + self._held_bytes()
        bound = planner.bound(slices)
        if bound is None:
            return True
        if self.best is not None and bound >= self._cost(self.best):
            self.tried.append(TriedSlices(slices.count, bound))
            return False
        try:
            found = joined(self.task, planner.plan(slices), self.plain)
        except Refused as refusal:
            self.refusal = refusal
            if isinstance(refusal, NoPlanFoundError):
                self.tried.append(TriedSlices(slices.count, bound))
            return True
        self._note(slices.count, found)
        if self.best is None or self._cost(found) < self._cost(self.best):
            self.best = found
        del found
        gc.collect()  # the functions of the other one
        return True

    def _held_bytes(self) -> int:
        """What the functions of the best step have in memory, which are released where another one
        is taken."""
        if self.best is None:
            return 0
        if isinstance(self.best.run, SlicedRun):
            return sum(each.function_bytes for each in self.best.run.pieces.each.values())
        return function_bytes(self.best)

    def _note(self, count: int, found: Planned) -> None:
        micro = found.report.micro_batches
        bound = micro.bound if micro else bound_of(found)
        self.tried.append(TriedSlices(count, bound, self._cost(found)))

    def _cost(self, planned: Planned) -> float:
        micro = planned.report.micro_batches
        return micro.cost if micro else cost_of(planned)

    def _said(self, planned: Planned) -> Planned:
        """The step with a report that says what else was looked at."""
        report = planned.report
        if self.why_not and report.micro_batches is None:
            report = replace(report, notes=(*report.notes, NOT_SPLIT.format(self.why_not)))
        return replace(planned, report=replace(report, tried_slices=tuple(self.tried)))

    def _refuse(self) -> None:
        """Raises the refusal of the last slices, or where the batch cannot be split, that of the
        step without them."""
        self.task.released_bytes = self.released_bytes
        budget = self.task.request.options.budget
        if self.refusal is None or budget == "auto":
            try:
                # Where memory is what is free, the step may run unchanged.
                self.best = self.unsplit("auto" if budget == "auto" else self.task.budget_bytes)
                return
            except Refused as refusal:
                self.refusal = refusal
        more = NOT_SPLIT.format(self.why_not) if self.why_not else SMALLER_DO_NOT_FIT
        self.refusal.args = (f"{self.refusal} {more}",)
        raise self.refusal


NOT_SPLIT = 'The batch is not split (micro_batches="auto"): {}'
SMALLER_DO_NOT_FIT = (
    'Nor does the batch fit in slices (micro_batches="auto"), down to slices of two examples.'
)
