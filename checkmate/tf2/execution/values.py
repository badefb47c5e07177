"""Values: the name of each tensor of a traced step, at one point of a plan as it is written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from checkmate.tf2.execution.sequential import InOrder
from checkmate.tf2.graph.graph_writer import captured_tensors, names_of_inputs, reachable
from checkmate.tf2.graph.operations import (
    can_be_filled,
    is_argument,
    is_constant,
    is_stateful,
    reads_variable,
    role_of,
    source_of,
    static_shape,
)
from checkmate.tf2.graph.trace import TracedStep
from checkmate.tf2.ops.rule import Role, Source
from checkmate.tf2.ops.table import rule_of

LITTLE = 1 / 16
"""The share of all values of a step that the iterations of a loop which run at once may take, and
their ops still not run in order: about what is reserved for a step with loops."""


class Values:
    """Copies ops of a traced step, and keeps the names of the tensors that the copies make.

    Attributes:
      current: For each planned op the name of its latest evaluation.
      gone: Planned ops whose latest evaluation the plan has freed.
      last: The ops that the next kernel waits for: the one before it, or a pair.
      fusible: Evaluations that may run within the kernel of a product, with their outputs.
    """

    def __init__(self, traced: TracedStep):
        self.traced = traced
        made = sum(op.output_bytes for op in traced.graph.ops)
        self.writer = InOrder(traced.function.graph, int(LITTLE * made))
        self.planned = {operation for group in traced.groups for operation in group}
        self.given = names_of_inputs(traced.flat)
        self.current: dict[tf.Operation, str] = {}
        self.gone: set[tf.Operation] = set()
        self.last: list[str] = []
        self.fusible: dict[str, tf.Tensor] = {}
        self._captured = {t.ref(): value for t, value in captured_tensors(traced.flat)}
        self._running = dict.fromkeys(reachable(traced.flat.graph))  # in order
        self._once: dict[tf.Operation, str] = {}  # any op that is not planned -> its copy
        self._variable_of: dict[str, Any] = {}  # tensor that is a variable's memory -> the handle
        self._readers: dict[Any, list[str]] = {}  # handle -> ops that read such a tensor
        self._markers: dict[str, str] = {}  # a fusible evaluation -> the op to wait for instead

    def write_first(self) -> None:
        """Writes the small ops that no planned op comes before, as the arithmetic of random seeds.

        On a GPU some of them read or run in the host's memory. In the middle of the step each would
        wait until the device has done all that it was given, and the device would wait for it.
        """
        first: set[tf.Operation] = set()
        read = self._read_by_planned()
        for operation in self._running:
            before = {*(source_of(t).op for t in operation.inputs), *operation.control_inputs}
            waits = operation in self.planned or not before <= first
            if is_argument(operation) or not (waits or self._has_effects(operation, read)):
                for reader in self.pending_readers(operation):
                    self.made(reader)
                first.add(operation)
                if role_of(operation) is Role.KERNEL:
                    self.made(operation)

    def tensor(self, tensor: tf.Tensor) -> str:
        """The name of a tensor's present value. A view of a planned value is made again for each
        reader, and other ops once, if they do not exist yet."""
        tensor = source_of(tensor)
        operation = tensor.op
        if tensor.ref() in self.given:
            return self.given[tensor.ref()]
        if operation in self.planned:
            return f"{self.current[operation]}:{tensor.value_index}"
        if role_of(operation) is Role.SHAPE:
            shape = static_shape(operation, tensor.value_index)
            if shape is not None:
                return self.writer.constant(shape, tensor.dtype)
        if role_of(operation) is Role.VIEW:
            inputs = [self.tensor(each) for each in operation.inputs]
            return f"{self.copy(operation, inputs)}:{tensor.value_index}"
        return f"{self.made(operation)}:{tensor.value_index}"

    def copy(
        self, operation: tf.Operation, inputs: list[str], after: Sequence[str] = (), name: str = ""
    ) -> str:
        """Writes a copy of an op and returns its name.

        A write to a variable waits for all that read the variable's memory: while an op does,
        TensorFlow would write to other memory. After a write to a part of a variable TensorFlow
        would copy the whole at every read, and to update it; that is switched off again.
        """
        handles = [source_of(t).ref() for t in operation.inputs if t.dtype == tf.resource]
        if not rule_of(operation.type).only_reads:
            readers = (each for handle in handles for each in self._readers.get(handle, ()))
            after = [*after, *readers]
        if rule_of(operation.type).assigns and self._fits_variable(operation):
            handle, value = inputs
            return self.writer.overwrite(
                handle, value, operation.inputs[1], after=after, name=name or operation.name
            )
        copy = self.writer.copy(operation, inputs, after=after, name=name)
        if rule_of(operation.type).has_reads_copied:
            for tensor, handle in zip(operation.inputs, inputs, strict=True):
                if tensor.dtype == tf.resource:
                    copy = self.writer.share(handle, after=copy)
        read = {self._variable_of[each] for each in inputs if each in self._variable_of}
        for handle in read:
            self._readers.setdefault(handle, []).append(copy)
        if reads_variable(operation) or (read and role_of(operation) is Role.VIEW):
            self._variable_of[f"{copy}:0"] = next(iter(read), None) or handles[0]
        return copy

    def prepare(self, tensor: tf.Tensor) -> None:
        """Writes the ops that run once and that a tensor depends on."""
        tensor = source_of(tensor)
        operation, role = tensor.op, role_of(tensor.op)
        if tensor.ref() in self.given or operation in self.planned:
            return
        if role is Role.VIEW:
            for each in operation.inputs:
                self.prepare(each)
        elif role is not Role.SHAPE or static_shape(operation, tensor.value_index) is None:
            self.made(operation)

    def depends_on(self, tensor: tf.Tensor, operations: Sequence[tf.Operation]) -> bool:
        """Whether a tensor, or an op before it that runs once, follows one of these planned ops."""
        before, seen = [source_of(tensor).op] if operations else [], set[tf.Operation]()
        while before:
            operation = before.pop()
            if operation in operations:
                return True
            if operation not in seen and self.runs_once(operation) and not self._exists(operation):
                before += (source_of(each).op for each in operation.inputs)
                before += operation.control_inputs
            seen.add(operation)
        return False

    def made(self, operation: tf.Operation) -> str:
        """The name of the copy of an op that runs once, written now if need be; for a planned op,
        of its latest evaluation."""
        pending = [operation]
        while pending:  # an own stack: a chain of small ops may be longer than Python's
            top = pending[-1]
            missing = [] if self._exists(top) else self._missing(top)
            if missing:
                pending.extend(missing)
                continue
            pending.pop()
            if not self._exists(top):
                self._write_once(top)
        return self._once.get(operation) or self.current[operation]

    def control_predecessors(self, operation: tf.Operation) -> list[str]:
        """The names of the ops that an op waits for in the traced step. TensorFlow's gradients have
        constants wait, which need not."""
        if is_constant(operation):
            return []
        return [
            self.made(before)
            for before in operation.control_inputs
            if self.runs_once(before) or before in self.planned
        ]

    def done(self, name: str) -> str:
        """The name of the op to wait for in order to wait for an evaluation.

        A control edge from an op keeps TensorFlow from running it within a product's kernel, so for
        such an op the edge comes from another op that reads it.
        """
        if name not in self.fusible:
            return name
        if name not in self._markers:
            marker = self.writer.wait([], f"{name}:0", self.fusible[name])
            self._markers[name] = marker.partition(":")[0]
        return self._markers[name]

    def pending_readers(self, write: tf.Operation) -> list[tf.Operation]:
        """The small ops, not written yet, that read the content of a variable which an op
        overwrites, and whose inputs are in memory."""
        return [each for each in self._readers_before(write) if self._is_ready(each, write)]

    def runs_once(self, operation: tf.Operation) -> bool:
        return (
            operation not in self.planned
            and role_of(operation) is not Role.ALIAS
            and rule_of(operation.type).source not in (Source.NOTHING, Source.ARGUMENT)
        )

    def _read_by_planned(self) -> set[Any]:
        """The handles of the variables whose content a planned op reads or changes."""
        inputs = [source_of(tensor) for o in self.planned for tensor in o.inputs]
        for tensor in inputs:  # grows meanwhile
            if role_of(tensor.op) is Role.VIEW or reads_variable(tensor.op):
                inputs += map(source_of, tensor.op.inputs)
        return {tensor.ref() for tensor in inputs if tensor.dtype == tf.resource}

    def _has_effects(self, operation: tf.Operation, read: set[Any]) -> bool:
        """True for an op that changes more than variables whose content no planned op, nor one
        after it, reads."""
        handles = {source_of(t).ref() for t in operation.inputs if t.dtype == tf.resource}
        only_writes = handles and not operation.outputs and handles.isdisjoint(read)
        return is_stateful(operation) and not (only_writes and self._is_last(operation))

    def _is_last(self, write: tf.Operation) -> bool:
        """True if all that read the content that a small op overwrites is written, or could be."""
        return all(
            each is write or self._exists(each) or self._is_ready(each, write)
            for each in self._readers_before(write)
        )

    def _readers_before(self, write: tf.Operation) -> list[tf.Operation]:
        """The ops that run and read the content of a variable which an op overwrites."""
        read = [each.outputs[0] for each in write.control_inputs if reads_variable(each)]
        found: list[tf.Operation] = []
        for tensor in read:  # grows meanwhile
            for reader in tensor.consumers():
                if role_of(reader) is Role.ALIAS:
                    read += reader.outputs
                elif reader in self._running:
                    found.append(reader)
        return list(dict.fromkeys(found))

    def _exists(self, operation: tf.Operation) -> bool:
        return operation in self._once or operation in self.current

    def _missing(self, operation: tf.Operation) -> list[tf.Operation]:
        inputs = [source_of(tensor) for tensor in operation.inputs]
        before = [tensor.op for tensor in inputs if tensor.ref() not in self.given]
        waits_for = (each for each in (*before, *operation.control_inputs) if self.runs_once(each))
        return [each for each in waits_for if not self._exists(each)]

    def _write_once(self, operation: tf.Operation) -> None:
        inputs = [self.tensor(source_of(tensor)) for tensor in operation.inputs]
        after = self.control_predecessors(operation)
        if role_of(operation) is Role.KERNEL:
            after += map(self.done, self.last)
            self._once[operation] = self.copy(operation, inputs, after)
            self.last = [self._once[operation]]
        else:
            self._once[operation] = self.copy(operation, inputs, after)

    def _is_ready(self, operation: tf.Operation, write: tf.Operation) -> bool:
        """True for a small op that is not written yet, if all planned values that it depends on are
        in memory and it does not depend on a write."""
        if not self.runs_once(operation) or self._exists(operation):
            return False
        pending, seen = [operation], {operation}
        while pending:
            top = pending.pop()
            never_made = top in self.planned and top not in self.current
            if top is write or top in self.gone or never_made:
                return False
            known = top in self.planned or self._exists(top) or is_constant(top)
            if not known and not is_argument(top):
                before = {*(source_of(tensor).op for tensor in top.inputs), *top.control_inputs}
                pending += before - seen
                seen |= before
        return True

    def _fits_variable(self, assignment: tf.Operation) -> bool:
        """True if the variable has memory of the assigned value's size, and TensorFlow has a kernel
        that writes there."""
        handle = self._captured.get(source_of(assignment.inputs[0]).ref())
        value = assignment.inputs[1]
        if handle is None or not can_be_filled(value):
            return False
        with tf.init_scope():  # now, and not when the step runs
            if not tf.executing_eagerly() or not tf.raw_ops.VarIsInitializedOp(resource=handle):
                return False
            return tf.raw_ops.VariableShape(input=handle).numpy().tolist() == value.shape.as_list()
