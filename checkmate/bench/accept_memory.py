"""Lines of `checkmate bench accept` about memory: limits, `budget="auto"`, little of it, and what
ops are measured to take."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from typing import Any

from checkmate.bench.accept_nets import net
from checkmate.bench.accept_outcome import NotRunError, Outcome
from checkmate.bench.accept_stage import stage
from checkmate.bench.accept_training import optimizer, within_budget
from checkmate.bench.training import MIB, planned_step
from checkmate.errors import CheckmateError, DriverUnavailableError

AUTO_OFF = 0.2
"""By which share of the least limit `budget="auto"` may be below it."""

CONTEXT_BYTES = 768 * MIB
"""Memory of a GPU that CUDA and its libraries take in a process, besides TensorFlow's allocator."""

CLOSE_COSTS = 0.25
"""By which share the cost of a whole step may differ between two measurements."""


def auto_budget(limit_bytes: int | None = None) -> Outcome:
    """Is `budget="auto"` within 20 % below the least limit that there is?

    Args:
      limit_bytes: A limit that the allocator is given first.
    """
    from checkmate.bench.memory_limits import limit_memory, memory_limits
    from checkmate.tf2 import device as devices
    from checkmate.tf2.memory import available

    if limit_bytes:
        limit_memory(limit_bytes)
    device = devices.training_device()
    limits = memory_limits(device)
    figures: dict[str, Any] = {f"{each.by}, bytes": each.bytes for each in limits}
    try:
        budget = available.auto_budget(device)
    except DriverUnavailableError as error:
        raise NotRunError(f"the driver cannot be asked: {error}") from error
    least = min(each.bytes for each in limits)
    if limit_bytes:
        least = min(least, limit_bytes)
    return Outcome(
        (1 - AUTO_OFF) * least <= budget <= least,
        {"auto_bytes": budget, "least_bytes": least, **figures},
    )


def _within(budget_bytes: int, limit_bytes: int | None) -> dict[str, Any]:
    from checkmate.bench.memory_limits import limit_memory

    if limit_bytes:
        limit_memory(limit_bytes)
    return within_budget("cnn", budget_bytes)


def _fits(found: dict[str, Any]) -> tuple[bool, dict[str, Any]]:
    names = ("budget_bytes", "measured_bytes", "device_batches_bytes", "host_batches_bytes")
    kept = {name: found[name] for name in (*names, "step_s")}
    return max(kept[name] for name in names[2:]) <= kept["budget_bytes"], kept


def tight_limit() -> Outcome:
    """Does a plan train where the allocator has 5 % more than the budget?"""
    roomy = stage(within_budget, "cnn")
    limit = int(1.05 * roomy["budget_bytes"])
    passed, figures = _fits(stage(_within, roomy["budget_bytes"], limit))
    return Outcome(passed, {"limit_bytes": limit, **figures})


def crowded_gpu() -> Outcome:
    """Does a plan train with memory growth where another process has all but 1.2 budgets?"""
    growing = {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    if importlib.util.find_spec("pynvml") is None:
        raise NotRunError("the driver can only be asked with the package nvidia-ml-py")
    roomy = stage(within_budget, "cnn", environment=growing)
    leave = int(1.2 * roomy["budget_bytes"]) + CONTEXT_BYTES
    with subprocess.Popen(
        [sys.executable, "-m", "checkmate.bench.hold_memory", str(leave)],
        env={**os.environ, **growing},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        try:
            assert holder.stdout
            if holder.stdout.readline().strip() != "ready":
                raise CheckmateError("The process that holds the memory failed.")
            found = stage(_within, roomy["budget_bytes"], None, environment=growing)
        finally:
            holder.kill()
    passed, figures = _fits(found)
    return Outcome(passed, {"left_bytes": leave, **figures})


def without_events() -> Outcome:
    """Does a plan train within its budget with CUDA's own allocator, of which the profiler sees
    nothing?"""
    passed, figures = _fits(stage(within_budget, "cnn"))
    return Outcome(passed, figures)


def _costs(name: str) -> dict[str, Any]:
    step = planned_step(net(name), optimizer(), "60%")
    return {"costs": [op.cost for op in step.graph.ops]}


def costs_twice() -> Outcome:
    """Are measured costs about the same in another process?"""
    found = []
    for _ in range(2):
        with tempfile.TemporaryDirectory() as folder:
            found.append(stage(_costs, "cnn", environment={"CHECKMATE_CACHE_DIR": folder}))
    first, second = (each["costs"] for each in found)
    total = sum(first)
    ratios = [
        max(a, b) / min(a, b)
        for a, b in zip(first, second, strict=True)
        if min(a, b) > 0 and a > 0.01 * total
    ]
    whole = sum(second) / total
    return Outcome(
        abs(whole - 1) <= CLOSE_COSTS,
        {
            "first_s": total,
            "second_s": sum(second),
            "ratio": whole,
            "worst_ratio_of_an_op": max(ratios, default=1.0),
            "ops": len(first),
        },
    )


def workspaces() -> Outcome:
    """Does no convolution take more scratch memory within the step than it was measured to take
    alone?"""
    from checkmate.tf2.execution.plan_writer import EVALUATION_MARK
    from checkmate.tf2.memory.profiler import observe

    work = net("cnn")
    step = planned_step(work, optimizer(), "60%")
    seen = observe(lambda: step(work.inputs, work.labels))
    taken: dict[str, int] = defaultdict(int)
    for event in seen.events:
        if event.is_request and event.region_type == "temp":
            name = event.op.rpartition(EVALUATION_MARK)[0]
            taken[name] = max(taken[name], event.requested_bytes)
    planned, ran, worst = 0, 0, 0
    for op, group in zip(step.graph.ops, step.planned.traced.groups, strict=True):
        if not any("Conv" in operation.type for operation in group):
            continue
        within = max(
            (size for o in group for name, size in taken.items() if name.endswith(f"/{o.name}")),
            default=0,
        )
        planned, ran = max(planned, op.workspace_bytes), max(ran, within)
        worst = max(worst, within - op.workspace_bytes)
    return Outcome(
        worst <= MIB,
        {"alone_bytes": planned, "in_the_step_bytes": ran, "more_than_alone_bytes": worst},
    )


def refusal() -> Outcome:
    """Is a budget that is too small refused with one that then works?"""
    import checkmate

    work = net("cnn")
    try:
        step = planned_step(work, optimizer(), "15%")
    except (checkmate.InfeasibleBudgetError, checkmate.NoPlanFoundError) as error:
        named, said = error.smallest_budget_bytes, str(error)
    else:
        return Outcome(False, {"budget_that_was_not_refused_bytes": step.budget_bytes})
    if named is None:
        return Outcome(False, {}, said)
    step = planned_step(net("cnn"), optimizer(), named)
    peak = step.report().measured_peak_bytes or 0
    return Outcome(peak <= named, {"named_bytes": named, "peak_bytes": peak}, said)
