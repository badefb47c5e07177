"""CBC (integer) and CLP (relaxation) through CyLP.

CyLP passes CBC neither a start nor a wall-clock limit. A start becomes a row that bounds the
objective. CBC's own limit counts CPU seconds; in addition `engines.solve_matrices` sends an
interrupt signal, on which CBC stops and keeps its best x. CLP has no limit here; its process is
killed when time is over.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from checkmate.solvers.backends.matrices import Answer, AnswerStatus, MatrixProblem

STOPPED_SHARE = 0.9
"""From this share of its time on, CBC may have been stopped."""

# Values of `CyCbcModel.status` if there is no x.
INFEASIBLE = ("relaxation infeasible", "problem proven infeasible")


def solve(
    problem: MatrixProblem, *, engine: str, time_limit_s: float, start: np.ndarray | None
) -> Answer:
    simplex = _load(problem, start)
    if engine == "clp":
        status = simplex.initialSolve()
        if status == "primal infeasible":
            return Answer(AnswerStatus.INFEASIBLE)
        if status != "optimal":
            return Answer(AnswerStatus.UNKNOWN)
        x = np.array(simplex.primalVariableSolution)
        bound = problem.dual_bound(np.array(simplex.dualConstraintSolution))
        return Answer(AnswerStatus.OPTIMAL, x, bound)
    simplex.copyInIntegerInformation(problem.integer.astype(np.uint8))
    model = simplex.getCbcModel()
    model.logLevel = 0
    model.maximumSeconds = time_limit_s
    started = time.perf_counter(), time.process_time()
    model.solve()
    ended = time.perf_counter(), time.process_time()
    if model.status in INFEASIBLE:
        # CBC also says so of a relaxation that it was stopped in.
        spent = max(b - a for a, b in zip(started, ended, strict=True))
        stopped = spent >= STOPPED_SHARE * time_limit_s
        return Answer(AnswerStatus.UNKNOWN if stopped else AnswerStatus.INFEASIBLE)
    # A search without a bound reports a very large number of either sign.
    bound = model.bestPossibleObjValue if abs(model.bestPossibleObjValue) < 1e30 else -np.inf
    if model.solutionCount == 0:
        return Answer(AnswerStatus.UNKNOWN, None, bound)
    x = np.array(model.primalVariableSolution)
    return Answer(
        AnswerStatus.OPTIMAL if model.status == "solution" else AnswerStatus.FEASIBLE, x, bound
    )


def _load(problem: MatrixProblem, start: np.ndarray | None) -> Any:
    from cylp.cy import CyClpSimplex, CyCoinPackedMatrix

    if start is not None:
        problem = problem.no_worse_than(start)
    rows, columns = problem.shape
    row = np.repeat(np.arange(rows), np.diff(problem.start))
    # CLP derives the matrix's shape from its entries, so a zero is added in the last corner.
    entries = (
        np.append(row, rows - 1).astype(np.int32),
        np.append(problem.column, columns - 1).astype(np.int32),
        np.append(problem.value, 0.0),
    )
    matrix = CyCoinPackedMatrix(True, *entries)
    simplex = CyClpSimplex()
    simplex.logLevel = 0
    infinity = simplex.getCoinInfinity()
    bounds = np.maximum(problem.row_lower, -infinity), np.minimum(problem.row_upper, infinity)
    simplex.loadProblem(matrix, problem.lower, problem.upper, problem.cost, *bounds)
    return simplex
