"""The paper's mixed-integer linear program as sparse matrices; `equations` has its rows.

Method: frontier-advancing stages. Op t runs for the first time at the end of stage t; before it,
ops below t may run again, each at most once per stage and in index order. Columns, with n stages:

    R[t, i]        i <= t  op i runs in stage t
    S[t, i]        i < t   the value of op i is retained from stage t - 1 into stage t; row n has
                           the values in memory at the end
    U[t, k]        k <= t  memory after the turn of op k in stage t, before values are freed for it
    FREE[t, i, k]  k < t   op k reads the value of op i, which is freed directly after k's turn in
                           stage t
    A[t, k]        k <= t  op k runs in place in stage t: its value reuses the memory of an
                           input that is freed directly after k's turn

`formulate(..., partitioned=False)` is the program before the paper's section 4.6: any op may run in
any of the n stages, R and S are full squares, and rows replace the triangles. It has the
partitioned program's solutions and more, twice the columns, and a weaker relaxation.

Source: Checkmate (Jain et al., MLSys 2020), sections 4.2 to 4.7, equations 1 to 9. Departures, none
of which changes the optimum over that space:
  * Equation 7 bounds FREE from both sides, with its hazards in one sum and a factor kappa. Freeing
    more never hurts, so the upper bounds suffice. As a value is freed at most once per stage, they
    hold for sums of FREE, which tightens the relaxation.
  * Equation 4 also frees a value directly after its own evaluation. In the partitioned program it
    never pays to recompute a value without a later reader, so those columns are left out, as are
    all that can only be zero.
  * Workspace, ops that may not run again, ops that overwrite what others read, and outputs are not
    in the paper.
  * Ops that run in place are not in the paper. U counts the value of such an op like any other;
    while the op runs, A subtracts it:
        U[t, k] + workspace_k R[t, k] - M_k A[t, k] <= 1,
        A[t, k] <= R[t, k],    A[t, k] <= sum of FREE[t, i, k] over its in_place deps i.
    The last op of a stage has no FREE: values that the next stage does not retain are freed, and
    1 - S[t + 1, i] replaces FREE.
  * Without partitioning first evaluations still keep the graph's order.

Guarantee: the optimum of `formulate` is the cheapest plan of that space, with memory as `replay`
counts it. `replay` accepts more plans: an op may run twice between two first evaluations, and in
any order. `relax` bounds the cost of all of them.
"""

from __future__ import annotations

import numpy as np

from checkmate.core.graph import DFGraph
from checkmate.core.schedule import may_run
from checkmate.solvers.paper import equations
from checkmate.solvers.paper.equations import ABSENT, Columns, Formulation

DOES_NOT_FIT = (
    "when some op runs for the first time, its inputs and the values that must be retained do not"
    " fit, whatever is recomputed."
)
"""The reason if `relax` has no solution."""


def formulate(graph: DFGraph, budget_bytes: int, *, partitioned: bool = True) -> Formulation:
    """The paper's program: the cheapest schedule in n stages within the budget (equation 9).

    Where it is `partitioned`, op t runs for the first time at the end of stage t (equation 8).
    """
    columns, n = Columns(), len(graph)
    capacity = max(1, budget_bytes - graph.fixed_bytes)
    R, S = _letters(columns, graph, n) if partitioned else _square_letters(columns, graph)
    size = equations.shares(graph.output_bytes, capacity)
    U = columns.add(R >= 0)
    A = columns.add((R >= 0) & equations.may_save(graph, size))
    columns.upper[U[A >= 0]] += np.broadcast_to(size, A.shape)[A >= 0]
    itself = () if partitioned else tuple((i, i) for i in range(n))
    readings = tuple(sorted((*graph.edges, *itself), key=lambda pair: pair[1]))
    consumer = np.array([k for _, k in readings], dtype=int)
    last = np.arange(n) if partitioned else np.full(n, n - 1)
    FREE = columns.add((R[:, consumer] >= 0) & (consumer < last[:, None]))
    at = Formulation(graph, capacity, columns, R, S, A, U, FREE, readings, last)
    equations.dependencies(at)
    if partitioned:
        equations.first_runs(at)  # implied by the others, but tightens the relaxation
    else:
        equations.order(at)
    equations.memory(at)
    equations.budget(at)
    equations.in_place(at)
    equations.freeing(at)
    return at


def relax(graph: DFGraph, budget_bytes: int) -> Formulation:
    """A program whose optimum is a lower bound for every plan in the graph's order of first
    evaluations.

    R[t, i] means here that op i runs at least once between the first evaluations of ops t - 1 and
    t. Memory is counted only while an op runs for the first time: its inputs, its value (unless it
    runs in place), its workspace, and the other values that are in memory after those freed
    directly after it. One more stage, after the last op's first evaluation, is for outputs that are
    recomputed at the end. R and S of any plan, however often and in whatever order it recomputes,
    satisfy these rows, and its cost is at least theirs.
    """
    columns, n = Columns(), len(graph)
    capacity = max(1, budget_bytes - graph.fixed_bytes)
    size = equations.shares(graph.output_bytes, capacity)
    R, S = _letters(columns, graph, n + 1)
    A = columns.add(np.diag(equations.may_save(graph, size)))
    U, FREE = np.full((n, n), ABSENT), np.full((n, 0), ABSENT)
    at = Formulation(graph, capacity, columns, R, S, A, U, FREE, (), np.arange(n))
    equations.dependencies(at)
    equations.first_runs(at)
    for k in np.flatnonzero(at.in_place).tolist():
        equations.in_place_last(at, k, np.array([k]))
    return at


def _letters(columns: Columns, graph: DFGraph, stages: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns R and S: 0 or 1 (equation 1f), lower triangular, op t in stage t (equation 8). The
    last row of S has the outputs."""
    n = len(graph)
    R = columns.add(may_run(graph, stages), integer=True)
    S = columns.add(np.tri(stages + 1, n, -1, dtype=bool), integer=True)
    columns.lower[R.diagonal()] = 1
    columns.lower[S[-1]] = columns.upper[S[-1]] = np.isin(np.arange(n), graph.outputs)
    return R, S


def _square_letters(columns: Columns, graph: DFGraph) -> tuple[np.ndarray, np.ndarray]:
    """Returns R and S without partitioning: every op in every stage; nothing is retained into the
    first (equation 1d)."""
    n = len(graph)
    R = columns.add(np.ones((n, n), bool), integer=True)
    S = columns.add(np.arange(n + 1)[:, None] > np.zeros(n), integer=True)
    columns.lower[S[-1]] = columns.upper[S[-1]] = np.isin(np.arange(n), graph.outputs)
    return R, S
