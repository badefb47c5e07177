"""Overhead against budget for the networks of Checkmate's experiments (Jain et al., MLSys 2020,
section 6.3), by this library and by every baseline, and how far the baselines are from the optimum
(table 2). By planning only.

The graphs are the paper's graphs of layers (`layer_graph.py`) at its batches. Its costs were
measured on a V100; here they are estimated by a roofline. Budgets are 16 GB, that GPU's memory, and
shares of the way from the floor to the plain step's peak; the paper does not publish its own. So
published figures show what is usual, not which implementation is better. A baseline counts at the
budgets at which it has a plan, as in the paper. Those of this library try several segment lengths
and thresholds and keep the cheapest plan within the budget (`solvers/baselines/`).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.problems import budget_at
from checkmate.core.graph import DFGraph
from checkmate.core.plan import Plan
from checkmate.core.replay import floor, replay
from checkmate.solvers.result import SolveResult, SolveStatus
from checkmate.solvers.solve import solve

BATCHES = {"vgg16": 256, "mobilenet": 512, "unet": 32, "vgg19": 256, "resnet50": 256}
"""Of the paper's experiments: the networks of its figure 5 first, the others of table 2 after."""

NAMES = tuple(BATCHES)
GPU_BYTES = 16 * 10**9
SHARES = (0.9, 0.7, 0.5, 0.3, 0.1)

BASELINES = {
    "chen_sqrt_n": "sqrt(n)",
    "chen_greedy": "greedy",
    "chen_sqrt_n:ap": "AP sqrt(n)",
    "chen_greedy:ap": "AP greedy",
    "chen_sqrt_n:linearized": "lin. sqrt(n)",
    "chen_greedy:linearized": "lin. greedy",
    "checkpoint_last": "last",
    "revolve": "Griewank",
    "min_cut": "min cut",
    "dtr": "DTR",
    "lp_rounding": "LP rounding",
}
"""Solver -> column."""

ITS_BASELINES = (
    "chen_sqrt_n:ap",
    "chen_greedy:ap",
    "chen_sqrt_n:linearized",
    "chen_greedy:linearized",
    "revolve",
)
"""Those of the paper; the others came later, or are its own."""

COMPARED = ("chen_sqrt_n:ap", "chen_greedy:ap", "revolve", "lp_rounding")
"""The methods of table 2."""

PUBLISHED_RATIOS: dict[str, tuple[float | None, ...]] = {
    "mobilenet": (1.14, 1.07, 7.07, 1.06),
    "vgg16": (1.28, 1.06, 1.44, 1.01),
    "vgg19": (1.54, 1.39, 1.75, 1.00),
    "unet": (1.27, 1.23, None, 1.03),
    "resnet50": (1.20, 1.25, None, 1.05),
}
"""Table 2: cost by that of the optimum, geometric mean over budgets, for each method of
`COMPARED`."""

PUBLISHED_BEST = {("unet", GPU_BYTES): (1.20, 1.38)}
"""(network, budget) -> cost of the best of `ITS_BASELINES`, and of linearized sqrt(n), by that of
Checkmate's plan."""

COLUMNS = (
    "network",
    "batch",
    "budget GB",
    "of plain",
    "ours",
    "gap",
    *BASELINES.values(),
    "its best / ours",
    "published",
)

RATIO_COLUMNS = (
    "network",
    "budgets",
    "gap",
    *(text for solver in COMPARED for text in (BASELINES[solver], "published")),
)


def rows(name: str, shares: Sequence[float], time_limit_s: float) -> Iterator[dict[str, Any]]:
    """Yields a row per budget for a network, which is built in this process."""
    from benchmarks.layer_graph import for_batch, layer_graph, roofline_s
    from benchmarks.paper_models import build

    graph = for_batch(layer_graph(build(name), roofline_s), BATCHES[name])
    yield from sweep(
        replace(graph, name=name), BASELINES, shares, time_limit_s, batch=BATCHES[name]
    )


def sweep(
    graph: DFGraph,
    solvers: Iterable[str],
    shares: Sequence[float],
    time_limit_s: float,
    *,
    batch: int,
) -> Iterator[dict[str, Any]]:
    """Yields a row per budget, the largest first.

    Overheads are costs divided by the plain step's; None where a method has no plan. best_by_ours
    is the cost of the cheapest of the paper's own baselines, divided by that of our plan.
    """
    solvers = tuple(solvers)
    plain_bytes = replay(graph, Plan.keep_all(graph)).peak_bytes
    budgets = {budget_at(graph, share) for share in shares}
    budgets |= {GPU_BYTES} if floor(graph).bytes <= GPU_BYTES < plain_bytes else set()
    for budget_bytes in sorted(budgets, reverse=True):
        started = time.perf_counter()
        ours, *others = (
            _solved(graph, budget_bytes, solver, time_limit_s) for solver in ("auto", *solvers)
        )
        overheads = {
            solver: result.overhead for solver, result in zip(solvers, others, strict=True)
        }
        its = [each for solver in ITS_BASELINES if (each := overheads.get(solver)) is not None]
        published = PUBLISHED_BEST.get((graph.name, budget_bytes), (None, None))
        yield {
            "table": "overheads",
            "network": graph.name,
            "batch": batch,
            "budget_bytes": budget_bytes,
            "plain_bytes": plain_bytes,
            "overhead": ours.overhead,
            "gap": ours.gap,
            "overheads": overheads,
            "best_by_ours": min(its) / ours.overhead if its and ours.overhead else None,
            "published_best": published[0],
            "published_linearized_sqrt_n": published[1],
            "seconds": time.perf_counter() - started,
        }


def _solved(graph: DFGraph, budget_bytes: int, solver: str, time_limit_s: float) -> SolveResult:
    result = solve(graph, budget_bytes, solver=solver, time_limit_s=time_limit_s, throw=False)
    if result.status is SolveStatus.INTERRUPTED:
        raise KeyboardInterrupt
    return result


def ratios(rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yields a row of table 2 for each network of `sweep`'s rows: geometric means of cost by the
    cost of our plan, each over the budgets at which the method has a plan; None where it has
    none."""
    by_network: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if "error" not in row:
            by_network.setdefault(row["network"], []).append(row)
    for name, done in by_network.items():
        yield _ratios(name, done)


def _ratios(name: str, done: Sequence[dict[str, Any]]) -> dict[str, Any]:
    means, counts = {}, {}
    for solver in COMPARED:
        found = [
            row["overheads"][solver] / row["overhead"]
            for row in done
            if row["overhead"] and row["overheads"].get(solver)
        ]
        means[solver] = statistics.geometric_mean(found) if found else None
        counts[solver] = len(found)
    published = PUBLISHED_RATIOS.get(name, (None,) * len(COMPARED))
    gaps = [row["gap"] for row in done if row["gap"] is not None]
    return {
        "table": "ratios",
        "network": name,
        "budgets": len(done),
        "ratios": means,
        "with_plan": counts,
        "gap": max(gaps, default=None),
        "published": dict(zip(COMPARED, published, strict=True)),
    }


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """A row under `COLUMNS`."""
    if "error" in row:
        return (row["network"], row["error"][:110])
    best, linearized = row["published_best"], row["published_linearized_sqrt_n"]
    return (
        row["network"],
        str(row["batch"]),
        f"{row['budget_bytes'] / 1e9:.2f}",
        f"{row['budget_bytes'] / row['plain_bytes']:.0%}",
        _share(row["overhead"]),
        _gap(row["gap"]),
        *(_share(row["overheads"].get(solver)) for solver in BASELINES),
        _ratio(row["best_by_ours"]),
        "" if best is None else f"{best:.2f}; lin. sqrt(n) {linearized:.2f}",
    )


def ratio_cells(row: dict[str, Any]) -> tuple[str, ...]:
    """A row under `RATIO_COLUMNS`; where a method has no plan at some budgets, the number of those
    at which it has one is in brackets."""
    texts = []
    for solver in COMPARED:
        count = row["with_plan"][solver]
        some = f" ({count})" if 0 < count < row["budgets"] else ""
        texts += [_ratio(row["ratios"][solver]) + some, _ratio(row["published"][solver])]
    return (row["network"], str(row["budgets"]), _gap(row["gap"]), *texts)


def _share(overhead: float | None) -> str:
    return "-" if overhead is None else f"{overhead - 1:+.1%}"


def _gap(gap: float | None) -> str:
    return "-" if gap is None else f"{gap:.2%}"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
