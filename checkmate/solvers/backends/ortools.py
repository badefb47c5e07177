"""The engines inside OR-tools: SCIP and CP-SAT.

They are called through `model_builder_helper`, which takes a whole matrix at once. Both have
wall-clock limits. CP-SAT works on whole numbers and scales others, to about 1e-6. MathOpt is not
used: imported before TensorFlow it breaks TensorFlow's import.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from checkmate.errors import SolverFailedError
from checkmate.solvers.backends.matrices import Answer, AnswerStatus, MatrixProblem

# engine -> (OR-tools' name, parameters in that engine's notation: no output, one thread, no gap)
_SOLVERS = {
    "scip": ("scip", "limits/gap = 1e-7"),
    "cp_sat": ("sat", "num_workers:1 relative_gap_limit:1e-7 mip_var_scaling:1e6"),
}


def solve(
    problem: MatrixProblem, *, engine: str, time_limit_s: float, start: np.ndarray | None
) -> Answer:
    from ortools.linear_solver.python import model_builder_helper as builder
    from scipy.sparse import csr_matrix

    model: Any = builder.ModelBuilderHelper()
    matrix = csr_matrix((problem.value, problem.column, problem.start), shape=problem.shape)
    model.fill_model_from_sparse_data(
        problem.lower, problem.upper, problem.cost, problem.row_lower, problem.row_upper, matrix
    )
    for column in np.flatnonzero(problem.integer):
        model.set_var_integrality(int(column), True)
    for place, value in enumerate(() if start is None else start):
        model.add_hint(place, float(value))
    name, parameters = _SOLVERS[engine]
    solver, statuses = builder.ModelSolverHelper(name), builder.SolveStatus
    solver.enable_output(False)
    solver.set_time_limit_in_seconds(time_limit_s)
    solver.set_solver_specific_parameters(parameters)
    solver.solve(model)
    status = solver.status()
    if status == statuses.INFEASIBLE:
        return Answer(AnswerStatus.INFEASIBLE)
    if status not in (
        statuses.OPTIMAL,
        statuses.FEASIBLE,
        statuses.NOT_SOLVED,
        statuses.UNKNOWN_STATUS,
        statuses.CANCELLED_BY_USER,
    ):
        reason = solver.status_string() or "no reason given"
        raise SolverFailedError(
            f"Engine {engine!r} ended with {status.name}: {reason}. Try another engine."
        )
    if not solver.has_solution():
        return Answer(AnswerStatus.UNKNOWN, None, solver.best_objective_bound())
    ended = AnswerStatus.OPTIMAL if status == statuses.OPTIMAL else AnswerStatus.FEASIBLE
    return Answer(ended, np.array(solver.variable_values()), solver.best_objective_bound())
