"""`checkmate doctor --run`: a small net, trained plain and planned on the device that trains, in a
process of its own."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from checkmate.demo.process import fresh_process
from checkmate.demo.training import LOSS_TOLERANCE, loss_difference
from checkmate.units import format_bytes

STEPS = 3
REPORT_IT = (
    "Please report this, with what `checkmate doctor --run --json` and, in a checkout, `pytest -m"
    " gpu -n 0` print."
)


@dataclass(frozen=True, slots=True)
class Trial:
    """What both trainings found.

    Attributes:
      device: What trained.
      budget_bytes: The budget of the planned step: 60 % of the plain step's peak.
      plain_peak_bytes: Measured peak, or None where the allocator does not report.
      peak_bytes: The same of the planned step.
      plain_losses: A loss per step.
      losses: The same of the planned step, from the same state.
      recomputed: How many ops the plan computes more than once.
      evaluations: How many evaluations of TensorFlow ops it has.
      not_run: Those that did not run.
      run_again: Those that ran more often than planned.
      differs: Outputs and variables that differ from the plain step's by more than rounding.
    """

    device: str
    budget_bytes: int
    plain_peak_bytes: int | None
    peak_bytes: int | None
    plain_losses: list[float]
    losses: list[float]
    recomputed: int
    evaluations: int
    not_run: list[str]
    run_again: list[str]
    differs: list[str]

    def checks(self) -> list[tuple[str, bool, str]]:
        return [self._budget(), self._values(), self._evaluations()]

    def _budget(self) -> tuple[str, bool, str]:
        what = f"budget on {self.device}"
        if self.peak_bytes is None:
            return what, True, "not measured: the allocator does not report the bytes in use"
        plain = format_bytes(self.plain_peak_bytes) if self.plain_peak_bytes else "unknown"
        return (
            what,
            self.peak_bytes <= self.budget_bytes,
            f"{format_bytes(self.peak_bytes)} in use at the peak, {format_bytes(self.budget_bytes)}"
            f" allowed; {plain} without a plan",
        )

    def _values(self) -> tuple[str, bool, str]:
        farthest = loss_difference(self.plain_losses, self.losses)
        found = f"{len(self.losses)} losses differ from the plain step's by up to {farthest:.1e}"
        if self.differs:
            found += f"; beyond rounding: {', '.join(self.differs[:3])}"
        return "values", farthest <= LOSS_TOLERANCE and not self.differs, found

    def _evaluations(self) -> tuple[str, bool, str]:
        found = f"{self.evaluations} planned, {self.recomputed} ops more than once"
        if self.not_run:
            found += f"; not run: {', '.join(self.not_run[:3])}"
        if self.run_again:
            found += f"; run again: {', '.join(self.run_again[:3])}"
        ran = not self.not_run and not self.run_again and self.recomputed > 0
        return "evaluations", ran, found


def run_trial() -> Trial:
    return Trial(**fresh_process("checkmate.demo.trial", [], timeout_s=600))


def train() -> dict[str, Any]:
    """Returns the fields of `Trial`."""
    import keras
    import tensorflow as tf

    import checkmate
    from checkmate.demo.nets import net
    from checkmate.demo.training import plain_step, planned_step
    from checkmate.tf2 import device as devices

    work = net("cnn")
    step: Any = plain_step(work, keras.optimizers.Adam(1e-4))
    plain_losses = [float(step(work.inputs, work.labels)[1]) for _ in range(STEPS)]
    del step, work
    work = net("cnn")
    step = planned_step(work, keras.optimizers.Adam(1e-4), "60%")
    verified = checkmate.tf2.verify(step, (work.inputs, work.labels))
    device = devices.training_device()
    devices.forget_peak(device)
    losses = [float(step(work.inputs, work.labels)[1]) for _ in range(STEPS)]
    return {
        "device": device,
        "budget_bytes": step.budget_bytes,
        "plain_peak_bytes": verified.plain_peak_bytes,
        "peak_bytes": (
            tf.config.experimental.get_memory_info(device)["peak"]
            if devices.allocator_reports(device)
            else None
        ),
        "plain_losses": plain_losses,
        "losses": losses,
        "recomputed": len(step.plan.recomputed),
        "evaluations": verified.planned_evaluations,
        "not_run": list(verified.not_run),
        "run_again": list(verified.run_again),
        "differs": [each.what for each in verified.differences if not each.is_rounding],
    }


if __name__ == "__main__":
    print(json.dumps(train()))
