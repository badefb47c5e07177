"""CBC (integer) and CLP (relaxation) through CyLP.

CyLP cannot hand CBC a start or wall-clock limits. A start becomes a row that asks for nothing
worse, and CBC's own limit, which counts CPU seconds, is backed by an interrupt signal from
`engines.solve_matrices`, on which CBC stops and keeps its best x. CLP has no limit here; it is
ended from outside.
"""

from __future__ import annotations

import numpy as np

from checkmate.solvers.backends.matrices import Answer, AnswerStatus, MatrixProblem

# What CBC says when it ended without a proof, by `CyCbcModel.status`.
INFEASIBLE = ("relaxation infeasible", "problem proven infeasible")


def solve(
    problem: MatrixProblem, *, engine: str, time_limit_s: float, start: np.ndarray | None
) -> Answer:
    """Solves with CBC, or the relaxation with CLP."""
    simplex = _load(problem, start)
    if engine == "clp":
        status = simplex.initialSolve()
        if status == "optimal":
            x = np.array(simplex.primalVariableSolution)
            return Answer(
                AnswerStatus.OPTIMAL,
                x,
                problem.dual_bound(np.array(simplex.dualConstraintSolution)),
            )
        return Answer(
            AnswerStatus.INFEASIBLE if status == "primal infeasible" else AnswerStatus.UNKNOWN
        )
    simplex.copyInIntegerInformation(problem.integer.astype(np.uint8))
    model = simplex.getCbcModel()
    model.logLevel = 0
    model.maximumSeconds = time_limit_s
    model.solve()
    if model.status in INFEASIBLE:
        return Answer(AnswerStatus.INFEASIBLE)
    # The sentinel of a search that never had a bound is an enormous number of either sign.
    bound = model.bestPossibleObjValue if abs(model.bestPossibleObjValue) < 1e30 else -np.inf
    if model.solutionCount == 0:
        return Answer(AnswerStatus.UNKNOWN, None, bound)
    x = np.array(model.primalVariableSolution)
    return Answer(
        AnswerStatus.OPTIMAL if model.status == "solution" else AnswerStatus.FEASIBLE, x, bound
    )


def _load(problem: MatrixProblem, start: np.ndarray | None):
    from cylp.cy import CyClpSimplex, CyCoinPackedMatrix

    if start is not None:
        problem = problem.no_worse_than(start)
    rows, columns = problem.shape
    row = np.repeat(np.arange(rows), np.diff(problem.start))
    # CLP takes the matrix's shape from its entries: a zero in the corner gives it the right one.
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
