"""Pieces: the functions of a step in slices, planned one by one within the same budget."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from checkmate.errors import InfeasibleBudgetError, NoPlanFoundError
from checkmate.tf2 import device as devices
from checkmate.tf2.costs.measured import with_costs
from checkmate.tf2.execution.replay import Replayed, output_buffers_bytes
from checkmate.tf2.graph.sizes import known_bytes
from checkmate.tf2.graph.trace import TracedStep, trace
from checkmate.tf2.memory.batch_area import make_output_buffers
from checkmate.tf2.memory.garbage import only_new_garbage
from checkmate.tf2.options import PlanOptions
from checkmate.tf2.planning import store
from checkmate.tf2.planning.new_plan import new_plan
from checkmate.tf2.planning.request import Clock, Planned, PlanRequest, PlanTask
from checkmate.tf2.rewrites.step import InSlices, Step, not_read_bytes
from checkmate.tf2.rewrites.tile import Tile


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """The planned functions of a step in slices.

    Attributes:
      others: The same step on the other devices that run its plans.
      results_bytes: Results of the step that are in memory until the next step ends, beyond their
        buffers: the slices must leave that.
    """

    others: tuple[InSlices, ...]
    each: dict[int, Planned]
    after: Planned
    results_bytes: int


@dataclass(slots=True, eq=False)
class PiecePlanner:
    """Plans the functions of a step in slices. `task` is the planning of the whole, whose budget is
    known."""

    task: PlanTask
    _after: tuple[TracedStep, Planned] | None = None
    _others: list[tuple[Tile, Step]] = field(default_factory=list)

    def plan(self, step: Step, file: Any = None) -> Pieces:
        """Plans the update of the optimizer first, whose buffers for results are then in memory,
        and then each size of a slice. `file` has the plan of a slice, to run that."""
        in_slices = step.in_slices
        assert in_slices is not None
        others = self._on_other_devices(step)  # before what is in use is counted
        after = self._of_after(in_slices)
        results = known_bytes(after.traced.flat.outputs)
        beyond = max(0, results - output_buffers_bytes(after.run))
        each = {}
        for size, traced in in_slices.each.items():
            named = file if size == in_slices.slices.size else None
            request = self._request(traced, replace(self._options(beyond), plan=named))
            request = replace(request, has_output_buffers=False)
            try:
                each[size] = self._planned(request, traced, in_slices, of_slice=True)
            except (InfeasibleBudgetError, NoPlanFoundError) as error:
                if self.task.request.options.micro_batches != "auto" and size > 1:
                    error.args = (f"{error} More micro-batches have smaller slices.",)
                raise
        return Pieces(others, each, after, beyond)

    def bound(self, step: Step) -> float | None:
        """The seconds that no plan of a step is faster than: of the kernels of its slices, each run
        once, as measured at this size. None where no plan can fit, which needs no measurement."""
        if step.floor_bytes > self.task.budget_bytes:
            return None
        traced, slices = step.pieces[0].traced, step.slices
        graph = with_costs(traced, self.task.request.options.cost_model)
        return slices.examples / slices.size * graph.total_cost

    def _of_after(self, in_slices: InSlices) -> Planned:
        """The function after the slices. It is replayed in order even where it needs no plan, so
        that its results lie in buffers of their own."""
        traced = in_slices.after
        if self._after is None or self._after[0] is not traced:
            self._after = None  # its buffers are freed before others are made
            # Its ops belong to no layers.
            options = replace(self._options(), verbose=False, keep=(), recompute=())
            request = self._request(traced, options)
            planned = self._planned(request, traced, in_slices, of_slice=False)
            if planned.result is None and request.has_output_buffers:
                run = Replayed(traced, planned.plan, make_output_buffers(traced))
                planned = replace(planned, run=run)
            self._after = traced, planned
        return self._after[1]

    def _on_other_devices(self, step: Step) -> tuple[InSlices, ...]:
        task, name = self.task, self.task.request.name
        if not self._others:
            for device, source in task.request.others.items():
                traced = trace(source, *task.specs, name=name)
                tile = Tile(task.request.scratch, device)
                self._others.append((tile, Step.of(source, task.specs, traced)))
        found = (tile.apply(other, step.slices.size).in_slices for tile, other in self._others)
        return tuple(each for each in found if each is not None)

    def _options(self, less_bytes: int = 0) -> PlanOptions:
        budget = self.task.budget_bytes - less_bytes
        return replace(self.task.request.options, budget=budget, micro_batches=1, plan=None)

    def _request(self, traced: TracedStep, options: PlanOptions) -> PlanRequest:
        name, step = traced.graph.name, traced.function
        request = replace(self.task.request, step=step, name=name, options=options)
        return replace(request, explains=False, others={})

    def _planned(
        self, request: PlanRequest, traced: TracedStep, in_slices: InSlices, *, of_slice: bool
    ) -> Planned:
        if not self.task.reports:  # what is in use is what the function reads, then
            budget = int(request.options.budget) - not_read_bytes(self.task.traced, traced)
            request = replace(request, options=replace(request.options, budget=max(1, budget)))
        # The batch that is in memory is one of the function's arguments.
        there = self.task.start.batch_bytes if self.task.batch is not None else 0
        specs = in_slices.specs(self.task.specs, of_slice=of_slice)
        with only_new_garbage(), request.showing() as progress:
            clock, released = Clock(progress), self.task.released_bytes + there
            task = PlanTask.of(request, traced, specs, clock, (), released_bytes=released)
            try:
                planned = store.stored_plan(task) or new_plan(task)
            finally:
                devices.forget_peak(devices.training_device())
        report = replace(planned.report, seconds=clock.seconds, cpu_seconds=clock.cpu_seconds)
        return replace(planned, report=report)
