"""ReportFigures: what was asked of a step, what was found and what it costs, as numbers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeVar

from checkmate.core.graph import DFGraph
from checkmate.core.plan import Plan
from checkmate.solvers.result import SolveResult
from checkmate.tf2.memory.budget import MemoryBudget

SLOWER, START_S = 0.3, 0.002
"""When a step is said to be slower than predicted, as each was timed once or twice: by which share
of the plain step's time, and by how many seconds at least."""


@dataclass(frozen=True, slots=True)
class MicroBatches:
    """A batch that runs in slices.

    Attributes:
      count: How many slices.
      size: How many examples a slice has; the last may have fewer.
      examples: How many the batch has.
      kept_bytes: Bytes in which slices leave what is read after them: sums of gradients, results.
      peak_bytes: Predicted peak of a slice that runs as it is.
      cost: Predicted seconds of the kernels of the whole step.
      bound: No plan in these slices takes less.
      once_cost: What the slices take with nothing recomputed.
      plain_cost: Predicted seconds of the plain step's kernels; None where they were not measured.
      plain_bytes: What the plain step takes itself, of which a budget can be a share.
    """

    count: int
    size: int
    examples: int
    kept_bytes: int
    peak_bytes: int
    cost: float
    bound: float
    once_cost: float
    plain_cost: float | None
    plain_bytes: int


@dataclass(frozen=True, slots=True)
class TriedSlices:
    """A number of micro-batches that was looked at.

    Attributes:
      count: The number; 1 for the batch that is not split.
      bound: No plan takes fewer seconds.
      cost: What the plan that was found takes; None where none was looked for, or found.
    """

    count: int
    bound: float
    cost: float | None = None


Figures = TypeVar("Figures", bound="ReportFigures")


@dataclass(frozen=True, slots=True)
class ReportFigures:
    """The figures of a `Report`.

    Attributes:
      name: The model's.
      memory: What the budget is spent on.
      plain_peak_bytes: Predicted peak of the step as it was written; "60%" is a share of its
        measured peak where there is one.
      measured_peak_bytes: Peak of this step by the allocator's count, in the steps that confirmed
        it; None where nothing could be measured.
      predicted_peak_bytes: The peak by the allocator's count that is expected in training, with
        batches that lie elsewhere each time; None where it was not predicted.
      result: The solver's judged answer, or None where the step runs unchanged.
      ops: Ops of the planned graph.
      tensorflow_ops: TensorFlow ops of the step that is planned: what the graph optimizer leaves of
        those that were traced.
      seconds: Phase -> how long it took.
      notes: Cautions, as sentences.
      graph: The graph of the step; that of `result` by default.
      plain_plan: The plan of the step as it was written; by default every op once, in the order of
        the graph.
      measured_slowdown: Time of this step over that of the plain one, where both were measured.
      plain_measured_bytes: Peak of the plain step by the allocator's count, as TensorFlow runs it;
        None where it was not measured.
      plain_not_measured: Why it was not, as a clause.
      plain_seconds: Measured time of a plain step, or None.
      step_seconds: Measured time of a step as it runs now, or None.
      cpu_seconds: The same of all CPU cores together.
      steps_before: How many steps were run before the first one that counts, without those of the
        plain step.
      micro_batches: Where the batch runs in slices, how. Then `graph`, `result` and `ops` are those
        of a slice.
      tried_slices: The numbers of micro-batches that were looked at, where it was to be chosen.

    Example:
      >>> report = step.report()  # doctest: +SKIP
      >>> report.plain_bytes, report.peak_bytes, report.predicted_slowdown  # doctest: +SKIP
    """

    name: str
    memory: MemoryBudget
    plain_peak_bytes: int
    measured_peak_bytes: int | None
    result: SolveResult | None
    ops: int
    tensorflow_ops: int
    seconds: dict[str, float]
    notes: tuple[str, ...]
    predicted_peak_bytes: int | None = None
    graph: DFGraph | None = field(default=None, repr=False)
    plain_plan: Plan | None = field(default=None, repr=False)
    measured_slowdown: float | None = None
    plain_measured_bytes: int | None = None
    plain_not_measured: str = ""
    plain_seconds: float | None = None
    step_seconds: float | None = None
    cpu_seconds: dict[str, float] = field(default_factory=dict)
    steps_before: int = 0
    micro_batches: MicroBatches | None = None
    tried_slices: tuple[TriedSlices, ...] = ()

    def __post_init__(self) -> None:
        if self.graph is None and self.result is not None:
            object.__setattr__(self, "graph", self.result.graph)

    def with_seconds(self: Figures, plain: float | None, step: float | None) -> Figures:
        """Returns the same with measured times, and a note where this step is slower than was
        predicted.

        Args:
          plain: Seconds of the plain step, or None.
          step: Seconds of this one, or None.
        """
        if not plain or not step:
            return replace(self, plain_seconds=plain)
        slowdown = step / plain
        report = replace(self, plain_seconds=plain, step_seconds=step, measured_slowdown=slowdown)
        if not report.is_slower_than_predicted:
            return report
        note = (
            f"A step takes {slowdown:.2f} times as long as the plain one ({plain:.3g} s), and"
            f" {report.predicted_slowdown:.2f} times was predicted. Raise the budget, give"
            " TensorFlow more threads, or tell the authors of checkmate of this model."
        )
        return replace(report, notes=(*self.notes, note))

    @property
    def budget_bytes(self) -> int:
        """The budget; it counts all resident bytes."""
        return self.memory.limit_bytes

    @property
    def fixed_bytes(self) -> int:
        """The fixed bytes that the step's graph counts."""
        return self.memory.graph_fixed_bytes

    @property
    def outside_bytes(self) -> int:
        """The fixed bytes that the step's graph does not count: what else was in use on the device
        when the step was planned (an input pipeline's batches, other tensors, and what the
        allocator lost on all of them), and the next batches."""
        return self.memory.other_bytes

    @property
    def predicted_slowdown(self) -> float:
        """Predicted time of this step's kernels over that of the plain one's. It does not count
        that a plan runs one op at a time. Where the plain step of a batch in slices was not
        measured, it is taken to cost what the slices cost without recomputation."""
        micro = self.micro_batches
        if micro is not None:
            return micro.cost / (micro.plain_cost or micro.once_cost)
        return (self.result and self.result.overhead) or 1.0

    @property
    def is_slower_than_predicted(self) -> bool:
        """True where a step takes longer than was predicted by more than three tenths of the plain
        step, and by more than what starting a step takes."""
        if not self.measured_slowdown or not self.plain_seconds or self.result is None:
            return False
        slower = self.measured_slowdown - self.predicted_slowdown
        return slower > SLOWER and slower * self.plain_seconds > START_S

    @property
    def plain_bytes(self) -> int:
        """The plain step's peak: measured, or where that is not known predicted."""
        return self.plain_measured_bytes or self.plain_peak_bytes

    @property
    def expected_peak_bytes(self) -> int:
        """The peak that the allocator will show: predicted, else measured, else the judge's."""
        return self.predicted_peak_bytes or self.measured_peak_bytes or self.peak_bytes

    @property
    def lasts_to_bytes(self) -> int:
        """The smallest budget that this plan fits: its predicted peak, or its measured one."""
        return max(self.measured_peak_bytes or 0, self.predicted_peak_bytes or self.peak_bytes)

    @property
    def peak_bytes(self) -> int:
        """Peak of the step as it runs now by the judge's count."""
        peak = self.result.peak_bytes if self.result else None
        if peak is None:
            return self.micro_batches.peak_bytes if self.micro_batches else self.plain_peak_bytes
        return peak
