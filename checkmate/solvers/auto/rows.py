"""Sparse rows of a program with variables from 0 to 1, some of which are fixed beforehand."""

from __future__ import annotations

import numpy as np

from checkmate.solvers.backends.matrices import MatrixProblem

ZERO, ONE = -1, -2
"""Variables that are fixed. Other variables are column numbers."""


class Rows:
    """Minimize cost @ x subject to matrix @ x <= upper, 0 <= x <= 1.

    Attributes:
      cost: Of each column.
      binary: Whether each column is declared binary.
      upper: The limit of each row.
      infeasible: A row without variables does not hold.
    """

    def __init__(self) -> None:
        self.cost: list[float] = []
        self.binary: list[bool] = []
        self.upper: list[float] = []
        self._starts, self._columns = [0], list[int]()
        self._values: list[float] = []
        self.infeasible = False

    def variable(self, cost: float, *, binary: bool) -> int:
        """Adds a column and returns its number."""
        self.cost.append(cost)
        self.binary.append(binary)
        return len(self.cost) - 1

    def at_most(self, terms: list[tuple[int, float]], upper: float) -> None:
        """Adds the row sum of value * x[column] <= upper. All columns are variables."""
        self._columns += [column for column, _ in terms]
        self._values += [value for _, value in terms]
        self._starts.append(len(self._columns))
        self.upper.append(upper)

    def implies(self, x: int, a: int, b: int) -> None:
        """Adds the row x <= a + b, unless it always holds."""
        if ONE in (a, b) or x == ZERO or x in (a, b):
            return
        terms = [(k, v) for k, v in ((x, 1.0), (a, -1.0), (b, -1.0)) if k >= 0]
        if not terms:
            self.infeasible = True
            return
        if a == b >= 0:
            terms.pop()
        self.at_most(terms, -1.0 if x == ONE else 0.0)

    def problem(self, *, scale: float, integer: bool) -> MatrixProblem:
        """Returns the program for a solver package, with costs times `scale`, integer or linear."""
        columns = len(self.cost)
        return MatrixProblem(
            cost=np.array(self.cost) * scale,
            lower=np.zeros(columns),
            upper=np.ones(columns),
            integer=np.array(self.binary) if integer else np.zeros(columns, bool),
            start=np.array(self._starts, np.int32),
            column=np.array(self._columns, np.int32),
            value=np.array(self._values),
            row_lower=np.full(len(self.upper), -np.inf),
            row_upper=np.array(self.upper),
        )
