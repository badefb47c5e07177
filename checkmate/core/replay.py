"""The judge: `replay` checks that a plan is legal for a graph, and returns its cost and its memory.

This is the only definition of memory in the project. At every step the bytes in use are

    graph.fixed_bytes + output_bytes of every value in memory + workspace_bytes of the op that runs.

An op's inputs and its value are in memory together while the op runs, unless it runs *in place*: if
one of the Free steps directly after the op's Compute step frees an input whose memory the value may
reuse (`Op.in_place`), the value reuses it, and its bytes count from that Free step on, instead of
the input's. Nothing else is counted: no fragmentation, no rounding beyond what the
graph's sizes already contain.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from checkmate.core.graph import DFGraph, ancestors
from checkmate.core.plan import Compute, Free, Plan, Step
from checkmate.errors import PlanError


@dataclass(frozen=True, slots=True)
class MemoryTimeline:
    """The result of `replay`.

    Attributes:
      bytes_after_step: (steps,) int64, bytes in use after each step, fixed bytes included,
        workspace not.
      peak_bytes: The most bytes in use at any moment, workspace included.
      peak_step: Index of the step that reaches it.
      fixed_bytes: The graph's resident bytes, contained in all other figures.
      cost: Sum of the costs of all evaluations, in the graph's unit.

    Examples:
      >>> ops = (checkmate.Op("a", output_bytes=3), checkmate.Op("b", (0,), output_bytes=4))
      >>> chain = DFGraph(ops, outputs=(1,), fixed_bytes=10)
      >>> replay(chain, Plan.keep_all(chain)).bytes_after_step.tolist()  # a, b, free a
      [13, 17, 14]
    """

    bytes_after_step: np.ndarray = field(repr=False, compare=False)
    peak_bytes: int
    peak_step: int
    fixed_bytes: int
    cost: float


def reused_input(graph: DFGraph, steps: Sequence[Step], k: int) -> int | None:
    """The input whose memory the value of the op computed at step k reuses; None if the op does not
    run in place."""
    allowed = graph.in_place[steps[k].op]
    if allowed:
        for position in range(k + 1, len(steps)):
            step = steps[position]
            if not isinstance(step, Free):
                return None
            if step.op in allowed:
                return step.op
    return None


class BytesInUse:
    """Follows the steps of a legal plan and returns by how much each step changes the bytes in use,
    value by value."""

    def __init__(self, graph: DFGraph, steps: Sequence[Step]):
        self._graph, self._steps = graph, steps
        self._guest: dict[int, int] = {}  # op -> the op whose value took its memory

    def changes(self, k: int) -> list[tuple[int, int]]:
        """Returns (op, change of the bytes counted for its value) for step k; steps must be asked
        for in order."""
        i, ops = self._steps[k].op, self._graph.ops
        if isinstance(self._steps[k], Compute):
            host = reused_input(self._graph, self._steps, k)
            if host is None:
                return [(i, ops[i].output_bytes)]
            self._guest[host] = i
            return []
        if i in self._guest:
            guest = self._guest.pop(i)
            return [(i, -ops[i].output_bytes), (guest, ops[guest].output_bytes)]
        for host, guest in self._guest.items():
            if guest == i:  # freed before the input whose memory it took
                del self._guest[host]
                return []
        return [(i, -ops[i].output_bytes)]


def replay(graph: DFGraph, plan: Plan) -> MemoryTimeline:
    """Simulates a plan step by step.

    Args:
      graph: The problem.
      plan: The steps.

    Returns:
      Peak, cost and the bytes in use after every step.

    Raises:
      PlanError: The plan is not legal for this graph: an op runs without its inputs, before an op
        it must follow, again although it must not, or after an op that overwrote what it reads; an
        op never runs; an output is not in memory at the end.

    Examples:
      >>> from checkmate import DFGraph, Op, Plan, replay
      >>> ops = (Op("a", output_bytes=3), Op("b", (0,), output_bytes=4))
      >>> chain = DFGraph(ops, outputs=(1,), fixed_bytes=10)
      >>> replay(chain, Plan.keep_all(chain)).peak_bytes  # 10 + 3 + 4
      17
    """
    ops = graph.ops
    bytes_in_use, rules = BytesInUse(graph, plan.steps), _Rules(graph)
    in_use = peak = graph.fixed_bytes
    peak_step = 0
    bytes_after_step = np.empty(len(plan.steps), dtype=np.int64)
    for k, step in enumerate(plan.steps):
        rules.check(k, step)
        in_use += sum(change for _, change in bytes_in_use.changes(k))
        if isinstance(step, Compute) and in_use + ops[step.op].workspace_bytes > peak:
            peak, peak_step = in_use + ops[step.op].workspace_bytes, k
        bytes_after_step[k] = in_use
    rules.check_end()
    bytes_after_step.setflags(write=False)
    cost = math.fsum(ops[i].cost for i in plan.computed)
    return MemoryTimeline(bytes_after_step, peak, peak_step, graph.fixed_bytes, cost)


def plain_peak(graph: DFGraph) -> int:
    """The peak of the plain step in bytes, of which budgets such as "60%" are shares."""
    return replay(graph, Plan.keep_all(graph)).peak_bytes


class _Rules:
    """Checks the steps of a plan, one after another, against the rules of its graph."""

    def __init__(self, graph: DFGraph):
        self._graph = graph
        self._live: set[int] = set()
        self._done: set[int] = set()
        self._expired: dict[int, int] = {}  # op -> the op that overwrote what it reads

    def check(self, k: int, step: Step) -> None:
        """Raises `PlanError` if step k is not legal after the steps before it."""
        ops, i = self._graph.ops, step.op
        if not 0 <= i < len(ops):
            raise PlanError(
                f"Step {k} names op {i}; the graph has ops 0 to {len(ops) - 1}. The plan belongs to"
                " another graph."
            )
        if isinstance(step, Free):
            self._live.remove(i)
            return
        if i in self._done:
            self._check_again(k, i)
        else:
            self._check_first(k, i)
        for d in ops[i].deps:
            if d not in self._live:
                raise PlanError(
                    f"Step {k} runs op {i} {ops[i].name!r}, but its input {d} {ops[d].name!r} is"
                    " not in memory."
                )
        self._live.add(i)

    def _check_first(self, k: int, i: int) -> None:
        ops = self._graph.ops
        for d in (*ops[i].control_deps, *ops[i].overwrites):
            if d not in self._done:
                raise PlanError(
                    f"Step {k} runs op {i} {ops[i].name!r} before op {d} {ops[d].name!r}, which it"
                    " must follow."
                )
        self._expired.update((d, i) for d in ops[i].overwrites)
        self._done.add(i)

    def _check_again(self, k: int, i: int) -> None:
        ops = self._graph.ops
        if not ops[i].recomputable:
            raise PlanError(f"Step {k} runs op {i} {ops[i].name!r} again; it may run only once.")
        if i in self._expired:
            raise PlanError(
                f"Step {k} runs op {i} {ops[i].name!r} again after op {self._expired[i]}"
                f" {ops[self._expired[i]].name!r} overwrote what it reads."
            )

    def check_end(self) -> None:
        """Raises `PlanError` if an op never ran, or an output is not in memory."""
        ops = self._graph.ops
        if len(self._done) < len(ops):
            i = next(i for i in range(len(ops)) if i not in self._done)
            raise PlanError(
                f"{len(ops) - len(self._done)} ops never run, the first is op {i} {ops[i].name!r}."
                " Every op must run at least once."
            )
        for i in self._graph.outputs:
            if i not in self._live:
                raise PlanError(f"Output {i} {ops[i].name!r} is not in memory at the end.")


@dataclass(frozen=True, slots=True)
class Floor:
    """A lower bound on the memory of any plan: op `op`, with the values that must be in memory
    while it runs, needs `bytes`.

    Attributes:
      bytes: The bound, fixed bytes included.
      op: Index of the op that binds.
      live: The ops whose values are in memory then: `op` itself, unless it may run in place, its
        inputs, and values that may not be recomputed and are still needed.

    Examples:
      >>> ops = (checkmate.Op("a", output_bytes=3), checkmate.Op("b", (0,), output_bytes=4))
      >>> floor(DFGraph(ops, outputs=(1,), fixed_bytes=10))  # 10 + 3 + 4
      Floor(bytes=17, op=1, live=(0, 1))
    """

    bytes: int
    op: int
    live: tuple[int, ...] = ()


def floor(graph: DFGraph) -> Floor:
    """Returns a budget below which no plan exists, in any order of ops, with the op that binds: the
    one that needs most by itself (see `op_floors`). The least feasible budget can be higher than
    this bound.

    Args:
      graph: The problem.

    Examples:
      >>> ops = (checkmate.Op("a", output_bytes=3), checkmate.Op("b", (0,), output_bytes=4))
      >>> floor(DFGraph(ops, outputs=(1,), fixed_bytes=10)).bytes  # 10 + 3 + 4
      17
    """
    return max(op_floors(graph), key=lambda each: each.bytes)


def op_floors(graph: DFGraph) -> list[Floor]:
    """Returns the floor of each op by itself, whatever the plan.

    While op v runs for the first time, these are in memory: the fixed bytes, its inputs, its value,
    its workspace, and every value that may not be recomputed, was needed by v (an ancestor of v)
    and is still needed (an output, or read by a descendant of v). The value of v does not count if
    it may reuse the memory of an input that is not among the values just named.

    Args:
      graph: The problem.

    Examples:
      >>> ops = (checkmate.Op("a", output_bytes=3), checkmate.Op("b", (0,), output_bytes=4))
      >>> [each.bytes for each in op_floors(DFGraph(ops, outputs=(1,), fixed_bytes=10))]
      [13, 17]
    """
    n = len(graph)
    above = ancestors(graph.deps)
    below = [0] * n
    for i in range(n - 1, -1, -1):
        for u in graph.users[i]:
            below[i] |= below[u] | 1 << u
    outputs = set(graph.outputs)
    pinned = [i for i, op in enumerate(graph.ops) if not op.recomputable and op.output_bytes]
    user_bits = {i: sum(1 << u for u in graph.users[i]) for i in pinned}

    def floor_of(v: int) -> Floor:
        kept = {
            i for i in pinned if above[v] >> i & 1 and (i in outputs or user_bits[i] & below[v])
        }
        in_place = any(d not in kept for d in graph.in_place[v])
        live = kept | {*graph.ops[v].deps} | (set() if in_place else {v})
        values = sum(graph.ops[i].output_bytes for i in live)
        needed = graph.fixed_bytes + graph.ops[v].workspace_bytes + values
        return Floor(needed, v, tuple(sorted(live)))

    return [floor_of(v) for v in range(n)]
