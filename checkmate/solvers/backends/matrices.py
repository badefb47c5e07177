"""What a solver package is asked and what it answers: a linear problem and a solution as plain
arrays."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

LP_ENGINES = ("clp", "glop", "pdlp")
"""Engines that solve the relaxation: they do not look at `MatrixProblem.integer`."""

ROUNDING = 1e-10
"""What computing a bound in floating point can add to it, where costs are shares of 1."""


@dataclass(frozen=True, slots=True, eq=False)
class MatrixProblem:
    """Minimize cost @ x subject to row_lower <= A x <= row_upper, lower <= x <= upper, x[integer]
    whole.

    Args:
      cost: (columns,) objective.
      lower: (columns,) least values.
      upper: (columns,) greatest values.
      integer: (columns,) bool; LP engines ignore it.
      start: (rows + 1,) where each row of A begins in `column` and `value` (CSR, columns ascending
        in a row).
      column: (nonzeros,) column of each entry.
      value: (nonzeros,) value of each entry.
      row_lower: (rows,) may be -inf.
      row_upper: (rows,) may be +inf.
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
        """(rows, columns)."""
        return len(self.row_lower), len(self.cost)

    def violation(self, x: np.ndarray) -> float:
        """The most by which x breaks a row or a bound; integrality is not looked at."""
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
        """Returns a number that no x can go below, whatever y is: the Lagrange dual's value at y,
        computed here and not by the engine.

        For an optimal y it is the relaxation's optimum. Only the rounding of this sum itself is not
        looked at; it is far below `ROUNDING`, by which the result is lowered.

        Args:
          y: (rows,) multipliers; positive ones speak of `row_lower`, negative ones of `row_upper`.

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
        """Returns the problem with one more row, cost @ y <= cost @ x: what can be done with a
        start where an engine takes none."""
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
    """How an engine ended. The value is the sentence for people."""

    OPTIMAL = "x is proven optimal"
    FEASIBLE = "x is feasible; time ran out before it was proven optimal"
    INFEASIBLE = "it is proven that no x exists"
    UNKNOWN = "time ran out, or the engine gave up, before there was an x"


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """What an engine found.

    Attributes:
      status: How it ended.
      x: (columns,) values, present iff OPTIMAL or FEASIBLE.
      bound: No x has a lower objective; -inf when nothing is known. From LP engines it is
        `MatrixProblem.dual_bound` at the multipliers they end with, hence exact; from the others it
        is up to their tolerances (about 1e-6).
    """

    status: AnswerStatus
    x: np.ndarray | None = None
    bound: float = -np.inf
