"""The numbers that pictures draw: memory evaluation by evaluation, stages, layers.

While evaluation k runs, the memory in use is what `replay` counts: fixed bytes, every value in
memory, and the workspace of the op. Here the same bytes are split by kind. While an op runs in
place, the memory that its value reuses counts as the input's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from checkmate.core.graph import DFGraph
from checkmate.core.layer_names import layer_names
from checkmate.core.op import Op
from checkmate.core.plan import Compute, Plan
from checkmate.core.replay import BytesInUse, MemoryTimeline, replay

PARTS = ("resident", "forward", "recomputed", "backward", "update", "workspace", "overhead")
"""Kinds of bytes: always in memory; values of forward ops; such values recomputed; values of the
backward pass; values of updates; workspace of the op that runs; the allocator's overhead."""


@dataclass(frozen=True, slots=True)
class Allocated:
    """Bytes of a step that an allocator counts and its graph does not.

    Attributes:
      other_bytes: In use whatever the plan: tensors of others, and the next batches.
      plain_peak_bytes: The predicted peak of the plain step, all included. What is beyond the bytes
        that ops ask for is the allocator's overhead at the peak.
      planned_peak_bytes: That of the planned step.
      part: "step", or "slice" of one whose batch is split.

    Examples:
      >>> allocated = checkmate.plot.Allocated(2**20, 6 * 2**30, 4 * 2**30)
      >>> picture = checkmate.plot.memory(graph, result.plan, allocated=allocated)
    """

    other_bytes: int
    plain_peak_bytes: int
    planned_peak_bytes: int
    part: str = "step"


def part_of(op: Op) -> str:
    if not op.is_backward:
        return "forward"
    updates = op.overwrites or "Assign" in op.kind or "ResourceApply" in op.kind
    return "update" if updates else "backward"


def backward_start(graph: DFGraph, ops: Sequence[int]) -> int | None:
    return next((k for k, i in enumerate(ops) if part_of(graph.ops[i]) == "backward"), None)


@dataclass(frozen=True)
class Usage:
    """A plan of a graph, replayed.

    Attributes:
      again: (m,) bool, whether the op ran before.
      starts: (m + 1,) float, cost before each evaluation, and at the end, in plain steps. If all
        ops cost nothing, each counts the same.
      bytes_by_part: (m, 7) int64, the bytes in use while evaluation k runs, by `PARTS`. Rows sum to
        the memory in use.
      peak_bytes: The judge's; or the predicted one by the allocator's count, where it is given.
    """

    graph: DFGraph
    plan: Plan
    ops: np.ndarray = field(repr=False)
    again: np.ndarray = field(repr=False)
    starts: np.ndarray = field(repr=False)
    bytes_by_part: np.ndarray = field(repr=False)
    timeline: MemoryTimeline
    peak_bytes: int

    @property
    def peak(self) -> int:
        until = self.plan.steps[: self.timeline.peak_step + 1]
        return sum(isinstance(step, Compute) for step in until) - 1

    @property
    def binding_op(self) -> Op:
        return self.graph.ops[int(self.ops[self.peak])]

    @cached_property
    def layers(self) -> tuple[str, ...]:
        return layer_names(self.graph)

    @property
    def turn(self) -> int:
        """The evaluation that begins the backward pass; the one that sets the peak if there is
        none."""
        first = backward_start(self.graph, self.ops.tolist())
        return self.peak if first is None else first

    def live_at(self, evaluation: int) -> list[int]:
        """The ops whose values are in memory when an evaluation begins."""
        live: dict[int, None] = {}
        count = 0
        for step in self.plan.steps:
            if isinstance(step, Compute):
                if count == evaluation:
                    break
                count += 1
                live[step.op] = None
            else:
                del live[step.op]
        return list(live)


def usages(
    graph: DFGraph, plain: Plan | None, plan: Plan | None, allocated: Allocated | None
) -> dict[str, Usage]:
    """The plain step's use, and that of the planned one where there is a plan, by title."""
    other, part = (allocated.other_bytes, allocated.part) if allocated else (0, "step")
    plain_peak, planned_peak = (
        (allocated.plain_peak_bytes, allocated.planned_peak_bytes) if allocated else (None, None)
    )
    plain = plain or Plan.keep_all(graph)
    found = {f"plain {part}": usage(graph, plain, other_bytes=other, peak_bytes=plain_peak)}
    if plan is not None:
        planned = usage(graph, plan, other_bytes=other, peak_bytes=planned_peak)
        found[f"planned {part}"] = planned
    return found


def usage(
    graph: DFGraph, plan: Plan, *, other_bytes: int = 0, peak_bytes: int | None = None
) -> Usage:
    """The bytes in use that the judge counts; with a predicted peak, also the allocator's overhead,
    as it is at the peak, and other bytes that are in use all the time."""
    timeline = replay(graph, plan)
    asked_bytes = timeline.peak_bytes + other_bytes
    peak_bytes = asked_bytes if peak_bytes is None else peak_bytes
    part = [PARTS.index(part_of(op)) for op in graph.ops]
    ops, again, rows = [], [], []
    seen: set[int] = set()
    counted_as: dict[int, int] = {}  # op whose value is in memory -> part it counts as
    now = np.zeros(len(PARTS), np.int64)
    now[PARTS.index("resident")] = graph.fixed_bytes + other_bytes
    now[PARTS.index("overhead")] = max(0, peak_bytes - asked_bytes)
    in_use = BytesInUse(graph, plan.steps)
    for k, step in enumerate(plan.steps):
        i = step.op
        if isinstance(step, Compute):
            counted_as[i] = PARTS.index("recomputed") if i in seen else part[i]
            ops.append(i)
            again.append(i in seen)
            seen.add(i)
        for v, change in in_use.changes(k):
            now[counted_as[v]] += change
        if isinstance(step, Compute):
            rows.append(now.copy())
            rows[-1][PARTS.index("workspace")] = graph.ops[i].workspace_bytes
    costs = graph.costs[ops] if graph.total_cost else np.ones(len(ops))
    starts = np.concatenate([[0.0], np.cumsum(costs)]) / (graph.total_cost or len(graph))
    columns = np.array(ops), np.array(again), starts, np.array(rows)
    return Usage(graph, plan, *columns, timeline, peak_bytes)


@dataclass(frozen=True, slots=True)
class LayerUse:
    """The use of one layer by a plan. Bytes are those of its forward values in memory when the
    backward pass begins; `cost` is that of recomputations, as a share of the plain step's."""

    name: str
    ops: int
    kept_bytes: int
    plain_bytes: int
    evaluations: int
    cost: float

    @property
    def saved_bytes(self) -> int:
        return self.plain_bytes - self.kept_bytes


def layers(graph: DFGraph, plan: Plan, *, plain: Plan | None = None) -> list[LayerUse]:
    """Values that a plan keeps and recomputes, layer by layer, in the order of the forward pass.

    The kept bytes of all layers and the fixed bytes sum to the memory in use when the backward pass
    begins. `plain` is by default every op once, in the order of the graph.
    """
    planned, before = usage(graph, plan), usage(graph, plain or Plan.keep_all(graph))
    total, names = graph.total_cost or 1.0, planned.layers
    count, kept, unplanned, evaluations = (Counter[str]() for _ in range(4))
    cost: dict[str, float] = dict.fromkeys(names, 0.0)
    count.update(names)
    for column, found in ((kept, planned), (unplanned, before)):
        for i in found.live_at(found.turn):
            column[names[i]] += graph.ops[i].output_bytes
    for i, more in plan.recomputed.items():
        evaluations[names[i]] += more
        cost[names[i]] += more * float(graph.ops[i].cost) / total
    return [
        LayerUse(name, count[name], kept[name], unplanned[name], evaluations[name], cost[name])
        for name in cost
    ]


@dataclass(frozen=True, slots=True)
class Stages:
    """R and S of any plan, stage by stage: stage t ends with the t-th op that runs for the first
    time.

    For a plan whose first evaluations keep the graph's order these are the paper's matrices, and
    `order` is 0, 1, 2, ...

    Attributes:
      R: (n, n) bool, whether column i's op runs in stage t.
      S: (n, n) bool, whether its value is in memory when stage t begins.
    """

    order: tuple[int, ...]
    R: np.ndarray = field(repr=False)
    S: np.ndarray = field(repr=False)


def stages(graph: DFGraph, plan: Plan) -> Stages:
    n = len(graph)
    order = tuple(dict.fromkeys(plan.computed))
    column = {i: k for k, i in enumerate(order)}
    R, S = np.zeros((n, n), bool), np.zeros((n, n), bool)
    live = np.zeros(n, bool)
    begun, stage = 1, 0  # stages begun, first evaluations
    for step in plan.steps:
        place = column[step.op]
        if not isinstance(step, Compute):
            live[place] = False
            continue
        if stage == begun:  # values freed after the stage before are not retained
            S[stage] = live
            begun += 1
        R[stage, place] = live[place] = True
        stage += place == stage
    return Stages(order, R, S)
