"""What the tests compare with: brute force for tiny graphs, and an interpreter that computes what a
plan would compute."""

from __future__ import annotations

import heapq
from itertools import product

from checkmate import Compute, DFGraph, Plan, PlanError, replay


def cheapest(graph: DFGraph, budget_bytes: int) -> float | None:
    """Returns the least cost of any plan within the budget whose first evaluations come in index
    order; None when there is none.

    Dijkstra over states (how many ops have run for the first time, set of values in memory). Every
    step of every such plan is an edge: evaluate the next op, evaluate an earlier one again, either
    of them in the memory of an input that is gone then, or free a value. Exponential in the number
    of ops: for 7 or so.
    """
    n, ops = len(graph), graph.ops
    deps = [sum(1 << d for d in op.deps) for op in ops]
    until = [
        n
    ] * n  # op i may run again as long as fewer than until[i] + 1 ops have run for the first time
    for k, op in enumerate(ops):
        for d in op.overwrites:
            until[d] = min(until[d], k)
    held = [
        sum(op.output_bytes for i, op in enumerate(ops) if live >> i & 1) for live in range(1 << n)
    ]
    wanted = sum(1 << i for i in graph.outputs)
    best = {(0, 0): 0.0}
    queue = [(0.0, 0, 0)]
    while queue:
        cost, frontier, live = heapq.heappop(queue)
        if cost > best[frontier, live]:
            continue
        if frontier == n and live & wanted == wanted:
            return cost
        following = [(cost, frontier, live & ~(1 << i)) for i in range(n) if live >> i & 1]
        for i in range(min(frontier + 1, n)):
            again = i < frontier
            if (
                live >> i & 1
                or deps[i] & ~live
                or (again and (not ops[i].recomputable or frontier > until[i]))
            ):
                continue
            after = live | 1 << i
            if graph.fixed_bytes + held[after] + ops[i].workspace_bytes <= budget_bytes:
                following.append((cost + ops[i].cost, frontier + (not again), after))
            if graph.fixed_bytes + held[live] + ops[i].workspace_bytes <= budget_bytes:
                following.extend(
                    (cost + ops[i].cost, frontier + (not again), after & ~(1 << d))
                    for d in ops[i].in_place
                )
        for cost, frontier, live in following:
            if cost < best.get((frontier, live), float("inf")):
                best[frontier, live] = cost
                heapq.heappush(queue, (cost, frontier, live))
    return None


def cheapest_in_any_order(graph: DFGraph, budget_bytes: int) -> float | None:
    """Returns the least cost of any plan within the budget, in whatever order ops run; None when
    there is none.

    Like `cheapest`, over states (set of ops that have run, set of values in memory): for 6 ops or
    so.
    """
    n, ops = len(graph), graph.ops
    deps = [sum(1 << d for d in op.deps) for op in ops]
    follows = [sum(1 << d for d in {*op.control_deps, *op.overwrites}) for op in ops]
    overwritten_by = [
        sum(1 << k for k, op in enumerate(ops) if i in op.overwrites) for i in range(n)
    ]
    held = [
        sum(op.output_bytes for i, op in enumerate(ops) if live >> i & 1) for live in range(1 << n)
    ]
    everything, wanted = (1 << n) - 1, sum(1 << i for i in graph.outputs)
    best = {(0, 0): 0.0}
    queue = [(0.0, 0, 0)]
    while queue:
        cost, done, live = heapq.heappop(queue)
        if cost > best[done, live]:
            continue
        if done == everything and live & wanted == wanted:
            return cost
        following = [(cost, done, live & ~(1 << i)) for i in range(n) if live >> i & 1]
        for i in range(n):
            again = done >> i & 1
            if (
                live >> i & 1
                or deps[i] & ~live
                or (again and (not ops[i].recomputable or overwritten_by[i] & done))
            ):
                continue
            if not again and follows[i] & ~done:
                continue
            if graph.fixed_bytes + held[live | 1 << i] + ops[i].workspace_bytes <= budget_bytes:
                following.append((cost + ops[i].cost, done | 1 << i, live | 1 << i))
            if graph.fixed_bytes + held[live] + ops[i].workspace_bytes <= budget_bytes:
                following.extend(
                    (cost + ops[i].cost, done | 1 << i, (live | 1 << i) & ~(1 << d))
                    for d in ops[i].in_place
                )
        for cost, done, live in following:
            if cost < best.get((done, live), float("inf")):
                best[done, live] = cost
                heapq.heappush(queue, (cost, done, live))
    return None


def run_plan(graph: DFGraph, plan: Plan) -> dict[int, int]:
    """Runs a plan on numbers: an op's value is a hash of its index, of its inputs' values and of
    whether its variables changed.

    Returns:
      The values in memory at the end, by op.

    Raises:
      AssertionError: An op that ran again made another value than before.
      KeyError: An op ran without one of its inputs.
    """
    live: dict[int, int] = {}
    first: dict[int, int] = {}
    overwritten: set[int] = set()
    for step in plan.steps:
        i = step.op
        if isinstance(step, Compute):
            value = hash((i, i in overwritten, tuple(live[d] for d in graph.deps[i])))
            assert first.setdefault(i, value) == value, (
                f"op {i} made another value when it ran again"
            )
            live[i] = value
            overwritten.update(graph.ops[i].overwrites)
        else:
            del live[i]
    return live


def stage_plans(graph: DFGraph):
    """Yields every plan that runs op t first in stage t and, before it, any subset of the earlier
    ops once, in index order."""
    n = len(graph)
    for choice in product((False, True), repeat=n * (n - 1) // 2):
        picks = iter(choice)
        order = [i for t in range(n) for i in range(t + 1) if i == t or next(picks)]
        try:
            plan = Plan.from_order(graph, order)
            yield plan, replay(graph, plan)
        except PlanError:
            continue


def cheapest_in_stages(graph: DFGraph, budget_bytes: int) -> float | None:
    return min(
        (line.cost for _, line in stage_plans(graph) if line.peak_bytes <= budget_bytes),
        default=None,
    )
