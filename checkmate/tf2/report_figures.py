"""ReportFigures: what was asked of a step, what was found and what it costs, as numbers."""

from __future__ import annotations

from dataclasses import dataclass, field

from checkmate.core.graph import DFGraph
from checkmate.core.plan import Plan
from checkmate.solvers.result import SolveResult
from checkmate.tf2.memory.budget import MemoryBudget


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


@dataclass(frozen=True, slots=True)
class ReportFigures:
    """The figures of a `Report`.

    Attributes:
      name: The model's.
      memory: What the budget is spent on.
      plain_peak_bytes: Predicted peak of the step as it was written, of which "60%" is a share.
      predicted_peak_bytes: The peak by the allocator's count that is expected in training, with
        batches that lie elsewhere each time; None where it was not predicted.
      measured_peak_bytes: The highest peak of the steps that ran, by the allocator's count; None
        before the first, and where the allocator does not report.
      result: The solver's judged answer, or None where the step runs unchanged.
      ops: Ops of the planned graph.
      tensorflow_ops: TensorFlow ops of the step that is planned: what the graph optimizer leaves of
        those that were traced.
      seconds: Phase -> how long it took.
      notes: Cautions, as sentences.
      graph: The graph of the step; that of `result` by default.
      plain_plan: The plan of the step as it was written; by default every op once, in the order of
        the graph.
      steps: How many steps ran under this plan.
      step_seconds: The shortest time of one of them but the first; None where it is not known.
      cpu_seconds: The same of all CPU cores together.
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
    result: SolveResult | None
    ops: int
    tensorflow_ops: int
    seconds: dict[str, float]
    notes: tuple[str, ...]
    predicted_peak_bytes: int | None = None
    measured_peak_bytes: int | None = None
    graph: DFGraph | None = field(default=None, repr=False)
    plain_plan: Plan | None = field(default=None, repr=False)
    steps: int = 0
    step_seconds: float | None = None
    cpu_seconds: dict[str, float] = field(default_factory=dict)
    micro_batches: MicroBatches | None = None
    tried_slices: tuple[TriedSlices, ...] = ()

    def __post_init__(self) -> None:
        if self.graph is None and self.result is not None:
            object.__setattr__(self, "graph", self.result.graph)

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
