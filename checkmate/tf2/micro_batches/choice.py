"""Choice: the number of micro-batches and the plan that together cost least within a budget."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from checkmate.core.replay import floor
from checkmate.errors import InfeasibleBudgetError, NoPlanFoundError
from checkmate.tf2.micro_batches.pieces import PiecePlanner
from checkmate.tf2.micro_batches.sliced_run import PlainFigures, joined
from checkmate.tf2.micro_batches.sliced_step import SlicedStep
from checkmate.tf2.micro_batches.slices import Slices, examples_of
from checkmate.tf2.planning.request import Planned, PlanTask
from checkmate.tf2.report import TriedSlices
from checkmate.units import Bytes

Refused = (InfeasibleBudgetError, NoPlanFoundError)


@dataclass(slots=True, eq=False)
class Choice:
    """The search over numbers of micro-batches: one, two, four and so on.

    A number costs at least what the kernels of its slices take, each run once, as measured at that
    size. No plan is made where that is more than the cheapest plan so far; nor are smaller slices
    looked at then, since smaller kernels are no more efficient. The functions of one plan at a time
    are in memory, so that each is predicted in the memory that training has: a plan that is found
    to be the cheapest after another one was made is made again.
    """

    task: PlanTask
    plain: PlainFigures
    unsplit: Callable[[Bytes], Planned]
    tried: list[TriedSlices] = field(default_factory=list)
    why_not: str = ""
    _costs: dict[Slices, float] = field(default_factory=dict)
    _made: tuple[Slices, Planned] | None = None
    _step: SlicedStep | None = None
    _pieces: PiecePlanner | None = None
    _refusals: list[InfeasibleBudgetError | NoPlanFoundError] = field(default_factory=list)

    def run(self) -> Planned:
        """Returns the cheapest step found; raises a refusal if none was."""
        whole = Slices.of(examples_of(self.task.specs), 1)
        self._try_unsplit(whole)
        if self._made is not None and self._made[1].result is None:
            return self._made[1]
        self._try_slices(whole.examples)
        for slices in sorted(self._costs, key=self._costs.__getitem__):
            planned = self._plan(slices)
            if planned is not None:
                return self._said(planned)
        return self._said(self._unchanged_or_refused())

    def _try_unsplit(self, whole: Slices) -> None:
        task = self.task
        least = floor(task.traced.graph).bytes - task.traced.small_bytes
        if least > task.budget_bytes:
            return
        planned = self._plan(whole)
        if planned is not None:
            self._note(whole, planned.bound, planned.cost)
        elif self.plain.cost is not None and isinstance(self._refusals[-1], NoPlanFoundError):
            self._note(whole, self.plain.cost)

    def _try_slices(self, examples: int) -> None:
        step = SlicedStep(self.task.traced, self.task.request.scratch)
        if step.binding:
            self.why_not = step.binding.sentence
            return
        self._step, self._pieces = step, PiecePlanner(self.task, step)
        for slices in Slices.halved(examples):
            if not self._look_at(slices, self._pieces):
                break

    def _look_at(self, slices: Slices, pieces: PiecePlanner) -> bool:
        """Plans slices if they may be best; False if smaller ones cannot be."""
        bound = pieces.bound(slices)
        if bound is None:
            return True
        if bound >= min(self._costs.values(), default=math.inf):
            self._note(slices, bound)
            return False
        planned = self._plan(slices)
        if planned is None:
            if isinstance(self._refusals[-1], NoPlanFoundError):
                self._note(slices, bound)
            return True
        micro = planned.report.micro_batches
        assert micro is not None
        self._note(slices, micro.bound, micro.cost)
        return True

    def _note(self, slices: Slices, bound: float, cost: float | None = None) -> None:
        self.tried.append(TriedSlices(slices.count, bound, cost))
        if cost is not None:
            self._costs[slices] = cost

    def _plan(self, slices: Slices) -> Planned | None:
        """The step in these slices, planned now unless it was the last that was planned; None where
        it is refused."""
        if self._made is not None and self._made[0] == slices:
            return self._made[1]
        self._made = None
        if slices.count == 1 and self._step is not None:
            self._step.release()
            self._pieces = PiecePlanner(self.task, self._step)
        gc.collect()  # functions are in cycles
        try:
            if slices.count == 1:
                planned = self.unsplit(self.task.budget_bytes)
            else:
                assert self._pieces is not None
                planned = joined(self.task, self._pieces.plan(slices), self.plain)
        except Refused as refusal:
            # A traceback would keep what was planned until then in memory.
            self._refusals.append(refusal.with_traceback(None))
            return None
        self._made = slices, planned
        return planned

    def _said(self, planned: Planned) -> Planned:
        """The step with a report that says which others were looked at."""
        report = planned.report
        if self.why_not and report.micro_batches is None:
            report = replace(report, notes=(*report.notes, NOT_SPLIT.format(self.why_not)))
        return replace(planned, report=replace(report, tried_slices=tuple(self.tried)))

    def _unchanged_or_refused(self) -> Planned:
        """The step unchanged, where the budget is what is free; raises the refusal that asks for
        least otherwise."""
        self._made = self._pieces = self._step = None
        gc.collect()
        budget = self.task.request.options.budget
        if budget == "auto" or not self._refusals:
            try:
                return self.unsplit("auto" if budget == "auto" else self.task.budget_bytes)
            except Refused as error:
                self._refusals.append(error)
        refusal = min(self._refusals, key=_needed_bytes)
        more = NOT_SPLIT.format(self.why_not) if self.why_not else SMALLER_DO_NOT_FIT
        refusal.args = (f"{refusal} {more}",)
        raise refusal


NOT_SPLIT = 'The batch is not split (micro_batches="auto"): {}'
SMALLER_DO_NOT_FIT = (
    'Nor does the batch fit in other slices (micro_batches="auto"), down to those of two examples.'
)


def _needed_bytes(refusal: InfeasibleBudgetError | NoPlanFoundError) -> float:
    """The budget that would do, as far as a refusal tells."""
    known = (
        refusal.smallest_budget_bytes,
        getattr(refusal, "floor_bytes", None),
        getattr(refusal, "best_peak_bytes", None),
    )
    return next((each for each in known if each), math.inf)
