"""SlicedRun: a planned step that runs in slices, made of the planned functions (`joined`), also for
each replica of this process (`on_replicas`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from checkmate.tf2.execution.replay import Replayed
from checkmate.tf2.execution.results import OutputBuffers
from checkmate.tf2.graph.sizes import known_bytes
from checkmate.tf2.graph.trace import TracedStep, same_graph
from checkmate.tf2.planning.pieces import Pieces
from checkmate.tf2.planning.request import Planned, PlanTask
from checkmate.tf2.report import MicroBatches
from checkmate.tf2.rewrites.slices import Slices
from checkmate.tf2.rewrites.step import InSlices, Step


@dataclass(frozen=True, slots=True, eq=False)
class SlicedRun:
    """Runs a step on a batch, flattened, slice after slice; see `InSlices`."""

    in_slices: InSlices
    each: Mapping[int, Callable[..., Any]]
    after: Callable[..., Any]
    pieces: Pieces

    def __call__(self, *flat: tf.Tensor) -> Any:
        early = self.in_slices.before(*flat)
        for first, size in self.in_slices.slices:
            self.each[size](tf.constant(first), *flat, *early)
        return self.after(*flat, *early)

    def one_slice(self, *flat: tf.Tensor) -> None:
        """Runs the first slice alone, with what comes before it."""
        early = self.in_slices.before(*flat)
        first, size = next(iter(self.in_slices.slices))
        self.each[size](tf.constant(first), *flat, *early)

    @property
    def buffers(self) -> OutputBuffers | None:
        return self.after.buffers if isinstance(self.after, Replayed) else None


@dataclass(frozen=True, slots=True)
class PlainFigures:
    """Figures of the plain step, whose batch is not split.

    Attributes:
      own_bytes: Bytes of the step itself, of which a budget can be a share.
      cost: Seconds of its kernels; None where they were not measured.
    """

    peak_bytes: int
    own_bytes: int
    cost: float | None


def joined(task: PlanTask, step: Step, pieces: Pieces, plain: PlainFigures) -> Planned:
    """Returns the step that runs in slices, with the figures of the plan of a slice."""
    in_slices, after = step.in_slices, pieces.after
    assert in_slices is not None
    part = pieces.each[step.slices.size]
    parts = [*pieces.each.values(), after]
    beyond, memory = pieces.results_bytes, part.report.memory
    memory = replace(memory, limit_bytes=task.budget_bytes, step_bytes=memory.step_bytes + beyond)
    predicted = [each.report.expected_peak_bytes for each in parts]
    report = replace(
        part.report,
        name=task.request.name,
        memory=memory,
        plain_peak_bytes=plain.peak_bytes,
        predicted_peak_bytes=max(predicted) + beyond,
        notes=_notes(step, parts),
        seconds=added(each.report.seconds for each in parts),
        cpu_seconds=added(each.report.cpu_seconds for each in parts),
        micro_batches=_figures(in_slices, pieces, plain),
    )
    each = {size: each.run for size, each in pieces.each.items()}
    run = SlicedRun(in_slices, each, after.run, pieces)
    early = known_bytes(in_slices.early)
    return Planned(
        task.traced,
        part.graph,
        part.plan,
        part.result,
        run,
        report,
        max(each.rise_bytes for each in parts) + early,
        part,
        step.record,
    )


def _figures(in_slices: InSlices, pieces: Pieces, plain: PlainFigures) -> MicroBatches:
    slices = in_slices.slices
    return MicroBatches(
        slices.count,
        slices.size,
        slices.examples,
        in_slices.kept_bytes,
        pieces.each[slices.size].report.plain_peak_bytes + pieces.results_bytes,
        cost=_in_all(slices, pieces, lambda each: each.cost),
        bound=_in_all(slices, pieces, lambda each: each.bound),
        once_cost=_in_all(slices, pieces, lambda each: each.graph.total_cost),
        plain_cost=plain.cost,
        plain_bytes=plain.own_bytes,
    )


def _in_all(slices: Slices, pieces: Pieces, seconds: Callable[[Planned], float]) -> float:
    each = sum(many * seconds(pieces.each[size]) for size, many in slices.sizes.items())
    return each + seconds(pieces.after)


def _notes(step: Step, parts: Iterable[Planned]) -> tuple[str, ...]:
    """The notes of the functions' reports, each once, and those on differences from the whole."""
    notes = [note for each in parts for note in each.report.notes]
    return tuple(dict.fromkeys([*notes, *step.notes]))


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
    if not isinstance(planned.run, SlicedRun):
        return [Replayed(each, planned.plan) for each in traced]
    run = planned.run
    return [_on_replica(run, each) for each in (run.in_slices, *run.pieces.others)]


def _on_replica(run: SlicedRun, here: InSlices) -> SlicedRun:
    pieces = run.pieces
    each = {
        size: Replayed(same_graph(here.each[size], piece.traced), piece.plan)
        for size, piece in pieces.each.items()
    }
    after = Replayed(same_graph(here.after, pieces.after.traced), pieces.after.plan)
    return SlicedRun(here, each, after, pieces)
