"""`python -m benchmarks foreign`: do programs that others wrote train under a budget, in one line?

Programs are the models of `zoo/`, models of public packages, built by their own constructors with
random weights, and training code in the style of published examples (`clients/`). Each trains plain
and under each budget, in processes of their own that know no costs: those of `clients/` by `fit`,
with `checkmate.tf2.rematerialize` before it, any other step by `checkmate.tf2.function`. The peak
is the allocator's over the steps after the first, resident bytes included. Where a budget is
refused, the smallest budget that the refusal names is tried in another process.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import click

from benchmarks import zoo
from benchmarks.commands import RowTable, stream
from benchmarks.training import MIB, compile_annealer
from checkmate.commands.options import json_option, readable_budgets, refuse_unknown, steps_option
from checkmate.commands.quiet import quietly
from checkmate.core.graph import DFGraph
from checkmate.core.plan import Plan
from checkmate.core.replay import floor, replay
from checkmate.demo.demo import LOSS_TOLERANCE, loss_difference
from checkmate.demo.process import fresh_process, last_line
from checkmate.errors import CheckmateError, InfeasibleBudgetError, NoPlanFoundError
from checkmate.solvers.solve import solve

CLIENTS = {
    "hub": "keras_hub",
    "keras2_models": "tf_keras",
    "probability": "tensorflow_probability",
    "recipes": "keras",
}
"""File of `clients/` -> the package that it needs."""

COLUMNS = (
    "program",
    "budget",
    "answer",
    "MiB",
    "of MiB",
    "plain MiB",
    "losses",
    "values",
    "recomputed",
    "first step s",
    "/ plain",
    "step / plain",
    "at 1.10x",
    "at 1.30x",
)
FACTORS = (1.1, 1.3)
"""Costs, in plain steps, for which the smallest budget is searched."""

CLOSE = 0.01
"""The smallest budgets are searched to this share of the plain step's peak."""


def programs() -> tuple[dict[str, Callable[[], Any]], list[str]]:
    """Returns the function that makes each program, by its name, and the packages that are
    missing."""
    found, missing = dict(zoo.models()), []
    for module, package in CLIENTS.items():
        if find_spec(package) is None:
            missing.append(package)
            continue
        definitions = importlib.import_module(f"benchmarks.clients.{module}")
        found |= {make.__name__: make for make in definitions.MODELS}
    return found, missing


def measure(name: str, budgets: str, steps: int, *, lowest: bool = False) -> Iterator[dict]:
    """Yields a row per budget, or until one has a plan if `lowest`.

    Of each: budget_bytes, peak_bytes, predicted_bytes, plain_bytes, difference (the largest
    relative one of any loss), values, first_step_s, step_s, and the same of plain; or refused
    ("proven", "not found"), with message, op, least_bytes, named_bytes, and named_peak_bytes or
    named_error of the loop within the budget that was named; or error.
    """
    try:
        plain = _process(name, steps)
    except CheckmateError as error:
        yield {"program": name, "budget": "plain", "error": last_line(error)}
        return
    for budget in budgets.split(","):
        row = {"program": name, "budget": budget, "plain_bytes": plain["peak_bytes"]}
        try:
            found = _process(name, steps, budget)
        except CheckmateError as error:
            yield row | {"error": last_line(error)}
            continue
        if "refused" in found:
            yield row | found | _named(name, steps, found["named_bytes"])
            continue
        times = {f"plain_{key}": plain[key] for key in ("first_step_s", "step_s")}
        differs = loss_difference(plain["losses"], found.pop("losses"))
        yield row | found | times | {"difference": differs}
        if lowest:
            return


def _process(name: str, steps: int, *budget: str) -> dict[str, Any]:
    return fresh_process("benchmarks.foreign", [name, str(steps), *budget])


def _named(name: str, steps: int, budget_bytes: int | None) -> dict[str, Any]:
    """The training within the budget that a refusal names."""
    if budget_bytes is None:
        return {}
    try:
        found = _process(name, steps, f"{budget_bytes}B")
    except CheckmateError as error:
        return {"named_error": last_line(error)}
    if "refused" in found:
        return {"named_error": found["message"]}
    return {"named_peak_bytes": found["peak_bytes"]}


def answer(row: dict[str, Any]) -> str:
    """Returns "trained", by how much it exceeded the budget, or why it was refused and whether the
    budget that was named holds."""
    if "error" in row:
        return f"FAILED: {row['error'][:100]}"
    if "refused" in row:
        named, took = row["named_bytes"], row.get("named_peak_bytes")
        if named is None:
            verdict = "no budget named"
        elif took is None:
            verdict = f"{named / MIB:.1f} MiB named, NOT accepted"
        else:
            verdict = f"{named / MIB:.1f} MiB named, {'holds' if took <= named else 'NOT kept'}"
        return f"refused ({row['refused']}; {verdict}) {row['op']}"
    if row["difference"] > LOSS_TOLERANCE or row["values"] == "DIFFERENT":
        return "trained, OTHER VALUES"
    excess = row["peak_bytes"] / row["budget_bytes"] - 1
    return "trained" if excess <= 0 else f"trained, OVER by {excess:.1%}"


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """A row under `COLUMNS`."""
    start = (row["program"], row["budget"], answer(row))
    if "error" in row or "refused" in row:
        return start
    return (
        *start,
        f"{row['peak_bytes'] / MIB:.1f}",
        f"{row['budget_bytes'] / MIB:.1f}",
        f"{row['plain_bytes'] / MIB:.1f}",
        f"{row['difference']:.0e}" if row["difference"] else "bits",
        row["values"],
        f"{row['recomputed']} of {row['ops']}",
        f"{row['first_step_s']:.1f}",
        f"{row['first_step_s'] / row['plain_first_step_s']:.1f}",
        f"{row['step_s'] / row['plain_step_s']:.2f}",
        *(f"{row['smallest'][str(factor)]:.0%}" for factor in FACTORS),
    )


def summary(found: Sequence[dict[str, Any]]) -> str:
    """Returns the table in a sentence."""
    answers = [answer(row) for row in found]
    refused = [row for row in found if "refused" in row]
    held = sum("holds" in answer(row) for row in refused)
    return (
        f"{answers.count('trained')} of {len(found)} trained within the budget with plain's values,"
        f" {sum('OVER' in each for each in answers)} over it, {len(refused)} were refused"
        f" ({held} of them name a budget that holds),"
        f" {sum(each.startswith('FAILED') for each in answers)} failed."
    )


def run(name: str, steps: int, budget: str | None) -> dict[str, Any]:
    """Trains a program in this process, plain or within a budget."""
    import keras

    keras.utils.set_random_seed(0)
    try:
        if name in zoo.models():
            return _stepped(*zoo.training(name), steps, budget)
        program = programs()[0][name]()
        if hasattr(program, "step"):
            return _stepped(program.step, program.batch, steps, budget)
        return _fitted(program, steps, budget)
    except (InfeasibleBudgetError, NoPlanFoundError) as error:
        return {
            "refused": "proven" if isinstance(error, InfeasibleBudgetError) else "not found",
            "message": str(error),
            "op": getattr(error, "op_name", ""),
            "least_bytes": getattr(error, "floor_bytes", None),
            "named_bytes": error.smallest_budget_bytes,
        }


def _fitted(program: Any, steps: int, budget: str | None) -> dict[str, Any]:
    """Trains by `fit`, over a dataset that repeats the batch."""
    import tensorflow as tf

    import checkmate
    from checkmate.tf2.keras2 import EveryKerasCallback

    watch = Watch()

    class Batches(EveryKerasCallback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            watch.step_ended([float(logs[key]) for key in sorted(logs)])

    dataset = tf.data.Dataset.from_tensors(program.batch).repeat(steps + 1)
    watch.start()
    if budget is not None:
        checkmate.tf2.rematerialize(program.model, budget=budget, verbose=False)
    program.model.fit(dataset, verbose=0, callbacks=[Batches()])
    planned = None if budget is None else checkmate.tf2.planned(program.model)
    return watch.found(planned) | {"values": "-"}


def _stepped(step: Any, batch: tuple[Any, ...], steps: int, budget: str | None) -> dict[str, Any]:
    """Calls a step again and again, and if it is planned compares it with the plain one."""
    import tensorflow as tf

    import checkmate

    watch = Watch()
    watch.start()
    run = (
        tf.function(step)
        if budget is None
        else checkmate.tf2.function(step, budget=budget, verbose=False)
    )
    for _ in range(steps + 1):
        result = run(*batch)  # in memory during the next step, as in a training loop
        watch.step_ended([float(each) for each in tf.nest.flatten(result) if each.shape.rank == 0])
    found = watch.found(None if budget is None else run)
    if budget is not None:
        verified = checkmate.tf2.verify(run, batch)
        unequal = [each for each in verified.differences if each.planned]
        rounded = all(each.is_rounding for each in unequal)
        found["values"] = "bits" if not unequal else "rounding" if rounded else "DIFFERENT"
        if verified.not_run or verified.run_again:
            found["values"] = "DIFFERENT"
    return found


class Watch:
    """Times each step and counts the allocator's peak from the end of the first one on."""

    def __init__(self) -> None:
        from checkmate.tf2 import device as devices

        self._device = devices.training_device()
        self._times: list[float] = []
        self._losses: list[float] = []

    def start(self) -> None:
        """Begins with the first step."""
        self._times = [time.perf_counter()]

    def step_ended(self, losses: Sequence[float]) -> None:
        """Counts a step."""
        import tensorflow as tf

        self._losses += losses
        self._times.append(time.perf_counter())
        if len(self._times) == 2:
            tf.config.experimental.reset_memory_stats(self._device)

    def found(self, planned: Any) -> dict[str, Any]:
        """Returns the figures.

        Args:
          planned: The planned step, or None if the step is plain.
        """
        import tensorflow as tf

        seconds = [b - a for a, b in zip(self._times[:-1], self._times[1:], strict=True)]
        figures = {
            "peak_bytes": tf.config.experimental.get_memory_info(self._device)["peak"],
            "losses": self._losses,
            "first_step_s": seconds[0],
            "step_s": statistics.median(seconds[1:]),
        }
        if planned is None:
            return figures
        report = planned.report()
        return figures | {
            "budget_bytes": planned.budget_bytes,
            "predicted_bytes": report.expected_peak_bytes,
            "recomputed": sum(planned.plan.recomputed.values()),
            "ops": len(planned.graph),
            "phases": report.seconds,
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


@click.command("foreign")
@click.argument("names", nargs=-1, metavar="[PROGRAMS]...")
@click.option(
    "--budgets",
    default="75%,60%,45%",
    show_default=True,
    callback=readable_budgets,
    help="Shares of the plain step's predicted peak, as users write them.",
)
@click.option("--lowest", is_flag=True, help="Budgets in turn, until one has a plan.")
@steps_option(4, "Training steps after the first.")
@json_option
def command(names: tuple[str, ...], budgets: str, lowest: bool, steps: int, as_json: bool) -> None:
    """Programs that others wrote, under budgets.

    PROGRAMS are models of the zoo, "zoo" for all of them, models of KerasHub, tf_keras and
    TensorFlow Probability (pip install keras-hub tf_keras tensorflow-probability) and training code
    in the style of published examples; all by default.

    JSON: program, budget, plain_bytes, budget_bytes, peak_bytes, predicted_bytes, difference,
    values, first_step_s, step_s, plain_first_step_s, plain_step_s, recomputed, ops, phases,
    smallest; or refused, message, op, least_bytes, named_bytes, named_peak_bytes or named_error; or
    error.
    """
    with quietly():
        known, missing = programs()
        of_zoo = zoo.models()
    chosen = [each for name in names for each in (of_zoo if name == "zoo" else (name,))] or known
    if not missing:
        refuse_unknown(chosen, known, "program")
    compile_annealer()
    absent = ({"program": each, "budget": "", "error": "not installed"} for each in missing)
    rows = (
        row
        for name in chosen
        if name in known
        for row in measure(name, budgets, steps, lowest=lowest)
    )
    title = (
        "programs of others; the first step includes planning, in a process without costs; the"
        " smallest budgets whose predicted time is 1.10 and 1.30 times the plain step's"
    )
    table = RowTable(title, COLUMNS, cells, ("program", "answer"))
    done = stream(itertools.chain(absent, rows), table, as_json=as_json)
    if done and not as_json:
        click.echo(summary(done))


if __name__ == "__main__":
    program_name, count, *within = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CHECKMATE_CACHE_DIR"] = folder
        print(json.dumps(run(program_name, int(count), within[0] if within else None)))
