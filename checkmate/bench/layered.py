"""`checkmate bench layered`: re-ordering and recomputation on random layered graphs, which have no
backward pass.

The graphs of `problems.layered` have the structure and the numbers of ops and edges of those in the
tables of MOCCASIN (Bartan et al., ICML 2023) and FastSA ("A fast heuristic to optimize time-space
tradeoff for large models", NeurIPS 2023), but are not the same graphs. The published figures show
what is usual on such graphs, not which method is better on one graph.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from checkmate.bench.problems import layered
from checkmate.core.plan import Plan
from checkmate.core.replay import replay
from checkmate.solvers.result import SolveStatus
from checkmate.solvers.solve import solve

COLUMNS = (
    "ops",
    "edges",
    "budget",
    "overhead",
    "bound",
    "given order",
    "peak/budget",
    "recomputed",
    "s",
    "FastSA",
)
SIZES = (100, 250, 500, 1000)
PERCENT = (90, 80, 70)
FAST_SA = {
    100: ("0.0", "0.3", "2.2 (over)"),
    250: ("0.0", "0.0", "2.6"),
    500: ("0.03", "2.3", "4.8 (over)"),
    1000: ("0.4", "2.5", "7.4"),
}
"""Overheads in percent that FastSA's table 1 gives for its graphs of these sizes, at 90, 80 and 70
% of the peak of the given order."""


def measure(
    sizes: Sequence[int], *, solver: str = "auto", seed: int = 0, time_limit_s: float = 60
) -> Iterator[dict[str, Any]]:
    """Yields a row per size and budget.

    Without a plan, overhead, peak_bytes and recomputed are None. bound and given_order_bound are
    divided by the plain step's cost; the latter holds for plans without re-ordering. fast_sa is
    FastSA's published overhead.
    """
    for n in sizes:
        graph = layered(n, seed=seed)
        peak = replay(graph, Plan.keep_all(graph)).peak_bytes
        for percent, published in zip(PERCENT, FAST_SA.get(n, ("",) * len(PERCENT)), strict=True):
            started = time.perf_counter()
            result = solve(
                graph,
                peak * percent // 100,
                solver=solver,
                reorder=True,
                time_limit_s=time_limit_s,
                throw=False,
            )
            if result.status is SolveStatus.INTERRUPTED:
                raise KeyboardInterrupt
            yield {
                "ops": n,
                "edges": len(graph.edges),
                "percent": percent,
                "budget_bytes": result.budget_bytes,
                "status": result.status.name,
                "overhead": result.overhead,
                "bound": result.bound / graph.total_cost,
                "given_order_bound": (result.given_order_bound or 0) / graph.total_cost,
                "peak_bytes": result.peak_bytes,
                "recomputed": sum(result.plan.recomputed.values()) if result.plan else None,
                "seconds": time.perf_counter() - started,
                "fast_sa": published,
            }


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """A row under `COLUMNS`."""
    bounds = [f"{100 * (row[key] - 1):.2f} %" for key in ("bound", "given_order_bound")]
    found = ("none", "-", "-")
    if row["overhead"] is not None:
        found = (
            f"{100 * (row['overhead'] - 1):.2f} %",
            f"{row['peak_bytes'] / row['budget_bytes']:.4f}",
            str(row["recomputed"]),
        )
    return (
        str(row["ops"]),
        str(row["edges"]),
        f"{row['percent']} %",
        found[0],
        *bounds,
        *found[1:],
        f"{row['seconds']:.1f}",
        row["fast_sa"],
    )
