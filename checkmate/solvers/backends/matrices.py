"""A linear problem and its solution as arrays: the input and output of solver packages."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

ROUNDING = 1e-10
"""The most that floating point can add to a bound, if costs are shares of 1."""


@dataclass(frozen=True, slots=True, eq=False)
class MatrixProblem:
    """Minimize cost @ x subject to row_lower <= A x <= row_upper, lower <= x <= upper, x[integer]
    whole.

    Args:
      integer: (columns,) bool; CLP ignores it.
      start: (rows + 1,) where each row of A begins in `column` and `value` (CSR, columns ascending
        in a row).
      column: (nonzeros,) column of each entry.
      value: (nonzeros,) value of each entry.
    """

    cost: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    integer: np.ndarray
    start: np.ndarray
    column: np.ndarray
    value: np.ndarray
    row_lower: np.ndarray
    row_upper: np.ndarray

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.row_lower), len(self.cost)

    def violation(self, x: np.ndarray) -> float:
        """The largest violation of a row or a bound by x; integrality is not checked."""
        row = np.repeat(np.arange(len(self.row_lower)), np.diff(self.start))
        activity = np.bincount(row, self.value * x[self.column], minlength=len(self.row_lower))
        excess = [
            self.lower - x,
            x - self.upper,
            self.row_lower - activity,
            activity - self.row_upper,
        ]
        return max(0.0, *(float(part.max(initial=0.0)) for part in excess))

    def dual_bound(self, y: np.ndarray) -> float:
        """A lower bound on the objective, for any y: the value of the Lagrange dual at y.

        For an optimal y it is the relaxation's optimum. The result is lowered by `ROUNDING`, which
        is more than the rounding errors of the sum.

        Args:
          y: (rows,) multipliers; positive ones of `row_lower`, negative ones of `row_upper`.

        Source: Neumaier and Shcherbina, "Safe bounds in linear and mixed-integer linear
        programming" (2004).
        """
        side = np.where(y > 0, self.row_lower, self.row_upper)
        usable = np.isfinite(side) & np.isfinite(y)
        y, side = np.where(usable, y, 0.0), np.where(usable, side, 0.0)
        row = np.repeat(np.arange(len(y)), np.diff(self.start))
        reduced = self.cost - np.bincount(
            self.column, self.value * y[row], minlength=len(self.cost)
        )
        return (
            float(y @ side + np.minimum(reduced * self.lower, reduced * self.upper).sum())
            - ROUNDING
        )

    def no_worse_than(self, x: np.ndarray) -> MatrixProblem:
        """The problem with one more row, cost @ y <= cost @ x, for engines that take no
        start."""
        column = np.flatnonzero(self.cost)
        return replace(
            self,
            start=np.append(self.start, self.start[-1] + len(column)).astype(np.int32),
            column=np.append(self.column, column).astype(np.int32),
            value=np.append(self.value, self.cost[column]),
            row_lower=np.append(self.row_lower, -np.inf),
            row_upper=np.append(self.row_upper, self.cost @ x),
        )


class AnswerStatus(Enum):
    """The end of an engine. The value is a sentence for people."""

    OPTIMAL = "x is proven optimal"
    FEASIBLE = "x is feasible; time ran out before it was proven optimal"
    INFEASIBLE = "it is proven that no x exists"
    UNKNOWN = "time ran out, or the engine gave up, before there was an x"


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """The answer of an engine.

    Attributes:
      x: (columns,) values, present iff OPTIMAL or FEASIBLE.
      bound: Lower bound on the objective, or -inf. From CLP it is `MatrixProblem.dual_bound` at its
        multipliers, hence valid; from the others it is up to their tolerances (about 1e-6).
    """

    status: AnswerStatus
    x: np.ndarray | None = None
    bound: float = -np.inf
