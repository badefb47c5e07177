"""Report: what was asked of a step, what was found, and what it costs, for people."""

from __future__ import annotations

import math
from dataclasses import dataclass

from checkmate.solvers.result import SolveResult, SolveStatus
from checkmate.units import format_bytes


@dataclass(frozen=True, slots=True)
class Report:
    """What `print(step.report())` shows.

    Attributes:
      name: The model's.
      budget_bytes: The budget as bytes; it counts everything resident.
      fixed_bytes: What of it is resident all the time.
      plain_peak_bytes: Predicted peak of the step as it was written.
      measured_peak_bytes: Peak of this step by the allocator's count, on made-up data; None where nothing could be measured.
      reserve_bytes: How much lower than the budget the plan was made, for what the allocator loses to rounding and fragmentation.
      result: The solver's judged answer, or None where the step runs as it is.
      ops: Ops of the planned graph.
      tensorflow_ops: Ops of the traced step.
      seconds: Phase -> how long it took.
      notes: Cautions, as sentences.
    """

    name: str
    budget_bytes: int
    fixed_bytes: int
    plain_peak_bytes: int
    measured_peak_bytes: int | None
    reserve_bytes: int
    result: SolveResult | None
    ops: int
    tensorflow_ops: int
    seconds: dict[str, float]
    notes: tuple[str, ...]

    @property
    def peak_bytes(self) -> int:
        """Predicted peak of the step as it runs now."""
        return self.result.peak_bytes if self.result else self.plain_peak_bytes

    def __str__(self) -> str:
        rows = [
            (
                "budget",
                f"{format_bytes(self.budget_bytes)}, of which {format_bytes(self.fixed_bytes)} is resident (variables, optimizer, batch)",
            ),
            ("predicted peak, plain step", format_bytes(self.plain_peak_bytes)),
            ("predicted peak, this step", f"{format_bytes(self.peak_bytes)} ({self.peak_bytes / self.plain_peak_bytes:.0%} of plain)"),
            ("measured peak, this step", format_bytes(self.measured_peak_bytes) if self.measured_peak_bytes else "not measured"),
            ("reserve", f"{format_bytes(self.reserve_bytes)} for rounding and fragmentation by the allocator"),
        ]
        if self.result is None:
            rows.append(("plan", "none needed: the step runs as it is"))
        else:
            again = self.result.plan.recomputed
            interrupted = "; interrupted, the best plan until then" if self.result.status is SolveStatus.INTERRUPTED else ""
            rows += [
                (
                    "plan",
                    f"{len(again)} of {self.ops} ops are recomputed, {sum(again.values())} evaluations more ({self.tensorflow_ops} TensorFlow ops)",
                ),
                ("predicted cost", f"{self.result.cost:.4g} s of kernels, {self.result.overhead - 1:+.2%} on the plain step"),
                ("proven", self._proof()),
                (
                    "solver",
                    f"{self.result.stats.solver}, {self.result.stats.seconds:.2f} s, plan by {self.result.stats.found_by}{interrupted}",
                ),
            ]
        rows.append(("time", ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in self.seconds.items())))
        width = max(len(key) for key, _ in rows)
        lines = [f"Checkmate plan of {self.name!r}", *(f"  {key:<{width}}  {value}" for key, value in rows)]
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])

    def _proof(self) -> str:
        if self.result.status is SolveStatus.OPTIMAL:
            return "no plan in this order of ops is cheaper"
        # Rounded up: a bound must not look better than it is.
        return f"at most {math.ceil(self.result.gap * 1e4) / 1e4:.2%} above the cheapest plan in this order of ops"
