"""Columns and rows of a sparse matrix, added block by block."""

from __future__ import annotations

from typing import Any

import numpy as np

ABSENT = -1
"""Stands for a column that does not exist because its value could only be zero."""


class Columns:
    """Numbers columns with bounds 0 and 1."""

    def __init__(self) -> None:
        self.lower, self.upper, self.integer = np.zeros(0), np.zeros(0), np.zeros(0, bool)

    def add(self, where: np.ndarray, *, integer: bool = False) -> np.ndarray:
        """Adds a column for each True of `where`. Returns their numbers in an array of the same
        shape, `ABSENT` elsewhere."""
        numbers = np.full(where.shape, ABSENT)
        count = int(where.sum())
        numbers[where] = len(self.lower) + np.arange(count)
        self.lower = np.append(self.lower, np.zeros(count))
        self.upper = np.append(self.upper, np.ones(count))
        self.integer = np.append(self.integer, np.full(count, integer))
        return numbers


class Rows:
    """Collects rows, skips absent columns, and returns the matrix in CSR form."""

    def __init__(self) -> None:
        self._count = 0
        # (row, column, value) of the entries, (lower, upper) of the rows
        self._parts: list[tuple[np.ndarray, ...]] = []

    def add(self, columns: Any, values: Any, lower: float, upper: float) -> None:
        """Adds lower <= sum of values * columns <= upper for every row of `columns`, an array
        (rows, entries)."""
        columns = np.asarray(columns)
        values = np.broadcast_to(np.asarray(values, float), columns.shape)
        there = (columns >= 0) & (values != 0)
        row = np.broadcast_to(self._count + np.arange(len(columns))[:, None], columns.shape)
        bounds = np.full(len(columns), lower), np.full(len(columns), upper)
        self._parts.append((row[there], columns[there], values[there], *bounds))
        self._count += len(columns)

    def matrix(self, columns: Columns) -> tuple[np.ndarray, ...]:
        """Returns start, column, value, row_lower and row_upper, without the rows that hold
        wherever the columns are within their bounds."""
        row, column, value, lower, upper = (
            np.concatenate(part) for part in zip(*self._parts, strict=True)
        )
        at_bounds = value * columns.lower[column], value * columns.upper[column]
        least = np.bincount(row, np.minimum(*at_bounds), minlength=self._count)
        most = np.bincount(row, np.maximum(*at_bounds), minlength=self._count)
        useful = (most > upper) | (least < lower)
        keep = useful[row]
        number = np.cumsum(useful) - 1
        row, column, value = number[row[keep]], column[keep], value[keep]
        order = np.lexsort((column, row))
        start = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=int(useful.sum())))])
        return (
            start.astype(np.int32),
            column[order].astype(np.int32),
            value[order],
            lower[useful],
            upper[useful],
        )
