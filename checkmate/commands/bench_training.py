"""The benchmarks that train models, each training in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click

from checkmate.bench import cap as cap_benchmark
from checkmate.bench import clients as clients_benchmark
from checkmate.bench import first_step as first_step_benchmark
from checkmate.bench import limits as limits_benchmark
from checkmate.bench import micro_batches as micro_batches_benchmark
from checkmate.bench import rivals as rivals_benchmark
from checkmate.bench import steps as steps_benchmark
from checkmate.bench import workers as workers_benchmark
from checkmate.bench import xla as xla_benchmark
from checkmate.bench.names import WORKLOADS
from checkmate.commands.options import (
    json_option,
    listed,
    micro_batches_option,
    named,
    readable_budgets,
    steps_option,
)
from checkmate.commands.table import RowTable, stream
from checkmate.units import parse_bytes

Rows = Iterator[dict[str, Any]]

models_argument = click.argument("models", nargs=-1, callback=named(WORKLOADS, "workload"))


def budgets_option(
    default: str, text: str = "Shares of the plain step's peak above its resident bytes."
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Returns the option --budgets."""
    return click.option(
        "--budgets", default=default, show_default=True, callback=readable_budgets, help=text
    )


def budget_option(text: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Returns the option --budget."""
    return click.option(
        "--budget", default="60%", show_default=True, callback=readable_budgets, help=text
    )


def rows_of(measure: Callable[..., Rows], names: Sequence[str], *arguments: Any) -> Rows:
    """Yields the rows of one name after the other."""
    for name in names:
        yield from measure(name, *arguments)


@click.command("limits")
@models_argument
@budgets_option("80%,65%,50%,40%")
@steps_option(4, "Training steps under each budget.")
@json_option
def limits(models: tuple[str, ...], budgets: str, steps: int, as_json: bool) -> None:
    """Is the budget a limit? Budget, predicted and measured peak.

    MODELS are workloads of `checkmate demo --model`; all by default. Peaks are the allocator's,
    resident bytes included.

    JSON: model, budget, budget_bytes, predicted_bytes, peak_bytes, recomputed, overhead; or error.
    """
    b = limits_benchmark
    title = "measured peak and budget, resident bytes included"
    rows = b.measure(models or WORKLOADS, budgets, steps)
    done = stream(rows, RowTable(title, b.COLUMNS, b.cells, ("model",)), as_json=as_json)
    if not as_json:
        click.echo(b.summary(done))


@click.command("cap")
@click.argument("models", nargs=-1, required=True, callback=named(WORKLOADS, "workload"))
@click.option(
    "--cap",
    required=True,
    callback=readable_budgets,
    help="All the memory that training may use, such as 600MiB.",
)
@micro_batches_option
@click.option(
    "--times",
    type=click.IntRange(1),
    help="The search ends when a batch of so many times the plain step's trains.",
)
@steps_option(3, "Training steps of each kind.", minimum=2)
@json_option
def cap(
    models: tuple[str, ...],
    cap: str,
    micro_batches: int | str,
    times: int | None,
    steps: int,
    as_json: bool,
) -> None:
    """The largest batch that trains under a memory cap.

    Plain and planned, for MODELS (workloads of `checkmate demo --model`).

    JSON: model, cap_bytes, and in plain and planned (null if no batch fits): batch, step_s,
    trained, micro_batches (null, or count and size); in_turn (null, or plain_s, step_s and
    ratio_quartiles).
    """
    b, cap_bytes = cap_benchmark, parse_bytes(cap)
    rows = (b.measure(name, cap_bytes, steps, micro_batches, times) for name in models)
    table = RowTable("largest batch under a cap of the allocator", b.COLUMNS, b.cells, ("model",))
    stream(rows, table, as_json=as_json)


@click.command("workers")
@budget_option("Budget of each worker: bytes, or a share of the plain step's peak.")
@json_option
def workers(budget: str, as_json: bool) -> None:
    """Two workers on this machine, plain and planned: their losses and their memory.

    JSON: optimized, worker, difference, plain_bytes, planned_bytes, budget_bytes, recomputed.
    """
    b = workers_benchmark
    table = RowTable("twenty steps of two workers", b.COLUMNS, b.cells)
    stream(b.measure(budget), table, as_json=as_json)


@click.command("steps")
@models_argument
@budgets_option("60%,50%,40%")
@steps_option(5, "Timed steps of each kind.", minimum=2)
@click.option(
    "--micro-batches",
    is_flag=True,
    help="Instead: recomputation, gradient accumulation, and both chosen together.",
)
@json_option
def steps(
    models: tuple[str, ...], budgets: str, steps: int, micro_batches: bool, as_json: bool
) -> None:
    """Memory and time of planned training steps, compared with plain ones.

    MODELS are workloads of `checkmate demo --model`; five of them by default. Memory is the
    allocator's peak above the resting level; with --micro-batches, everything resident included.

    JSON: model, budget, budget_bytes, peak_bytes, plain_peak_bytes, predicted_bytes,
    plain_predicted_bytes, step_s, plain_s, ratio_quartiles, predicted_slowdown, overhead, gap,
    recomputed, ops, planning_s, trace_s, phases; or error. With --micro-batches: model, budget,
    budget_bytes, way, batch, peak_bytes, step_s, plain_s, ratio_quartiles, of_better,
    micro_batches (count and size of the slices), recomputed; or error.
    """
    b: Any = micro_batches_benchmark if micro_batches else steps_benchmark
    rows = rows_of(b.measure, models or b.NAMES, budgets, steps)
    table = RowTable(b.TITLE, b.COLUMNS, b.cells, ("model", "way"))
    done = stream(rows, table, as_json=as_json)
    if micro_batches and not as_json:
        click.echo(micro_batches_benchmark.summary(done))


@click.command("first-step")
@models_argument
@budget_option("Budget of checkmate's steps: bytes, or a share of the plain step's peak.")
@click.option(
    "--batch", default=8, show_default=True, type=click.IntRange(1), help="Examples in a batch."
)
@json_option
def first_step(models: tuple[str, ...], budget: str, batch: int, as_json: bool) -> None:
    """Seconds to the end of the first step.

    Plain, with XLA, and with checkmate ("ours"): cold, with costs known, and with the plan kept.
    MODELS are workloads of `checkmate demo --model`; four of them by default. Imports and building
    the model and the optimizer are not counted. CPU seconds are those of all threads.

    JSON: model, variant, phase, wall_s, cpu_s, plain_wall_s, plain_cpu_s; or error.
    """
    b = first_step_benchmark
    title = "seconds from the call to the end of the first training step, each in a fresh process"
    rows = rows_of(b.measure, models or b.NAMES, budget, batch)
    table = RowTable(title, b.COLUMNS, b.cells, ("model", "variant", "phase"))
    done = stream(rows, table, as_json=as_json)
    if done and not as_json:
        click.echo(b.summary(done))


@click.command("rivals")
@models_argument
@budgets_option("80%,60%,45%", "Budgets: shares of the plain step's peak, as users write them.")
@click.option(
    "--methods",
    default="all",
    callback=listed(rivals_benchmark.METHODS),
    help=f"The other methods, separated by commas: {', '.join(rivals_benchmark.METHODS)}; or all.",
)
@steps_option(4, "Timed steps of each kind.", minimum=2)
@json_option
def rivals(
    models: tuple[str, ...], budgets: str, methods: list[str], steps: int, as_json: bool
) -> None:
    """Plain steps, XLA, Keras's rematerialization and checkmate ("ours").

    MODELS are workloads of `checkmate demo --model`; three of them by default. Memory is the
    allocator's peak, everything resident included.

    JSON: model, method, peak_bytes, plain_bytes, step_s, plain_s, ratio_quartiles, losses,
    loss_difference, first_call_s; or error.
    """
    b = rivals_benchmark
    title = (
        "memory is the allocator's peak, everything resident included; time and losses are"
        " compared with the plain step's, timed in turn"
    )
    rows = rows_of(b.measure, models or b.NAMES, methods, budgets, steps)
    stream(rows, RowTable(title, b.COLUMNS, b.cells, ("model", "method")), as_json=as_json)


@click.command("xla")
@json_option
def xla(as_json: bool) -> None:
    """Does recomputation survive XLA?

    A chain of dense layers, plain and recomputed, with and without XLA and its optimization
    barriers.

    JSON: way, peak_bytes, plain_bytes, step_s, and of the compiled program tanh and barriers (null
    without XLA).
    """
    b = xla_benchmark
    title = (
        "memory is the allocator's peak above the resting level; tanh counts those in the compiled"
        " program"
    )
    stream(b.measure(), RowTable(title, b.COLUMNS, b.cells, ("way",)), as_json=as_json)


@click.command("clients")
@click.argument("programs", nargs=-1)
@budgets_option("75%,60%,45%", "Budgets: shares of the plain step's peak, as users write them.")
@steps_option(4, "Training steps after the first.")
@json_option
def clients(programs: tuple[str, ...], budgets: str, steps: int, as_json: bool) -> None:
    """Does code that others wrote train under a budget, in one line?

    PROGRAMS are models of KerasHub, tf_keras and TensorFlow Probability (pip install
    'checkmate-tf[clients]') and training code in the style of published examples; all by default.

    JSON: program, budget, plain_bytes, budget_bytes, peak_bytes, predicted_bytes, difference,
    first_step_s, step_s, plain_first_step_s, plain_step_s, recomputed, ops, phases; or refused,
    message, op, least_bytes, named_bytes, named_peak_bytes or named_error; or error.
    """
    b = clients_benchmark
    title = "programs of others; the first step includes planning, in a process without costs"
    table = RowTable(title, b.COLUMNS, b.cells, ("program", "answer"))
    done = stream(b.rows(programs, budgets, steps), table, as_json=as_json)
    if done and not as_json:
        click.echo(b.summary(done))


COMMANDS = (
    limits,
    cap,
    workers,
    steps,
    first_step,
    rivals,
    xla,
    clients,
)
