"""Orders of first evaluations: a greedy one, graphs renumbered by one, and plans numbered back."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace

from checkmate.core.graph import DFGraph
from checkmate.core.plan import Compute, Free, Plan


def greedy_order(graph: DFGraph) -> list[int]:
    """Returns a legal order of first evaluations: of the ops that can run, always the one that then
    leaves least in memory."""
    before = [{*op.deps, *op.control_deps, *op.overwrites} for op in graph.ops]
    after: list[list[int]] = [[] for _ in before]
    for i, ops in enumerate(before):
        for d in ops:
            after[d].append(i)
    missing = [len(ops) for ops in before]
    kept = set(graph.outputs)
    unread = [len(users) + (i in kept) for i, users in enumerate(graph.users)]
    sizes = graph.output_bytes.tolist()
    growth = [
        size - sum(sizes[d] for d in graph.deps[i] if unread[d] == 1)
        for i, size in enumerate(sizes)
    ]
    ready = [(growth[i], i) for i, count in enumerate(missing) if not count]
    heapq.heapify(ready)
    order: dict[int, None] = {}
    while ready:
        grows, i = heapq.heappop(ready)
        if i in order or grows != growth[i]:
            continue
        order[i] = None
        for d in graph.deps[i]:
            unread[d] -= 1
            if unread[d] == 1 and d not in kept:
                (last,) = (u for u in graph.users[d] if u not in order)
                growth[last] -= sizes[d]
                if not missing[last]:
                    heapq.heappush(ready, (growth[last], last))
        for j in after[i]:
            missing[j] -= 1
            if not missing[j]:
                heapq.heappush(ready, (growth[j], j))
    return list(order)


def renumbered(graph: DFGraph, order: Sequence[int]) -> DFGraph:
    """Returns the same graph with op order[k] as op k. Raises `GraphError` where an op comes before
    one it must follow."""
    number = {old: new for new, old in enumerate(order)}

    def names(ops: Sequence[int]) -> tuple[int, ...]:
        return tuple(sorted(number[d] for d in ops))

    ops = tuple(
        replace(
            op,
            deps=names(op.deps),
            control_deps=names(op.control_deps),
            overwrites=names(op.overwrites),
            in_place=names(op.in_place),
        )
        for op in (graph.ops[old] for old in order)
    )
    return DFGraph(ops, names(graph.outputs), graph.fixed_bytes, graph.name)


def in_numbers_of(plan: Plan, order: Sequence[int]) -> Plan:
    """Returns a plan of a renumbered graph in the numbers of the original one."""
    return Plan(
        tuple(
            Compute(order[step.op]) if isinstance(step, Compute) else Free(order[step.op])
            for step in plan.steps
        )
    )
