"""`python -m benchmarks backends`: the same model trained under Keras's TensorFlow, JAX and torch.

Each way trains by Keras's `train_on_batch` in a process of its own, and its steps are timed in turn
with plain ones of TensorFlow in another. "resident" counts every backend's memory alike, in three
steps after three others: the most that the process had in memory, less what it had after steps of
the same model on one example. So holes of the allocator count, and what compiling and planning for
the batch left behind; libraries, weights and slots do not. TensorFlow's allocator says besides what
was in use at once, all of it; budgets are shares of that of plain steps.

"scope" is Keras's `RematScope("activations")`, "segments" `keras.remat` around about sqrt(n)
segments of layers, cut by hand (`ways.in_segments`). OpenMP's threads, which torch has, wait
without spinning: beside other work they would take many times as long.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import sys
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from benchmarks.commands import RowTable, stream
from benchmarks.process import StepProcess, take_steps
from benchmarks.training import MIB, compile_annealer
from benchmarks.workloads import WORKLOADS
from checkmate.commands.options import (
    NameOf,
    json_option,
    listed,
    readable_budgets,
    steps_option,
)
from checkmate.demo.process import last_line
from checkmate.errors import CheckmateError
from checkmate.units import parse_bytes

NAMES = ("transformer", "mobilenet")
BACKENDS = ("tensorflow", "jax", "torch")
WAYS = ("plain", "scope", "segments")
COLUMNS = (
    "model",
    "backend",
    "way",
    "resident MiB",
    "/ plain",
    "allocator MiB",
    "/ plain",
    "step s",
    "/ plain",
    "quartiles",
)


def measure(
    model: str, backends: list[str], budgets: str, batch: int | None, steps: int
) -> Iterator[dict[str, Any]]:
    """Yields a row per backend and way, and one per budget with TensorFlow.

    Of each: resident_bytes, allocator_bytes (None without TensorFlow), the same of plain steps of
    TensorFlow, step_s and plain_s (medians of steps in turn) and ratio_quartiles; or error.
    """
    process = partial(_process, model=model, batch=batch)
    with contextlib.closing(process("tensorflow", "plain")) as plain:
        for backend in backends:
            if find_spec(backend) is None:
                yield {"model": model, "backend": backend, "way": "", "error": "not installed"}
                continue
            for way in (*WAYS, *(budgets.split(",") if backend == "tensorflow" else ())):
                asked = {"model": model, "backend": backend, "way": way}
                if way not in WAYS:
                    limit = parse_bytes(way, percent_of=plain.facts["allocator_bytes"])
                try:
                    made = process(backend, way if way in WAYS else f"{limit}B")
                    with contextlib.closing(made) as other:
                        pairs = [(plain.step(), other.step()) for _ in range(steps + 1)][1:]
                except CheckmateError as error:
                    yield asked | {"error": last_line(error)}
                    continue
                ratios = [step_s / plain_s for plain_s, step_s in pairs]
                yield {
                    **asked,
                    **other.facts,
                    **{f"plain_{key}": value for key, value in plain.facts.items()},
                    "plain_s": statistics.median(plain_s for plain_s, _ in pairs),
                    "step_s": statistics.median(step_s for _, step_s in pairs),
                    "ratio_quartiles": statistics.quantiles(ratios, n=4, method="inclusive"),
                }


def _process(backend: str, way: str, **request: Any) -> StepProcess:
    request |= {"backend": backend, "way": way}
    return StepProcess("benchmarks.backends", [json.dumps(request)])


def train(backend: str, way: str, model: str, batch: int | None) -> None:
    """Trains in this process, which is a `StepProcess`."""
    os.environ |= {"KERAS_BACKEND": backend, "OMP_WAIT_POLICY": "passive"}
    os.environ["JAX_TRACEBACK_FILTERING"] = "off"  # so that an error's last line is its cause
    import keras
    import numpy as np

    from benchmarks.ways import in_segments
    from benchmarks.workloads import measured, workload

    keras.config.disable_traceback_filtering()

    class InSegments(keras.Model):
        def __init__(self, model: keras.Model):
            super().__init__()
            self.model, self.segments = model, in_segments(model)

        def call(self, inputs: Any, training: bool = False) -> Any:
            return self.segments(inputs)

    with keras.RematScope("activations") if way == "scope" else contextlib.nullcontext():
        work = workload(model, batch)
    trained = InSegments(work.model) if way == "segments" else work.model
    trained.compile("adam", work.loss)
    inputs, labels = np.asarray(work.inputs), np.asarray(work.labels)
    del work
    before = 0
    for examples in (1, len(inputs)):
        if way not in WAYS:  # a budget
            import checkmate

            if before:
                checkmate.tf2.release(trained)
            checkmate.tf2.rematerialize(trained, budget=way, verbose=False)
        before = _resident_bytes("VmRSS")
        run = partial(trained.train_on_batch, inputs[:examples], labels[:examples])
        run(), run(), run()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    peaks = [measured(run).peak_bytes for _ in range(3)]
    facts = {
        "resident_bytes": _resident_bytes("VmHWM") - before,
        "allocator_bytes": max(peaks) if backend == "tensorflow" else None,
    }
    take_steps(facts, lambda: measured(run).seconds)


def _resident_bytes(key: str) -> int:
    """VmRSS or VmHWM, what this process has in memory now or had at most."""
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{key}:")[1].split()[0]) * 1024


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """A row under `COLUMNS`."""
    start = (row["model"], row["backend"], row["way"])
    if "error" in row:
        return (*start, row["error"][:110])
    low, middle, high = row["ratio_quartiles"]
    memory: list[str] = []
    for key in ("resident_bytes", "allocator_bytes"):
        found, plain = row[key], row[f"plain_{key}"]
        memory += ["-", "-"] if found is None else [f"{found / MIB:.0f}", f"{found / plain:.2f}"]
    return (*start, *memory, f"{row['step_s']:.3f}", f"{middle:.2f}", f"{low:.2f} to {high:.2f}")


@click.command("backends")
@click.argument("models", nargs=-1, type=NameOf(WORKLOADS, "workload"), metavar="MODELS...")
@click.option(
    "--backends",
    default=",".join(BACKENDS),
    show_default=True,
    callback=listed(BACKENDS),
    help="Separated by commas; one that is not installed is said so.",
)
@click.option(
    "--budgets",
    default="60%,45%",
    show_default=True,
    callback=readable_budgets,
    help="Of TensorFlow, as shares of the allocator's peak in plain steps.",
)
@click.option("--batch", type=click.IntRange(1), help="Examples in a batch.")
@steps_option(9, "Timed steps of each kind.", minimum=2)
@json_option
def command(
    models: tuple[str, ...],
    backends: list[str],
    budgets: str,
    batch: int | None,
    steps: int,
    as_json: bool,
) -> None:
    """The same model under Keras's TensorFlow, JAX and torch: memory and time.

    MODELS are workloads of `checkmate demo --model`; two of them by default. On Linux only.

    JSON: model, backend, way, resident_bytes, allocator_bytes, step_s, plain_s, ratio_quartiles,
    and plain_resident_bytes, plain_allocator_bytes; or error.
    """
    compile_annealer()
    rows = (
        row for model in models or NAMES for row in measure(model, backends, budgets, batch, steps)
    )
    title = (
        "resident is beside one example's; / plain and quartiles are of TensorFlow's plain steps"
    )
    stream(rows, RowTable(title, COLUMNS, cells, ("model", "backend", "way")), as_json=as_json)


if __name__ == "__main__":
    train(**json.loads(sys.argv[1]))
