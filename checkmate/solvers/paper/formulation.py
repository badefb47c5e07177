"""The paper's mixed-integer linear program, written once as sparse matrices, equation by equation.

Method: frontier-advancing stages. Op t runs for the first time at the end of stage t; before it,
ops below t may run again, each at most once per stage and in index order. Columns, with n stages:

    R[t, i]        i <= t  op i runs in stage t
    S[t, i]        i < t the value of op i is retained from stage t - 1 into stage t; row n says
                   what is there at the end
    U[t, k]        k <= t memory when op k has had its turn in stage t and nothing is freed for it
                   yet
    FREE[t, i, k]  k < t op k reads the value of op i, which is freed right after k's turn in stage
                   t
    A[t, k]        k <= t op k runs in place in stage t: its value takes over the memory of an input
                   that is freed right after k's turn

`formulate(..., partitioned=False)` is the program before the paper's section 4.6: any op may run in
any of the n stages, R and S are full squares, and rows say what the triangles said before. It has
the partitioned program's solutions and more, twice the columns, and a far weaker relaxation: that
is why the paper partitions.

Source: Checkmate (Jain et al., MLSys 2020), sections 4.2 to 4.7, equations 1 to 9; every block
below cites its own. Departures, none of which changes the optimum over that space:
  * Equation 7 bounds FREE from both sides, with its hazards in one sum and a factor kappa. Freeing
    more never hurts, so the upper bounds suffice; and as a value is freed at most once per stage,
    they hold for sums of FREE: a tighter relaxation in which FREE and S need not be declared
    integer to come out so.
  * Equation 4 also frees a value right after its own evaluation. In the partitioned program what
    nobody reads afterwards is never worth running again, so those columns are left out there, as
    are all that can only be zero.
  * Workspace, ops that may not run again, ops that overwrite what others read, and outputs are not
    in the paper.
  * Nor are ops that run in place. U counts the value of such an op as that of any other, and while it runs A takes it away again:
        U[t, k] + workspace_k R[t, k] - M_k A[t, k] <= 1,    A[t, k] <= R[t, k],    A[t, k] <= sum of FREE[t, i, k] over its in_place deps i.
    After the last op of a stage nothing has a FREE, and what the next stage does not retain is freed: 1 - S[t + 1, i] stands for it there.
  * Without partitioning first evaluations still keep the graph's order, as every solver's do; on a
    chain they have no other.

Guarantee: the optimum of `formulate` is the cheapest plan of that space, with memory as the judge
counts it. The judge accepts more plans: an op may run twice between two first evaluations, and in
any order. `relax` bounds the cost of all those.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from checkmate.core.graph import DFGraph
from checkmate.core.schedule import Schedule
from checkmate.solvers.backends.matrices import MatrixProblem

# Shares of the budget below this are taken for nothing: engines drop such coefficients anyway, and
# warn of it.
NEGLIGIBLE = 1e-9
NO_ROOM = (
    "when some op first runs, its inputs and what must be retained, whatever is recomputed, do not"
    " fit."
)
"""What it means that `relax` has no solution."""
ABSENT = -1  # stands for a column that does not exist because its value could only be zero


@dataclass(frozen=True, slots=True, eq=False)
class Formulation:
    """A graph and a budget as a matrix problem, and where its letters are.

    Attributes:
      graph: What it was made from.
      problem: The matrices. Costs are shares of `graph.total_cost`, memory is in shares of
        `capacity_bytes`.
      capacity_bytes: The budget without the fixed bytes.
      R: (stages, n) column of R[t, i], or `ABSENT`. There are n stages, and one more in a
        relaxation.
      S: (stages + 1, n) column of S[t, i], or `ABSENT`.
      U: (n, n) column of U[t, k], or `ABSENT`; all absent in a relaxation.
      FREE: (n, len(readings)) column of FREE[t, i, k] for reading (i, k), or `ABSENT`; none in a
        relaxation.
      A: (n, n) column of A[t, k], or `ABSENT`; that of A[t, t] only in a relaxation.
      readings: (value, op) pairs: after which ops which values may be freed. The graph's edges and,
        without partitioning, (i, i).
    """

    graph: DFGraph
    problem: MatrixProblem
    capacity_bytes: int
    R: np.ndarray
    S: np.ndarray
    U: np.ndarray
    FREE: np.ndarray
    A: np.ndarray
    readings: tuple[tuple[int, int], ...] = ()

    def cost(self, objective: float) -> float:
        """An objective value in the graph's cost unit."""
        return objective * (self.graph.total_cost or 1.0)

    def fractions(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns R and S of a solution vector: (stages, n) floats, 0 where there is no column."""
        R, S = (np.where(columns >= 0, x[columns], 0.0) for columns in (self.R, self.S[:-1]))
        return R, S

    def schedule(self, x: np.ndarray) -> Schedule:
        """Returns the schedule of an integer solution: its R, and of S what R needs."""
        R = self.fractions(x)[0] > 0.5
        return Schedule(R, retained(self.graph, R))

    def solution(self, schedule: Schedule) -> np.ndarray:
        """Returns the vector of a schedule of n stages, with everything freed as early as it can
        be: a start for an engine."""
        graph, n, x = self.graph, len(self.graph), np.zeros(len(self.problem.cost))
        R, S = schedule.R, np.vstack([schedule.S, np.isin(np.arange(n), graph.outputs)])
        for letter, columns in ((R, self.R), (S, self.S)):
            x[columns[columns >= 0]] = letter[columns >= 0]
        size = graph.output_bytes / self.capacity_bytes
        reading = {pair: e for e, pair in enumerate(self.readings)}
        for t in range(n):
            memory = float(S[t] @ size)
            for k in np.flatnonzero(self.U[t] >= 0).tolist():
                memory += R[t, k] * size[k]
                x[self.U[t, k]] = memory
                for i in (*graph.deps[k], k) if R[t, k] else ():
                    if S[t + 1, i] or any(R[t, j] for j in graph.users[i] if j > k):
                        continue
                    if i in graph.in_place[k] and self.A[t, k] >= 0:
                        x[self.A[t, k]] = 1
                    column = self.FREE[t, reading[i, k]] if (i, k) in reading else ABSENT
                    if column >= 0:
                        x[column] = 1
                        memory -= size[i]
        return x


def formulate(graph: DFGraph, budget_bytes: int, *, partitioned: bool = True) -> Formulation:
    """Returns the paper's program: the cheapest schedule in n stages within the budget (equation
    9).

    Args:
      partitioned: Op t runs for the first time at the end of stage t (equation 8). False leaves
        open in which stage.
    """
    columns, rows = _Columns(), _Rows()
    n, capacity, size, workspace = _scaled(graph, budget_bytes)
    R, S = _letters(columns, graph, n) if partitioned else _square_letters(columns, graph)
    U = columns.add(R >= 0)
    A = columns.add((R >= 0) & _saves(graph, size))
    columns.upper[U[A >= 0]] += np.broadcast_to(size, A.shape)[A >= 0]
    itself = () if partitioned else tuple((i, i) for i in range(n))
    readings = tuple(sorted((*graph.edges, *itself), key=lambda pair: pair[1]))
    producer, consumer = np.array(readings, dtype=int).reshape(-1, 2).T
    # Op of each stage, after which there is nothing to free for.
    last = np.arange(n) if partitioned else np.full(n, n - 1)
    FREE = columns.add((R[:, consumer] >= 0) & (consumer < last[:, None]))
    _dependencies(rows, graph, R, S)
    if partitioned:
        _first_runs(rows, graph, S, A, size, workspace)  # implied, but it tightens the relaxation
    else:
        _order(rows, graph, R)
    edges_of_consumer = [np.flatnonzero(consumer == k) for k in range(n)]
    edges_of_producer = [np.flatnonzero(producer == i) for i in range(n)]

    # Equations 2 to 4: U[t, first] >= retained + R M; U[t, k] >= U[t, before k] - freed after the
    # one before + R[t, k] M_k. The paper has equalities; U is only bounded from above, and an
    # engine that rounds (CP-SAT) needs the room.
    for t in range(n):
        present = np.flatnonzero(R[t] >= 0)
        first = present[0]
        rows.add([[U[t, first], R[t, first], *S[t]]], [1.0, -size[first], *-size], 0.0, np.inf)
        for before, k in pairwise(present):
            freed = edges_of_consumer[before]
            rows.add(
                [[U[t, k], U[t, before], R[t, k], *FREE[t, freed]]],
                [1.0, -1.0, -size[k], *size[producer[freed]]],
                0.0,
                np.inf,
            )

    # Equation 9, with the workspace of the op that runs: U[t, k] + workspace_k R[t, k] - M_k A[t,
    # k] <= 1.
    for k in np.flatnonzero((workspace > 0) | _saves(graph, size)):
        rows.add(
            np.stack([U[:, k], R[:, k], A[:, k]], 1), [1.0, workspace[k], -size[k]], -np.inf, 1.0
        )
    # In place: A[t, k] <= R[t, k], and <= the sum of FREE[t, i, k] over its in_place deps i. For
    # the last op of a stage see `_in_place_last`.
    for k in np.flatnonzero(_saves(graph, size)):
        freed = FREE[last != k][
            :, [e for e in edges_of_consumer[k] if producer[e] in graph.in_place[k]]
        ]
        rows.add(np.stack([A[:, k], R[:, k]], 1), [1.0, -1.0], -np.inf, 0.0)
        rows.add(
            np.column_stack([A[last != k, k], freed]), [1.0, *[-1.0] * freed.shape[1]], -np.inf, 0.0
        )
        _in_place_last(rows, graph, k, A[last == k, k], S[1:][last == k])

    # Equations 5 to 7, for every value i and stage t: FREE[t, i, k] <= R[t, k]; sum over all k of
    # FREE + S[t + 1, i] <= 1, and <= R[t, i] + S[t, i]: only what is there is freed; sum over k < j
    # of FREE + R[t, j] <= 1 for each user j: not before j has read it.
    for e in range(len(producer)):
        rows.add(np.stack([FREE[:, e], R[:, consumer[e]]], 1), [1.0, -1.0], -np.inf, 0.0)
    for i in range(n):
        freed = FREE[:, edges_of_producer[i]]
        ones = [1.0] * len(edges_of_producer[i])
        rows.add(np.column_stack([S[1:, i], freed]), [1.0, *ones], -np.inf, 1.0)
        rows.add(np.column_stack([R[:, i], S[:-1, i], freed]), [-1.0, -1.0, *ones], -np.inf, 0.0)
        for position, j in enumerate(consumer[edges_of_producer[i]]):
            if j != i:
                rows.add(
                    np.column_stack([R[:, j], freed[:, :position]]),
                    [1.0, *ones[:position]],
                    -np.inf,
                    1.0,
                )
    return Formulation(
        graph, _problem(graph, columns, rows, R), capacity, R, S, U, FREE, A, readings
    )


def relax(graph: DFGraph, budget_bytes: int) -> Formulation:
    """Returns a program whose optimum is a lower bound for every plan in the graph's order of first
    evaluations.

    R[t, i] now reads "op i runs at least once between the first evaluations of ops t - 1 and t",
    and memory is counted only while an op runs for the first time: its inputs, its value (unless it
    runs in place), its workspace, and what is retained beyond it, that is, what is there when the
    values freed right after it are gone. A last stage, after the last op's first run, is there for
    outputs that are computed again at the end. However often and in whatever order a plan
    recomputes, its R and S satisfy these rows and its cost is at least theirs.
    """
    columns, rows = _Columns(), _Rows()
    n, capacity, size, workspace = _scaled(graph, budget_bytes)
    R, S = _letters(columns, graph, n + 1)
    A = columns.add(np.diag(_saves(graph, size)))
    _dependencies(rows, graph, R, S)
    _first_runs(rows, graph, S, A, size, workspace)
    for k in np.flatnonzero(_saves(graph, size)):
        _in_place_last(rows, graph, k, A[[k], k], S[[k + 1]])
    U, FREE = np.full((n, n), ABSENT), np.full((n, 0), ABSENT)
    return Formulation(graph, _problem(graph, columns, rows, R), capacity, R, S, U, FREE, A)


def may_run(graph: DFGraph, stages: int | None = None) -> np.ndarray:
    """(stages, n) bool: op i may run in stage t. It must in stage i; later only if it is
    recomputable and what it reads is not overwritten.

    Args:
      stages: n unless something else is said.
    """
    n = len(graph)
    stages = n if stages is None else stages
    allowed = np.tri(stages, n, dtype=bool) & graph.recomputable
    for k, op in enumerate(graph.ops):
        allowed[k + 1 :, list(op.overwrites)] = False
    return allowed | np.eye(stages, n, dtype=bool)


def retained(graph: DFGraph, R: np.ndarray) -> np.ndarray:
    """Returns the least S that R needs: what a later evaluation, or the end, reads before it is
    computed again."""
    S = np.zeros(R.shape, bool)
    wanted = np.isin(np.arange(len(graph)), graph.outputs)
    for t in range(len(R) - 1, -1, -1):
        for i in R[t].nonzero()[0][::-1]:
            wanted[i] = False
            wanted[list(graph.deps[i])] = True
        S[t] = wanted
    return S


def _scaled(graph: DFGraph, budget_bytes: int) -> tuple[int, int, np.ndarray, np.ndarray]:
    """Number of ops, capacity in bytes, and sizes and workspaces as shares of it: engines want
    coefficients near 1."""
    capacity = max(1, budget_bytes - graph.fixed_bytes)
    shares = (graph.output_bytes / capacity, graph.workspace_bytes / capacity)
    sizes, workspaces = (np.where(share < NEGLIGIBLE, 0.0, share) for share in shares)
    return len(graph), capacity, sizes, workspaces


def _letters(columns: _Columns, graph: DFGraph, stages: int) -> tuple[np.ndarray, np.ndarray]:
    """R and S: 0 or 1 (equation 1f), lower triangular, op t in stage t (equation 8); S at the end
    is what the outputs are."""
    n = len(graph)
    R = columns.add(may_run(graph, stages), integer=True)
    S = columns.add(np.tri(stages + 1, n, -1, dtype=bool), integer=True)
    columns.lower[R.diagonal()] = 1
    columns.lower[S[-1]] = columns.upper[S[-1]] = np.isin(np.arange(n), graph.outputs)
    return R, S


def _square_letters(columns: _Columns, graph: DFGraph) -> tuple[np.ndarray, np.ndarray]:
    """R and S without partitioning: every op in every stage; nothing is retained into the first
    (equation 1d)."""
    n = len(graph)
    R = columns.add(np.ones((n, n), bool), integer=True)
    S = columns.add(np.arange(n + 1)[:, None] > np.zeros(n), integer=True)
    columns.lower[S[-1]] = columns.upper[S[-1]] = np.isin(np.arange(n), graph.outputs)
    return R, S


def _order(rows: _Rows, graph: DFGraph, R: np.ndarray) -> None:
    """What partitioning says by leaving columns out: that every op runs, when for the first time,
    and when not again."""
    n = len(graph)
    # Equation 1e: the last op runs. So do all others, as each has run before the next: R[t, i] <=
    # R[0, i - 1] + ... + R[t, i - 1].
    rows.add([R[:, n - 1]], 1.0, 1.0, np.inf)
    for i in range(1, n):
        for t in range(n):
            rows.add([[R[t, i], *R[: t + 1, i - 1]]], [1.0, *[-1.0] * (t + 1)], -np.inf, 0.0)
    for i in np.flatnonzero(~graph.recomputable).tolist():
        rows.add([R[:, i]], 1.0, -np.inf, 1.0)
    # After op k has overwritten what op d reads, d does not run.
    later, earlier = np.nonzero(np.tri(n, k=-1, dtype=bool))
    for k, op in enumerate(graph.ops):
        for d in op.overwrites:
            rows.add(np.stack([R[later, d], R[earlier, k]], 1), 1.0, -np.inf, 1.0)


def _dependencies(rows: _Rows, graph: DFGraph, R: np.ndarray, S: np.ndarray) -> None:
    # Equation 1b: R[t, j] <= R[t, i] + S[t, i] for every edge (i, j).
    for i, j in graph.edges:
        stages = np.flatnonzero(R[:, j] >= 0)
        rows.add(
            np.stack([R[stages, j], R[stages, i], S[stages, i]], 1), [1.0, -1.0, -1.0], -np.inf, 0.0
        )
    # Equation 1c: S[t + 1, i] <= S[t, i] + R[t, i].
    for i in range(len(graph)):
        stages = np.flatnonzero(S[1:, i] >= 0)
        rows.add(
            np.stack([S[stages + 1, i], S[stages, i], R[stages, i]], 1),
            [1.0, -1.0, -1.0],
            -np.inf,
            0.0,
        )


def _saves(graph: DFGraph, size: np.ndarray) -> np.ndarray:
    """(n,) bool: ops that may run in place, and whose value has bytes to save."""
    return np.array([bool(deps) for deps in graph.in_place]) & (size > 0)


def _in_place_last(
    rows: _Rows, graph: DFGraph, k: int | np.integer, A: np.ndarray, S: np.ndarray
) -> None:
    """Op k, the last of its stages, runs in place only where one of its in_place deps i is not
    retained: A[t, k] <= sum of 1 - S[t + 1, i].

    Args:
      A: (stages,) the columns of A[t, k].
      S: (stages, n) the columns of S[t + 1].
    """
    deps = list(graph.in_place[k])
    rows.add(np.column_stack([A, S[:, deps]]), 1.0, -np.inf, float(len(deps)))


def _first_runs(
    rows: _Rows,
    graph: DFGraph,
    S: np.ndarray,
    A: np.ndarray,
    size: np.ndarray,
    workspace: np.ndarray,
) -> None:
    """While op t runs for the first time, it and its inputs are in memory, and beside them what is
    retained into stage t + 1.

    Where it runs in place, its own bytes are not: A[t, t] takes them away.
    """
    for t in range(len(graph)):
        needed = [t, *graph.deps[t]]
        beside = np.where(np.isin(np.arange(len(graph)), needed), 0.0, size)
        rows.add(
            [[*S[t + 1], A[t, t]]],
            [*beside, -size[t]],
            -np.inf,
            1.0 - workspace[t] - size[needed].sum(),
        )


class _Columns:
    """Hands out columns with bounds 0 and 1."""

    def __init__(self) -> None:
        self.lower, self.upper, self.integer = np.zeros(0), np.zeros(0), np.zeros(0, bool)

    def add(self, where: np.ndarray, *, integer: bool = False) -> np.ndarray:
        """Returns the column numbers of a letter with a column for each True of `where`, `ABSENT`
        elsewhere."""
        numbers = np.full(where.shape, ABSENT)
        count = int(where.sum())
        numbers[where] = len(self.lower) + np.arange(count)
        self.lower = np.append(self.lower, np.zeros(count))
        self.upper = np.append(self.upper, np.ones(count))
        self.integer = np.append(self.integer, np.full(count, integer))
        return numbers


class _Rows:
    """Collects rows of one shape at a time, skips absent columns, and gives the matrix in CSR
    form."""

    def __init__(self) -> None:
        self.count = 0
        self.parts: list[
            tuple[np.ndarray, ...]
        ] = []  # (row, column, value) of the entries, (lower, upper) of the rows

    def add(self, columns, values, lower: float, upper: float) -> None:
        """Adds lower <= sum of values * columns <= upper for every row of `columns`, an array
        (rows, entries)."""
        columns = np.asarray(columns)
        values = np.broadcast_to(np.asarray(values, float), columns.shape)
        there = (columns >= 0) & (values != 0)
        row = np.broadcast_to(self.count + np.arange(len(columns))[:, None], columns.shape)
        bounds = np.full(len(columns), lower), np.full(len(columns), upper)
        self.parts.append((row[there], columns[there], values[there], *bounds))
        self.count += len(columns)

    def matrix(self, columns: _Columns) -> tuple[np.ndarray, ...]:
        """Returns start, column, value, row_lower, row_upper; rows that hold wherever the columns
        are in their bounds, are left out."""
        row, column, value, lower, upper = (
            np.concatenate(part) for part in zip(*self.parts, strict=True)
        )
        at_bounds = value * columns.lower[column], value * columns.upper[column]
        least = np.bincount(row, np.minimum(*at_bounds), minlength=self.count)
        most = np.bincount(row, np.maximum(*at_bounds), minlength=self.count)
        useful = (most > upper) | (least < lower)
        keep = useful[row]
        number = np.cumsum(useful) - 1
        row, column, value = number[row[keep]], column[keep], value[keep]
        order = np.lexsort((column, row))
        start = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=int(useful.sum())))])
        return (
            start.astype(np.int32),
            column[order].astype(np.int32),
            value[order],
            lower[useful],
            upper[useful],
        )


def _problem(graph: DFGraph, columns: _Columns, rows: _Rows, R: np.ndarray) -> MatrixProblem:
    """Equation 1a: minimize the sum of C_i R[t, i]."""
    cost = np.zeros(len(columns.lower))
    share = np.broadcast_to(graph.costs / (graph.total_cost or 1.0), R.shape)
    cost[R[R >= 0]] = share[R >= 0]
    return MatrixProblem(cost, columns.lower, columns.upper, columns.integer, *rows.matrix(columns))
