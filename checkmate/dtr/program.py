"""Program: the steps of a run, on numbered tensors. Op logs and dataflow graphs become one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from checkmate.core.graph import DFGraph
from checkmate.core.replay import plain_peak
from checkmate.dtr.heuristic import HEURISTICS
from checkmate.dtr.log import OpLog, whole_costs
from checkmate.dtr.policy import CountingBackend
from checkmate.dtr.runtime import Deallocation, Runtime
from checkmate.dtr.steps import Hold, Run, Step, steps_of
from checkmate.dtr.storage import FRESH, Tensor


@dataclass(frozen=True)
class Program:
    """Steps in order.

    Args:
      graph: The graph it was made of. Then the first step makes `graph.fixed_bytes`, and the others
        with `Run` are its ops in order.
    """

    steps: tuple[Step, ...]
    name: str = ""
    graph: DFGraph | None = field(default=None, repr=False)

    @cached_property
    def cost(self) -> int:
        return sum(step.cost for step in self.steps if isinstance(step, Run))

    @cached_property
    def plain_peak_bytes(self) -> int:
        """The peak without a budget, where everything is freed for good once nothing refers to
        it; of a graph, the peak that `replay` finds."""
        if self.graph is not None:
            return plain_peak(self.graph)
        backend = CountingBackend()
        self.run(
            Runtime(
                backend,
                budget_bytes=math.inf,
                heuristic=HEURISTICS["local"],
                deallocation=Deallocation.BANISH,
            )
        )
        return backend.peak

    def run(self, runtime: Runtime) -> None:
        tensors: list[Tensor] = []
        for step in self.steps:
            if isinstance(step, Run):
                inputs = [tensors[i] for i in step.inputs]
                tensors.extend(
                    runtime.call(
                        step.op, inputs, step.sizes, step.aliases, step.cost, step.workspace_bytes
                    )
                )
            else:
                getattr(runtime, step.method)(tensors[step.tensor])

    @classmethod
    def from_log(cls, log: OpLog) -> Program:
        return cls(tuple(steps_of(log.instructions, log.lines)), log.name)

    @classmethod
    def from_graph(cls, graph: DFGraph) -> Program:
        """The plain step. A value is released after its last use and may be evicted all the time,
        unless it could not be made again.

        That holds for ops that may run only once, and, from the op on that overwrites what they
        read, for others. Such values are pinned until nothing can need them, neither directly nor
        to recompute another; that can be longer than the plain step holds them.
        """
        return cls(tuple(_graph_steps(graph)), graph.name, graph)


def _graph_steps(graph: DFGraph) -> Iterator[Step]:
    """Op i makes tensor i + 1; tensor 0 is what is resident all the time."""
    n, costs = len(graph), whole_costs(graph)
    needed = _needed_until(graph)
    ending: list[list[int]] = [[] for _ in range(n)]
    for i in range(n):
        if needed[i] < n:
            ending[needed[i]].append(i)
    pinned: set[int] = set()
    # They are pinned later, so they must not be released before.
    late = {i for i in range(n) if graph.expires[i] < needed[i]}
    yield Run("fixed_bytes", (), (graph.fixed_bytes,), (FRESH,), 0)
    yield Hold("pin", 0)
    for i, op in enumerate(graph.ops):
        for d in op.overwrites:
            if d not in pinned and needed[d] > i:
                pinned.add(d)
                yield Hold("pin", d + 1)
        yield Run(
            op.name,
            tuple(d + 1 for d in op.deps),
            (op.output_bytes,),
            (FRESH,),
            costs[i],
            op.workspace_bytes,
        )
        if not op.recomputable and needed[i] > i:
            pinned.add(i)
            yield Hold("pin", i + 1)
        ended = (d for d in (*op.deps, i) if graph.last_use[d] == i and d not in late)
        yield from (Hold("release", d + 1) for d in ended)
        for d in ending[i]:
            if d in late:
                yield Hold("release", d + 1)
            if d in pinned:
                yield Hold("unpin", d + 1)
    yield from (Hold("pin", i + 1) for i in graph.outputs if i not in pinned)


def _needed_until(graph: DFGraph) -> list[int]:
    """For each value the last op for which it may have to be in memory, be it to recompute
    something else; n at the end."""
    n, outputs = len(graph), set(graph.outputs)
    until = [0] * n
    for i in reversed(range(n)):
        until[i] = n if i in outputs else i
        for user in graph.users[i]:
            again = min(until[user], graph.expires[user]) if graph.ops[user].recomputable else user
            until[i] = max(until[i], user, again)
    return until
