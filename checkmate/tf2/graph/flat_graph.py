"""FlatGraph: which ops of a traced function decide about memory, what they read, and which of them
may be recomputed.

Three kinds of ops are not planned; the executor makes them where they are needed:

* views, aliases and shapes, which own no memory;
* sources: arguments, constants and reads of variables, which are resident anyway;
* small ops, whose inputs and outputs are so small that keeping all of them takes at most
  `SMALL_SHARE` of the step's bytes (statistics of BatchNormalization, scalars of the optimizer).
  They run once and count as resident.

The small outputs of a planned op that also has a large one count as resident, too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import compress
from typing import Any

import tensorflow as tf

from checkmate.core.allocator import rounded_up
from checkmate.tf2.graph import bodies
from checkmate.tf2.graph.graph_writer import argument_tensors, inputs_first, reachable
from checkmate.tf2.graph.operations import (
    can_be_filled,
    has_bodies,
    is_argument,
    is_constant,
    is_known,
    may_repeat,
    role_of,
    source_of,
    static_shape,
    ties_recomputation,
)
from checkmate.tf2.graph.sizes import OpSizes, known_bytes, tensor_bytes
from checkmate.tf2.graph.variables import variables_of
from checkmate.tf2.ops.rule import Role
from checkmate.tf2.ops.table import rule_of

# Of several equal ops the optimizer keeps one, which may be the last: a constant of the forward
# pass is then one of the update, by its name and by its place. What reads it must not wait for the
# ops that the trace has before that place: an update of a variable would come before the ops that
# read the variable's old content, and TensorFlow would copy the variable for them.


def in_order_of_trace(
    operations: Sequence[tf.Operation], place: Mapping[str, int]
) -> list[tf.Operation]:
    """Ops in the order of the trace, inputs first. An op comes no later than the first of its
    readers would; one without a `place` in the trace, as soon as its inputs are there."""
    number = {operation: k for k, operation in enumerate(operations)}
    before = [
        {number[each] for each in (*(t.op for t in operation.inputs), *operation.control_inputs)}
        for operation in operations
    ]
    # The first place of each op and of all that depends on it.
    wanted = [place.get(operation.name, len(place)) for operation in operations]
    for k in reversed(range(len(operations))):
        for each in before[k]:
            wanted[each] = min(wanted[each], wanted[k])
    order = inputs_first(before, lambda k, at: min(place.get(operations[k].name, at), wanted[k]))
    return [operations[k] for k in order]


def in_backward_scope(operation: tf.Operation) -> bool:
    return "gradient_tape/" in operation.name or operation.name.startswith("gradients/")


def follows_gradients(operation: tf.Operation, backward: set[tf.Operation]) -> bool:
    """True for an op that computes a gradient or depends on one. Lists do not count: a loop of the
    forward pass reads the lists that its gradient will read."""
    if in_backward_scope(operation) or not backward.isdisjoint(operation.control_inputs):
        return True
    read = (tensor for tensor in operation.inputs if tensor.dtype != tf.variant)
    return any(source_of(tensor).op in backward for tensor in read)


OF_GRADIENTS = ("TensorListPushBack", "TensorListPopBack", "OptionalFromValue")
"""Ops by which a loop or a condition leaves values to its gradient, and takes them."""


def trains(body: Any) -> bool:
    """Whether gradients are taken in a function, and none through it."""
    operations = body.get_operations()
    if any(operation.type in OF_GRADIENTS for operation in operations):
        return False
    return any(map(in_backward_scope, operations)) or any(
        trains(each) for o in operations for each in bodies.called(o) if each is not None
    )


def forward_names(concrete: Any) -> set[str]:
    backward: set[tf.Operation] = set()
    for operation in reachable(concrete.graph):
        if follows_gradients(operation, backward):
            backward.add(operation)
    return {o.name for o in concrete.graph.get_operations() if o not in backward}


def read_by_gradients(operations: list[tf.Operation]) -> set[tf.Operation]:
    """Returns the ops, given inputs first, that later gradients are computed from: values of any
    forward pass, and gradients of which gradients of higher order are computed."""
    highest: dict[tf.Operation, int] = {}  # the highest order of the gradients that read an op
    found = set()
    for operation in reversed(operations):
        order = _order(operation)
        above = highest.get(operation, 0)
        if above > order:
            found.add(operation)
        for tensor in operation.inputs:
            before = tensor.op
            highest[before] = max(highest.get(before, 0), order, above)
    return found


def has_second_order(operations: list[tf.Operation]) -> bool:
    return any(_order(operation) > 1 for operation in operations)


def _order(operation: tf.Operation) -> int:
    """The order of a gradient by its name: 1 for one of a loss, 2 for one of such; else 0."""
    return max(operation.name.count("gradient_tape/"), int(in_backward_scope(operation)))


def with_inputs(operations: list[tf.Operation], names: Collection[str]) -> set[tf.Operation]:
    """The ops of these names and all that they are computed from, inputs first."""
    found: set[tf.Operation] = set()
    for operation in reversed(operations):
        if operation.name in names or operation in found:
            found.add(operation)
            found.update(tensor.op for tensor in operation.inputs if tensor.dtype != tf.variant)
    return found


EARLY_SHARE = 0.05
"""Results that together take at most this share of the planned ops' bytes get their memory when the
step begins."""

OpSets = dict[tf.Operation, set[tf.Operation]]


class FlatGraph:
    """The ops of a traced function that run, sorted into planned kernels and the rest.

    Args:
      concrete: The function, simplified.
      traced: The function as it was traced, which has the variables, and the bodies of loops with
        the inferred shapes.
      order: Names of ops, in the order of the trace.
      forward: Names of ops of the forward pass. TensorFlow's optimizer may merge two equal ops
        into one with the name and the place of the last: both are told as they were before.
      planned_names: Names of the ops to plan, or None for those that decide about memory.

    Attributes:
      operations: All ops that run, inputs first; `position` is their index.
      data_deps: The planned ops whose memory each reads, directly or through views and small ops.
      order_deps: The same, through control edges, too.
      overwritten: For each planned op that writes to a variable, the planned ops that read its old
        content.
      read_once: Planned ops whose value is read by the caller or by an op that runs once.
      maybe_recomputable: `recomputable` and others, where that may lower what plans need; else
        None.
      early: For each output, whether its memory is allocated when the step begins.
    """

    def __init__(
        self,
        concrete: Any,
        traced: Any,
        order: Sequence[str],
        forward: Collection[str],
        planned_names: set[str] | None = None,
    ):
        self.concrete, self.traced_graph = concrete, traced.graph
        self.variables = variables_of(traced)
        self._planned_names = planned_names
        place = {name: k for k, name in enumerate(order)}
        self.operations = in_order_of_trace(reachable(concrete.graph), place)
        self.position = {operation: k for k, operation in enumerate(self.operations)}
        self.forward = with_inputs(self.operations, forward)
        self._sizes = OpSizes(self.operations, traced.graph)
        self.small_bytes = self._sizes.small_bytes
        self._reading = _reading_bodies(self.operations, traced.graph)
        # A loop reads variables in each iteration. Small writes to these variables are planned,
        # too, since they could run at any time otherwise.
        self._read_by_bodies = {handle for o in self._reading for handle in _handles(o)}
        self.planned: list[tf.Operation] = []
        # For each op the planned ops that its value is computed from; the same with control edges.
        self._made_of: OpSets = {}
        self._comes_after: OpSets = {}
        self.data_deps: OpSets = {}
        self.order_deps: OpSets = {}
        self.backward: set[tf.Operation] = set()
        for operation in self.operations:
            self._classify(operation)
        self._small_outputs = {o: self._sizes.small_outputs(o) for o in self.planned}
        self._find_overwrites()
        self._find_readers()
        self.early = self._early_results()

    def bytes_of(self, operation: tf.Operation) -> int:
        """Bytes of all outputs of an op, without those that are small next to a larger one."""
        return self._sizes.total[operation] - self._small_outputs.get(operation, 0)

    def estimates(self) -> dict[str, tuple[int, ...]]:
        return {o.name: self._sizes.of_outputs(o) for o in self._sizes.estimated}

    def planned_sources(self, tensor: tf.Tensor) -> set[tf.Operation]:
        """The planned ops whose values must be in memory to have this tensor."""
        return self._made_of[source_of(tensor).op]

    def only_reads(self, operation: tf.Operation) -> bool:
        return rule_of(operation.type).only_reads or operation in self._reading

    def may_repeat(self, operation: tf.Operation) -> bool:
        return may_repeat(operation) or operation in self._reading

    def fixed_bytes(self) -> int:
        """Bytes that are resident during the whole step. Two steps' results count: a training loop
        still holds those of the step before, and the early ones of this step are allocated."""
        outputs = self.concrete.outputs
        total = known_bytes([*outputs, *compress(outputs, self.early)])
        seen: set[int] = set()
        for variable in self.variables:
            seen.add(id(variable.handle))
            total += rounded_up(variable.shape.num_elements() * variable.dtype.size)
        for value in self.concrete.captured_inputs:
            if id(value) not in seen and value.dtype != tf.resource:
                total += tensor_bytes(value) or 0
            seen.add(id(value))
        total += known_bytes(argument_tensors(self.concrete))
        constants = sum(self._sizes.total[o] for o in self.operations if is_constant(o))
        return total + constants + self.small_values_bytes()

    def small_values_bytes(self) -> int:
        once = set(self.operations) - set(self.planned)
        small = (o for o in once if role_of(o) is Role.KERNEL)
        return sum(self._sizes.total[o] for o in small) + sum(self._small_outputs.values())

    def notes(self) -> tuple[str, ...]:
        notes = []
        unknown = sorted({o.type for o in self.planned if not is_known(o)})
        if unknown:
            notes.append(
                "Ops of types that TensorFlow does not ship are kept and never recomputed:"
                f" {', '.join(unknown)}."
            )
        planned_estimates = (o for o in self._sizes.estimated if o in self.data_deps)
        total = self._sizes.total
        guessed = sorted({o.type for o in planned_estimates if total[o] > self.small_bytes})
        if guessed:
            notes.append(
                "The size of some outputs is not known before the step runs and is estimated from"
                f" their inputs: {', '.join(guessed)}."
            )
        own = sum(map(ties_recomputation, self.operations))
        if own:
            notes.append(
                f"The step computes {own} {'part' if own == 1 else 'parts'} again by itself"
                " (tf.recompute_grad, which Keras's RematScope uses). That is kept; without it the"
                " plan has more to choose from."
            )
        return tuple(notes)

    def _early_results(self) -> tuple[bool, ...]:
        """The smallest results, up to `EARLY_SHARE`, of which the memory can be allocated early."""
        outputs = self.concrete.outputs
        left = EARLY_SHARE * sum(self._sizes.total[operation] for operation in self.planned)
        early = [False] * len(outputs)
        for k in sorted(range(len(early)), key=lambda k: tensor_bytes(outputs[k]) or 0):
            left -= tensor_bytes(outputs[k]) or 0
            own = not is_argument(source_of(outputs[k]).op)
            early[k] = left >= 0 and own and can_be_filled(outputs[k])
        return tuple(early)

    def _find_readers(self) -> None:
        planned = set(self.planned)
        self.readers: OpSets = {operation: set() for operation in self.planned}
        self.read_once = {o for each in self.concrete.outputs for o in self.planned_sources(each)}
        for operation in self.operations:
            if operation in planned:
                for before in self.data_deps[operation]:
                    self.readers[before].add(operation)
            elif role_of(operation) is Role.KERNEL:
                self.read_once |= self._made_of[operation]

    def _classify(self, operation: tf.Operation) -> None:
        role = role_of(operation)
        outputs = range(len(operation.outputs))
        if role is Role.SHAPE and any(static_shape(operation, k) is None for k in outputs):
            role = Role.KERNEL
        read = [source_of(tensor).op for tensor in operation.inputs]
        made_of = set().union(*(self._made_of[o] for o in read if role is not Role.SHAPE))
        after = set().union(*(self._comes_after[o] for o in (*read, *operation.control_inputs)))
        if operation not in self.forward and follows_gradients(operation, self.backward):
            self.backward.add(operation)
        if role is Role.KERNEL and self._decides(operation, made_of):
            self.planned.append(operation)
            self.data_deps[operation], self.order_deps[operation] = made_of, after
            made_of = after = {operation}
        self._made_of[operation], self._comes_after[operation] = made_of, after

    def _decides(self, operation: tf.Operation, made_of: set[tf.Operation]) -> bool:
        if self._planned_names is not None:
            return operation.name in self._planned_names
        if not all(map(self._sizes.is_small, (operation, *made_of))):
            return True
        inner = bodies.bodies_of(self.traced_graph, operation)
        if any(body is not None and trains(body) for body in inner):
            return True
        writes = not self.only_reads(operation)
        return writes and not self._read_by_bodies.isdisjoint(_handles(operation))

    def _find_overwrites(self) -> None:
        readers: dict[int, set[tf.Operation]] = {}  # handle -> planned ops that read it so far
        read_through: dict[tf.Operation, set[int]] = {}  # op -> handles that its value shows
        direct_reads: dict[tf.Operation, set[int]] = {}
        small_writes: set[int] = set()
        self.overwritten: OpSets = {}
        planned = set(self.planned)
        for operation in self.operations:
            handles = _handles(operation)
            shown = set().union(*(read_through.get(t.op, ()) for t in operation.inputs))
            if self.only_reads(operation):
                shown |= handles
                direct_reads[operation] = handles
            elif operation in planned:
                old = set().union(*(readers.get(handle, ()) for handle in handles)) - {operation}
                if old:
                    self.overwritten[operation] = old
            else:
                small_writes |= handles
            if operation in planned:
                for handle in shown:
                    readers.setdefault(handle, set()).add(operation)
            # A small kernel runs once. Once it has run, nothing reads the variable through it.
            elif role_of(operation) is not Role.KERNEL:
                read_through[operation] = shown
        # A gradient that no gradient of higher order reads, and an update, are read right after
        # they are made. A chain of them would move every update to the end of the step.
        # What a step computes again by itself (`tf.recompute_grad`) is kept.
        own = any(map(ties_recomputation, self.operations))
        read_later = set() if own else read_by_gradients(self.operations)
        repeats = (o for o in self.planned if self.may_repeat(o))
        pure = {o for o in repeats if small_writes.isdisjoint(direct_reads.get(o, ()))}
        self.recomputable = {o for o in pure if o not in self.backward or o in read_later}
        # A gradient of a gradient adds up what both passes left, which was made long before.
        self.maybe_recomputable = pure if has_second_order(self.operations) and not own else None


def _reading_bodies(operations: list[tf.Operation], graph: tf.Graph) -> set[tf.Operation]:
    """The loops and conditions that only read variables, and whose outputs no op takes as the
    handle of a variable that it may change."""
    changing = (o for o in operations if not rule_of(o.type).only_reads)
    passed_on = {
        source_of(tensor).op for o in changing for tensor in o.inputs if tensor.dtype == tf.resource
    }
    found = (o for o in operations if has_bodies(o) and o not in passed_on)
    return {o for o in found if bodies.only_reads(graph, o)}


def _handles(operation: tf.Operation) -> set[int]:
    resources = (tensor for tensor in operation.inputs if tensor.dtype == tf.resource)
    return {id(source_of(tensor).op) for tensor in resources}
