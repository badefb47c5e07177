"""Lines of `checkmate bench accept` that train one net: within a budget, verified, beside XLA, and
what TensorFlow's layout pass does to it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable
from typing import Any

from checkmate.bench.accept_nets import net
from checkmate.bench.accept_outcome import STEPS, Outcome
from checkmate.bench.accept_stage import stage
from checkmate.bench.training import (
    LOSS_TOLERANCE,
    loss_difference,
    plain_step,
    planned_step,
    timed,
    timed_in_turn,
)

HALF_TOLERANCE = 1e-2
"""As `LOSS_TOLERANCE`, of nets in 16 bits, which round more coarsely."""


def tolerance(name: str) -> float:
    """Returns the relative difference up to which losses of a net count as equal."""
    return HALF_TOLERANCE if name.endswith("16") else LOSS_TOLERANCE


def optimizer() -> Any:
    """Returns a new optimizer of the kind that all lines use."""
    import keras

    return keras.optimizers.Adam(1e-4)


def plain_training(name: str) -> dict[str, Any]:
    """Trains a net plain. The first step, in which TensorFlow may try several algorithms of an op,
    counts neither for the peak nor for the time."""
    work = net(name)
    step = plain_step(work, optimizer())
    runs = [timed(step, work) for _ in range(STEPS)]
    return {
        "losses": [run.loss for run in runs],
        "peak_bytes": max(run.peak_bytes for run in runs[1:]),
        "step_s": statistics.median(run.seconds for run in runs[1:]),
        "first_s": runs[0].seconds,
    }


def within_budget(name: str, budget: str | int = "60%") -> dict[str, Any]:
    """Trains a net within a budget on batches that are new in each step, first on the device and
    then on the host."""
    import tensorflow as tf

    from checkmate.tf2 import device as devices

    work = net(name)
    started = time.perf_counter()
    step = planned_step(work, optimizer(), budget)
    compile_s = time.perf_counter() - started
    report = step.report()
    device = devices.training_device()
    given = work.inputs, work.labels
    host = tf.nest.map_structure(lambda each: each.numpy(), given)
    copied = tf.nest.map_structure(tf.identity, given)
    del work, given
    losses, peaks, seconds = [], {}, []
    for kind in ("device", "host"):
        devices.forget_peak(device)
        for _ in range(STEPS):
            batch = tf.nest.map_structure(tf.identity, copied) if kind == "device" else host
            started = time.perf_counter()
            losses.append(float(step(*batch)[1]))
            seconds.append(time.perf_counter() - started)
            del batch
        if kind == "device":
            del copied
        peaks[kind] = tf.config.experimental.get_memory_info(device)["peak"]
    return {
        "budget_bytes": step.budget_bytes,
        "predicted_bytes": report.predicted_peak_bytes,
        "measured_bytes": report.measured_peak_bytes,
        "device_batches_bytes": peaks["device"],
        "host_batches_bytes": peaks["host"],
        "losses": losses[:STEPS],
        "step_s": statistics.median(seconds),
        "compile_s": compile_s,
        "phases": report.seconds,
        "recomputed": len(step.plan.recomputed),
        "report": str(report),
    }


def trains_within_budget(name: str) -> Outcome:
    """Is each peak within the budget, on batches of the device and of the host, and are the losses
    those of plain steps?"""
    plain, planned = stage(plain_training, name), stage(within_budget, name)
    difference = loss_difference(plain.pop("losses"), planned.pop("losses"))
    report, phases = planned.pop("report"), planned.pop("phases")
    peaks = planned["device_batches_bytes"], planned["host_batches_bytes"]
    return Outcome(
        max(peaks) <= planned["budget_bytes"] and difference <= tolerance(name),
        {
            **{f"plain_{key}": value for key, value in plain.items()},
            **planned,
            "loss_difference": difference,
            **{f"{phase.replace(' ', '_')}_s": seconds for phase, seconds in phases.items()},
        },
        report,
    )


def is_verified(name: str) -> Outcome:
    """Does `checkmate.tf2.verify` find the plain step's values, and each evaluation run?"""
    import checkmate

    work = net(name)
    step = planned_step(work, optimizer(), "60%")
    found = checkmate.tf2.verify(step, (work.inputs, work.labels))
    return Outcome(
        found.ok and bool(step.plan.recomputed),
        {
            "evaluations": found.planned_evaluations,
            "recomputed": len(step.plan.recomputed),
            "not_run": len(found.not_run),
            "run_again": len(found.run_again),
            "not_in_place": len(found.not_in_place),
            "equal": sum(not each.planned for each in found.differences),
            "beyond_rounding": sum(not each.is_rounding for each in found.differences),
            "peak_bytes": found.measured_peak_bytes,
            "lost_bytes": found.lost_bytes,
        },
        str(found),
    )


def adds_no_transposes(name: str) -> Outcome:
    """Does the planned step run only the transpositions that were planned?

    Each one more is a copy that nothing orders, beside what a plan frees.
    """
    from checkmate.tf2.memory.profiler import observe

    work = net(name)
    plain = plain_step(work, optimizer())
    plain(work.inputs, work.labels)
    usual = _transposes(observe(lambda: plain(work.inputs, work.labels)).asked)
    step = planned_step(work, optimizer(), "60%")
    ran = _transposes(observe(lambda: step(work.inputs, work.labels)).asked)
    written = step.planned.run.function.graph.get_operations()
    planned = _transposes(each.name for each in written if each.type == "Transpose")
    return Outcome(
        ran <= planned,
        {"plain_transposes": usual, "planned_transposes": planned, "transposes_that_ran": ran},
    )


def _transposes(names: Iterable[str]) -> int:
    """How many of these ops are transpositions of the layout pass. Those that ran are found by the
    memory that they requested: the profiler traces no kernels of a GPU."""
    return sum("-TransposeN" in name and "LayoutOptimizer" in name for name in names)


def _plain_without_layout_pass(name: str) -> dict[str, Any]:
    import tensorflow as tf

    tf.config.optimizer.set_experimental_options({"layout_optimizer": False})
    return plain_training(name)


def layout_pass(name: str) -> Outcome:
    """What does the plain step take with TensorFlow's layout pass, as usual, and without it?"""
    usual, without = stage(plain_training, name), stage(_plain_without_layout_pass, name)
    difference = loss_difference(usual["losses"], without["losses"])
    return Outcome(
        difference <= HALF_TOLERANCE,
        {
            "usual_peak_bytes": usual["peak_bytes"],
            "without_peak_bytes": without["peak_bytes"],
            "usual_step_s": usual["step_s"],
            "without_step_s": without["step_s"],
            "loss_difference": difference,
        },
    )


def beside_xla(name: str) -> Outcome:
    """How long do steps take that are plain, compiled by XLA, and planned within a budget?

    XLA is what Keras uses on a GPU unless told otherwise. Times decide nothing.
    """
    import tensorflow as tf

    work = net(name)
    plain = plain_step(work, optimizer())
    planned = planned_step(work, optimizer(), "60%")
    turns = timed_in_turn(6, lambda: timed(plain, work), lambda: timed(planned, work))
    figures: dict[str, Any] = {
        "plain_s": turns["plain_s"],
        "planned_s": turns["step_s"],
        "planned_to_plain": turns["ratio_quartiles"][1],
        "plain_peak_bytes": timed(plain, work).peak_bytes,
        "peak_bytes": timed(planned, work).peak_bytes,
        "budget_bytes": planned.budget_bytes,
    }
    compiled = plain_step(work, optimizer(), jit_compile=True)
    try:
        figures["xla_first_s"] = timed(compiled, work).seconds
        runs = [timed(compiled, work) for _ in range(6)]
        figures["xla_s"] = statistics.median(run.seconds for run in runs)
        figures["planned_to_xla"] = figures["planned_s"] / figures["xla_s"]
        figures["xla_peak_bytes"] = max(run.peak_bytes for run in runs)
    except tf.errors.OpError as error:
        figures["xla"] = f"failed: {str(error).strip().splitlines()[0][:100]}"
    return Outcome(figures["peak_bytes"] <= planned.budget_bytes, figures)
