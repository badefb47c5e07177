"""`checkmate bench steps`: the plain and the planned training step of real models, side by side in one process per model.

Memory is what TensorFlow's allocator reports, above the resting level (variables, optimizer slots, the batch); time is the
median step. The two are timed in turn, so that a slow moment of the machine hits both.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from checkmate.errors import CheckmateError


def fresh_process(arguments: Sequence[str], *, timeout_s: float = 1800) -> dict[str, Any]:
    """Runs this module on `arguments` in a process whose CPU allocator is the one GPUs use, and returns what it printed last."""
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_CPU_ALLOCATOR_USE_BFC": "true", **os.environ}
    command = [sys.executable, "-m", "checkmate.bench.steps", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False)
    if done.returncode:
        tail = "\n".join(done.stderr.strip().splitlines()[-5:])
        raise CheckmateError(f"The process {' '.join(arguments)!r} ended with status {done.returncode}:\n{tail}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def compare(name: str, budgets: Sequence[str], steps: int) -> list[dict[str, Any]]:
    """Measures the plain step of a workload and the planned step for each budget; one row of figures per budget."""
    import keras
    import tensorflow as tf

    import checkmate
    from checkmate.bench.models import WORKLOADS
    from checkmate.tf2 import device as devices

    keras.utils.set_random_seed(0)
    work = WORKLOADS[name]()
    device = devices.training_device()
    optimizer = keras.optimizers.Adam(1e-4)
    started = time.perf_counter()
    plain = checkmate.tf2.compile(work.model, work.loss, optimizer, work.inputs, work.labels, budget="1000%", cost_model="unit")
    plain_s = time.perf_counter() - started
    plain_report = plain.report()

    def one(step: Any) -> tuple[float, int, float]:
        started = time.perf_counter()
        (_, loss), before, peak = devices.peak_above(device, lambda: step(work.inputs, work.labels))
        return time.perf_counter() - started, peak - before, float(loss)

    rows = []
    for budget in budgets:
        started = time.perf_counter()
        try:
            planned = checkmate.tf2.compile(work.model, work.loss, optimizer, work.inputs, work.labels, budget=budget)
        except checkmate.CheckmateError as error:
            rows.append({"model": name, "budget": budget, "error": str(error)})
            continue
        compile_s = time.perf_counter() - started
        # Memory first, each step on its own as in training: what the other leaves behind changes how the allocator cuts its memory.
        peaks = [max(one(step)[1] for _ in range(steps)) for step in (plain, planned)]
        pairs = [(one(plain), one(planned)) for _ in range(steps)]
        report = planned.report()
        resting = tf.config.experimental.get_memory_info(device)["current"]
        rows.append(
            {
                "model": name,
                "budget": budget,
                "budget_bytes": report.budget_bytes,
                "resting_bytes": resting,
                "fixed_bytes": report.fixed_bytes,
                "plain_peak_bytes": peaks[0],
                "peak_bytes": peaks[1],
                "peak_ratio": peaks[1] / peaks[0],
                "predicted_plain_bytes": plain_report.plain_peak_bytes - plain_report.fixed_bytes,
                "predicted_bytes": report.peak_bytes - report.fixed_bytes,
                "plain_s": statistics.median(pair[0][0] for pair in pairs),
                "step_s": statistics.median(pair[1][0] for pair in pairs),
                "time_ratio": statistics.median(pair[1][0] for pair in pairs) / statistics.median(pair[0][0] for pair in pairs),
                "overhead": report.result.overhead if report.result else 1.0,
                "gap": report.result.gap if report.result else 0.0,
                "recomputed": len(planned.plan.recomputed),
                "ops": len(planned.graph),
                "plain_compile_s": plain_s,
                "compile_s": compile_s,
                "phases": report.seconds,
            }
        )
        del planned
    return rows


if __name__ == "__main__":
    print(json.dumps(compare(sys.argv[1], sys.argv[2].split(","), int(sys.argv[3]))))
