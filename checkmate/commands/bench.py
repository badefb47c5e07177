"""`checkmate bench`: the tables behind the figures. What is measured, and the keys of its JSON,
stand with each benchmark in `checkmate/bench`.

With `--json` a row is printed as soon as it is known, one object per line, with plain numbers:
bytes, seconds, and shares as fractions of 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from checkmate.commands.options import PICTURE, json_option, listed, numbers, time_limit_option
from checkmate.commands.table import stream
from checkmate.dtr.heuristic import HEURISTICS
from checkmate.solvers.solve import SOLVERS

Rows = Iterator[dict[str, Any]]


@click.group()
def bench() -> None:
    """Benchmarks: tables that anyone can reproduce.

    Ratios are of two things measured in one run. Each takes --json: one object per row, as soon as
    it is known, in bytes, seconds and fractions.
    """


def rows_of(measure: Callable[..., Rows], names: Sequence[str], *arguments: Any) -> Rows:
    """The rows for one name after the other."""
    for name in names:
        yield from measure(name, *arguments)


@bench.command("limits")
@click.argument("models", nargs=-1)
@click.option(
    "--budgets",
    default="80%,65%,50%,40%",
    show_default=True,
    help="Shares of the plain step's peak above what is resident.",
)
@click.option(
    "--steps",
    default=4,
    show_default=True,
    type=click.IntRange(1),
    help="Training steps under each budget.",
)
@json_option
def bench_limits(models: tuple[str, ...], budgets: str, steps: int, as_json: bool) -> None:
    """Is the budget a limit? Budget, predicted and measured peak.

    MODELS are workloads of `checkmate demo --model`; all by default. Peaks are the allocator's,
    everything resident included.

    JSON: model, budget, budget_bytes, predicted_bytes, peak_bytes, recomputed, overhead; or error.
    """
    from checkmate.bench import limits
    from checkmate.bench.models import NAMES

    rows = limits.measure(models or NAMES, budgets, steps)
    title = "measured peak against the budget, everything resident included"
    done = stream(rows, title, limits.COLUMNS, limits.cells, as_json=as_json, left=("model",))
    if not as_json:
        click.echo(limits.summary(done))


@bench.command("cap")
@click.argument("models", nargs=-1, required=True)
@click.option("--cap", required=True, help="All the memory that training may take, such as 600MiB.")
@click.option(
    "--steps",
    default=3,
    show_default=True,
    type=click.IntRange(1),
    help="Training steps of each kind.",
)
@json_option
def bench_cap(models: tuple[str, ...], cap: str, steps: int, as_json: bool) -> None:
    """The largest batch that trains under a memory cap.

    Plain and planned, for MODELS (workloads of `checkmate demo --model`).

    JSON: model, cap_bytes, and in plain and planned (null where no batch fits): batch, step_s,
    trained.
    """
    from checkmate.bench import cap as benchmark
    from checkmate.units import parse_bytes

    cap_bytes = parse_bytes(cap)
    rows = (benchmark.measure(name, cap_bytes, steps) for name in models)
    stream(
        rows,
        "largest batch under a cap of the allocator",
        benchmark.COLUMNS,
        benchmark.cells,
        as_json=as_json,
        left=("model",),
    )


@bench.command("workers")
@click.option(
    "--budget",
    default="60%",
    show_default=True,
    help="Of each worker: bytes, or a share of the plain step's peak.",
)
@json_option
def bench_workers(budget: str, as_json: bool) -> None:
    """Two workers on this machine, plain and planned: equal losses, and each within its budget.

    JSON: optimized, worker, difference, plain_bytes, planned_bytes, budget_bytes, recomputed.
    """
    from checkmate.bench import workers as benchmark

    stream(
        benchmark.measure(budget),
        "twenty steps of two workers",
        benchmark.COLUMNS,
        benchmark.cells,
        as_json=as_json,
    )


@bench.command("steps")
@click.argument("models", nargs=-1)
@click.option(
    "--budgets",
    default="60%,50%,40%",
    show_default=True,
    help="Shares of the plain step's peak above what is resident.",
)
@click.option(
    "--steps",
    default=5,
    show_default=True,
    type=click.IntRange(1),
    help="Timed steps of each kind.",
)
@json_option
def bench_steps(models: tuple[str, ...], budgets: str, steps: int, as_json: bool) -> None:
    """Memory and time of planned training steps against plain ones.

    MODELS are workloads of `checkmate demo --model`; five of them by default. Memory is the
    allocator's peak above the resting level.

    JSON: model, budget, budget_bytes, peak_bytes, plain_peak_bytes, predicted_bytes,
    plain_predicted_bytes, step_s, plain_s, predicted_slowdown, overhead, gap, recomputed, ops,
    planning_s, trace_s, phases; or error.
    """
    from checkmate.bench import steps as benchmark

    rows = rows_of(benchmark.measure, models or benchmark.NAMES, budgets, steps)
    title = "planned / plain training step; memory is the allocator's peak above the resting level"
    stream(rows, title, benchmark.COLUMNS, benchmark.cells, as_json=as_json, left=("model",))


@bench.command("first-step")
@click.argument("models", nargs=-1)
@click.option(
    "--budget",
    default="60%",
    show_default=True,
    help="Of ours: bytes, or a share of the plain step's peak.",
)
@click.option(
    "--batch", default=8, show_default=True, type=click.IntRange(1), help="Examples in a batch."
)
@json_option
def bench_first_step(models: tuple[str, ...], budget: str, batch: int, as_json: bool) -> None:
    """How long does it take to the end of the first step?

    Plain, with XLA, and ours: cold, with costs known, and with the plan kept. MODELS are workloads
    of `checkmate demo --model`; four of them by default. Imports and building the model and the
    optimizer are not counted. CPU seconds are those of all threads.

    JSON: model, variant, phase, wall_s, cpu_s, plain_wall_s, plain_cpu_s, steps_before; or error.
    """
    from checkmate.bench import first_step as benchmark
    from checkmate.units import parse_bytes

    parse_bytes(budget, percent_of=1 << 40)  # what cannot be read is refused before anything runs
    rows = rows_of(benchmark.measure, models or benchmark.NAMES, budget, batch)
    title = "seconds from the call to the end of the first training step, each in a fresh process"
    done = stream(
        rows,
        title,
        benchmark.COLUMNS,
        benchmark.cells,
        as_json=as_json,
        left=("model", "variant", "phase"),
    )
    if done and not as_json:
        click.echo(benchmark.summary(done))


@bench.command("rivals")
@click.argument("models", nargs=-1)
@click.option(
    "--budgets",
    default="80%,60%,45%",
    show_default=True,
    help="Ours: shares of the plain step's peak above what is resident.",
)
@click.option("--methods", help="Of the others, with commas between them; all by default.")
@click.option(
    "--steps",
    default=4,
    show_default=True,
    type=click.IntRange(2),
    help="Timed steps of each kind.",
)
@json_option
def bench_rivals(
    models: tuple[str, ...], budgets: str, methods: str | None, steps: int, as_json: bool
) -> None:
    """Plain steps, XLA, Keras's rematerialization and ours.

    MODELS are workloads of `checkmate demo --model`; three of them by default. Memory is the
    allocator's peak above the resting level.

    JSON: model, method, peak_bytes, plain_bytes, step_s, plain_s, losses, loss_difference,
    first_call_s; or error.
    """
    from checkmate.bench import rivals as benchmark

    rows = rows_of(
        benchmark.measure,
        models or benchmark.NAMES,
        methods.split(",") if methods else benchmark.METHODS,
        budgets,
        steps,
    )
    title = (
        "memory is the allocator's peak above the resting level; time and losses are beside those"
        " of the plain step"
    )
    stream(
        rows, title, benchmark.COLUMNS, benchmark.cells, as_json=as_json, left=("model", "method")
    )


@bench.command("xla")
@json_option
def bench_xla(as_json: bool) -> None:
    """Can recomputation survive XLA?

    A chain of dense layers, plain and recomputed, with and without XLA and its optimization
    barriers.

    JSON: way, peak_bytes, plain_bytes, step_s, and of the compiled program tanh and barriers (null
    without XLA).
    """
    from checkmate.bench import xla

    title = (
        "memory is the allocator's peak above the resting level; tanh are those in the compiled"
        " program"
    )
    stream(xla.measure(), title, xla.COLUMNS, xla.cells, as_json=as_json, left=("way",))


@bench.command("zoo")
@click.argument("models", nargs=-1)
@click.option(
    "--steps",
    default=2,
    show_default=True,
    type=click.IntRange(1),
    help="Training steps of each kind.",
)
@json_option
def bench_zoo(models: tuple[str, ...], steps: int, as_json: bool) -> None:
    """Does every model train under a budget, and what does each save?

    MODELS are names of the zoo; all by default, which takes a minute for each. The budget is 60% of
    the plain step's measured peak, everything resident included, or the lowest of some larger
    shares that has a plan.

    JSON: model, plain_bytes, budget_bytes, peak_bytes, predicted_bytes, values, verified, not_run,
    run_again, recomputed, ops, tracing_s, phases, notes, smallest, seconds; or error.
    """
    from checkmate.bench import zoo

    title = (
        "two steps within 60% of the plain step's peak; the smallest budgets whose predicted time"
        " is 1.10 and 1.30 times the plain step's"
    )
    done = stream(
        zoo.rows(models, steps), title, zoo.COLUMNS, zoo.cells, as_json=as_json, left=("model",)
    )
    if not as_json:
        click.echo(
            f"{sum(map(zoo.trained, done))} of {len(done)} models trained within their budget, with"
            " the plain step's values."
        )


@bench.command("refusals")
@click.argument("models", nargs=-1)
@click.option(
    "--steps", default=4, show_default=True, type=click.IntRange(1), help="Training steps."
)
@json_option
def bench_refusals(models: tuple[str, ...], steps: int, as_json: bool) -> None:
    """Does the budget that a refusal names work?

    MODELS are names of the zoo; all by default, which takes a minute or two for each. 30% of the
    plain step's peak is asked for; the smallest budget that the refusal names is then given in the
    same process and in another.

    JSON: model, asked_bytes, refused, least_bytes, named_bytes, here, peak_bytes; or error.
    """
    from checkmate.bench import refusals

    title = "30% of the plain step's peak, and then the smallest budget that the refusal names"
    done = stream(
        refusals.rows(models, steps),
        title,
        refusals.COLUMNS,
        refusals.cells,
        as_json=as_json,
        left=("model", "refused", "accepted anew"),
    )
    if not as_json:
        click.echo(f"{sum(map(refusals.holds, done))} of {len(done)} answers hold.")


@bench.command("solvers")
@click.argument("graphs", nargs=-1)
@click.option(
    "--shares", default="0.9,0.7,0.5,0.3,0.2,0.1", show_default=True, callback=numbers(float),
    help="Budgets, as shares of the way from floor to plain peak.",
)  # fmt: skip
@click.option(
    "--solvers", default="auto", show_default=True, metavar="NAMES", callback=listed(SOLVERS, also=("paper:", "grouped:")),
    help="Solvers with commas between them, see `checkmate solve --help`; paper:ENGINE is the paper's program alone, grouped:N the graph in N groups.",
)  # fmt: skip
@time_limit_option
@json_option
def bench_solvers(
    graphs: tuple[str, ...],
    shares: list[float],
    solvers: list[str],
    time_limit: float,
    as_json: bool,
) -> None:
    """Cost, bound, gap and times of solvers.

    GRAPHS are names of packaged ones (all by default), layeredN, chainN and encoderN, which are
    made by rule, or graph files (.json, .json.gz).

    JSON: graph, ops, share, solver, overhead, bound, gap, first_s, gap_s, small_gap_s, proof_s,
    total_s, found_by, refusal.
    """
    from checkmate.bench import problems
    from checkmate.bench import solvers as benchmark

    rows = benchmark.measure(
        graphs or problems.packaged(), shares, solvers, time_limit_s=time_limit
    )
    title = (
        f"solvers within {time_limit:g} s; f is the budget's share of the way from floor to plain"
        " peak"
    )
    left = ("graph", "solver", "found by")
    done = stream(
        rows,
        title,
        benchmark.COLUMNS,
        benchmark.Row.cells,
        as_json=as_json,
        left=left,
        facts=benchmark.Row.facts,
    )
    if not as_json:
        for sentence in benchmark.times_faster(done):
            click.echo(sentence)


@bench.command("dtr")
@click.argument("graphs", nargs=-1)
@click.option(
    "--shares",
    default="90,80,70,60,50,40,30,20",
    show_default=True,
    callback=numbers(int),
    help="Budgets, in percent of the plain step's peak.",
)
@click.option(
    "--heuristics",
    default="dtr,dtr_eq,local,lru,size,msps,random",
    show_default=True,
    metavar="NAMES",
    callback=listed(HEURISTICS),
    help="See `checkmate simulate --help`.",
)
@click.option(
    "--theory",
    is_flag=True,
    help="Run the theorems instead: chains within 2 sqrt(N), and the adversary.",
)
@click.option(
    "--plot",
    type=PICTURE,
    help="Draw the first graph, or with --theory the chains, into this .png, .svg or .pdf.",
)
@json_option
def bench_dtr(
    graphs: tuple[str, ...],
    shares: list[int],
    heuristics: list[str],
    theory: bool,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Overhead of DTR's heuristics against the best plan known.

    GRAPHS are as in `bench solvers`, and also lstmN and treeN; four by default.

    JSON: graph, ops, heuristic, overhead (an object, by budget), below_2x; with --theory theorem,
    and its figures.
    """
    from checkmate.bench import dtr as benchmark

    left = ("graph", "heuristic")
    if theory:
        chains = benchmark.chains(picture=str(plot) if plot else None)
        stream(
            chains,
            "chains within 2 sqrt(N)",
            benchmark.CHAIN_COLUMNS,
            benchmark.chain_cells,
            as_json=as_json,
        )
        stream(
            benchmark.duels(),
            "adversary, 200 ops",
            benchmark.DUEL_COLUMNS,
            benchmark.duel_cells,
            as_json=as_json,
            left=left,
        )
        return
    rows = benchmark.measure(
        graphs or benchmark.NAMES, shares, heuristics, picture=str(plot) if plot else None
    )
    stream(
        rows,
        "DTR: cost over that of the plain step",
        benchmark.columns(shares),
        benchmark.cells,
        as_json=as_json,
        left=left,
    )


@bench.command("dtr-eager")
@click.argument("workloads", nargs=-1)
@click.option(
    "--budgets",
    default="50%,40%",
    show_default=True,
    help="Shares of the plain step's measured peak.",
)
@click.option(
    "--steps",
    default=5,
    show_default=True,
    type=click.IntRange(1),
    help="Timed steps of each kind.",
)
@click.option(
    "--trees",
    is_flag=True,
    help="Instead: the largest TreeLSTM that trains within one cap of memory.",
)
@click.option("--ops", is_flag=True, help="Instead: what an op costs where nothing is evicted.")
@json_option
def bench_dtr_eager(
    workloads: tuple[str, ...], budgets: str, steps: int, trees: bool, ops: bool, as_json: bool
) -> None:
    """Eager training steps under dtr() against plain ones.

    WORKLOADS are mlp, mlp32, cnn, lstm, treelstm, unrolled and attention; all by default.

    JSON: workload, budget, budget_bytes, peak_bytes, plain_peak_bytes, step_s, plain_s, slowdown,
    cost, difference, state_equal; or error. With --trees: nodes, cap_bytes, plain, dtr. With --ops:
    width, pass, plain_s, none_s, none, far_s, far.
    """
    from checkmate.bench import eager as benchmark
    from checkmate.bench import eager_ops

    if ops:
        title = (
            "an op of a taped chain of matrix products: a plain tape, and what dtr() adds where"
            " nothing is evicted"
        )
        stream(
            eager_ops.measure(),
            title,
            eager_ops.COLUMNS,
            eager_ops.cells,
            as_json=as_json,
            left=("width", "pass"),
        )
        return
    if trees:
        title = f"seconds of a step on a random tree, within {benchmark.CAP_MIB} MiB"
        stream(
            benchmark.trees(), title, benchmark.TREE_COLUMNS, benchmark.tree_cells, as_json=as_json
        )
        return
    title = (
        "eager TensorFlow under dtr(); memory is the allocator's peak, variables and data included"
    )
    rows = rows_of(benchmark.measure, workloads or benchmark.NAMES, budgets, steps)
    stream(
        rows,
        title,
        benchmark.COLUMNS,
        benchmark.cells,
        as_json=as_json,
        left=("workload", "budget"),
    )


@bench.command("layered")
@click.argument("sizes", nargs=-1, type=click.IntRange(1))
@click.option(
    "--solver",
    default="auto",
    show_default=True,
    metavar="NAME",
    type=click.Choice(list(SOLVERS)),
    help="The solver that is asked within an order.",
)
@click.option("--seed", default=0, show_default=True, help="Of the graphs.")
@time_limit_option
@json_option
def bench_layered(
    sizes: tuple[int, ...], solver: str, seed: int, time_limit: float, as_json: bool
) -> None:
    """Re-ordering on random layered graphs.

    Overhead in any order of ops, on graphs of SIZES ops (default: 100 250 500 1000) at 90, 80 and
    70 % of the peak of the given order.

    JSON: ops, edges, percent, budget_bytes, status, overhead, bound, given_order_bound, peak_bytes,
    recomputed, seconds, fast_sa.
    """
    from checkmate.bench import layered as benchmark

    rows = benchmark.measure(
        sizes or benchmark.SIZES, solver=solver, seed=seed, time_limit_s=time_limit
    )
    title = (
        f"random layered graphs, any order, {time_limit:g} s each; FastSA: published, on other"
        " graphs of this kind"
    )
    stream(rows, title, benchmark.COLUMNS, benchmark.cells, as_json=as_json)
