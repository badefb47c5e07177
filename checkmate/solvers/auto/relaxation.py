"""The snapshot relaxation: look at the memory of a plan at a few moments only, and forget it in
between.

Choose stages t_1 < ... < t_K. Snapshot c is the moment op t_c runs for the first time. For a plan
let

    P[c, i] = 1 when the value of op i is in memory at snapshot c,            i <= t_c
    R[c, i] = 1 when op i runs after snapshot c - 1 and not after snapshot c,  (snapshot 0: before
                                                                               all, K + 1: the end)
    A[c] = 1    when op t_c is computed in place at snapshot c

For what op t_c may overwrite (`Op.in_place`, its deps whose memory its value may take over) P[c, i]
says whether it is *still* there: in memory when the values that are freed right after op t_c are
gone, before anything else runs.

**Theorem.** Every plan within the budget, whose first evaluations come in index order, gives P and
R with

    (1)  P[c, i] <= P[c-1, i] + R[c, i]                 in memory only if it stayed or was computed
    (2)  R[c, j] <= P[c-1, i] + R[c, i] for every op j that reads op i: its inputs were there
    (3)  R[c, i] = 1 for t_{c-1} < i <= t_c             the first evaluations
    (4)  P[c, i] = 1 for i = t_c and what it reads but may not overwrite: op t_c runs
    (5)  fixed + sum_i bytes_i P[c, i] + workspace(t_c) - bytes(t_c) A[c] <= budget, with 1 for P[c,
         i] of what op t_c may overwrite, and A[c] <= sum of 1 - P[c, i] over what op t_c may
         overwrite, A[c] = 0 where that is nothing
    (6)  P[K, i] + R[K+1, i] >= 1 for the outputs
    (7)  R[c, i] = 0 for i <= t_{c-1} where op i may not run again after snapshot c - 1

and costs at least sum cost_i R[c, i]. So the minimum of that sum over binary P and R, or any lower
bound of it, is a lower bound for the cost of all such plans, and where no P and R exist, no such
plan does.

*Proof.* (1) and (2): a value that is in memory at one moment was in memory at an earlier one or was
computed in between; for (2) take the moment op j runs. That the moment of P[c, i] comes a few Free
steps later for some i changes nothing, as no op runs between the two. A[c]: op t_c is computed in
place only where one of these steps frees what it may overwrite. (3) holds as first evaluations come
in index order, (4) and (5) as the judge counts memory, (6) and (7) by the rules of a plan. A plan
that runs op i in an interval pays cost_i there at least once. []

What is lost is the memory between the snapshots and second evaluations within one interval. The
bound speaks of the graph's order of first evaluations, and charges a repeated evaluation what the
first one costs. Backward ops are ops like others: they may run again too. An op's several outputs
are one value here, as they are for the judge.

**Rows over several intervals.** As a linear program, (1) and (2) let a value be computed by halves
in two intervals from the same retained half of an input, and more snapshots make the bound
*weaker*. Let each of the ops j_0, ..., j_k read the next, j_1, ..., j_k be at most t_a, and a < b.
Then

    (8)  R[b, j_0] <= P[a, j_1] + ... + P[a, j_k] + sum of R[c, j_k] over a < c <= b
    (9)  P[b, j_0] <= P[a, j_0] + ... + P[a, j_k] + sum of R[c, j_k] over a < c <= b where j_0 is at
         most t_a, too

hold for every plan: when j_0 runs, the value of j_1 is in memory since snapshot a, or was computed
after it, when that of j_2 was in memory, and so on until j_k; for (9) a value that is in memory at
snapshot b was there at a, or ran in between. `tighten` adds those that the linear program breaks
most, and solves it again (`interval_rows` finds them). ResNet50, a tenth of the way from floor to
peak, eight snapshots: 1.158 without, 1.176 after four rounds of 0.1 s, and the integer program,
1.196, is solved to the end in 40 to 50 s.

Only P is declared binary. For P of zeros and ones, (1) and (2) ask of R no more than R[c, i] >= 0
or 1 or R[c, j]; what is least under such rows is binary and cheapest. Where costs are few whole
units, R is declared binary, too: HiGHS then sees that the objective is whole, and is done a unit
before the optimum (49 ops of a residual network, three snapshots: 1 s instead of more than 4).

Two reductions keep the optimum. Ops that no later op, output or snapshot can need get no variable.
And where op i is read by op j alone, is no output, and j reads nothing else and is not larger, i is
never kept once j exists (P[c, i] = 0 for j < t_c) and runs again exactly when j does (R[c, i] =
R[c, j] for j <= t_{c-1}): in P and R replace "i computed in c', kept until c'', j computed after
it" by "j computed in c', kept until c''", which needs no more bytes and costs no more. In place,
too: where op t_c took over the memory of j while i was kept, it does so no more when j is kept
instead. Its bytes are at most those of j, these at most those of i, which go; and where t_c is j
itself, it now takes over the memory of i or does as before.

Source: the problem is that of Checkmate (Jain et al., MLSys 2020), equation 1; one snapshot is the
knapsack with a recomputation closure behind min-cut rematerialization, and several are its
time-expanded form.
"""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from checkmate.core.graph import DFGraph
from checkmate.solvers.auto.cuts import Chain, broken_chains
from checkmate.solvers.local.stage_plan import last_stages
from checkmate.units import format_bytes

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from scipy.optimize import OptimizeResult

ZERO, ONE = -1, -2
"""Markers in the tables of variables: a P or R that is fixed. Other entries are column numbers."""

JOINED, WORTH = 300, 1e-3
"""Rows (8) and (9) that are added at a time, and the share of the recomputed cost by which the
bound has to grow for more."""

SCALE = 1e4
"""The objective counts costs in total_cost / SCALE: HiGHS' dual tolerance of 1e-7 is then small
beside what is proven."""


@dataclass(frozen=True, slots=True)
class Bound:
    """What a relaxation told.

    Attributes:
      cost: No plan within the budget costs less; infinity when none exists.
      dropped: dropped[c], the values that the best P does not keep at snapshot c; None when no P
        was found.
      exact: The relaxation was solved to the end, so that asking again with more time tells nothing
        new.
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
        self._may_overwrite = [frozenset(graph.in_place[t]) for t in self.snapshots]
        self.room = budget_bytes - graph.fixed_bytes
        self.fixed_cost = graph.total_cost
        self._scale = (
            SCALE / graph.total_cost if graph.total_cost > SCALE / sys.float_info.max else 1.0
        )
        self._unit = _unit(graph.costs)
        self._whole = self._unit * self._scale >= 1.0
        self._objective: list[float] = []
        self._binary: list[bool] = []
        self._size = 0
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
        self._size = len(self._objective)
        self.rounded: tuple[tuple[int, ...], ...] | None = None
        self.linear_bound: float | None = None
        self._joined: set[tuple[tuple[int, float], ...]] = set()
        self._chains: list[Chain] = []

    @property
    def label(self) -> str:
        """What it is called where bounds are told."""
        return f"{len(self.snapshots)} snapshot{'s' * (len(self.snapshots) > 1)}"

    def why_none(self) -> str:
        """What it means that there is no P and R."""
        names = " and ".join(f"op {t} {self.graph.ops[t].name!r}" for t in self.snapshots)
        return (
            f"whatever is recomputed, the values that must be in memory when {names}"
            f" run{'s' * (len(self.snapshots) == 1)} need more than"
            f" {format_bytes(self.room + self.graph.fixed_bytes)}, as some of them may not be"
            " recomputed."
        )

    @property
    def size(self) -> int:
        """Number of variables P and R."""
        return self._size

    def solve(
        self,
        *,
        time_limit_s: float,
        nodes: int = 200,
        precision: float = 1e-6,
        soonest: float = 0.0,
    ) -> Bound:
        """Solves the relaxation with HiGHS.

        Args:
          time_limit_s: Seconds for HiGHS; infinity for none.
          nodes: Branch-and-bound nodes for HiGHS. Unlike a time limit it gives the same answer on
            every machine.
          precision: Share of the cost of running ops again to which the bound has to be known.
          soonest: Charge so much of the plain step's cost, at most, for keeping what is read late
            rather than soon. Many solutions cost the same; one that keeps what is read soon is
            nearer to a plan, and found sooner. The bound is less by as much. Not charged where
            costs are few whole units, as the objective would not be whole any more.
        """
        if self.contradiction:
            return Bound(float("inf"), None, True)
        if not self._upper:  # nothing binds: keep everything
            return Bound(self.fixed_cost, self._dropped(np.ones(len(self._objective))), True)
        soonest = 0.0 if self._whole else soonest
        options = {"time_limit": time_limit_s, "node_limit": nodes, "mip_rel_gap": precision}
        answer = self._ask_highs(
            self._binary,
            options,
            self._lateness() * (soonest * SCALE / len(self.snapshots)) if soonest else 0.0,
        )
        if answer.status == 2:
            return Bound(float("inf"), None, True)
        found = None if answer.x is None else self._dropped(answer.x)
        proven = answer.get("mip_dual_bound")
        return Bound(self._cost_of(proven and proven - soonest * SCALE), found, answer.status == 0)

    def tighten(self, *, time_limit_s: float, rounds: int = 12) -> float:
        """Solves the linear program, P and R may be fractions, and adds rows (8) and (9) where it
        breaks them, as long as that helps.

        Returns: Its bound: weaker than that of `solve`, in a fraction of the time. Infinity where
          even fractions do not fit. `rounded` is then what its last solution keeps less than half
          of at each snapshot. Where it came to its end, `linear_bound` is the same.
        """
        if self.contradiction:
            return float("inf")
        stop, best = time.monotonic() + time_limit_s, self.fixed_cost
        for number in range(rounds if self._upper else 0):
            answer = self._ask_highs(
                np.zeros(len(self._objective)), {"time_limit": max(0.0, stop - time.monotonic())}
            )
            if answer.status != 0:  # a linear program cut short has proven nothing
                return float("inf") if answer.status == 2 else best
            self.rounded = self._dropped(answer.x)
            before, best = best, max(best, self._cost_of(answer.fun))
            helped = best - before > WORTH * (best - self.fixed_cost)
            if (number and not helped) or not self._join(answer.x):
                break
        self.linear_bound = best
        return best

    def _lateness(self) -> np.ndarray:
        """Bytes of every P in budgets, times how much later the value is read, from 0 to 1: at most
        1 in all for each snapshot, by (5)."""
        graph, n = self.graph, len(self.graph)
        lateness = np.zeros(len(self._objective))
        for t, P in zip(self.snapshots, self.P, strict=True):
            for i in range(t):
                if P[i] >= 0:
                    read = min((user for user in graph.users[i] if user > t), default=n)
                    lateness[P[i]] = (
                        graph.ops[i].output_bytes / max(1, self.room) * (read - t) / (n - t)
                    )
        return lateness

    def _ask_highs(
        self, integrality: ArrayLike, options: dict[str, float], charged: ArrayLike = 0.0
    ) -> OptimizeResult:
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_matrix

        matrix = csr_matrix(
            (self._values, (self._rows, self._columns)),
            shape=(len(self._upper), len(self._objective)),
        )
        rows = LinearConstraint(matrix, -np.inf, np.array(self._upper))
        return milp(
            np.array(self._objective) + charged,
            integrality=np.array(integrality, dtype=int),
            bounds=Bounds(0, 1),
            constraints=rows,
            options=options,
        )

    def _cost_of(self, proven: float | None) -> float:
        """The cost that HiGHS' bound on the objective stands for, less what its tolerances may
        hide, and up to the next that a plan can have."""
        if proven is None or not np.isfinite(proven):
            return self.fixed_cost
        again = max(0.0, proven - 1e-7 * SCALE) / self._scale
        return self.fixed_cost + (
            self._unit * math.ceil(again / self._unit - 1e-9) if self._unit else again
        )

    def _add_variables(self) -> None:
        graph, n, K = self.graph, len(self.graph), len(self.snapshots)
        costs = graph.costs
        starts = [0, *(t + 1 for t in self.snapshots)]
        ends = [*self.snapshots, n - 1]
        outputs = set(graph.outputs)
        last_reader = [
            n if i in outputs else max(users, default=-1) for i, users in enumerate(graph.users)
        ]
        needed_at_end = list(graph.outputs)
        for c in range(K + 1):
            first, end = starts[c], ends[c]
            # What may be of use to run again in this interval: ancestors of its ops, and of what
            # may be kept at its end.
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
                    R[i] = self._variable(costs[i], binary=self._whole)
            self.R.append(R)
            if c < K:
                P = [ZERO] * n
                later = _ancestors_of(graph, keepable) if self._may_overwrite[c] else useful
                # Nothing can need it: it is overwritten for nothing.
                unneeded = {i for i in self._may_overwrite[c] if not later[i]}
                for i in range(end):
                    if useful[i] and i not in unneeded and not 0 <= self._stands_for[i] < end:
                        P[i] = self._variable(0.0, binary=True)
                for i in (end, *graph.deps[end]):
                    if i not in self._may_overwrite[c]:
                        P[i] = ONE
                self.P.append(P)

    def _variable(self, cost: float, *, binary: bool) -> int:
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
                overwritable = self._may_overwrite[c]
                room -= sum(sizes[i] for i in range(end + 1) if P[i] == ONE or i in overwritable)
                saved = sizes[end] if any(P[i] != ONE for i in overwritable) else 0
                if any(P[i] == ZERO for i in overwritable):  # A[c] = 1
                    room, saved = room + saved, 0
                variable = [
                    i for i in range(end + 1) if P[i] >= 0 and sizes[i] and i not in overwritable
                ]
                if room + saved < 0:
                    self.contradiction = True
                elif sum(sizes[i] for i in variable) > room:
                    unit = max(1, self.room)
                    columns, values = [P[i] for i in variable], [sizes[i] / unit for i in variable]
                    if saved:
                        A = self._variable(0.0, binary=False)
                        columns, values = [*columns, A], [*values, -saved / unit]
                        self._row(
                            [A, *(P[i] for i in overwritable)],
                            [1.0] * (1 + len(overwritable)),
                            float(len(overwritable)),
                        )
                    # The last factor is room for rounding: it can only make the bound weaker.
                    self._row(
                        columns, values, room / unit * (1 + math.copysign(1e-9, room)) + 1e-12
                    )
            else:
                for i in graph.outputs:
                    self._implies(ONE, before[i], R[i])

    def _join(self, x: np.ndarray) -> bool:
        """Adds the rows (8) and (9) that `x` breaks most. Returns whether there were any."""
        values = np.append(x, [1.0, 0.0])  # ONE is -2, ZERO is -1
        P, R = values[np.array(self.P)], values[np.array(self.R)]
        before = len(self._upper)
        for chain in broken_chains(self.graph, self.snapshots, P, R, most=JOINED):
            self._join_chain(chain)
        return len(self._upper) > before

    def adopt(self, fewer: SnapshotModel) -> None:
        """Takes over the rows (8) and (9) of the model with some of the snapshots, as far as they
        speak of the same moments."""
        number = {t: c for c, t in enumerate(self.snapshots)}
        names = [number[t] for t in fewer.snapshots] + [len(self.snapshots)]
        for chain in fewer._chains:
            self._join_chain(replace(chain, a=names[chain.a], b=names[chain.b]))

    def _join_chain(self, chain: Chain) -> None:
        """Adds the row of a chain, unless the second reduction made it one that is there
        already."""
        a, b, first, last = chain.a, chain.b, chain.ops[0], chain.ops[-1]
        row: Counter[int] = Counter()
        row[self.P[b][first] if chain.kept else self.R[b][first]] += 1
        row.subtract(self.P[a][i] for i in (chain.ops if chain.kept else chain.ops[1:]))
        row.subtract(self.R[c][last] for c in range(a + 1, b + 1))
        terms = tuple(
            sorted((column, float(value)) for column, value in row.items() if column >= 0 and value)
        )
        if terms not in self._joined:
            self._joined.add(terms)
            self._chains.append(chain)
            self._row(
                [column for column, _ in terms], [value for _, value in terms], -float(row[ONE])
            )

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

        return tuple(
            tuple(i for i in range(t) if absent(P[i]))
            for t, P in zip(self.snapshots, self.P, strict=True)
        )


def _unit(costs: np.ndarray) -> int:
    """What divides all costs, where they are whole numbers: then it divides the cost of every plan.
    0 where they are not."""
    whole = costs.size and costs.max() < 2**40 and bool((costs == np.floor(costs)).all())
    return math.gcd(*costs.astype(np.int64).tolist()) if whole else 0


def _stands_for(graph: DFGraph) -> list[int]:
    """For each op i the op j that is kept in its place (see the module's second reduction), or
    -1."""
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
