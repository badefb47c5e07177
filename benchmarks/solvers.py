"""`python -m benchmarks solvers`: one table of problems x solvers: overhead, bound and times.

A budget is a share f of the way from the graph's floor to the peak of its plain step (see
`problems.budget_at`). Overheads and gaps are the judge's. Times are wall-clock seconds since
`solve` was called: until the first plan within the budget, until the gap was at most a hundredth
and a thousandth, and until the gap was closed (to `OPTIMALITY_TOLERANCE`); "-" where that did not
happen.

Besides solvers there are "paper:ENGINE", the paper's program alone, and "grouped:N", which solves
the graph in N groups of ops and judges what that is on the ops: beside "auto" it tells what
grouping loses.

How "auto" grows with the graph: `python -m benchmarks solvers encoder5 encoder20 encoder53
encoder107 --shares 0.3 --time-limit 55`, transformer encoders by rule, each in a process of its
own, on two cores of which one was busy with other work. "first", "1 %" and "0.1 %" are the seconds
until then, "gap" is in percent, "GiB" all that the process held.

    graph         ops   first    1 %   0.1 %   total    gap   GiB
    encoder5      473    0.05   0.06    0.12     1.7  0.000   0.21
    encoder20   1,883    1.08   1.08    1.08     1.6  0.009   0.21
    encoder53   4,985    4.36   5.72    5.72     5.7  0.001   0.14
    encoder107 10,061    5.59  18.78   18.78    55.0  0.040   0.25

Repair grows faster than the graph, as both evictions and what each changes get more: so beyond
2,000 ops Chen's plan, trimmed, comes first.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import click

from benchmarks.commands import RowTable, numbers, stream
from benchmarks.problems import budget_at, load, packaged
from checkmate.commands.options import json_option, listed, time_limit_option
from checkmate.core.graph import DFGraph
from checkmate.core.replay import replay
from checkmate.errors import CheckmateError
from checkmate.solvers.backends.engines import ENGINES, solve_matrices
from checkmate.solvers.backends.matrices import AnswerStatus
from checkmate.solvers.paper.coarsen import coarsen
from checkmate.solvers.paper.formulation import formulate
from checkmate.solvers.result import SolveResult, SolveStatus
from checkmate.solvers.search import OPTIMALITY_TOLERANCE
from checkmate.solvers.solve import SOLVERS, solve

COLUMNS = (
    "graph",
    "ops",
    "f",
    "solver",
    "overhead",
    "bound",
    "gap",
    "first s",
    "1 % s",
    "0.1 % s",
    "proof s",
    "total s",
    "found by",
)
GAP, SMALL_GAP = 1e-2, 1e-3


@dataclass(frozen=True, slots=True)
class Row:
    """What one solver made of one problem. Times in seconds; None where it did not happen.

    Attributes:
      overhead: Cost of the plan over the cost of running every op once.
      bound: What is proven of every plan in the graph's order, in the same unit.
      refusal: Why there is no plan, in a word.
    """

    graph: str
    ops: int
    share: float
    solver: str
    overhead: float | None = None
    bound: float = 1.0
    first_s: float | None = None
    gap_s: float | None = None
    small_gap_s: float | None = None
    proof_s: float | None = None
    total_s: float = 0.0
    found_by: str = ""
    refusal: str = ""

    @property
    def gap(self) -> float | None:
        """overhead / bound - 1."""
        return None if self.overhead is None else max(0.0, self.overhead / self.bound - 1)

    def facts(self) -> dict[str, Any]:
        """The row as JSON has it: the attributes and gap; overhead and bound are in plain steps."""
        return {**asdict(self), "gap": self.gap}

    def cells(self) -> tuple[str, ...]:
        """The row as text, under `COLUMNS`."""
        figures = (
            self.refusal or f"{self.overhead:.5f}",
            f"{self.bound:.5f}",
            "-" if self.gap is None else f"{self.gap:.3%}",
            *(
                "-" if seconds is None else f"{seconds:.2f}"
                for seconds in (
                    self.first_s,
                    self.gap_s,
                    self.small_gap_s,
                    self.proof_s,
                    self.total_s,
                )
            ),
        )
        return (self.graph, str(self.ops), f"{self.share:g}", self.solver, *figures, self.found_by)


def measure(
    names: Sequence[str], shares: Sequence[float], solvers: Sequence[str], *, time_limit_s: float
) -> Iterator[Row]:
    """Asks every solver about every graph and budget. For "paper:ENGINE" see `prove`, for
    "grouped:N" `ask_grouped`.

    SciPy is loaded before: the first row is not to pay for all.
    """
    import scipy.optimize  # noqa: F401

    asks = {"paper": prove, "grouped": ask_grouped}
    for name in names:
        graph = load(name)
        for share in shares:
            budget_bytes = budget_at(graph, share)
            for solver in solvers:
                kind, _, which = solver.partition(":")
                ask, asked = (asks[kind], which) if kind in asks else (ask_solver, solver)
                yield ask(graph, share, budget_bytes, asked, time_limit_s)


def ask_solver(
    graph: DFGraph, share: float, budget_bytes: int, solver: str, time_limit_s: float
) -> Row:
    """One problem, one solver."""
    started = time.perf_counter()
    try:
        result = solve(graph, budget_bytes, solver=solver, time_limit_s=time_limit_s, throw=False)
    except CheckmateError as error:
        total_s, refusal = time.perf_counter() - started, type(error).__name__
        return Row(graph.name, len(graph), share, solver, total_s=total_s, refusal=refusal)
    if result.status is SolveStatus.INTERRUPTED:
        raise KeyboardInterrupt  # a search that was cut short is no row of this table
    return _row(result, share, solver, time.perf_counter() - started)


def prove(graph: DFGraph, share: float, budget_bytes: int, engine: str, time_limit_s: float) -> Row:
    """The paper's program as it stands, without relaxation, start or grouping: the optimum of its
    space, if the engine gets there.

    Its bound is not one for all plans in the graph's order; the overhead is the program's objective
    and not judged.
    """
    started = time.perf_counter()
    program = formulate(graph, budget_bytes)
    try:
        answer = solve_matrices(program.problem, engine=engine, time_limit_s=time_limit_s)
    except CheckmateError as error:
        total_s, refusal = time.perf_counter() - started, type(error).__name__
        return Row(
            graph.name, len(graph), share, f"paper:{engine}", total_s=total_s, refusal=refusal
        )
    total_s = time.perf_counter() - started
    overhead = None if answer.x is None else float(program.problem.cost @ answer.x)
    done = answer.status in (AnswerStatus.OPTIMAL, AnswerStatus.INFEASIBLE)
    proof_s = total_s if done else None
    found = "" if answer.x is None else f"{program.problem.shape[1]} columns"
    refusal = answer.status.name if answer.x is None else ""
    return Row(
        graph.name,
        len(graph),
        share,
        f"paper:{engine}",
        overhead,
        max(1.0, answer.bound),
        proof_s=proof_s,
        total_s=total_s,
        found_by=found,
        refusal=refusal,
    )


def ask_grouped(
    graph: DFGraph, share: float, budget_bytes: int, groups: str, time_limit_s: float
) -> Row:
    """The graph in groups of ops, solved by "auto", and the plan as the judge sees it on the ops.
    It proves nothing about them."""
    started = time.perf_counter()
    coarse = coarsen(graph, max_ops=int(groups))
    result = solve(coarse.after, budget_bytes, time_limit_s=time_limit_s, throw=False)
    total_s = time.perf_counter() - started
    overhead = (
        replay(graph, coarse.expand(result.plan)).cost / (graph.total_cost or 1.0)
        if result.plan
        else None
    )
    found, refusal = f"{len(coarse.after)} groups", "" if result.plan else result.status.name
    return Row(
        graph.name,
        len(graph),
        share,
        f"grouped:{groups}",
        overhead,
        total_s=total_s,
        found_by=found,
        refusal=refusal,
    )


def times_faster(rows: Sequence[Row]) -> Iterator[str]:
    """For each problem that the paper's program was proven on, how much sooner each other solver
    had its proof."""
    for paper in rows:
        if not paper.solver.startswith("paper:"):
            continue
        for row in rows:
            same = (row.graph, row.share) == (
                paper.graph,
                paper.share,
            ) and not row.solver.startswith("paper:")
            if not same or row.proof_s is None:
                continue
            ratio = (paper.proof_s or paper.total_s) / max(row.proof_s, 1e-4)
            relation = f"{ratio:,.0f} times" if paper.proof_s else f"more than {ratio:,.0f} times"
            yield (
                f"{row.graph} f={row.share:g}: {row.solver} has its proof {relation} faster than"
                f" {paper.solver}"
            )


def _row(result: SolveResult, share: float, solver: str, total_s: float) -> Row:
    unit = result.graph.total_cost or 1.0

    def first(gap: float) -> float | None:
        return next(
            (
                at
                for at, cost, bound in result.stats.history
                if cost is not None and cost <= bound * (1 + gap)
            ),
            None,
        )

    return Row(
        result.graph.name,
        len(result.graph),
        share,
        solver,
        result.overhead,
        result.bound / unit,
        first(float("inf")),
        first(GAP),
        first(SMALL_GAP),
        first(OPTIMALITY_TOLERANCE),
        total_s,
        result.stats.found_by,
        "" if result.plan else result.status.name,
    )


@click.command("solvers")
@click.argument("graphs", nargs=-1)
@click.option(
    "--shares",
    default="0.9,0.7,0.5,0.3,0.2,0.1",
    show_default=True,
    callback=numbers(float),
    help="Budgets, as shares of the way from the floor to the plain peak.",
)
@click.option(
    "--solvers",
    default="auto",
    show_default=True,
    metavar="NAMES",
    callback=listed(SOLVERS, also=rf"paper:({'|'.join(ENGINES)})|grouped:[1-9]\d*"),
    help=(
        "Solvers separated by commas, see `checkmate solve --help`; paper:ENGINE is the paper's"
        " program alone, grouped:N the graph in N groups."
    ),
)
@time_limit_option
@json_option
def command(
    graphs: tuple[str, ...],
    shares: list[float],
    solvers: list[str],
    time_limit: float,
    as_json: bool,
) -> None:
    """Cost, bound, gap and times of solvers.

    GRAPHS are names of packaged graphs (all by default), layeredN, chainN and encoderN, which are
    generated, or graph files (.json, .json.gz).

    JSON: graph, ops, share, solver, overhead, bound, gap, first_s, gap_s, small_gap_s, proof_s,
    total_s, found_by, refusal.
    """
    rows = measure(graphs or packaged(), shares, solvers, time_limit_s=time_limit)
    table = RowTable(
        f"solvers within {time_limit:g} s; f is the budget's share of the way from the floor to"
        " the plain peak",
        COLUMNS,
        Row.cells,
        ("graph", "solver", "found by"),
        Row.facts,
    )
    done = stream(rows, table, as_json=as_json)
    if not as_json:
        for sentence in times_faster(done):
            click.echo(sentence)
