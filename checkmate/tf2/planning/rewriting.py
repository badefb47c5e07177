"""Rewriting: the plan of a step that may be written otherwise, in the way that is asked for or the
one of least cost."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from checkmate.errors import (
    InfeasibleBudgetError,
    NoPlanFoundError,
    PlanError,
    PlanFileError,
)
from checkmate.tf2 import device as devices
from checkmate.tf2.memory.budget import free_or_none
from checkmate.tf2.memory.scratch import Scratch
from checkmate.tf2.planning import store
from checkmate.tf2.planning.budget_loop import TUNING
from checkmate.tf2.planning.new_plan import measured, planned_alone, with_budget
from checkmate.tf2.planning.refusal import needed_bytes
from checkmate.tf2.planning.request import Planned, PlanRequest, PlanTask
from checkmate.tf2.planning.sliced_steps import SlicePlanner
from checkmate.tf2.report import TriedSlices
from checkmate.tf2.rewrites.search import Search, rewritten
from checkmate.tf2.rewrites.slices import Slices
from checkmate.tf2.rewrites.step import Equal, Rewrite, Step
from checkmate.tf2.rewrites.table import REWRITES
from checkmate.units import is_share

LOOKING = "looking at slices"
"""The phase of planning in slices, with all numbers of slices that were looked at."""

Refused = InfeasibleBudgetError | NoPlanFoundError


@dataclass(slots=True, eq=False)
class Rewriting:
    """The planning of a step and of its rewritten forms. The functions of one plan at a time are in
    memory, so that each is predicted in the memory that training has: a plan that is found to be
    the cheapest after another one was made is made again. `plain_cost` are the seconds of the plain
    step's kernels, None where they were not measured."""

    task: PlanTask
    plain_peak_bytes: int
    plain_cost: float | None
    rewrites: list[Rewrite]
    slices: SlicePlanner
    _made: tuple[Step, Planned] | None = None
    _refusals: list[Refused] = field(default_factory=list)

    @classmethod
    def of(cls, request: PlanRequest, task: PlanTask, *, measures: bool = True) -> Rewriting:
        """With the budget in bytes and the figures of the plain step, whose ops are measured where
        the budget is a share of its peak, or where it fits on the device."""
        task = replace(task, request=request)
        peak, cost = task.traced.plain_peak_bytes() + task.other_bytes, None
        free = free_or_none(devices.training_device())
        fits = free is not None and peak <= free
        if measures and (is_share(request.options.budget) or fits):
            costs, peak = measured(task)
            cost = costs.graph.total_cost
        task = with_budget(task, peak)
        return cls(task, peak, cost, rewrites(request.scratch), SlicePlanner(task))

    @property
    def step(self) -> Step:
        return Step.of(self.task.request.step, self.task.specs, self.task.traced)

    def new(self) -> Planned:
        """The step in the number of slices that is asked for, or in the one of least cost."""
        count = self.task.request.options.micro_batches
        if count == "auto":
            return self._cheapest()
        slices = Slices.of(self.step.examples, int(count))
        return self.unsplit() if slices.count == 1 else self.at(slices)

    def unsplit(
        self, file: Any = None, *, or_refused: bool = False, in_parts: bool = True
    ) -> Planned:
        """The step on the whole batch; with a file, under the plan that is in it. Within the budget
        "auto" it runs unchanged where no plan is found, unless it is to be refused then."""
        task = self.task
        options = replace(task.request.options, plan=file)
        if not in_parts:
            options = replace(options, rewrites=())
        if file is None and (or_refused or options.budget != "auto"):
            options = replace(options, budget=task.budget_bytes)
        return planned_alone(
            replace(task.request, options=options),
            task.traced,
            task.specs,
            task.batch or (),
            released_bytes=task.released_bytes,
            budget_bytes=task.budget_bytes,
        )

    def at(self, slices: Slices, file: Any = None, named: str = "") -> Planned:
        """The step in these slices, by the first rewrite that applies; with a file, under the plan
        that is in it, by the rewrite of that name."""
        if slices.count == 1:
            return self.unsplit(file)
        auto = self.task.request.options.micro_batches == "auto"
        known = exact(self.rewrites) if auto and not named else self.rewrites
        known = [each for each in known if named in ("", each.name)]
        return self._planned(rewritten(self.step, slices.size, known), file)

    def stored(self, path: Path | None) -> Planned | None:
        """The step under the plan of a file that is for it; None without one. A budget that is a
        share is one of the plain step's bytes when the plan was made, since those differ a little
        from process to process."""
        named = path or self.task.request.options.plan
        if not named or not Path(named).exists():
            return None
        try:
            return self._under_file(named)
        except (PlanFileError, PlanError):
            if path is None:
                raise
            return None

    def _under_file(self, named: Any) -> Planned:
        request, other, examples = self.task.request, self.task.other_bytes, self.step.examples
        found, asked = store.slices_of(named), request.options.micro_batches
        if found is None and asked == "auto":
            return self.unsplit(named)
        slices = Slices(examples, found.size if found else examples)
        if found is None or found.size >= examples or asked not in ("auto", slices.count):
            made_for = f"slices of {found.size} examples" if found else "a whole batch"
            raise PlanFileError(
                f"The plan of {named} is for {made_for}, and a batch of {examples} in {asked}"
                " micro-batches was asked for. Make a plan for that."
            )
        if is_share(request.options.budget):
            self.task = self.task.within(request.resolve(found.plain_bytes + other, other))
            self.slices = SlicePlanner(self.task)
        return self.at(slices, named, found.rewrite)

    def _planned(self, step: Step, file: Any = None) -> Planned:
        return self.slices.plan(step, self.plain_peak_bytes, self.plain_cost, file)

    def _cheapest(self) -> Planned:
        """The step with the cheapest plan found; raises a refusal if there is none."""
        search = Search(self._bound, self._plan, self.plain_cost or 0.0, TUNING.worth_share)
        best = search.run(self.step, exact(self.rewrites))
        tried = tuple(
            TriedSlices(each.step.slices.count, each.bound, each.cost) for each in search.tried
        )
        why_not = search.why_not[-1] if search.why_not else ""
        step = best.step if best else None
        del best
        search.tried.clear()  # the functions of one plan at a time
        if step is not None and (self._made is None or self._made[0] is not step):
            self._plan(step)
        made = self._made if step is not None else None
        planned = made[1] if made else self._unchanged_or_refused(why_not)
        notes = planned.report.notes
        if why_not and planned.report.micro_batches is None:
            notes = (*notes, NOT_SPLIT.format(why_not))
        return planned.reporting(notes=notes, tried_slices=tried)

    def _bound(self, step: Step) -> float | None:
        if step.floor_bytes > self.task.budget_bytes:
            return None  # which needs no measurement
        return self.slices.bound(step) if step.in_slices else self.plain_cost or 0.0

    def _plan(self, step: Step) -> tuple[None, float, float] | None:
        """Plans a step; None where it is refused."""
        self._made = None
        if step.in_slices is None:
            self._release()
        gc.collect()  # functions are in cycles
        try:
            planned = (
                self._planned(step)
                if step.in_slices
                else self.unsplit(or_refused=True, in_parts=False)
            )
        except (InfeasibleBudgetError, NoPlanFoundError) as refusal:
            # A traceback would keep what was planned until then in memory.
            self._refusals.append(refusal.with_traceback(None))
            return None
        self._made = step, planned
        return None, planned.bound, planned.cost

    def _release(self) -> None:
        for rewrite in self.rewrites:
            rewrite.release()

    def _unchanged_or_refused(self, why_not: str) -> Planned:
        """The step unchanged, where the budget is what is free; raises the refusal that asks for
        least otherwise."""
        self._made = None
        self._release()
        gc.collect()
        asked = self.task.request.options
        if asked.budget == "auto" or asked.rewrites or not self._refusals:
            try:
                return self.unsplit()
            except (InfeasibleBudgetError, NoPlanFoundError) as error:
                self._refusals.append(error)
        refusal = min(self._refusals, key=needed_bytes)
        more = NOT_SPLIT.format(why_not) if why_not else SMALLER_DO_NOT_FIT
        if not why_not and next(Slices.halved(self.step.examples), None) is None:
            more = NOT_SPLIT.format(TOO_FEW)
        refusal.args = (f"{refusal} {more}",)
        raise refusal


NOT_SPLIT = 'The batch is not split (micro_batches="auto"): {}'
TOO_FEW = "it has too few examples for slices of two at least."
SMALLER_DO_NOT_FIT = (
    'Nor does the batch fit in other slices (micro_batches="auto"), down to those of two examples.'
)


def rewrites(scratch: Scratch) -> list[Rewrite]:
    """The ways to write a step otherwise, in the order of the table."""
    return [make(scratch) for make in REWRITES.values()]


def exact(rewrites: Iterable[Rewrite]) -> list[Rewrite]:
    """Those that leave the numbers as they are."""
    return [each for each in rewrites if each.promise > Equal.STATISTICS]
