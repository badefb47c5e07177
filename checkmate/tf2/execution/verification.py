"""Verification: what `verify` found, and how it is printed."""

from __future__ import annotations

from dataclasses import dataclass

from checkmate.tf2.execution.differences import Difference
from checkmate.units import format_bytes


@dataclass(frozen=True, slots=True)
class Verification:
    """What `verify` found; `print` it.

    Attributes:
      differences: Of every output (prediction, loss) and every variable (weights, optimizer slots,
        BatchNorm's averages, seeds). If they are more than rounding, and vanish when TensorFlow's
        graph optimizer is off in both steps, they are those without it.
      planned_evaluations: TensorFlow ops that the plan evaluates, repetitions counted.
      not_run: Evaluations of the plan that did not run. They do not include elementwise and
        constant ones, which TensorFlow's optimizer may remove, kernels that ran within others, and
        loops and functions compiled by XLA, of which the profiler need not see anything. On a GPU
        they are products and convolutions that requested no memory.
      run_again: Evaluations that ran more than once, which is not seen on a GPU, and ops with side
        effects that the plan repeats.
      plain_peak_bytes: Measured peak of the plain step in the terms of a budget; None if the
        allocator does not report or the step does not fit.
      measured_peak_bytes: The same of the planned step.
      predicted_peak_bytes: The peak that the step's report predicts.
      budget_bytes: The budget.
      lost_bytes: Bytes of the measured peak that the allocator handed out beyond what was
        requested.
      notes: Cautions.
      not_in_place: Evaluations that requested memory although the plan counts their value as
        written over an input.

    Example:
      >>> found = checkmate.tf2.verify(step, (images, labels))  # doctest: +SKIP
      >>> print(found)  # doctest: +SKIP
      >>> found.ok, found.measured_peak_bytes, found.budget_bytes  # doctest: +SKIP
    """

    differences: tuple[Difference, ...]
    planned_evaluations: int
    not_run: tuple[str, ...]
    run_again: tuple[str, ...]
    plain_peak_bytes: int | None
    measured_peak_bytes: int | None
    predicted_peak_bytes: int
    budget_bytes: int
    lost_bytes: int | None
    notes: tuple[str, ...] = ()
    not_in_place: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True if values are equal up to rounding, everything ran as planned, and the measured peak
        is within the budget."""
        fits = self.measured_peak_bytes is None or self.measured_peak_bytes <= self.budget_bytes
        ran = not self.not_run and not self.run_again
        return fits and ran and all(each.is_rounding for each in self.differences)

    def __str__(self) -> str:
        lines = [
            f"verified: {'the planned step is the plain one' if self.ok else 'NOT AS PLANNED'}"
        ]
        unequal = [each for each in self.differences if each.planned]
        lines.append(
            f"  {len(self.differences) - len(unequal)} of {len(self.differences)} outputs and"
            " variables equal to the bit"
        )
        unequal.sort(key=lambda each: each.planned / max(each.tolerated, 1e-300), reverse=True)
        for each in unequal[:5]:
            how = "rounding" if each.is_rounding else "NOT ROUNDING"
            lines.append(
                f"    {each.what}: differs by {each.planned:.1e}, two plain steps by"
                f" {each.sensitivity:.1e}: {how}"
            )
        lines.append(
            f"  {self.planned_evaluations} evaluations planned, {len(self.not_run)} not run,"
            f" {len(self.run_again)} run again"
        )
        lines += [f"    not run: {name}" for name in self.not_run[:5]]
        lines += [f"    run again: {name}" for name in self.run_again[:5]]
        lines += [f"    not in place: {name}" for name in self.not_in_place[:5]]
        if self.measured_peak_bytes is not None:
            plain = format_bytes(self.plain_peak_bytes) if self.plain_peak_bytes else "not measured"
            lines.append(
                f"  peak {format_bytes(self.measured_peak_bytes)} measured,"
                f" {format_bytes(self.predicted_peak_bytes)} expected,"
                f" {format_bytes(self.budget_bytes)} budget, {plain} for the plain step"
            )
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])
