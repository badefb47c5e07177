"""The snapshot relaxation: look at the memory of a plan at a few moments only, and forget it in between.

Choose stages t_1 < ... < t_K. Snapshot c is the moment op t_c runs for the first time. For a plan let

    P[c, i] = 1 when the value of op i is in memory at snapshot c,            i <= t_c
    R[c, i] = 1 when op i runs after snapshot c - 1 and not after snapshot c,  (snapshot 0: before all, K + 1: the end)

**Theorem.** Every plan within the budget, whose first evaluations come in index order, gives P and R with

    (1)  P[c, i] <= P[c-1, i] + R[c, i]                 in memory only if it stayed or was computed
    (2)  R[c, j] <= P[c-1, i] + R[c, i]                 for every op j that reads op i: its inputs were there
    (3)  R[c, i] = 1 for t_{c-1} < i <= t_c             the first evaluations
    (4)  P[c, i] = 1 for i = t_c and what it reads      op t_c runs
    (5)  fixed + sum_i bytes_i P[c, i] + workspace(t_c) <= budget
    (6)  P[K, i] + R[K+1, i] >= 1 for the outputs
    (7)  R[c, i] = 0 for i <= t_{c-1} where op i may not run again after snapshot c - 1

and costs at least sum cost_i R[c, i]. So the minimum of that sum over binary P and R, or any lower bound of it, is a lower
bound for the cost of all such plans, and where no P and R exist, no such plan does.

*Proof.* (1) and (2): a value that is in memory at one moment was in memory at an earlier one or was computed in between; for (2)
take the moment op j runs. (3) holds as first evaluations come in index order, (4) and (5) as the judge counts memory, (6) and (7)
by the rules of a plan. A plan that runs op i in an interval pays cost_i there at least once. []

What is lost is the memory between the snapshots and second evaluations within one interval. The bound speaks of the
graph's order of first evaluations, and charges a repeated evaluation what the first one costs. Backward ops are ops like others: they may run
again too. An op's several outputs are one value here, as they are for the judge.

**Rows over several intervals.** As a linear program, (1) and (2) let a value be computed by halves in two intervals from the same retained
half of an input, and more snapshots make the bound *weaker*. Let A[a, b, i] = 1 when op i runs after snapshot a and not after snapshot b. Then

    (8)  R[c, i] <= A[a, b, i] <= sum of R[c', i],  a < c <= b, over a < c' <= b
    (9)  A[a, b, j] <= P[a, i] + A[a, b, i]         for every op j that reads op i
    (10) P[b, i] <= P[a, i] + A[a, b, i]

hold for every plan, by the proof of (1) and (2) with the intervals in between taken as one. They change no binary optimum, as A follows from R, so
A need not be declared binary. They are added for the intervals of a binary tree: all pairs bound little better and take many times as long.

Two reductions keep the optimum. Ops that no later op, output or snapshot can need get no variable. And where op i is read by op
j alone, is no output, and j reads nothing else and is not larger, i is never kept once j exists (P[c, i] = 0 for j < t_c) and runs
again exactly when j does (R[c, i] = R[c, j] for j <= t_{c-1}): in P and R replace "i computed in c', kept until c'', j computed
after it" by "j computed in c', kept until c''", which needs no more bytes and costs no more.

Source: the problem is that of Checkmate (Jain et al., MLSys 2020), equation 1; one snapshot is the knapsack with a recomputation
closure behind min-cut rematerialization, and several are its time-expanded form.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from checkmate.core.graph import DFGraph
from checkmate.solvers.timetable import last_stages

ZERO, ONE = -1, -2
"""Markers in the tables of variables: a P or R that is fixed. Other entries are column numbers."""

SCALE = 1e4
"""The objective counts costs in total_cost / SCALE: HiGHS' dual tolerance of 1e-7 is then small beside what is proven."""


@dataclass(frozen=True, slots=True)
class Bound:
    """What a relaxation told.

    Attributes:
      cost: No plan within the budget costs less; infinity when none exists.
      dropped: dropped[c], the values that the best P does not keep at snapshot c; None when no P was found.
      exact: The relaxation was solved to the end, so that asking again with more time tells nothing new.
    """

    cost: float
    dropped: tuple[tuple[int, ...], ...] | None
    exact: bool


class SnapshotModel:
    """The relaxation of one graph, budget and choice of snapshots, as sparse rows.

    Args:
      graph: The problem.
      budget_bytes: The limit, which counts `graph.fixed_bytes`.
      snapshots: Stages t_1 < ... < t_K, at least one.
    """

    def __init__(self, graph: DFGraph, budget_bytes: int, snapshots: Sequence[int]):
        self.graph = graph
        self.snapshots = tuple(sorted(set(snapshots)))
        self.room = budget_bytes - graph.fixed_bytes
        self.fixed_cost = graph.total_cost
        self._scale = SCALE / graph.total_cost if graph.total_cost > 0 else 1.0
        self._objective: list[float] = []
        self._binary: list[bool] = []
        self._rows: list[int] = []
        self._columns: list[int] = []
        self._values: list[float] = []
        self._upper: list[float] = []
        self.contradiction = False
        self._last = last_stages(graph)
        self._stands_for = _stands_for(graph)
        self.P: list[list[int]] = []
        self.R: list[list[int]] = []
        self._add_variables()
        self._add_rows()
        if len(self.snapshots) > 1:
            self._join(0, len(self.snapshots))

    @property
    def size(self) -> int:
        """Number of binary variables."""
        return sum(self._binary)

    def solve(self, *, time_limit_s: float, nodes: int = 200, precision: float = 1e-6, relaxed: bool = False) -> Bound:
        """Solves the relaxation with HiGHS.

        Args:
          time_limit_s: Seconds for HiGHS.
          nodes: Branch-and-bound nodes for HiGHS. Unlike a time limit it gives the same answer on every machine.
          precision: Share of the cost of running ops again to which the bound has to be known.
          relaxed: Let P and R be fractions: a weaker bound in milliseconds, and nothing to lift.
        """
        if self.contradiction:
            return Bound(float("inf"), None, True)
        columns = len(self._objective)
        if not self._upper:  # nothing binds: keep everything
            return Bound(self.fixed_cost, self._dropped(np.ones(columns)), True)
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_matrix

        matrix = csr_matrix((self._values, (self._rows, self._columns)), shape=(len(self._upper), columns))
        answer = milp(
            np.array(self._objective),
            integrality=np.zeros(columns) if relaxed else np.array(self._binary, dtype=int),
            bounds=Bounds(0, 1),
            constraints=LinearConstraint(matrix, -np.inf, np.array(self._upper)),
            options={"time_limit": time_limit_s, "node_limit": nodes, "mip_rel_gap": precision},
        )
        if answer.status == 2:
            return Bound(float("inf"), None, True)
        proven = answer.get("mip_dual_bound")
        if relaxed:  # a linear program cut short has proven nothing
            proven = answer.fun if answer.status == 0 else None
        cost = self.fixed_cost
        if proven is not None and np.isfinite(proven):
            cost += max(0.0, proven - 1e-7 * SCALE) / self._scale
        found = None if relaxed or answer.x is None else self._dropped(answer.x)
        return Bound(cost, found, answer.status == 0)

    def _add_variables(self) -> None:
        graph, n, K = self.graph, len(self.graph), len(self.snapshots)
        costs = graph.costs
        starts = [0, *(t + 1 for t in self.snapshots)]
        ends = [*self.snapshots, n - 1]
        outputs = set(graph.outputs)
        last_reader = [n if i in outputs else max(users, default=-1) for i, users in enumerate(graph.users)]
        needed_at_end = list(graph.outputs)
        for c in range(K + 1):
            first, end = starts[c], ends[c]
            # What may be of use to run again in this interval: ancestors of its ops, and of what may be kept at its end.
            seeds = list(range(first, end + 1))
            if c < K:
                keepable = [i for i in range(end + 1) if last_reader[i] > end]
                useful = _ancestors_of(graph, [*keepable, *graph.deps[end]])
                needed = _ancestors_of(graph, seeds) | useful
            else:
                needed = _ancestors_of(graph, seeds + needed_at_end)
            R = [ZERO] * n
            R[first : end + 1] = [ONE] * (end + 1 - first)
            for i in range(first - 1, -1, -1):
                if not needed[i] or self._last[i] < first:
                    continue
                j = self._stands_for[i]
                if 0 <= j < first:
                    R[i] = R[j]
                    if R[i] >= 0:
                        self._objective[R[i]] += costs[i] * self._scale
                else:
                    R[i] = self._variable(costs[i])
            self.R.append(R)
            if c < K:
                P = [ZERO] * n
                for i in range(end):
                    if useful[i] and not 0 <= self._stands_for[i] < end:
                        P[i] = self._variable(0.0)
                for i in (end, *graph.deps[end]):
                    P[i] = ONE
                self.P.append(P)

    def _variable(self, cost: float, *, binary: bool = True) -> int:
        self._objective.append(cost * self._scale)
        self._binary.append(binary)
        return len(self._objective) - 1

    def _add_rows(self) -> None:
        graph, n, K = self.graph, len(self.graph), len(self.snapshots)
        nothing = [ZERO] * n
        sizes = graph.output_bytes.tolist()
        for c in range(K + 1):
            R, before = self.R[c], self.P[c - 1] if c else nothing
            end = self.snapshots[c] if c < K else n - 1
            for j in range(end + 1):
                if R[j] != ZERO:
                    for i in graph.deps[j]:
                        self._implies(R[j], before[i], R[i])
            if c < K:
                P, room = self.P[c], self.room - graph.ops[end].workspace_bytes
                for i in range(end + 1):
                    if P[i] != ZERO:
                        self._implies(P[i], before[i], R[i])
                room -= sum(sizes[i] for i in range(end + 1) if P[i] == ONE)
                variable = [i for i in range(end + 1) if P[i] >= 0 and sizes[i]]
                if room < 0:
                    self.contradiction = True
                elif sum(sizes[i] for i in variable) > room:
                    unit = max(1, self.room)
                    # The last factor is room for rounding: it can only make the bound weaker.
                    self._row([P[i] for i in variable], [sizes[i] / unit for i in variable], room / unit * (1 + 1e-9) + 1e-12)
            else:
                for i in graph.outputs:
                    self._implies(ONE, before[i], R[i])

    def _join(self, a: int, b: int) -> list[int]:
        """Returns the columns of A for the intervals after snapshot a up to snapshot b; adds rows (8) to (10) for them and below in the tree."""
        if b == a + 1:
            return self.R[b]
        middle = (a + b) // 2
        graph, n, first, second = self.graph, len(self.graph), self._join(a, middle), self._join(middle, b)
        start, end = self.snapshots[a], self.snapshots[b] if b < len(self.snapshots) else n - 1
        A = [ZERO] * (start + 1) + [ONE] * (end - start) + [ZERO] * (n - 1 - end)
        for i in range(start + 1):
            A[i] = self._either(first[i], second[i])
        for j in range(end + 1):
            if A[j] != ZERO:
                for i in graph.deps[j]:
                    if i <= start:
                        self._implies(A[j], self.P[a][i], A[i])
        if b < len(self.snapshots):
            for i in range(start + 1):
                if self.P[b][i] != ZERO:
                    self._implies(self.P[b][i], self.P[a][i], A[i])
        return A

    def _either(self, x: int, y: int) -> int:
        """A column that is 1 when x or y is; one that is there already where that will do."""
        if ZERO in (x, y) or x == y:
            return max(x, y) if ONE not in (x, y) else ONE
        if ONE in (x, y):
            return ONE
        either = self._variable(0.0, binary=False)
        self._implies(either, x, y)
        self._implies(x, either, ZERO)
        self._implies(y, either, ZERO)
        return either

    def _implies(self, x: int, a: int, b: int) -> None:
        """The row x <= a + b, left out where it always holds."""
        if ONE in (a, b) or (x in (ZERO, a, b) and x != ONE):
            return
        terms = [(x, 1.0), (a, -1.0), (b, -1.0)]
        columns = [column for column, _ in terms if column >= 0]
        if not columns:
            self.contradiction = True
            return
        if len(set(columns)) < len(columns):  # a == b
            terms = [(x, 1.0), (a, -1.0)]
        self._row(
            [column for column, _ in terms if column >= 0],
            [value for column, value in terms if column >= 0],
            -1.0 if x == ONE else 0.0,
        )

    def _row(self, columns: list[int], values: list[float], upper: float) -> None:
        self._rows += [len(self._upper)] * len(columns)
        self._columns += columns
        self._values += values
        self._upper.append(upper)

    def _dropped(self, x: np.ndarray) -> tuple[tuple[int, ...], ...]:
        def absent(column: int) -> bool:
            return column == ZERO or (column >= 0 and x[column] < 0.5)

        return tuple(tuple(i for i in range(t) if absent(P[i])) for t, P in zip(self.snapshots, self.P, strict=True))


def _stands_for(graph: DFGraph) -> list[int]:
    """For each op i the op j that is kept in its place (see the module's second reduction), or -1."""
    outputs = set(graph.outputs)
    stands_for = [-1] * len(graph)
    for i, users in enumerate(graph.users):
        if len(users) == 1 and i not in outputs:
            (j,) = users
            if graph.deps[j] == (i,) and graph.ops[j].output_bytes <= graph.ops[i].output_bytes:
                stands_for[i] = j
    return stands_for


def _ancestors_of(graph: DFGraph, seeds: Iterable[int]) -> np.ndarray:
    """(n,) bool: the seeds and everything they depend on."""
    marked = np.zeros(len(graph), dtype=bool)
    stack = list(set(seeds))
    marked[stack] = True
    while stack:
        for d in graph.deps[stack.pop()]:
            if not marked[d]:
                marked[d] = True
                stack.append(d)
    return marked
