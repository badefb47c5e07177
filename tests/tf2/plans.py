"""Legal plans of a graph that no solver would make: they ask everything of an executor."""

from __future__ import annotations

import random

from checkmate import DFGraph, Plan

DEPTH = 3
"""How far back from a reader values are evaluated again; without a limit the number of evaluations
explodes."""


def repeating(graph: DFGraph) -> Plan:
    """Every op in order; a value that may be had again is read once, and evaluated again for the
    next reader."""
    return random_plan(graph, seed=0, again=1.0, shuffled=False)


def random_plan(graph: DFGraph, seed: int, *, again: float = 0.5, shuffled: bool = True) -> Plan:
    """A random order that the graph allows; what was read before is evaluated again with
    probability `again`."""
    chance = random.Random(seed)
    waiting = list(range(len(graph)))
    done: set[int] = set()
    expired: set[int] = set()
    read: set[int] = set()
    order: list[int] = []

    def evaluate(i: int, depth: int) -> None:
        for d in graph.deps[i] if depth else ():
            if d in read - expired and graph.ops[d].recomputable and chance.random() < again:
                evaluate(d, depth - 1)
        order.append(i)
        read.update(graph.deps[i])

    while waiting:
        ready = [
            i
            for i in waiting
            if done.issuperset(
                (*graph.deps[i], *graph.ops[i].control_deps, *graph.ops[i].overwrites)
            )
        ]
        i = chance.choice(ready) if shuffled else ready[0]
        evaluate(i, DEPTH)
        waiting.remove(i)
        done.add(i)
        expired.update(graph.ops[i].overwrites)
    return Plan.from_order(graph, order)
