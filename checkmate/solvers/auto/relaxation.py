"""The snapshot relaxation: the memory of a plan is limited at a few moments, and free in between.

Choose stages t_1 < ... < t_K. Snapshot c is the moment op t_c runs for the first time. For a plan
let

    P[c, i] = 1 when the value of op i is in memory at snapshot c,            i <= t_c
    R[c, i] = 1 when op i runs after snapshot c - 1 and not after snapshot c,
              (snapshot 0: before the step, K + 1: the end of the step)
    A[c] = 1    when op t_c is computed in place at snapshot c

For what op t_c may overwrite (`Op.in_place`: deps whose memory its value may reuse) P[c, i]
says whether it is *still* there: in memory when the values that are freed right after op t_c are
gone, before anything else runs.

**Theorem.** Every plan within the budget whose first evaluations come in index order gives P and R
with

    (1)  P[c, i] <= P[c-1, i] + R[c, i]     in memory only if it stayed or was computed
    (2)  R[c, j] <= P[c-1, i] + R[c, i]     for every op j that reads op i: its inputs were there
    (3)  R[c, i] = 1 for t_{c-1} < i <= t_c       the first evaluations
    (4)  P[c, i] = 1 for i = t_c and its inputs that it may not overwrite: op t_c runs
    (5)  fixed + sum_i bytes_i P[c, i] + workspace(t_c) - bytes(t_c) A[c] <= budget, with 1 for
         P[c, i] of what op t_c may overwrite, and A[c] <= sum of 1 - P[c, i] over that, A[c] = 0
         where that is nothing
    (6)  P[K, i] + R[K+1, i] >= 1 for the outputs
    (7)  R[c, i] = 0 for i <= t_{c-1} where op i may not run again after snapshot c - 1

and costs at least sum cost_i R[c, i]. So the minimum of that sum over binary P and R, or any lower
bound of it, is a lower bound for the cost of all such plans. Where no P and R exist, no plan does.

*Proof.* (1) and (2): a value that is in memory at one moment was in memory at an earlier one or was
computed in between; for (2) take the moment op j runs. That the moment of P[c, i] comes a few Free
steps later for some i changes nothing, as no op runs between the two. A[c]: op t_c is computed in
place only where one of these steps frees what it may overwrite. (3) holds as first evaluations come
in index order, (4) and (5) as the judge counts memory, (6) and (7) by the rules of a plan. A plan
that runs op i in an interval pays cost_i there at least once. []

The relaxation ignores the memory between snapshots and second evaluations within one interval. The
bound holds for the graph's order of first evaluations. A repeated evaluation costs what the first
one does, backward ops may run again too, and an op's several outputs are one value, as for the
judge.

**Cuts over several intervals.** As a linear program, (1) and (2) let a value be computed by halves
in two intervals from the same retained half of an input, and more snapshots make the bound
*weaker*. Let each of the ops j_0, ..., j_k read the next, j_1, ..., j_k be at most t_a, and a < b.
Then

    (8)  R[b, j_0] <= P[a, j_1] + ... + P[a, j_k] + sum of R[c, j_k] over a < c <= b
    (9)  P[b, j_0] <= P[a, j_0] + ... + P[a, j_k] + sum of R[c, j_k] over a < c <= b
         where j_0 is at most t_a, too

hold for every plan: when j_0 runs, the value of j_1 is in memory since snapshot a, or was computed
after it, when that of j_2 was in memory, and so on until j_k; for (9) a value that is in memory at
snapshot b was there at a, or ran in between. `cuts` separates them.

Only P is declared binary. For P of zeros and ones, (1) and (2) ask of R no more than R[c, i] >= 0
or 1 or R[c, j]; what is least under such rows is binary and cheapest. Where costs are few whole
units, R is declared binary, too: HiGHS then sees that the objective is whole, and stops a unit
before the optimum.

Two reductions keep the optimum. Ops that no later op, output or snapshot can need get no variable.
And where op i is read by op j alone, is no output, and j reads nothing else and is not larger, i is
never kept once j exists (P[c, i] = 0 for j < t_c) and runs again exactly when j does (R[c, i] =
R[c, j] for j <= t_{c-1}): in P and R replace "i computed in c', kept until c'', j computed after
it" by "j computed in c', kept until c''", which needs no more bytes and costs no more. In place,
too: where op t_c reused the memory of j while i was kept, it does so no more when j is kept
instead. Its bytes are at most those of j, these at most those of i, which go; and where t_c is j
itself, it now reuses the memory of i or does as before.

Source: the problem is that of Checkmate (Jain et al., MLSys 2020), equation 1. One snapshot is the
knapsack with a recomputation closure behind min-cut rematerialization; several are its
time-expanded form.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from checkmate.core.graph import DFGraph
from checkmate.solvers.auto.cuts import Chain
from checkmate.solvers.backends.matrices import MatrixProblem
from checkmate.solvers.local.stage_plan import last_stages
from checkmate.units import format_bytes


class Relaxation:
    """The relaxation of one graph, budget and choice of snapshots.

    Args:
      budget_bytes: The limit, which includes `graph.fixed_bytes`.
      snapshots: Stages t_1 < ... < t_K, at least one.

    Attributes:
      P, R: P[c][i] and R[c][i] of the theorem: column numbers, or ZERO or ONE.
      rows: The program. Infeasible where no P and R exist.
      whole_unit: The largest whole number that divides the cost of every op; 0 where costs are no
        whole numbers.
    """

    def __init__(self, graph: DFGraph, budget_bytes: int, snapshots: Sequence[int]):
        self.graph = graph
        self.budget_bytes = budget_bytes
        self.snapshots = tuple(sorted(set(snapshots)))
        self.whole_unit = _unit(graph.costs)
        self.rows = Rows()
        self.P: list[list[int]] = []
        self.R: list[list[int]] = []
        self._may_overwrite = [frozenset(graph.in_place[t]) for t in self.snapshots]
        self._chains: dict[tuple[tuple[int, float], ...], Chain] = {}
        self._add_variables()
        for c in range(len(self.snapshots) + 1):
            self._add_dependences(c)
        for c in range(len(self.snapshots)):
            self._add_memory(c)
        self.size = len(self.rows.cost)

    @property
    def label(self) -> str:
        return f"{len(self.snapshots)} snapshot{'s' * (len(self.snapshots) > 1)}"

    def why_infeasible(self) -> str:
        """The end of a sentence about a relaxation without P and R."""
        names = " and ".join(f"op {t} {self.graph.ops[t].name!r}" for t in self.snapshots)
        return (
            f"whatever is recomputed, the values that must be in memory when {names}"
            f" run{'s' * (len(self.snapshots) == 1)} need more than"
            f" {format_bytes(self.budget_bytes)}, as some of them may not be recomputed."
        )

    def dropped(self, x: np.ndarray) -> tuple[tuple[int, ...], ...]:
        """For each snapshot, the values of which a solution x keeps less than half."""

        def absent(column: int) -> bool:
            return column == ZERO or (column >= 0 and x[column] < 0.5)

        pairs = zip(self.snapshots, self.P, strict=True)
        return tuple(tuple(i for i in range(t) if absent(P[i])) for t, P in pairs)

    def fractions(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """P, (K, n), and R, (K + 1, n), of a solution x."""
        values = np.append(x, [1.0, 0.0])  # ONE is -2, ZERO is -1
        return values[np.array(self.P)], values[np.array(self.R)]

    def adopt_cuts(self, fewer: Relaxation) -> None:
        """Adds the cuts of a relaxation that has some of these snapshots."""
        number = {t: c for c, t in enumerate(self.snapshots)}
        names = [number[t] for t in fewer.snapshots] + [len(self.snapshots)]
        for chain in fewer._chains.values():
            self.add_cut(replace(chain, a=names[chain.a], b=names[chain.b]))

    def add_cut(self, chain: Chain) -> bool:
        """Adds row (8) or (9) of a chain. False where the second reduction makes it an old one."""
        a, b, first, last = chain.a, chain.b, chain.ops[0], chain.ops[-1]
        row: Counter[int] = Counter()
        row[self.P[b][first] if chain.kept else self.R[b][first]] += 1
        row.subtract(self.P[a][i] for i in (chain.ops if chain.kept else chain.ops[1:]))
        row.subtract(self.R[c][last] for c in range(a + 1, b + 1))
        terms = tuple(sorted((k, float(value)) for k, value in row.items() if k >= 0 and value))
        if terms in self._chains:
            return False
        self._chains[terms] = chain
        self.rows.at_most(list(terms), -float(row[ONE]))
        return True

    def _add_variables(self) -> None:
        """Adds P and R, with what rows (3), (4), (7) and the two reductions fix."""
        graph, n = self.graph, len(self.graph)
        last_stage, stands_for = last_stages(graph), _stands_for(graph)
        whole = self.whole_unit > 0 and graph.total_cost <= 1e4 * self.whole_unit
        first = 0
        for c, end in enumerate((*self.snapshots, n - 1)):
            # What may be of use: ancestors of the interval's ops and of what is kept at its end.
            keepable = [i for i in range(end + 1) if graph.last_use[i] > end]
            is_last = c == len(self.snapshots)
            useful = _ancestors_of(
                graph, graph.outputs if is_last else [*keepable, *graph.deps[end]]
            )
            needed = _ancestors_of(graph, range(first, end + 1)) | useful
            R = [ZERO] * n
            R[first : end + 1] = [ONE] * (end + 1 - first)
            for i in range(first - 1, -1, -1):
                if not needed[i] or last_stage[i] < first:
                    continue
                j = stands_for[i]
                if not 0 <= j < first:
                    R[i] = self.rows.variable(float(graph.costs[i]), binary=whole)
                    continue
                R[i] = R[j]
                if R[i] >= 0:
                    self.rows.cost[R[i]] += float(graph.costs[i])
            self.R.append(R)
            if not is_last:
                self.P.append(self._kept(c, keepable, useful, stands_for))
            first = end + 1

    def _kept(
        self, c: int, keepable: list[int], useful: np.ndarray, stands_for: list[int]
    ) -> list[int]:
        graph, end, overwritable = self.graph, self.snapshots[c], self._may_overwrite[c]
        later = _ancestors_of(graph, keepable) if overwritable else useful
        P = [ZERO] * len(graph)
        for i in range(end):
            overwritten_for_nothing = i in overwritable and not later[i]
            if useful[i] and not overwritten_for_nothing and not 0 <= stands_for[i] < end:
                P[i] = self.rows.variable(0.0, binary=True)
        for i in (end, *graph.deps[end]):
            if i not in overwritable:
                P[i] = ONE
        return P

    def _add_dependences(self, c: int) -> None:
        """Adds rows (1), (2) and (6) of one interval."""
        graph, n, K = self.graph, len(self.graph), len(self.snapshots)
        R, before = self.R[c], self.P[c - 1] if c else [ZERO] * n
        for j, runs in enumerate(R):
            if runs != ZERO:
                for i in graph.deps[j]:
                    self.rows.implies(runs, before[i], R[i])
        if c < K:
            for i, kept in enumerate(self.P[c]):
                self.rows.implies(kept, before[i], R[i])
        else:
            for i in graph.outputs:
                self.rows.implies(ONE, before[i], R[i])

    def _add_memory(self, c: int) -> None:
        """Adds row (5) of one snapshot."""
        graph, P, t, overwritable = self.graph, self.P[c], self.snapshots[c], self._may_overwrite[c]
        sizes = graph.output_bytes.tolist()
        unit = max(1, self.budget_bytes - graph.fixed_bytes)
        free = self.budget_bytes - graph.fixed_bytes - graph.ops[t].workspace_bytes
        free -= sum(sizes[i] for i in range(t + 1) if P[i] == ONE or i in overwritable)
        saved = sizes[t] if any(P[i] != ONE for i in overwritable) else 0
        if any(P[i] == ZERO for i in overwritable):  # A[c] = 1
            free, saved = free + saved, 0
        variable = [i for i in range(t + 1) if P[i] >= 0 and sizes[i] and i not in overwritable]
        if free + saved < 0:
            self.rows.infeasible = True
        elif sum(sizes[i] for i in variable) > free:
            terms = [(P[i], sizes[i] / unit) for i in variable]
            if saved:
                A = self.rows.variable(0.0, binary=False)
                terms.append((A, -saved / unit))
                in_place = [(k, 1.0) for k in (A, *(P[i] for i in overwritable))]
                self.rows.at_most(in_place, float(len(overwritable)))
            # The limit is raised by more than floating point loses: the bound stays one.
            self.rows.at_most(terms, free / unit * (1 + math.copysign(1e-9, free)) + 1e-12)


def _unit(costs: np.ndarray) -> int:
    """The greatest common divisor of all costs; 0 unless all are whole numbers."""
    whole = costs.size and costs.max() < 2**40 and bool((costs == np.floor(costs)).all())
    return math.gcd(*costs.astype(np.int64).tolist()) if whole else 0


def _stands_for(graph: DFGraph) -> list[int]:
    """For each op i the op j that is kept instead (second reduction), or -1."""
    outputs = set(graph.outputs)
    stands_for = [-1] * len(graph)
    for i, users in enumerate(graph.users):
        if len(users) == 1 and i not in outputs:
            (j,) = users
            if graph.deps[j] == (i,) and graph.ops[j].output_bytes <= graph.ops[i].output_bytes:
                stands_for[i] = j
    return stands_for


def _ancestors_of(graph: DFGraph, seeds: Iterable[int]) -> np.ndarray:
    """(n,) bool: the seeds and everything that they depend on."""
    marked = np.zeros(len(graph), dtype=bool)
    stack = list(set(seeds))
    marked[stack] = True
    while stack:
        for d in graph.deps[stack.pop()]:
            if not marked[d]:
                marked[d] = True
                stack.append(d)
    return marked


ZERO, ONE = -1, -2
"""Variables that are fixed. Other variables are column numbers."""


class Rows:
    """Minimize cost @ x subject to matrix @ x <= upper, 0 <= x <= 1.

    It is `infeasible` where a row without variables does not hold.
    """

    def __init__(self) -> None:
        self.cost: list[float] = []
        self.binary: list[bool] = []
        self.upper: list[float] = []
        self._starts, self._columns = [0], list[int]()
        self._values: list[float] = []
        self.infeasible = False

    def variable(self, cost: float, *, binary: bool) -> int:
        self.cost.append(cost)
        self.binary.append(binary)
        return len(self.cost) - 1

    def at_most(self, terms: list[tuple[int, float]], upper: float) -> None:
        """Adds the row sum of value * x[column] <= upper. All columns are variables."""
        self._columns += [column for column, _ in terms]
        self._values += [value for _, value in terms]
        self._starts.append(len(self._columns))
        self.upper.append(upper)

    def implies(self, x: int, a: int, b: int) -> None:
        """Adds the row x <= a + b, unless it always holds."""
        if ONE in (a, b) or x == ZERO or x in (a, b):
            return
        terms = [(k, v) for k, v in ((x, 1.0), (a, -1.0), (b, -1.0)) if k >= 0]
        if not terms:
            self.infeasible = True
            return
        if a == b >= 0:
            terms.pop()
        self.at_most(terms, -1.0 if x == ONE else 0.0)

    def problem(self, *, scale: float, integer: bool) -> MatrixProblem:
        columns = len(self.cost)
        return MatrixProblem(
            cost=np.array(self.cost) * scale,
            lower=np.zeros(columns),
            upper=np.ones(columns),
            integer=np.array(self.binary) if integer else np.zeros(columns, bool),
            start=np.array(self._starts, np.int32),
            column=np.array(self._columns, np.int32),
            value=np.array(self._values),
            row_lower=np.full(len(self.upper), -np.inf),
            row_upper=np.array(self.upper),
        )
