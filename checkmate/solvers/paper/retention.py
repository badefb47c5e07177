"""Retention intervals: the times at which each value is in memory, as a scheduling problem for
CP-SAT.

Method: stages as in the paper's program (op t runs first at the end of stage t; ops before it may
run again in it, in index order), and each op has at most a few evaluations. Times are the turns of
the ops in the stages: op i has turn t (t + 1) / 2 + i in stage t. A value is in memory from its
turn to its last reader's. A cumulative constraint keeps the sum within the budget, and every
evaluation needs an interval of each input that covers it. If the op is the last reader of an input
whose memory it may reuse, its value counts from the end of its turn. The lengths of the
intervals are free: the published code's logarithmic domain for them excludes optima. The search
starts from the default solver's plan.

Source: MOCCASIN (Bartan et al., "Moccasin: Efficient Tensor Rematerialization for Neural Networks",
ICML 2023), section 2, rewritten. Its first phase, reaching the budget, is replaced by the start.
Guarantee: with enough time, the cheapest plan in stages in which no op runs more than `evaluations`
times (or more than in the start), up to rounding: sizes are rounded up to 2^-20 of the budget and
costs to 2^-30 of their sum. The reported bound is the default solver's, which holds for all plans
in the graph's order; CP-SAT's own bound holds for the smaller space only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from checkmate.core.graph import DFGraph
from checkmate.core.plan import Plan
from checkmate.core.schedule import Schedule
from checkmate.solvers.auto.solver import Auto
from checkmate.solvers.backends.engines import solve_intervals
from checkmate.solvers.backends.ortools_intervals import IntervalProblem
from checkmate.solvers.local.stage_plan import last_stages
from checkmate.solvers.search import Search

MEMORY_UNITS, COST_UNITS = 2**20, 2**30


@dataclass(frozen=True, slots=True)
class Retention:
    """Solves the scheduling problem of retention intervals.

    Args:
      evaluations: The most evaluations of an op (MOCCASIN's C).
      start_share: Share of the time for the default solver, which makes the start; 0 for no start.
    """

    evaluations: int = 2
    start_share: float = 0.3
    name: str = "retention"

    def run(self, search: Search) -> None:
        if self.start_share > 0:
            within = search.part(self.start_share)
            Auto(max_stalls=0).run(within)
            if within.infeasible:
                search.prove_infeasible(within.infeasible)
                return
            search.raise_bound(within.bound, by=f"{self.name}: {within.proven_by}")
            if within.plan is not None:
                search.offer(within.plan, by=f"{self.name}: {within.found_by}")
        if search.optimal or search.out_of_time():
            return
        schedule = Schedule.from_plan(search.graph, search.plan) if search.plan else None
        evaluations, start = self.evaluations, None
        if schedule is not None:
            evaluations = max(evaluations, int(schedule.R.sum(axis=0).max()))
            start = intervals_of(search.graph, schedule)
        problem = retention_problem(search.graph, search.budget_bytes, evaluations)
        answer = solve_intervals(problem, time_limit_s=0.95 * search.remaining_s, start=start)
        if answer.starts is not None:
            search.offer(plan_of(search.graph, answer.starts), by=self.name)


def turn(stage: int, i: int) -> int:
    """The turn of op i in a stage: stages 0, 1, 2, ... have 1, 2, 3, ... turns."""
    return stage * (stage + 1) // 2 + i


def retention_problem(graph: DFGraph, budget_bytes: int, evaluations: int) -> IntervalProblem:
    n, capacity_bytes = len(graph), max(0, budget_bytes - graph.fixed_bytes)
    unit = max(1, capacity_bytes // MEMORY_UNITS)
    scale = COST_UNITS / (graph.total_cost or 1.0)
    starts = []
    for i, last in enumerate(last_stages(graph)):
        again = tuple(turn(t, i) for t in range(i + 1, min(last, n - 1) + 1))
        wanted = any(again) and (graph.users[i] or i in graph.outputs)
        starts.append(((turn(i, i),), *([again] * (evaluations - 1) if wanted else [])))
    return IntervalProblem(
        starts=tuple(starts),
        reads=graph.deps,
        sizes=tuple(math.ceil(size / unit) for size in graph.output_bytes.tolist()),
        workspaces=tuple(math.ceil(size / unit) for size in graph.workspace_bytes.tolist()),
        costs=tuple(round(cost * scale) for cost in graph.costs.tolist()),
        kept=frozenset(graph.outputs),
        in_place=graph.in_place,
        horizon=turn(n, 0),
        capacity=capacity_bytes // unit,
    )


def intervals_of(graph: DFGraph, schedule: Schedule) -> list[list[tuple[int, int]]]:
    """For each op the (start, end) of its values in a schedule: from its turn to after its last
    reader's."""
    n = len(graph)
    intervals: list[list[tuple[int, int]]] = [[] for _ in range(n)]

    def stays_until(i: int, end: int) -> None:
        intervals[i][-1] = (intervals[i][-1][0], end)

    for t in range(n):
        for i in map(int, schedule.R[t].nonzero()[0]):
            for d in graph.deps[i]:
                stays_until(d, turn(t, i) + 1)
            intervals[i].append((turn(t, i), turn(t, i) + 1))
    for i in graph.outputs:
        stays_until(i, turn(n, 0))
    return intervals


def plan_of(graph: DFGraph, starts: tuple[tuple[int, ...], ...]) -> Plan:
    order = sorted((time, i) for i, times in enumerate(starts) for time in times)
    return Plan.from_order(graph, [i for _, i in order])
