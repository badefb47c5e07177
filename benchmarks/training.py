"""`python -m benchmarks training`: ways to train a model within less memory, in one table.

Each way trains in a process of its own, from the same seed, and its steps are timed in turn with
plain ones: other work of the machine slows both. Memory is the allocator's peak, everything
resident included (variables, optimizer slots, the batch, accumulated gradients). Budgets are shares
of the plain step's predicted peak. All steps return the loss alone, as Keras's `fit` does.

"ours+slices" chooses micro-batches together with recomputation; "accumulation" is Keras's, in the
fewest equal parts of the batch that are within the budget. "ours" knows no costs before its first
step; "ours+costs" finds the costs that it measured, "ours+plan" its plan, and "ours+rounding" may
add sums up part by part. The annealer's machine code, which an installation compiles once, is
compiled before.

With a cap, which is a limit of the allocator, each way's batch is the largest that trains. A step
that needs more memory ends with an error of TensorFlow, or crashes in a kernel that does not check
its allocation, so each batch is tried in a fresh process.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import click

from benchmarks.commands import RowTable, stream
from benchmarks.process import StepProcess
from benchmarks.workloads import WORKLOADS
from checkmate.commands.options import (
    NameOf,
    json_option,
    listed,
    readable_budgets,
    steps_option,
)
from checkmate.demo.demo import loss_difference
from checkmate.demo.process import ProcessDiedError, fresh_process, last_line
from checkmate.errors import CheckmateError
from checkmate.units import format_bytes, parse_bytes

MIB = 2**20
NAMES = ("mobilenet", "resnet50", "transformer")
ACCUMULATION = "accumulation"
MODES = ("full", "activations", "larger_than", "layers", "by hand")
"""How Keras can be told what to compute again."""
OTHERS = (
    "xla",
    *(f"remat {mode}{xla}" for mode in MODES for xla in ("", "+xla")),
    "remat attention",
    "heads by hand",
    "loss by hand",
)
BUDGETED = (
    ACCUMULATION,
    "ours",
    "ours+rounding",
    "ours+slices",
    "ours+costs",
    "ours+plan",
    "ours+xla",
)
WAYS = (*OTHERS, *BUDGETED)
"""All ways besides "plain", which is always there."""

COLUMNS = (
    "model",
    "way",
    "budget",
    "batch",
    "peak MiB",
    "/ plain",
    "of budget",
    "predicted",
    "step s",
    "/ plain",
    "quartiles",
    "predicted",
    "first step s",
    "/ plain",
    "CPU",
    "losses off by",
)
CLOSE = 20
"""The search for the largest batch ends when it is known to 1 / `CLOSE` of itself."""


def process(request: dict[str, Any], **more: Any) -> StepProcess:
    """Returns a process that trains; see `ways.train`."""
    return StepProcess("benchmarks.ways", [json.dumps(request | more)])


def measure(
    model: str, ways: Sequence[str], budgets: str, steps: int, batch: int | None
) -> Iterator[dict[str, Any]]:
    """Yields a row for plain steps, one per way without a budget, and one per budget and other way.

    Besides what `ways.train` tells, a row has plain_peak_bytes, plain_first_wall_s,
    plain_first_cpu_s; plain_s and step_s, medians of steps in turn, and ratio_quartiles, those of
    their ratios per example; loss_difference, the largest relative one of any step; or error.
    """
    peak_bytes = fresh_process("benchmarks.ways", [json.dumps({"model": model, "batch": batch})])
    request = {"model": model, "batch": batch, "steps": steps}
    with contextlib.closing(process(request, way="plain")) as plain:
        yield {"model": model, "way": "plain", "budget": "", **compared(plain, plain, steps)}
        accumulation = Accumulation(request, plain.facts["batch"])
        for way in (each for each in ways if each in OTHERS):
            asked = {"model": model, "way": way, "budget": ""}
            yield asked | _row(partial(process, request, way=way), plain, steps)
        for budget in budgets.split(","):
            limit = parse_bytes(budget, percent_of=peak_bytes)
            with tempfile.TemporaryDirectory() as folder:
                for way in (each for each in ways if each in BUDGETED):
                    make = partial(process, request, way=way, budget=limit, folder=folder)
                    if way == ACCUMULATION:
                        make = partial(accumulation.within, limit)
                    asked = {"model": model, "way": way, "budget": budget}
                    yield asked | {"budget_bytes": limit} | _row(make, plain, steps)


def _row(make: Callable[[], StepProcess], plain: StepProcess, steps: int) -> dict[str, Any]:
    try:
        with contextlib.closing(make()) as other:
            return compared(other, plain, steps)
    except CheckmateError as error:
        return {"error": last_line(error)}


def compared(other: StepProcess, plain: StepProcess, steps: int) -> dict[str, Any]:
    """Returns the figures of a way, its steps timed in turn with plain ones after a first pair that
    warms both up."""
    pairs = [(plain.step(), other.step()) for _ in range(steps + 1)][1:]
    per_plain = other.facts["batch"] / plain.facts["batch"]
    ratios = [step_s / plain_s / per_plain for plain_s, step_s in pairs]
    of_plain = ("peak_bytes", "first_wall_s", "first_cpu_s")
    return {
        **other.facts,
        **{f"plain_{key}": plain.facts[key] for key in of_plain},
        "plain_s": statistics.median(plain_s for plain_s, _ in pairs),
        "step_s": statistics.median(step_s for _, step_s in pairs),
        "ratio_quartiles": statistics.quantiles(ratios, n=4, method="inclusive"),
        "loss_difference": loss_difference(plain.facts["losses"], other.facts["losses"]),
    }


class Accumulation:
    """Finds the fewest equal parts of a batch whose peak is within a budget."""

    def __init__(self, request: dict[str, Any], batch: int):
        self._request, self._batch = request, batch
        self._peaks: dict[int, int] = {}

    def within(self, budget_bytes: int) -> StepProcess:
        """Returns the process of the fewest parts.

        Raises:
          CheckmateError: One example at a time needs more.
        """
        for parts in (each for each in range(1, self._batch + 1) if self._batch % each == 0):
            if self._peaks.get(parts, 0) > budget_bytes:
                continue
            found = process(self._request, way=ACCUMULATION, parts=parts)
            self._peaks[parts] = found.facts["peak_bytes"]
            if self._peaks[parts] <= budget_bytes:
                return found
            found.close()
        least = min(self._peaks.values())
        raise CheckmateError(
            f"Gradient accumulation needs {format_bytes(least)} at least, in parts of a batch of"
            f" {self._batch}: {format_bytes(least - budget_bytes)} more than the budget of"
            f" {format_bytes(budget_bytes)}."
        )


def largest_batches(
    model: str, ways: Sequence[str], cap_bytes: int, steps: int, times: int | None
) -> Iterator[dict[str, Any]]:
    """Yields a row of the largest batch of plain steps under a cap, and one for each other way.

    Args:
      times: The search ends when a batch of so many times the plain step's trains.
    """
    request = {"model": model, "steps": steps, "cap_bytes": cap_bytes}
    asked = {"model": model, "budget": f"cap {format_bytes(cap_bytes)}", "budget_bytes": cap_bytes}
    plain = largest(request | {"way": "plain"}, 1)
    if not plain:
        yield asked | {"way": "plain", "error": "no batch trains"}
        return
    batch = plain.facts["batch"]
    with contextlib.closing(plain):
        yield asked | {"way": "plain"} | compared(plain, plain, steps)
        for way in ways:
            if way == ACCUMULATION:
                continue  # no batch is too large for it but the batch itself
            with tempfile.TemporaryDirectory() as folder:
                wanted = request | {"way": way, "budget": "auto", "folder": folder}
                found = largest(wanted, (times or 2) * batch, times and times * batch)
                if not found:
                    yield asked | {"way": way, "error": "no batch trains"}
                    continue
                with contextlib.closing(found):
                    found.facts["losses"] = plain.facts["losses"]  # those of another batch
                    yield asked | {"way": way} | compared(found, plain, steps)


def largest(request: dict[str, Any], batch: int, enough: int | None = None) -> StepProcess | None:
    """Returns the process of the largest batch that trains, given that all smaller ones do too.

    Args:
      batch: The first to try.
      enough: No larger batch is tried; None for no end.
    """

    def trained(batch: int) -> StepProcess | None:
        try:
            found = process(request, batch=batch)
        except ProcessDiedError:
            return None
        if "peak_bytes" in found.facts:
            return found
        found.close()
        return None

    best: StepProcess | None = None
    low, high = 0, enough + 1 if enough else None
    while batch > low and (high is None or high - low > max(1, low // CLOSE)):
        found = trained(batch)
        if found:
            if best:
                best.close()
            low, best = batch, found
        else:
            high = batch
        batch = 2 * low if high is None else (low + high) // 2
    return best


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """A row under `COLUMNS`."""
    start = (row["model"], row["way"], row["budget"])
    if "error" in row:
        return (*start, "", f"no: {row['error'][:110]}")
    low, middle, high = row["ratio_quartiles"]
    slices = row.get("slices")
    predicted = row.get("predicted_bytes")
    return (
        *start,
        f"{slices['count']} x {slices['size']}" if slices else str(row["batch"]),
        f"{row['peak_bytes'] / MIB:.1f}",
        f"{row['peak_bytes'] / row['plain_peak_bytes']:.3f}",
        f"{row['peak_bytes'] / row['budget_bytes']:.3f}" if "budget_bytes" in row else "-",
        f"{predicted / row['peak_bytes'] - 1:+.2%}" if predicted else "-",
        f"{row['step_s']:.3f}",
        f"{middle:.3f}",
        f"{low:.2f} to {high:.2f}",
        f"{row['predicted_slowdown']:.3f}" if predicted else "-",
        f"{row['first_wall_s']:.1f}",
        f"{row['first_wall_s'] / row['plain_first_wall_s']:.2f}",
        f"{row['first_cpu_s'] / row['plain_first_cpu_s']:.2f}",
        f"{row['loss_difference']:.0e}" if row["loss_difference"] else "bits",
    )


def compile_annealer() -> None:
    """Compiles the annealer's machine code if it is not cached, so that no first step includes
    that time."""
    from checkmate.core.graph import DFGraph
    from checkmate.core.op import Op
    from checkmate.solvers.annealing.annealer import Annealer

    Annealer(DFGraph((Op("op"),)), 0, (0,))


@click.command("training")
@click.argument("models", nargs=-1, type=NameOf(WORKLOADS, "workload"), metavar="MODELS...")
@click.option(
    "--ways",
    default="xla,remat by hand,accumulation,ours,ours+slices",
    show_default=True,
    callback=listed(WAYS),
    help=f"Separated by commas: {', '.join(WAYS)}; or all.",
)
@click.option(
    "--budgets",
    default="80%,60%,45%",
    show_default=True,
    callback=readable_budgets,
    help="Shares of the plain step's predicted peak, as users write them.",
)
@click.option("--batch", type=click.IntRange(1), help="Examples in a batch.")
@click.option(
    "--cap",
    callback=readable_budgets,
    help="Instead of budgets: the largest batches within such a limit of the allocator.",
)
@click.option(
    "--times",
    type=click.IntRange(1),
    help="With --cap: the search ends when a batch of so many times the plain step's trains.",
)
@steps_option(4, "Timed steps of each kind.", minimum=2)
@json_option
def command(
    models: tuple[str, ...],
    ways: list[str],
    budgets: str,
    batch: int | None,
    cap: str | None,
    times: int | None,
    steps: int,
    as_json: bool,
) -> None:
    """Ways to train within less memory: peak, time, first step, largest batch.

    MODELS are workloads of `checkmate demo --model`; three of them by default.

    JSON: model, way, budget, budget_bytes, batch, peak_bytes, predicted_bytes, step_s, plain_s,
    ratio_quartiles (per example), predicted_slowdown, overhead, gap, recomputed, ops, slices
    (null, or count and size), first_wall_s, first_cpu_s, phases, losses, loss_difference, and
    plain_peak_bytes, plain_first_wall_s, plain_first_cpu_s; or error.
    """
    compile_annealer()
    rows = (
        row
        for model in models or NAMES
        for row in (
            largest_batches(model, ways, parse_bytes(cap), steps, times)
            if cap
            else measure(model, ways, budgets, steps, batch)
        )
    )
    title = (
        "memory is the allocator's peak, everything resident included; / plain and quartiles are of"
        " steps in turn with plain ones, per example"
    )
    stream(rows, RowTable(title, COLUMNS, cells, ("model", "way", "budget")), as_json=as_json)
