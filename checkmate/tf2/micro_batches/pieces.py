"""Pieces: the functions of a step in slices, planned one by one within the same budget."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from checkmate.core.replay import floor
from checkmate.errors import InfeasibleBudgetError, NoPlanFoundError
from checkmate.tf2.costs.measured import with_costs
from checkmate.tf2.execution.replay import Replayed, output_buffers_bytes
from checkmate.tf2.graph.sizes import known_bytes
from checkmate.tf2.graph.trace import AlreadyTraced, trace
from checkmate.tf2.memory.batch_area import make_output_buffers
from checkmate.tf2.micro_batches.accumulated_step import AccumulatedStep
from checkmate.tf2.micro_batches.sliced_step import Functions, SlicedStep, not_read_bytes
from checkmate.tf2.micro_batches.slices import Slices
from checkmate.tf2.options import PlanOptions
from checkmate.tf2.planning.planner import Planner
from checkmate.tf2.planning.request import Planned, PlanRequest, PlanTask


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """The planned functions of a step in slices.

    Attributes:
      results_bytes: Results of the step that are in memory until the next step ends, beyond their
        buffers: the slices must leave that.
    """

    slices: Slices
    functions: Functions
    others: tuple[Functions, ...]
    each: dict[int, Planned]
    after: Planned
    results_bytes: int


@dataclass(slots=True, eq=False)
class PiecePlanner:
    """Plans the functions of a step in slices. `task` is the planning of the whole, whose budget is
    known."""

    task: PlanTask
    step: SlicedStep | AccumulatedStep
    _after: Planned | None = None
    _after_of: Any = None
    _others: list[SlicedStep] = field(default_factory=list)

    def plan(self, slices: Slices, file: Any = None) -> Pieces:
        """Plans the update of the optimizer first, whose buffers for results are then in memory,
        and then each size of a slice. `file` has the plan of a slice, to run that."""
        functions = self.step.functions(slices)
        others = self._on_other_devices(slices)  # before what is in use is counted
        after = self.after(functions)
        results = known_bytes(after.traced.flat.outputs)
        beyond = max(0, results - output_buffers_bytes(after.run))
        name = f"{self.task.request.name} in {slices.count} micro-batches"
        each = {}
        for size in slices.sizes:
            options = replace(self._options(beyond), plan=file if size == slices.size else None)
            request = replace(self._request(name, options), has_output_buffers=False)
            try:
                each[size] = self._planned(request, functions.each[size], functions, of_slice=True)
            except (InfeasibleBudgetError, NoPlanFoundError) as error:
                if self.task.request.options.micro_batches != "auto" and size > 1:
                    error.args = (f"{error} More micro-batches have smaller slices.",)
                raise
        return Pieces(slices, functions, others, each, after, beyond)

    def after(self, functions: Functions) -> Planned:
        """The function after the slices. It is replayed in order even where it needs no plan, so
        that its results lie in buffers of their own."""
        if self._after is None or self._after_of is not functions.after:
            # Its ops belong to no layers.
            options = replace(self._options(), verbose=False, keep=(), recompute=())
            request = self._request(f"the update of {self.task.request.name}", options)
            planned = self._planned(request, functions.after, functions, of_slice=False)
            self._after = planned if planned.result else self._in_buffers(planned)
            self._after_of = functions.after
        return self._after

    def bound(self, slices: Slices) -> float | None:
        """The seconds that no plan in these slices is faster than: of their kernels, each run once,
        as measured at this size. None where no plan can fit, which needs no measurement."""
        task, functions = self.task, self.step.functions(slices)
        specs = functions.arguments(task.specs, of_slice=True)
        step = AlreadyTraced(functions.each[slices.size], specs)
        traced = trace(step, *specs, name=task.request.name)
        if floor(traced.graph).bytes - traced.small_bytes > task.budget_bytes:
            return None
        graph = with_costs(traced, task.request.options.cost_model)
        return slices.examples / slices.size * graph.total_cost

    def _on_other_devices(self, slices: Slices) -> tuple[Functions, ...]:
        if not self._others:
            task = self.task
            self._others = [
                SlicedStep(
                    trace(step, *task.specs, name=task.request.name), task.request.scratch, device
                )
                for device, step in task.request.others.items()
            ]
        return tuple(each.functions(slices) for each in self._others)

    def _in_buffers(self, planned: Planned) -> Planned:
        if not self.task.request.has_output_buffers:
            return planned
        traced = planned.traced
        return replace(planned, run=Replayed(traced, planned.plan, make_output_buffers(traced)))

    def _options(self, less_bytes: int = 0) -> PlanOptions:
        budget = self.task.budget_bytes - less_bytes
        return replace(self.task.request.options, budget=budget, micro_batches=1, plan=None)

    def _request(self, name: str, options: PlanOptions) -> PlanRequest:
        return replace(self.task.request, name=name, options=options, explains=False, others={})

    def _planned(
        self, request: PlanRequest, concrete: Any, functions: Functions, *, of_slice: bool
    ) -> Planned:
        specs = functions.arguments(self.task.specs, of_slice=of_slice)
        request = replace(request, step=AlreadyTraced(concrete, specs))
        if not self.task.reports:  # what is in use is what the function reads, then
            budget = int(request.options.budget) - not_read_bytes(self.task.traced, concrete)
            request = replace(request, options=replace(request.options, budget=max(1, budget)))
        # The batch that is in memory is one of the function's arguments.
        there = self.task.start.batch_bytes if self.task.batch is not None else 0
        return Planner(request).plan(specs, released_bytes=self.task.released_bytes + there)
