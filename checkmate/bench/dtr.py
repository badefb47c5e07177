"""`checkmate bench dtr`: what DTR costs within budgets, per heuristic, against the best plan known; and its theorems, run.

A budget is a share of the plain step's peak, fixed bytes included. "best" is what `solve(solver="snapshot")` finds and "bound" what it
proves within the time limit, for graphs of up to `PLANNED_OPS` ops. "below 2x" is the smallest budget of a grid of 2 % down to which a
heuristic never thrashes or runs out of memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from checkmate.bench.problems import load
from checkmate.bench.recurrent import lstm, tree_lstm
from checkmate.core.graph import DFGraph
from checkmate.dtr.heuristic import HEURISTICS
from checkmate.dtr.program import Program
from checkmate.dtr.simulator import DTRRun, DTRStatus, simulate
from checkmate.dtr.theory import E_STAR, adversary, linear_network, square_root_budget
from checkmate.plot.online import growth_curve
from checkmate.solvers.solve import solve

NAMES = ("resnet50", "transformer12", "lstm40", "tree24")
PLANNED_OPS = 1500
GRID = tuple(range(98, 0, -2))
LAYERS = (64, 256, 1024, 4096, 16384)


def columns(shares: Sequence[int]) -> tuple[str, ...]:
    """The heads of the table."""
    return ("graph", "ops", "heuristic", *(f"{share}%" for share in shares), "below 2x")


def load_graph(name: str) -> DFGraph:
    """A graph of `checkmate.bench.problems`, or `lstmN` (N steps) or `treeN` (N leaves)."""
    rule = re.fullmatch(r"(lstm|tree)([1-9]\d*)", name)
    if not rule:
        return load(name)
    return (lstm if rule[1] == "lstm" else tree_lstm)(int(rule[2]))


def measure(
    names: Sequence[str], shares: Sequence[int], heuristics: Sequence[str], *, time_limit_s: float = 30
) -> Iterator[tuple[str, ...]]:
    """Rows of text under `columns(shares)`: a graph's heuristics, then the best plans and what is proven of any."""
    for name in names:
        graph = load_graph(name)
        program = Program.from_graph(graph)
        for heuristic in heuristics:
            runs = [simulate(program, f"{share}%", heuristic=heuristic) for share in shares]
            yield (name, str(len(graph)), heuristic, *map(_cell, runs), f"{reach(program, heuristic)}%")
        if len(graph) <= PLANNED_OPS:
            results = [solve(graph, f"{share}%", solver="snapshot", time_limit_s=time_limit_s, throw=False) for share in shares]
            best = ("-" if result.overhead is None else f"{result.overhead:.3f}" for result in results)
            yield (name, str(len(graph)), "best", *best, "")
            yield (name, str(len(graph)), "bound", *(f"{result.bound / (graph.total_cost or 1):.3f}" for result in results), "")


def reach(program: Program, heuristic: str) -> int:
    """Down to which share of the peak, in percent, every run of the grid ends below twice the plain cost."""
    reached = 100
    for share in GRID:
        if simulate(program, f"{share}%", heuristic=heuristic).status is not DTRStatus.OK:
            break
        reached = share
    return reached


def chains(layers: Sequence[int] = LAYERS, picture: str | None = None) -> Iterator[tuple[str, ...]]:
    """Theorem 3.1, run: a chain within 2 sqrt(N).

    Rows: layers, budget, and for e* and for dtr_eq the ops run over the 2 N of the plain step. They are drawn into the file `picture`.
    """
    lines: dict[str, list[tuple[int, float]]] = {"e*": [], "dtr_eq": []}
    for n in layers:
        program, budget = linear_network(n), square_root_budget(n)
        runs = [simulate(program, budget, heuristic=heuristic, deallocation="banish") for heuristic in (E_STAR, "dtr_eq")]
        for points, run in zip(lines.values(), runs, strict=True):
            points.append((n, run.overhead))
        yield (str(n), str(budget), *map(_cell, runs))
    if picture:
        growth_curve(lines, name="DTR on a chain of N layers within 2 sqrt(N) values").save(picture)


def duels(ops: int = 200, budgets: Sequence[int] = (4, 8, 16)) -> Iterator[tuple[str, ...]]:
    """Theorem 3.2, run: (heuristic, ops run over ops needed within each budget)."""
    for name in ("dtr", "dtr_eq", "local", "lru", "msps"):
        yield (name, *(f"{adversary(HEURISTICS[name], ops, budget).ratio:.1f}" for budget in budgets))


def _cell(run: DTRRun) -> str:
    return f"{run.overhead:.3f}" if run.status is DTRStatus.OK else run.status.value
