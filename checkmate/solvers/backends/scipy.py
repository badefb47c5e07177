"""HiGHS inside SciPy, which is always installed."""

from __future__ import annotations

import numpy as np

from checkmate.solvers.backends.matrices import Answer, AnswerStatus, MatrixProblem
from checkmate.unlogged import unlogged

STATUS = {0: AnswerStatus.OPTIMAL, 1: AnswerStatus.FEASIBLE, 2: AnswerStatus.INFEASIBLE}

PRINTED = (b"HighsMipSolverData::",)
"""In the lines that HiGHS prints though its log is off."""


def load() -> None:
    """Imports what `solve` needs, which takes some 0.2 s the first time."""
    import scipy.optimize
    import scipy.sparse  # noqa: F401


def solve(
    problem: MatrixProblem,
    *,
    engine: str = "highs",
    time_limit_s: float,
    start: np.ndarray | None = None,
    nodes: int | None = None,
    gap: float = 1e-7,
) -> Answer:
    """Solves with HiGHS; a start bounds the objective, and nodes limit work on every machine
    alike."""
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_matrix

    if start is not None:
        problem = problem.no_worse_than(start)
    matrix = csr_matrix((problem.value, problem.column, problem.start), shape=problem.shape)
    with unlogged(1, PRINTED):
        found = milp(
            problem.cost,
            integrality=problem.integer.astype(int),
            bounds=Bounds(problem.lower, problem.upper),
            constraints=LinearConstraint(matrix, problem.row_lower, problem.row_upper),
            options={"time_limit": time_limit_s, "mip_rel_gap": gap, "node_limit": nodes},
        )
    bound = found.get("mip_dual_bound")
    status = STATUS.get(found.status, AnswerStatus.UNKNOWN)
    if status is not AnswerStatus.INFEASIBLE and found.x is None:
        status = AnswerStatus.UNKNOWN
    x = found.x if status in (AnswerStatus.OPTIMAL, AnswerStatus.FEASIBLE) else None
    return Answer(status, x, -np.inf if bound is None or not np.isfinite(bound) else float(bound))
