"""`checkmate doctor --run`: a small net, trained plain and planned on the device that trains, in a
process of its own."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from checkmate.demo.demo import LOSS_TOLERANCE, loss_difference
from checkmate.demo.process import fresh_process
from checkmate.units import format_bytes

STEPS = 3
REPORT_IT = (
    "Please report this, with what `checkmate doctor --run --json` and, in a checkout, `pytest -m"
    " gpu -n 0` print."
)

Check = tuple[str, bool, str]
"""The quantity, whether it is as it should be, and what was found."""


def run_trial() -> dict[str, Any]:
    """Returns the facts of `train`, in a fresh process."""
    return fresh_process("checkmate.demo.trial", [], timeout_s=600)


def checks(found: dict[str, Any]) -> list[Check]:
    """The verdicts on the facts of `train`."""
    farthest = loss_difference(found["plain_losses"], found["losses"])
    values = f"{len(found['losses'])} losses differ from the plain step's by up to {farthest:.1e}"
    evaluations = f"{found['evaluations']} planned, {found['recomputed']} ops more than once"
    differs, not_run, run_again = found["differs"], found["not_run"], found["run_again"]
    ran = not not_run and not run_again and found["recomputed"] > 0
    return [
        _budget(found),
        (
            "values",
            farthest <= LOSS_TOLERANCE and not differs,
            values + _named("beyond rounding", differs),
        ),
        (
            "evaluations",
            ran,
            evaluations + _named("not run", not_run) + _named("run again", run_again),
        ),
    ]


def _budget(found: dict[str, Any]) -> Check:
    what, peak, budget = f"budget on {found['device']}", found["peak_bytes"], found["budget_bytes"]
    if peak is None:
        return what, True, "not measured: the allocator does not report the bytes in use"
    plain = format_bytes(found["plain_peak_bytes"]) if found["plain_peak_bytes"] else "unknown"
    sizes = f"{format_bytes(peak)} in use at the peak, {format_bytes(budget)} allowed"
    return what, peak <= budget, f"{sizes}; {plain} without a plan"


def _named(what: str, names: list[str]) -> str:
    return f"; {what}: {', '.join(names[:3])}" if names else ""


def train() -> dict[str, Any]:
    """Trains plain and, from the same state, with 60 % of the plain step's peak. Peaks are None
    where the allocator does not report."""
    import keras
    import tensorflow as tf

    import checkmate
    from checkmate.demo.demo import plain_step, planned_step
    from checkmate.demo.models import unet
    from checkmate.tf2 import device as devices

    device = devices.training_device()
    # On a GPU the kernels of a small batch take less time than starting them.
    batch = 256 if device.startswith("GPU") else 32
    small = partial(unet, batch=batch, size=64, widths=(16, 32, 64))
    keras.utils.set_random_seed(0)
    work = small()
    step: Any = plain_step(work, keras.optimizers.Adam(1e-4))
    plain_losses = [float(step(work.inputs, work.labels)[1]) for _ in range(STEPS)]
    del step, work
    keras.utils.set_random_seed(0)
    work = small()
    step = planned_step(work, keras.optimizers.Adam(1e-4), "60%")
    verified = checkmate.tf2.verify(step, (work.inputs, work.labels))
    devices.forget_peak(device)
    losses = [float(step(work.inputs, work.labels)[1]) for _ in range(STEPS)]
    reports = devices.allocator_reports(device)
    return {
        "device": device,
        "budget_bytes": step.budget_bytes,
        "plain_peak_bytes": verified.plain_peak_bytes,
        "peak_bytes": tf.config.experimental.get_memory_info(device)["peak"] if reports else None,
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
