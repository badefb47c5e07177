"""`checkmate bench layered`: re-ordering and recomputation on random layered graphs, which have no backward pass.

Graphs by the rule of `problems.layered`: of the kind, with the numbers of ops and edges, of those in the tables of MOCCASIN (Bartan et al.,
ICML 2023) and FastSA ("A fast heuristic to optimize time-space tradeoff for large models", NeurIPS 2023), but not the same graphs. So the
published figures beside ours say what is usual on this kind, not who is better on one instance.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from checkmate.bench.problems import layered
from checkmate.core.memory import replay
from checkmate.core.plan import Plan
from checkmate.solvers.solve import solve

COLUMNS = ("ops", "edges", "budget", "overhead", "bound", "given order", "peak/budget", "recomputed", "s", "FastSA")
SIZES = (100, 250, 500, 1000)
PERCENT = (90, 80, 70)
FAST_SA = {
    100: ("0.0", "0.3", "2.2 (over)"), 250: ("0.0", "0.0", "2.6"), 500: ("0.03", "2.3", "4.8 (over)"), 1000: ("0.4", "2.5", "7.4")
}  # fmt: skip
"""Overheads in percent that FastSA's table 1 gives for its graphs of these sizes, at 90, 80 and 70 % of the peak of the given order."""


def measure(sizes: Sequence[int], *, solver: str = "auto", seed: int = 0, time_limit_s: float = 60) -> Iterator[tuple[str, ...]]:
    """Yields a row of text under `COLUMNS` for each size and budget. "given order" is what is proven to be needed without re-ordering."""
    for n in sizes:
        graph = layered(n, seed=seed)
        peak = replay(graph, Plan.keep_all(graph)).peak_bytes
        for percent, published in zip(PERCENT, FAST_SA.get(n, ("",) * len(PERCENT)), strict=True):
            started = time.perf_counter()
            result = solve(graph, peak * percent // 100, solver=solver, reorder=True, time_limit_s=time_limit_s, throw=False)
            seconds = time.perf_counter() - started
            bounds = [f"{100 * (bound / graph.total_cost - 1):.2f} %" for bound in (result.bound, result.given_order_bound or 0)]
            found = ("none", "-", "-")
            if result.plan and result.overhead and result.peak_bytes:
                again = sum(result.plan.recomputed.values())
                found = (f"{100 * (result.overhead - 1):.2f} %", f"{result.peak_bytes / result.budget_bytes:.4f}", str(again))
            yield (str(n), str(len(graph.edges)), f"{percent} %", found[0], *bounds, *found[1:], f"{seconds:.1f}", published)
