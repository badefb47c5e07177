"""`checkmate bench first-step`: the time from the call to the end of the first training step, for
plain steps, XLA and this library ("ours").

Each variant runs once, in a process of its own. The time starts when TensorFlow is imported and the
model, the optimizer's slots and a batch are built: at the first call of the plain step, or at the
call of `compile`. It ends when the loss of the first step is known. CPU seconds are those of all
threads of the process, and of child processes that have ended.

The annealer's machine code, which an installation compiles once, is compiled before.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from checkmate.bench.process import fresh_process, last_line
from checkmate.errors import CheckmateError

NAMES = ("mobilenet", "resnet50_160", "transformer", "decoder")
PLAIN, XLA, COLD, COSTS_KNOWN, PLAN_KEPT = (
    "plain",
    "XLA",
    "ours, cold",
    "ours, costs known",
    "ours, plan kept",
)
VARIANTS = (PLAIN, XLA, COLD, COSTS_KNOWN, PLAN_KEPT)
"""In the order in which they run: `COLD` fills the folders of costs and plans that the last two
read."""

COLUMNS = ("model", "variant", "phase", "wall s", "/ plain", "CPU s", "/ plain")
WHOLE, NO_PHASE, FIRST_STEP = "all", "no phase", "first step"


def measure(name: str, budget: str, batch: int) -> Iterator[dict[str, Any]]:
    """Yields a row per variant, and for each of ours a row per phase.

    Phase "all" is the whole variant, "no phase" is the time of `compile` in none of its report's
    phases, "first step" is the call of the step. `cpu_s` is None if it is not known. A variant that
    failed has `error` instead of figures.
    """
    compile_annealer()
    plain: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for variant in VARIANTS:
            try:
                found = fresh_process(
                    "checkmate.bench.first_step", [name, str(batch), variant, budget, folder]
                )
            except CheckmateError as error:
                if variant == PLAIN:
                    raise
                yield {
                    "model": name,
                    "variant": variant,
                    "phase": WHOLE,
                    "error": last_line(error),
                }
                continue
            whole = found["phases"][WHOLE]
            plain = plain or {"plain_wall_s": whole["wall_s"], "plain_cpu_s": whole["cpu_s"]}
            for phase, seconds in found["phases"].items():
                yield {
                    "model": name,
                    "variant": variant,
                    "phase": phase,
                    **seconds,
                    **plain,
                }


def compile_annealer() -> None:
    """Compiles the annealer's machine code if it is not cached, so that no first step includes
    that time."""
    from checkmate.core.graph import DFGraph
    from checkmate.core.op import Op
    from checkmate.solvers.annealing.annealer import Annealer

    Annealer(DFGraph((Op("op"),)), 0, (0,))


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """A row under `COLUMNS`."""
    start = (row["model"], row["variant"], row["phase"])
    if "error" in row:
        return (*start, row["error"][:100])
    known = row["cpu_s"] is not None
    return (
        *start,
        f"{row['wall_s']:.2f}",
        f"{row['wall_s'] / row['plain_wall_s']:.2f}",
        f"{row['cpu_s']:.2f}" if known else "-",
        f"{row['cpu_s'] / row['plain_cpu_s']:.2f}" if known else "-",
    )


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """Returns the table in a sentence."""
    found = []
    for variant in VARIANTS[1:]:
        whole = [
            row
            for row in rows
            if row["variant"] == variant and row["phase"] == WHOLE and "error" not in row
        ]
        if whole:
            wall, cpu = (
                [row[f"{kind}_s"] / row[f"plain_{kind}_s"] for row in whole]
                for kind in ("wall", "cpu")
            )
            middles, most = (
                f"{each(wall):.1f} wall, {each(cpu):.1f} CPU" for each in (statistics.median, max)
            )
            found.append(f"{variant}: {middles} (median), {most} (most)")
    return (
        f"Times the plain step's seconds to the end of the first step: {'; '.join(found)}."
        if found
        else "Only plain steps ran."
    )


def run(name: str, batch: int, variant: str, budget: str, folder: Path) -> dict[str, Any]:
    """Takes the first step of one variant in this process.

    Args:
      folder: Folder of measured costs and plans: empty before `COLD`, which fills it for the
        variants after it.
    """
    import keras

    from checkmate.bench.models import workload
    from checkmate.bench.training import plain_step, planned_step

    os.environ["CHECKMATE_CACHE_DIR"] = str(folder / "costs")
    keras.utils.set_random_seed(0)
    work = workload(name, batch)
    optimizer = keras.optimizers.Adam(1e-4)
    optimizer.build(work.model.trainable_variables)
    ours = variant not in (PLAIN, XLA)
    plans = None if variant == COSTS_KNOWN else folder / "plans"
    step: Any = None if ours else plain_step(work, optimizer, jit_compile=variant == XLA)
    started = _now()
    if ours:
        step = planned_step(work, optimizer, budget, plan=plans)
    compiled = _now()
    # Before the first call, which may plan again.
    report: Any = step.report() if ours else None
    float(step(work.inputs, work.labels)[1])
    ended = _now()
    phases = {WHOLE: _between(started, ended)}
    if not ours:
        return {"phases": phases}
    phases |= _phases(report, _between(started, compiled)) | {FIRST_STEP: _between(compiled, ended)}
    return {"phases": phases}


def _phases(report: Any, compiling: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the seconds of each phase of the report, and those of `compile` in none of them; CPU
    seconds if the report has them."""
    wall, cpu = report.seconds, report.cpu_seconds
    outside = {
        "wall_s": compiling["wall_s"] - sum(wall.values()),
        "cpu_s": compiling["cpu_s"] - sum(cpu.values()) if cpu else None,
    }
    return {
        phase: {"wall_s": seconds, "cpu_s": cpu.get(phase)} for phase, seconds in wall.items()
    } | {NO_PHASE: outside}


def _now() -> tuple[float, float]:
    """Returns wall and CPU seconds."""
    of_children = os.times()
    return (
        time.perf_counter(),
        time.process_time() + of_children.children_user + of_children.children_system,
    )


def _between(start: tuple[float, float], end: tuple[float, float]) -> dict[str, Any]:
    return {"wall_s": end[0] - start[0], "cpu_s": end[1] - start[1]}


if __name__ == "__main__":
    print(
        json.dumps(run(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4], Path(sys.argv[5])))
    )
