"""`checkmate bench zoo`: does every model train within a budget, and how much memory is saved?

Each model trains plain and planned, in processes of their own; peaks are the allocator's, resident
bytes included. The budget is the lowest of `SHARES` that has a plan. `verify` compares the planned
step with the plain one. A model that fails is a row with an error.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from checkmate.bench.process import fresh_process, last_line
from checkmate.bench.training import MIB
from checkmate.core.graph import DFGraph
from checkmate.core.plan import Plan
from checkmate.core.replay import floor, replay
from checkmate.errors import CheckmateError, InfeasibleBudgetError, NoPlanFoundError
from checkmate.solvers.solve import solve

COLUMNS = (
    "model",
    "plain MiB",
    "budget",
    "measured MiB",
    "within",
    "values",
    "recomputed",
    "at 1.10x",
    "at 1.30x",
    "tracing s",
    "all s",
)

APPLICATIONS = {
    "MobileNet": (128, 8),
    "MobileNetV2": (128, 8),
    "MobileNetV3Small": (128, 8),
    "MobileNetV3Large": (128, 8),
    "ResNet50": (96, 4),
    "ResNet50V2": (96, 4),
    "DenseNet121": (96, 4),
    "EfficientNetB0": (96, 4),
    "EfficientNetV2B0": (96, 4),
    "InceptionV3": (128, 4),
    "Xception": (128, 4),
    "VGG16": (96, 4),
    "VGG19": (96, 4),
    "ConvNeXtTiny": (96, 4),
    "NASNetMobile": (96, 4),
}
"""Class in keras.applications -> pixels of an image's side, examples in a batch."""

FILES = ("sequences", "images", "structures", "layer_kinds", "programs", "own_steps")
"""The files of `checkmate/bench/zoo_models`."""

FACTORS = (1.1, 1.3)
"""Costs, in plain steps, for which the smallest budget is searched."""

SHARES = (0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0)
"""Budgets, as shares of the plain step's measured peak, tried in turn."""

CLOSE = 0.01
"""The smallest budgets are searched to this share of the plain step's peak."""


def models() -> dict[str, Callable[..., Any]]:
    """Returns for each name the function that makes the `Workload` or `Task`, large models last.

    Raises:
      CheckmateError: This is an installed wheel, which does not contain the zoo.
    """
    from checkmate.bench.models import application, lstm, transformer, unet

    found: dict[str, Callable[..., Any]] = {
        "unet": partial(unet, batch=2, size=96),
        "encoder": partial(transformer, batch=8, length=64, depth=4),
        "lstm": partial(lstm, batch=16, length=32, depth=2),
    }
    for module in FILES:
        try:
            definitions = importlib.import_module(f"checkmate.bench.zoo_models.{module}")
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith("checkmate.bench.zoo_models"):
                raise
            raise CheckmateError(
                "The models of the zoo are not part of an installed package. Run this command in a"
                " checkout of the repository, installed with `pip install -e .`."
            ) from error
        found |= {make.__name__: make for make in definitions.MODELS}
    for name, (size, batch) in APPLICATIONS.items():
        found[name.lower()] = partial(application, name, size=size, batch=batch, classes=100)
    return found


def measure(name: str, steps: int) -> dict[str, Any]:
    """Returns the row of a model; it has `error` if the model did not train."""
    started = time.perf_counter()
    try:
        plain = fresh_process("checkmate.bench.zoo", [name, str(steps)])
        row = {
            "model": name,
            **plain,
            **fresh_process("checkmate.bench.zoo", [name, str(steps), str(plain["plain_bytes"])]),
        }
    except CheckmateError as error:
        row = {"model": name, "error": last_line(error)}
    return row | {"seconds": time.perf_counter() - started}


def train_plain(name: str, steps: int) -> dict[str, Any]:
    """Trains without a plan in this process and returns the allocator's peak."""
    import tensorflow as tf

    step, batch = training(name)
    run = tf.function(step)
    return {"plain_bytes": peak_of(run, batch, steps)}


def train_planned(name: str, steps: int, plain_bytes: int) -> dict[str, Any]:
    """Trains under the lowest budget of `SHARES` that has a plan."""
    import tensorflow as tf

    import checkmate

    step, batch = training(name)
    specs = tf.nest.map_structure(lambda leaf: tf.TensorSpec(leaf.shape, leaf.dtype), batch)
    traced = tf.function(step)  # traced once for all budgets
    started = time.perf_counter()
    traced.get_concrete_function(*specs)
    tracing_s = time.perf_counter() - started
    planned = _lowest(traced, name, specs, plain_bytes, batch)
    report = planned.report()
    peak = peak_of(planned, batch, steps)
    found = checkmate.tf2.verify(planned, batch)
    unequal = [each for each in found.differences if each.planned]
    rounded = all(each.is_rounding for each in unequal)
    return {
        "budget_bytes": planned.budget_bytes,
        "peak_bytes": peak,
        "predicted_bytes": report.expected_peak_bytes,
        "values": "bits" if not unequal else "rounding" if rounded else "DIFFERENT",
        "verified": str(found),
        "not_run": len(found.not_run),
        "run_again": len(found.run_again),
        "recomputed": sum(planned.plan.recomputed.values()),
        "ops": len(planned.graph),
        "tracing_s": tracing_s,
        "phases": report.seconds,
        "notes": list(report.notes),
        "smallest": smallest_budgets(planned.graph, FACTORS),
    }


def smallest_budgets(
    graph: DFGraph, factors: Sequence[float], *, time_limit_s: float = 1
) -> dict[str, float]:
    """Returns for each factor the smallest budget found whose plan costs at most `factor` plain
    steps, as a share of the plain step's peak."""
    plain, cost = replay(graph, Plan.keep_all(graph)).peak_bytes, graph.total_cost
    found, lowest = [(plain, cost)], floor(graph).bytes
    shares = {}
    for factor in factors:
        low, high = lowest, min(peak for peak, paid in found if paid <= factor * cost)
        while high - low > CLOSE * plain:
            result = solve(graph, (low + high) // 2, time_limit_s=time_limit_s, throw=False)
            timeline = result.timeline
            if timeline is not None:
                found.append((timeline.peak_bytes, timeline.cost))
            if timeline is not None and timeline.cost <= factor * cost:
                high = timeline.peak_bytes
            else:
                low = (low + high) // 2
        shares[str(factor)] = high / plain
    return shares


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """A row under `COLUMNS`."""
    if "error" in row:
        empty = [""] * (len(COLUMNS) - 4)
        return (row["model"], "FAILED", row["error"][:100], *empty, f"{row['seconds']:.0f}")
    within = row["peak_bytes"] <= row["budget_bytes"]
    return (
        row["model"],
        f"{row['plain_bytes'] / MIB:.1f}",
        f"{row['budget_bytes'] / row['plain_bytes']:.0%}",
        f"{row['peak_bytes'] / MIB:.1f}",
        "yes" if within else f"NO, {row['budget_bytes'] / MIB:.1f}",
        row["values"] + (f", {row['not_run']} not run" if row["not_run"] else ""),
        f"{row['recomputed']} of {row['ops']}",
        *(f"{row['smallest'][str(factor)]:.0%}" for factor in FACTORS),
        f"{row['tracing_s']:.1f}",
        f"{row['seconds']:.0f}",
    )


def trained(row: dict[str, Any]) -> bool:
    """Whether a model trained within its budget, as planned, with the values of the plain step."""
    return (
        "error" not in row
        and row["peak_bytes"] <= row["budget_bytes"]
        and row["values"] != "DIFFERENT"
        and not row["not_run"] + row["run_again"]
    )


def training(name: str) -> tuple[Callable, tuple[Any, ...]]:
    """Returns the training step of a model of the zoo, and its arguments."""
    import keras

    from checkmate.tf2.training_step import training_step

    keras.utils.set_random_seed(0)
    known = models()
    if name not in known:
        raise CheckmateError(
            f"There is no model {name!r} in the zoo. There are {', '.join(known)}."
        )
    work = known[name]()
    if not hasattr(work, "model"):  # a `Task`
        return work.step, work.batch
    step, _ = training_step(work.model, work.loss, work.optimizer, work.inputs, work.labels)
    return step, (work.inputs, work.labels)


def _lowest(
    traced: Callable, name: str, specs: tuple[Any, ...], plain_bytes: int, batch: tuple[Any, ...]
) -> Any:
    """Returns the planned step for the lowest of `SHARES` that has a plan."""
    from checkmate.tf2.compile import PlannedStep
    from checkmate.tf2.options import PlanOptions
    from checkmate.tf2.planning.request import PlanRequest

    def planned(share: float, explains: bool = False) -> PlannedStep:
        options = PlanOptions(int(share * plain_bytes), verbose=False)
        return PlannedStep(PlanRequest(traced, name, options, explains=explains), specs, batch)

    least = 0  # bytes that were proven to be needed
    for share in SHARES[:-1]:
        if share * plain_bytes < least:
            continue
        try:
            return planned(share)
        except InfeasibleBudgetError as error:
            least = error.floor_bytes
        except NoPlanFoundError:
            continue
    return planned(SHARES[-1], explains=True)


def peak_of(step: Callable, batch: tuple[Any, ...], steps: int) -> int:
    """Returns the allocator's peak while a loop trains, resident bytes included."""
    import tensorflow as tf

    from checkmate.tf2 import device as devices

    device = devices.training_device()
    tf.config.experimental.reset_memory_stats(device)
    for _ in range(steps):
        result = step(*batch)  # in memory during the next step, as in a training loop
        devices.synchronize()
    del result
    return tf.config.experimental.get_memory_info(device)["peak"]


def rows(chosen: Sequence[str], steps: int) -> Iterator[dict[str, Any]]:
    """Yields a row per model."""
    for name in chosen:
        yield measure(name, steps)


if __name__ == "__main__":
    model, count, *peak = sys.argv[1:]
    steps = int(count)
    print(
        json.dumps(train_planned(model, steps, int(peak[0])) if peak else train_plain(model, steps))
    )
