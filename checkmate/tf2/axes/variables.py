"""Accesses: in which order a step reads and writes its variables, and which of that comes before
the slices."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from checkmate.tf2.graph.known_functions import graphs_of
from checkmate.tf2.graph.operations import (
    has_bodies,
    is_argument,
    is_call,
    may_run_again,
    source_of,
)
from checkmate.tf2.ops.table import rule_of


def is_pure(operation: tf.Operation, graph: Any) -> bool:
    """True for an op that may run in each slice: it computes values from its inputs and from
    variables, and changes nothing. `graph` has the functions which loops and conditions run."""
    if has_bodies(operation) or is_call(operation):
        found = graphs_of(graph, operation)
        return bool(found) and all(
            body is not None
            and all(is_argument(each) or is_pure(each, body) for each in body.get_operations())
            for body in found
        )
    return rule_of(operation.type).per_slice or may_run_again(operation)


def is_write(operation: tf.Operation, graph: Any) -> bool:
    takes = any(tensor.dtype == tf.resource for tensor in operation.inputs)
    rule = rule_of(operation.type)
    if not takes or rule.only_reads or rule.per_slice:
        return False
    return not is_pure(operation, graph)


@dataclass(slots=True)
class Accesses:
    """Reads and writes of variables, in order.

    Attributes:
      early: Writes whose values are known before the slices.
      before: Variables that are read after such writes: these writes come before the slices, and
        all reads of these variables.
      once: Other ops that run once, before the slices.
    """

    writes: dict[tf.Operation, list[tf.Operation]] = field(default_factory=dict)
    early: set[tf.Operation] = field(default_factory=set)
    before: dict[tf.Operation, list[tf.Operation]] = field(default_factory=dict)
    once: set[tf.Operation] = field(default_factory=set)

    def read(self, operation: tf.Operation) -> bool:
        """Notes a read; False if it then gets a value that is written after the slices."""
        known = True
        for variable in handles(operation):
            writes = self.writes.get(variable, [])
            if all(write in self.early for write in writes):
                if writes:
                    self.before[variable] = list(writes)
            else:
                known = False
        return known

    def write(self, operation: tf.Operation, *, early: bool, read: bool) -> None:
        """Notes that an op writes to its variables, and returns something that is `read`."""
        if early:
            self.early.add(operation)
        for variable in handles(operation):
            self.writes.setdefault(variable, []).append(operation)
            if read:
                self.before[variable] = list(self.writes[variable])

    def runs_before(self, operation: tf.Operation) -> bool:
        """True for an op that must run before the slices, and only then."""
        if operation in self.once:
            return True
        return any(
            operation in self.before[variable] or not self.writes_variable(operation)
            for variable in handles(operation)
            if variable in self.before
        )

    def writes_variable(self, operation: tf.Operation) -> bool:
        return any(operation in writes for writes in self.writes.values())


def handles(operation: tf.Operation) -> list[tf.Operation]:
    return [source_of(t).op for t in operation.inputs if t.dtype == tf.resource]
