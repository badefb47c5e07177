"""Solving a relaxation with SciPy's HiGHS: as a linear program with cuts, and as an integer one."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np

from checkmate.solvers.auto.cuts import violated_chains
from checkmate.solvers.auto.relaxation import Relaxation
from checkmate.solvers.backends import scipy
from checkmate.solvers.backends.matrices import AnswerStatus

SCALE = 1e4
"""Costs are given to HiGHS in units of total cost / SCALE, so that its dual tolerance of 1e-7 is
small against what is proven."""


@dataclass(frozen=True, slots=True)
class RelaxedSolution:
    """The solution of a relaxation.

    Attributes:
      bound: No plan within the budget costs less; infinity where no plan exists.
      dropped: dropped[c], the values that the solution does not keep at snapshot c; None where
        HiGHS found no solution.
    """

    bound: float
    dropped: tuple[tuple[int, ...], ...] | None


def solve_integer(
    relaxation: Relaxation, *, seconds: float, nodes: int, gap: float = 1e-6
) -> RelaxedSolution:
    """Solves the integer program.

    Args:
      nodes: Branch-and-bound nodes at most: a limit that is the same on every machine.
      gap: Relative gap at which HiGHS may stop, of the cost of the recomputations.
    """
    if relaxation.rows.infeasible:
        return RelaxedSolution(float("inf"), None)
    if not relaxation.rows.upper:  # nothing binds: keep everything
        everything = np.ones(len(relaxation.rows.cost))
        return RelaxedSolution(relaxation.graph.total_cost, relaxation.dropped(everything))
    problem = relaxation.rows.problem(scale=_scale(relaxation), integer=True)
    answer = scipy.solve(problem, time_limit_s=seconds, nodes=nodes, gap=gap)
    if answer.status is AnswerStatus.INFEASIBLE:
        return RelaxedSolution(float("inf"), None)
    dropped = None if answer.x is None else relaxation.dropped(answer.x)
    return RelaxedSolution(_bound(relaxation, answer.bound), dropped)


def solve_linear(
    relaxation: Relaxation, *, seconds: float, rounds: int = 12, cuts_per_round: int = 300
) -> RelaxedSolution:
    """Solves the linear program, in which P and R may be fractions; all rounds share the seconds.

    After each round the cuts that the solution violates most are added to the relaxation, as long
    as they raise the bound by a thousandth of the recomputation cost. The bound is weaker than that
    of the integer program, and `dropped` has what the last solution keeps less than half of.
    """
    if relaxation.rows.infeasible:
        return RelaxedSolution(float("inf"), None)
    stop, total = time.monotonic() + seconds, relaxation.graph.total_cost
    bound, dropped = total, None
    for number in range(rounds if relaxation.rows.upper else 0):
        left = max(0.0, stop - time.monotonic())
        problem = relaxation.rows.problem(scale=_scale(relaxation), integer=False)
        answer = scipy.solve(problem, time_limit_s=left)
        if answer.status is AnswerStatus.INFEASIBLE:
            return RelaxedSolution(float("inf"), None)
        if answer.status is not AnswerStatus.OPTIMAL or answer.x is None:
            break  # an unfinished linear program proves nothing
        dropped = relaxation.dropped(answer.x)
        before, bound = bound, max(bound, _bound(relaxation, float(problem.cost @ answer.x)))
        if number and bound - before <= 1e-3 * (bound - total):
            break
        P, R = relaxation.fractions(answer.x)
        chains = violated_chains(relaxation.graph, relaxation.snapshots, P, R, limit=cuts_per_round)
        if not any([relaxation.add_cut(chain) for chain in chains]):
            break
    return RelaxedSolution(bound, dropped)


def _scale(relaxation: Relaxation) -> float:
    scale = SCALE / (relaxation.graph.total_cost or SCALE)
    return scale if math.isfinite(scale) else 1.0


def _bound(relaxation: Relaxation, proven: float) -> float:
    """The cost that HiGHS' bound on the objective stands for, less what its tolerances may hide.

    Where all costs are multiples of a unit, it is raised to the next multiple.
    """
    if not np.isfinite(proven):
        return relaxation.graph.total_cost
    again, unit = max(0.0, proven - 1e-7 * SCALE) / _scale(relaxation), relaxation.whole_unit
    return relaxation.graph.total_cost + (unit * math.ceil(again / unit - 1e-9) if unit else again)
