"""Keeping: the values of single examples that are kept for the whole batch, for ops that run after
the slices; Rows: gradients of a table's rows, such as those of an embedding, on their way into an
update.

A gradient that has a row for each token of the batch is not one sum: an optimizer adds its rows to
a variable by their indices, with or without first adding up those of equal indices, or adds all of
them to zeros of the variable's shape. Between the gradient and that update come a few ops that
treat each element alone. Only ops all of whose readers belong to them count, so that no activation
that is used for anything else is taken for such rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from checkmate.tf2.graph.sizes import tensor_bytes
from checkmate.tf2.ops.rule import InPlace, Role, Runs
from checkmate.tf2.ops.table import rule_of

KEPT_BYTES = 64
"""Values of at most this many bytes per example are kept for the whole batch."""

Shape = tuple[int | None, ...]

_ROWS_OF_WRITES = ("indices", "updates", "grad")
"""Names of inputs of ops that write to some rows of a variable: which rows, and their values."""


@dataclass(slots=True)
class Keeping:
    """Which values may be kept: results of the step, which are there anyway; small ones
    (`KEPT_BYTES`); those that can be computed early, or are no larger than the variables, if the
    examples end in the op that reads them, as in an update, or the op makes a result; and the
    gradients of a table's rows with their indices on the way into an update by index, whatever
    their size: they have one row for each token, where the activations of a model have many
    (`Rows`). Rows that are only added up, in a gradient of the table's shape, are not kept: a slice
    hands on their sum."""

    examples: int
    results: set[Any]
    variable_bytes: int
    rows: Rows

    def has_results_only(self, operation: tf.Operation) -> bool:
        return all(tensor.ref() in self.results for tensor in operation.outputs)

    def is_there(self, tensor: tf.Tensor) -> bool:
        return tensor.ref() in self.results or self.is_small(tensor)

    def is_small(self, tensor: tf.Tensor) -> bool:
        size = tensor_bytes(tensor)
        return size is not None and size <= KEPT_BYTES * self.examples

    def may_keep(self, operation: tf.Operation, k: int, *, early: bool, last: bool) -> bool:
        """True if the input `k` of a late op may be kept. It can be computed before the slices
        where `early`; where `last`, the examples end in the op, or the op makes results."""
        size = tensor_bytes(operation.inputs[k])
        affordable = size is not None and (early or size <= self.variable_bytes)
        return (affordable and last) or self.rows.keep(operation, k)


@dataclass(slots=True)
class Rows:
    """The ops that take gradients of rows into updates, and the values kept for them: for one
    update no more bytes than the rows have."""

    _updates: dict[tf.Operation, set[tf.Operation]] = field(default_factory=dict)
    _limits: dict[tf.Operation, int] = field(default_factory=dict)
    _kept: dict[tf.Operation, dict[Any, int]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, operations: Sequence[tf.Operation], results: set[Any], variables: Iterable[Shape]
    ) -> Rows:
        """Finds them, from the updates backwards; `operations` has inputs first."""
        rows, shapes = cls(), set(variables)
        readers: dict[tf.Operation, list[tf.Operation]] = {}
        for operation in operations:
            for tensor in operation.inputs:
                readers.setdefault(tensor.op, []).append(operation)
        for operation in reversed(operations):
            found = {operation} if _is_update(operation, shapes) else set()
            returned = any(tensor.ref() in results for tensor in operation.outputs)
            if not found and not returned and _treats_rows_alone(operation):
                found = rows._of_all(readers.get(operation, []))
            if found:
                rows._add(operation, found)
        return rows

    def keep(self, operation: tf.Operation, k: int) -> bool:
        """Keeps the input `k` of an op; False if that is no gradient of rows, or if the rows that
        are kept would then have more bytes than are written."""
        if operation in self._limits and k not in _rows_read(operation):
            return False
        updates, tensor = self._updates.get(operation, set()), operation.inputs[k]
        size = tensor_bytes(tensor)
        if not updates or size is None:
            return False
        if tensor.dtype.is_integer:
            return True  # indices
        for update in updates:
            kept = self._kept.setdefault(update, {})
            kept[tensor.ref()] = size
            if sum(kept.values()) > self._limits[update]:
                return False
        return True

    def _of_all(self, readers: Sequence[tf.Operation]) -> set[tf.Operation]:
        """The updates that ops lead to; none if one leads elsewhere."""
        values = [op for op in readers if rule_of(op.type).role is not Role.SHAPE]
        found = [self._updates.get(operation, set()) for operation in values]
        return set().union(*found) if all(found) else set()

    def _add(self, operation: tf.Operation, updates: set[tf.Operation]) -> None:
        self._updates[operation] = updates
        sizes = [tensor_bytes(tensor) for tensor in operation.inputs if tensor.dtype.is_floating]
        largest = max((size for size in sizes if size is not None), default=0)
        for update in updates:
            self._limits[update] = max(self._limits.get(update, 0), largest)


def _rows_read(operation: tf.Operation) -> list[int]:
    """Indices of the inputs of an update that are rows, or say which rows."""
    if rule_of(operation.type).adds_rows:
        return [0, 1]
    if not any(tensor.dtype == tf.resource for tensor in operation.inputs):
        return []
    names = [each.name for each in operation.op_def.input_arg]
    if operation.outputs or "indices" not in names:
        return []
    return [k for k, name in enumerate(names) if name in _ROWS_OF_WRITES]


def _is_update(operation: tf.Operation, variables: set[Shape]) -> bool:
    """True for an op that adds rows to a variable or to zeros of a variable's shape."""
    if rule_of(operation.type).adds_rows:
        shape = operation.outputs[0].shape
        return shape.rank is not None and tuple(shape.as_list()) in variables
    return bool(_rows_read(operation))


def _treats_rows_alone(operation: tf.Operation) -> bool:
    rule = rule_of(operation.type)
    alone = rule.in_place is InPlace.ANY_INPUT or rule.role in (Role.ALIAS, Role.VIEW)
    return alone or rule.runs is Runs.CONDITION or rule.moves_rows
