"""Steps in slices of their batch: their functions, planned one by one within the same budget
(`SlicePlanner`), and run one after another (`SlicedRun`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import tensorflow as tf

from checkmate.errors import InfeasibleBudgetError, NoPlanFoundError
from checkmate.tf2.costs.measured import with_costs
from checkmate.tf2.execution.replay import OutputBuffers, Replayed, output_buffers_bytes
from checkmate.tf2.graph.sizes import known_bytes
from checkmate.tf2.graph.trace import TracedStep, same_graph, trace
from checkmate.tf2.memory.probe import make_output_buffers
from checkmate.tf2.options import PlanOptions
from checkmate.tf2.planning.new_plan import planned_alone
from checkmate.tf2.planning.request import Planned, PlanRequest, PlanTask
from checkmate.tf2.report import MicroBatches
from checkmate.tf2.rewrites.step import InSlices, Step, not_read_bytes
from checkmate.tf2.rewrites.tile import Tile


@dataclass(frozen=True, slots=True, eq=False)
class SlicedRun:
    """Runs a step on a batch, flattened, slice after slice; see `InSlices`.

    Attributes:
      each, after: The planned functions.
      others: The same step on the other devices that run its plans.
      results_bytes: Results of the step that are in memory until the next step ends, beyond their
        buffers: the slices must leave that.
    """

    in_slices: InSlices
    each: Mapping[int, Planned]
    after: Planned
    others: tuple[InSlices, ...]
    results_bytes: int

    def __call__(self, *flat: tf.Tensor) -> Any:
        early = self.in_slices.before(*flat)
        for first, size in self.in_slices.slices:
            self.each[size].run(tf.constant(first), *flat, *early)
        return self.after.run(*flat, *early)

    def one_slice(self, *flat: tf.Tensor) -> None:
        """Runs the first slice alone, with what comes before it."""
        early = self.in_slices.before(*flat)
        first, size = next(iter(self.in_slices.slices))
        self.each[size].run(tf.constant(first), *flat, *early)

    @property
    def buffers(self) -> OutputBuffers | None:
        return self.after.run.buffers if isinstance(self.after.run, Replayed) else None

    def in_all(self, seconds: Callable[[Planned], float]) -> float:
        """Seconds of the whole step by those of its functions."""
        sizes = self.in_slices.slices.sizes
        each = sum(many * seconds(self.each[size]) for size, many in sizes.items())
        return each + seconds(self.after)


@dataclass(slots=True, eq=False)
class SlicePlanner:
    """Plans the functions of a step in slices. `task` is the planning of the whole, whose budget is
    known."""

    task: PlanTask
    _after: tuple[TracedStep, Planned] | None = None
    _others: list[tuple[Tile, Step]] = field(default_factory=list)

    def plan(
        self, step: Step, plain_peak_bytes: int, plain_cost: float | None, file: Any = None
    ) -> Planned:
        """The step that runs in slices, with the figures of the plan of a slice. The update of the
        optimizer is planned first, whose buffers for results are then in memory, and then each size
        of a slice. `file` has the plan of a slice, to run that."""
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
        run = SlicedRun(in_slices, each, after, others, beyond)
        return self._joined(step, run, plain_peak_bytes, plain_cost)

    def bound(self, step: Step) -> float:
        """The seconds that no plan of a step is faster than: of the kernels of its slices, each run
        once, as measured at this size."""
        traced, slices = step.pieces[0].traced, step.slices
        graph = with_costs(traced, self.task.request.options.cost_model)
        return slices.examples / slices.size * graph.total_cost

    def _joined(
        self, step: Step, run: SlicedRun, plain_peak_bytes: int, plain_cost: float | None
    ) -> Planned:
        task, slices, beyond = self.task, run.in_slices.slices, run.results_bytes
        part, parts = run.each[slices.size], [*run.each.values(), run.after]
        memory = part.report.memory
        memory = replace(
            memory, limit_bytes=task.budget_bytes, step_bytes=memory.step_bytes + beyond
        )
        notes = [note for each in parts for note in each.report.notes]
        report = replace(
            part.report,
            name=task.request.name,
            memory=memory,
            plain_peak_bytes=plain_peak_bytes,
            predicted_peak_bytes=max(each.report.expected_peak_bytes for each in parts) + beyond,
            notes=tuple(dict.fromkeys([*notes, *step.notes])),
            seconds=added(each.report.seconds for each in parts),
            micro_batches=MicroBatches(
                slices.count,
                slices.size,
                slices.examples,
                run.in_slices.kept_bytes,
                part.report.plain_peak_bytes + beyond,
                cost=run.in_all(lambda each: each.cost),
                bound=run.in_all(lambda each: each.bound),
                once_cost=run.in_all(lambda each: each.graph.total_cost),
                plain_cost=plain_cost,
                plain_bytes=plain_peak_bytes - task.other_bytes,
            ),
        )
        return replace(
            part,
            traced=task.traced,
            run=run,
            report=report,
            rise_bytes=max(each.rise_bytes for each in parts) + known_bytes(run.in_slices.early),
            part=part,
            record=step.record,
        )

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
        asked = self.task.request.options
        # To look for splits of each size of a slice takes longer than the slices save.
        return replace(asked, budget=budget, micro_batches=1, plan=None, rewrites=())

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
        there = self.task.memory.batch_bytes if self.task.batch is not None else 0
        specs = in_slices.specs(self.task.specs, of_slice=of_slice)
        released = self.task.released_bytes + there
        return planned_alone(request, traced, specs, released_bytes=released)


def _in_parts(planned: Planned, traced: TracedStep) -> TracedStep:
    """The trace of another replica, split as that of the first."""
    split = planned.split and planned.split.of(traced)
    return same_graph(split, planned.innermost.traced) if split else traced


def added(clocks: Iterable[dict[str, float]]) -> dict[str, float]:
    seconds: dict[str, float] = {}
    for clock in clocks:
        for phase, each in clock.items():
            seconds[phase] = seconds.get(phase, 0.0) + each
    return seconds


def on_replicas(planned: Planned, traced: Sequence[TracedStep]) -> list[Callable[..., Any]]:
    """The function of each replica. The ops run in the plan's order also where a step or a slice
    needs no plan: the function that calls them would run them in any.

    The first replica was planned with the others in its request. Raises `TraceError` where a slice
    has another graph on another replica.
    """
    run = planned.run
    if not isinstance(run, SlicedRun):
        return [Replayed(_in_parts(planned, each), planned.plan) for each in traced]

    def there(piece: Planned, traced: TracedStep) -> Planned:
        return replace(piece, run=Replayed(same_graph(traced, piece.traced), piece.plan))

    return [
        replace(
            run,
            in_slices=here,
            each={size: there(piece, here.each[size]) for size, piece in run.each.items()},
            after=there(run.after, here.after),
        )
        for here in (run.in_slices, *run.others)
    ]
