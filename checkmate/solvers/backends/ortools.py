"""The engines inside OR-tools: SCIP, HiGHS and CP-SAT for integer problems, GLOP and PDLP for
relaxations.

They are called through `model_builder_helper`, which takes a whole matrix at once. All have
wall-clock limits; HiGHS checks the time seldom while it presolves. CP-SAT works on whole numbers
and scales others, to about 1e-6; PDLP ends with errors of that size. MathOpt is not used: imported
before TensorFlow it breaks TensorFlow's import.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from checkmate.errors import SolverFailedError
from checkmate.solvers.backends.matrices import LP_ENGINES, Answer, AnswerStatus, MatrixProblem

# engine -> (OR-tools' name, parameters in that engine's notation: no output, one thread, no gap)
_SOLVERS = {
    "scip": ("scip", "limits/gap = 1e-7"),
    "highs": ("highs", "output_flag=false,threads=1,mip_rel_gap=1e-7"),
    "cp_sat": ("sat", "num_workers:1 relative_gap_limit:1e-7 mip_var_scaling:1e6"),
    "glop": ("glop", ""),
    "pdlp": ("pdlp", "num_threads:1"),
}

ROUGH = ("pdlp",)
"""Engines whose tolerance is so large that "infeasible" is no proof for a budget that is tight to
the byte."""


def solve(
    problem: MatrixProblem, *, engine: str, time_limit_s: float, start: np.ndarray | None
) -> Answer:
    from ortools.linear_solver.python import model_builder_helper as builder
    from scipy.sparse import csr_matrix

    hints = start if engine in ("scip", "cp_sat") else None
    if start is not None and hints is None:
        problem = problem.no_worse_than(start)  # HiGHS crashes on a hint
    model: Any = builder.ModelBuilderHelper()
    matrix = csr_matrix((problem.value, problem.column, problem.start), shape=problem.shape)
    model.fill_model_from_sparse_data(
        problem.lower, problem.upper, problem.cost, problem.row_lower, problem.row_upper, matrix
    )
    if engine not in LP_ENGINES:
        for column in np.flatnonzero(problem.integer):
            model.set_var_integrality(int(column), True)
        for place, value in enumerate(() if hints is None else hints):
            model.add_hint(place, float(value))
    name, parameters = _SOLVERS[engine]
    solver = builder.ModelSolverHelper(name)
    solver.enable_output(False)
    solver.set_time_limit_in_seconds(time_limit_s)
    if parameters:
        solver.set_solver_specific_parameters(parameters)
    solver.solve(model)
    answer = _relaxed if engine in LP_ENGINES else _whole
    return answer(solver, builder.SolveStatus, problem, engine)


def _whole(solver: Any, statuses: Any, problem: MatrixProblem, engine: str) -> Answer:
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
        raise _broken(solver, engine)
    if not solver.has_solution():
        return Answer(AnswerStatus.UNKNOWN, None, solver.best_objective_bound())
    ended = AnswerStatus.OPTIMAL if status == statuses.OPTIMAL else AnswerStatus.FEASIBLE
    return Answer(ended, np.array(solver.variable_values()), solver.best_objective_bound())


def _relaxed(solver: Any, statuses: Any, problem: MatrixProblem, engine: str) -> Answer:
    """x if it is optimal, and in any case the bound of the engine's multipliers."""
    status = solver.status()
    if status == statuses.INFEASIBLE and engine not in ROUGH:
        return Answer(AnswerStatus.INFEASIBLE)
    if status in (
        statuses.MODEL_INVALID,
        statuses.INVALID_SOLVER_PARAMETERS,
        statuses.SOLVER_TYPE_UNAVAILABLE,
    ):
        raise _broken(solver, engine)
    multipliers = np.array(solver.dual_values() if solver.has_response() else [])
    bound = problem.dual_bound(multipliers) if len(multipliers) == problem.shape[0] else -np.inf
    if status != statuses.OPTIMAL:
        return Answer(AnswerStatus.UNKNOWN, None, bound)
    return Answer(AnswerStatus.OPTIMAL, np.array(solver.variable_values()), bound)


def _broken(solver: Any, engine: str) -> SolverFailedError:
    reason = solver.status_string() or "no reason given"
    return SolverFailedError(
        f"Engine {engine!r} ended with {solver.status().name}: {reason}. Try another engine."
    )
