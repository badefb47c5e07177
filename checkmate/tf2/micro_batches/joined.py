"""joined(): the planned functions of a step in slices, as one planned step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from checkmate.tf2.memory.plain_step import PlainStep
from checkmate.tf2.micro_batches.pieces import Pieces
from checkmate.tf2.micro_batches.sliced_run import SlicedRun
from checkmate.tf2.planning.planned import Planned
from checkmate.tf2.planning.request import PlanTask
from checkmate.tf2.report_figures import MicroBatches


@dataclass(frozen=True, slots=True)
class PlainFigures:
    """What is known of the plain step, whose batch is not split.

    Attributes:
      peak_bytes: Its predicted peak.
      own_bytes: What it takes itself, of which a budget can be a share.
      step: What it was measured to take.
      cost: Seconds of its kernels; None where they were not measured.
    """

    peak_bytes: int
    own_bytes: int
    step: PlainStep
    cost: float | None


def joined(task: PlanTask, pieces: Pieces, plain: PlainFigures) -> Planned:
    """Returns the step that runs in slices, with what the plan of a slice says.

    Args:
      task: The planning of the whole step.
    """
    slices, after = pieces.slices, pieces.after
    part = pieces.each[slices.size]
    parts = [*pieces.each.values(), after]
    beyond, memory = pieces.results_bytes, part.report.memory
    memory = replace(
        memory,
        limit_bytes=task.budget_bytes,
        step_bytes=memory.step_bytes + beyond,
    )
    other = task.other_bytes
    report = replace(
        part.report,
        name=task.request.name,
        memory=memory,
        plain_peak_bytes=plain.peak_bytes,
        plain_measured_bytes=plain.step.peak_bytes and plain.step.peak_bytes + other,
        plain_not_measured=plain.step.why_not,
        measured_peak_bytes=_highest((each.report.measured_peak_bytes for each in parts), beyond),
        predicted_peak_bytes=_highest((each.report.predicted_peak_bytes for each in parts), beyond),
        measured_slowdown=None,
        step_seconds=None,
        steps_before=sum(each.report.steps_before for each in parts),
        notes=_notes(pieces, parts),
        seconds=_added(each.report.seconds for each in parts),
        cpu_seconds=_added(each.report.cpu_seconds for each in parts),
        micro_batches=_figures(pieces, plain),
    )
    run = SlicedRun(
        slices,
        pieces.functions.before,
        {size: each.run for size, each in pieces.each.items()},
        after.run,
        pieces,
    )
    return Planned(
        task.traced,
        part.graph,
        part.plan,
        part.result,
        run,
        report.with_seconds(plain.step.seconds, _seconds(pieces)),
        sum(each.function_bytes for each in parts),
        after.in_use_bytes,
        part,
    )


def _figures(pieces: Pieces, plain: PlainFigures) -> MicroBatches:
    slices = pieces.slices
    return MicroBatches(
        slices.count,
        slices.size,
        slices.examples,
        pieces.functions.kept_bytes,
        pieces.each[slices.size].report.plain_peak_bytes + pieces.results_bytes,
        cost=_in_all(pieces, cost_of),
        bound=_in_all(pieces, bound_of),
        once_cost=_in_all(pieces, lambda each: each.graph.total_cost),
        plain_cost=plain.cost,
        plain_bytes=plain.own_bytes,
    )


def cost_of(planned: Planned) -> float:
    """Returns the predicted seconds of a plan's kernels."""
    cost = planned.result.cost if planned.result else None
    return planned.graph.total_cost if cost is None else cost


def bound_of(planned: Planned) -> float:
    """Returns the seconds that no plan is faster than."""
    bound = planned.result.bound if planned.result else None
    return planned.graph.total_cost if bound is None else bound


def _in_all(pieces: Pieces, seconds: Callable[[Planned], float]) -> float:
    """What all slices take, with what runs after them."""
    sizes = pieces.slices.sizes
    slices = sum(many * seconds(pieces.each[size]) for size, many in sizes.items())
    return slices + seconds(pieces.after)


def _seconds(pieces: Pieces) -> float | None:
    """The measured time of a step; None where that of a function is not known."""
    sizes = pieces.slices.sizes
    times = [(sizes[size], each) for size, each in pieces.each.items()] + [(1, pieces.after)]
    found = 0.0
    for many, planned in times:
        report = planned.report
        seconds = report.step_seconds if planned.result else report.plain_seconds
        if seconds is None:
            return None
        found += many * seconds
    return found


def _notes(pieces: Pieces, parts: Iterable[Planned]) -> tuple[str, ...]:
    """What the functions' reports say, each once, and what is not as in the whole."""
    notes = [note for each in parts for note in each.report.notes]
    return tuple(dict.fromkeys([*notes, *pieces.functions.notes]))


def _highest(peaks: Iterable[int | None], beyond: int) -> int | None:
    found = list(peaks)
    known = [peak for peak in found if peak]
    return max(known) + beyond if len(known) == len(found) else None


def _added(clocks: Iterable[dict[str, float]]) -> dict[str, float]:
    seconds: dict[str, float] = {}
    for clock in clocks:
        for phase, each in clock.items():
            seconds[phase] = seconds.get(phase, 0.0) + each
    return seconds
