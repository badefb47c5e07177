"""The columns and rows of the paper's program, with one function per group of equations.

Source: Checkmate (Jain et al., MLSys 2020), sections 4.2 to 4.7. `formulation` says what the
letters mean, and where the program departs from the paper.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from checkmate.core.graph import DFGraph
from checkmate.core.schedule import Schedule, retained
from checkmate.solvers.backends.matrices import MatrixProblem

NEGLIGIBLE = 1e-9
"""Shares of the budget below this count as zero: engines drop such coefficients, and warn."""


ABSENT = -1
"""Stands for a column that does not exist because its value could only be zero."""


class Columns:
    def __init__(self) -> None:
        self.lower, self.upper, self.integer = np.zeros(0), np.zeros(0), np.zeros(0, bool)

    def add(self, where: np.ndarray, *, integer: bool = False) -> np.ndarray:
        """Adds a column for each True of `where`. Returns their numbers in an array of the same
        shape, `ABSENT` elsewhere."""
        numbers = np.full(where.shape, ABSENT)
        count = int(where.sum())
        numbers[where] = len(self.lower) + np.arange(count)
        self.lower = np.append(self.lower, np.zeros(count))
        self.upper = np.append(self.upper, np.ones(count))
        self.integer = np.append(self.integer, np.full(count, integer))
        return numbers


class Rows:
    """Collects rows, skips absent columns, and returns the matrix in CSR form."""

    def __init__(self) -> None:
        self._count = 0
        # (row, column, value) of the entries, (lower, upper) of the rows
        self._parts: list[tuple[np.ndarray, ...]] = []

    def add(self, columns: Any, values: Any, lower: float, upper: float) -> None:
        """Adds lower <= sum of values * columns <= upper for every row of `columns`, an array
        (rows, entries)."""
        columns = np.asarray(columns)
        values = np.broadcast_to(np.asarray(values, float), columns.shape)
        there = (columns >= 0) & (values != 0)
        row = np.broadcast_to(self._count + np.arange(len(columns))[:, None], columns.shape)
        bounds = np.full(len(columns), lower), np.full(len(columns), upper)
        self._parts.append((row[there], columns[there], values[there], *bounds))
        self._count += len(columns)

    def matrix(self, columns: Columns) -> tuple[np.ndarray, ...]:
        """start, column, value, row_lower and row_upper, without rows that the columns' bounds
        imply."""
        row, column, value, lower, upper = (
            np.concatenate(part) for part in zip(*self._parts, strict=True)
        )
        at_bounds = value * columns.lower[column], value * columns.upper[column]
        least = np.bincount(row, np.minimum(*at_bounds), minlength=self._count)
        most = np.bincount(row, np.maximum(*at_bounds), minlength=self._count)
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


@dataclass(frozen=True, eq=False)
class Formulation:
    """A graph and a budget as a matrix problem: the columns of its letters, and its rows.

    Attributes:
      R: (stages, n) column of R[t, i], or `ABSENT`. There are n stages, and one more in a
        relaxation.
      S: (stages + 1, n) column of S[t, i], or `ABSENT`.
      A: (n, n) column of A[t, k], or `ABSENT`; that of A[t, t] only in a relaxation.
      U: (n, n) column of U[t, k], or `ABSENT`; all absent in a relaxation.
      FREE: (n, len(readings)) column of FREE[t, i, k] for reading (i, k), or `ABSENT`; none in a
        relaxation.
      readings: (value, op) pairs: the value may be freed after the op. The graph's edges and,
        without partitioning, (i, i).
      last: (n,) the op of each stage after which nothing is freed.
    """

    graph: DFGraph
    capacity_bytes: int
    columns: Columns
    R: np.ndarray
    S: np.ndarray
    A: np.ndarray
    U: np.ndarray
    FREE: np.ndarray
    readings: tuple[tuple[int, int], ...]
    last: np.ndarray
    rows: Rows = field(default_factory=Rows)

    @cached_property
    def problem(self) -> MatrixProblem:
        """Equation 1a: the objective is the sum of C_i R[t, i], as a share of the total cost."""
        columns, cost = self.columns, np.zeros(len(self.columns.lower))
        share = np.broadcast_to(self.graph.costs / (self.graph.total_cost or 1.0), self.R.shape)
        cost[self.R[self.R >= 0]] = share[self.R >= 0]
        bounds = columns.lower, columns.upper, columns.integer
        return MatrixProblem(cost, *bounds, *self.rows.matrix(columns))

    @cached_property
    def size(self) -> np.ndarray:
        """(n,) shares of the capacity, like `workspace`: engines need coefficients near 1."""
        return shares(self.graph.output_bytes, self.capacity_bytes)

    @cached_property
    def workspace(self) -> np.ndarray:
        return shares(self.graph.workspace_bytes, self.capacity_bytes)

    @cached_property
    def in_place(self) -> np.ndarray:
        """(n,) bool: ops that may run in place, and whose value has bytes to save."""
        return may_save(self.graph, self.size)

    @cached_property
    def producer(self) -> np.ndarray:
        return np.array([i for i, _ in self.readings], dtype=int)

    @cached_property
    def consumer(self) -> np.ndarray:
        return np.array([k for _, k in self.readings], dtype=int)

    def readings_of(self, k: int) -> np.ndarray:
        return np.flatnonzero(self.consumer == k)

    def cost(self, objective: float) -> float:
        return objective * (self.graph.total_cost or 1.0)

    def fractions(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns R and S of a solution vector: (stages, n) floats, 0 where there is no column."""
        R, S = (np.where(columns >= 0, x[columns], 0.0) for columns in (self.R, self.S[:-1]))
        return R, S

    def schedule(self, x: np.ndarray) -> Schedule:
        """The schedule of an integer solution: its R, and the part of S that R needs."""
        R = self.fractions(x)[0] > 0.5
        return Schedule(R, retained(self.graph, R))

    def solution(self, schedule: Schedule) -> np.ndarray:
        """The vector of a schedule of n stages, with every value freed as early as
        possible: a start for an engine."""
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


def shares(count: np.ndarray, capacity_bytes: int) -> np.ndarray:
    share = count / capacity_bytes
    return np.where(share < NEGLIGIBLE, 0.0, share)


def may_save(graph: DFGraph, size: np.ndarray) -> np.ndarray:
    return np.array([bool(deps) for deps in graph.in_place]) & (size > 0)


def dependencies(at: Formulation) -> None:
    """Equations 1b and 1c: what runs or is retained needs its inputs, or itself the stage
    before."""
    graph, R, S, signs = at.graph, at.R, at.S, [1.0, -1.0, -1.0]
    # R[t, j] <= R[t, i] + S[t, i] for every edge (i, j).
    for i, j in graph.edges:
        stages = np.flatnonzero(R[:, j] >= 0)
        at.rows.add(np.stack([R[stages, j], R[stages, i], S[stages, i]], 1), signs, -np.inf, 0.0)
    # S[t + 1, i] <= S[t, i] + R[t, i].
    for i in range(len(graph)):
        stages = np.flatnonzero(S[1:, i] >= 0)
        at.rows.add(
            np.stack([S[stages + 1, i], S[stages, i], R[stages, i]], 1), signs, -np.inf, 0.0
        )


def order(at: Formulation) -> None:
    """Without partitioning: every op runs, first evaluations are in the graph's order, and ops that
    may not run again do not."""
    graph, R, n = at.graph, at.R, len(at.graph)
    # Equation 1e: the last op runs. So do all others, as each has run before the next: R[t, i] <=
    # R[0, i - 1] + ... + R[t, i - 1].
    at.rows.add([R[:, n - 1]], 1.0, 1.0, np.inf)
    for i in range(1, n):
        for t in range(n):
            at.rows.add([[R[t, i], *R[: t + 1, i - 1]]], [1.0, *[-1.0] * (t + 1)], -np.inf, 0.0)
    for i in np.flatnonzero(~graph.recomputable).tolist():
        at.rows.add([R[:, i]], 1.0, -np.inf, 1.0)
    # After op k has overwritten what op d reads, d does not run.
    later, earlier = np.nonzero(np.tri(n, k=-1, dtype=bool))
    for k, op in enumerate(graph.ops):
        for d in op.overwrites:
            at.rows.add(np.stack([R[later, d], R[earlier, k]], 1), 1.0, -np.inf, 1.0)


def first_runs(at: Formulation) -> None:
    """While op t runs for the first time, these are in memory: its value, unless it runs in place
    (A[t, t]), its inputs, and what else is retained into stage t + 1."""
    n = len(at.graph)
    for t in range(n):
        needed = [t, *at.graph.deps[t]]
        others = np.where(np.isin(np.arange(n), needed), 0.0, at.size)
        at.rows.add(
            [[*at.S[t + 1], at.A[t, t]]],
            [*others, -at.size[t]],
            -np.inf,
            1.0 - at.workspace[t] - at.size[needed].sum(),
        )


def memory(at: Formulation) -> None:
    """Equations 2 to 4: U[t, first] >= retained + R M; U[t, k] >= U[t, before k] - freed after the
    op before k + R[t, k] M_k.

    The paper has equalities. U is only bounded from above, and an engine that rounds (CP-SAT) needs
    the slack.
    """
    U, R, size = at.U, at.R, at.size
    of_consumer = [at.readings_of(k) for k in range(len(at.graph))]
    for t in range(len(at.graph)):
        present = np.flatnonzero(R[t] >= 0)
        first = present[0]
        at.rows.add(
            [[U[t, first], R[t, first], *at.S[t]]], [1.0, -size[first], *-size], 0.0, np.inf
        )
        for before, k in pairwise(present):
            freed = of_consumer[before]
            at.rows.add(
                [[U[t, k], U[t, before], R[t, k], *at.FREE[t, freed]]],
                [1.0, -1.0, -size[k], *size[at.producer[freed]]],
                0.0,
                np.inf,
            )


def budget(at: Formulation) -> None:
    """Equation 9, with the workspace of the op that runs: U[t, k] + workspace_k R[t, k] - M_k
    A[t, k] <= 1."""
    for k in np.flatnonzero((at.workspace > 0) | at.in_place):
        columns = np.stack([at.U[:, k], at.R[:, k], at.A[:, k]], 1)
        at.rows.add(columns, [1.0, at.workspace[k], -at.size[k]], -np.inf, 1.0)


def in_place(at: Formulation) -> None:
    """A[t, k] <= R[t, k], and <= the sum of FREE[t, i, k] over its in_place deps i; for the last op
    of a stage see `in_place_last`."""
    for k in np.flatnonzero(at.in_place).tolist():
        others, deps = at.last != k, at.graph.in_place[k]
        freed = at.FREE[others][:, [e for e in at.readings_of(k) if at.producer[e] in deps]]
        signs = [1.0, *[-1.0] * freed.shape[1]]
        at.rows.add(np.stack([at.A[:, k], at.R[:, k]], 1), [1.0, -1.0], -np.inf, 0.0)
        at.rows.add(np.column_stack([at.A[others, k], freed]), signs, -np.inf, 0.0)
        in_place_last(at, k, np.flatnonzero(~others))


def in_place_last(at: Formulation, k: int, stages: np.ndarray) -> None:
    """Op k, the last of these stages, runs in place only if one of its in_place deps i is not
    retained: A[t, k] <= sum of 1 - S[t + 1, i]."""
    deps = list(at.graph.in_place[k])
    columns = np.column_stack([at.A[stages, k], at.S[stages + 1][:, deps]])
    at.rows.add(columns, 1.0, -np.inf, float(len(deps)))


def freeing(at: Formulation) -> None:
    """Equations 5 to 7, for every value i and stage t.

    FREE[t, i, k] <= R[t, k]. The sum over all k of FREE is <= 1 - S[t + 1, i], and <= R[t, i] +
    S[t, i]: only values in memory are freed. The sum over k < j of FREE is <= 1 - R[t, j] for each
    user j: a value is not freed before j has read it.
    """
    R, S, FREE = at.R, at.S, at.FREE
    for e, k in enumerate(at.consumer):
        at.rows.add(np.stack([FREE[:, e], R[:, k]], 1), [1.0, -1.0], -np.inf, 0.0)
    for i in range(len(at.graph)):
        edges = np.flatnonzero(at.producer == i)
        freed, ones = FREE[:, edges], [1.0] * len(edges)
        at.rows.add(np.column_stack([S[1:, i], freed]), [1.0, *ones], -np.inf, 1.0)
        at.rows.add(np.column_stack([R[:, i], S[:-1, i], freed]), [-1.0, -1.0, *ones], -np.inf, 0.0)
        for k, j in enumerate(at.consumer[edges]):
            if j != i:
                columns = np.column_stack([R[:, j], freed[:, :k]])
                at.rows.add(columns, [1.0, *ones[:k]], -np.inf, 1.0)
