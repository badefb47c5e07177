"""FlatGraph: which ops of a traced function decide about memory, what they read, and what may be
recomputed.

Three kinds of ops are not planned; the executor makes them where they are needed:

* views, aliases and shapes, which own no memory;
* sources: arguments, constants and reads of variables, which are resident anyway;
* small ops, whose inputs and outputs are so small that keeping all of them costs less than
  `SMALL_SHARE` of the step's bytes (BatchNormalization's statistics, scalars of the optimizer).
  They run once and are counted as resident.

What a planned op makes beside a larger value is counted as resident, too, where it is as small, or
no more than `BESIDE` of that value.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from checkmate.tf2 import ops as op_rules
from checkmate.tf2.execution.graph_writer import reachable
from checkmate.tf2.graph import bodies
from checkmate.tf2.graph import loop_sizes as loops
from checkmate.tf2.graph.bodies import CONDITIONS, LOOPS
from checkmate.tf2.ops import Role

SMALL_SHARE = 0.001
"""Tensors that together make up at most this share of all bytes of a step count as small."""

BESIDE = 0.01
"""Share of a value's bytes that others which its op makes may take to be counted as resident: such
as the loss beside the gradient of logits."""

EARLY_SHARE = 0.05
"""Results that together take at most this share of the planned ops' bytes get their memory when the
step begins."""

ALLOCATION_GRANULE = 256
"""TensorFlow's allocators hand out multiples of this many bytes."""


def tensor_bytes(tensor: tf.Tensor) -> int | None:
    """Returns the bytes the allocator hands out for a tensor, or None where shape or dtype do not
    tell."""
    count = tensor.shape.num_elements()
    if tensor.dtype in (tf.resource, tf.string):
        return 0
    if count is None or tensor.dtype == tf.variant:
        return None
    return rounded_up(count * tensor.dtype.size)


class FlatGraph:
    """The ops of a traced function that are really run, sorted into planned kernels and the rest.

    Args:
      concrete: The function, simplified.
      traced: The function as it was traced, which has the variables, and the bodies of loops with
        their shapes.
      planned_names: Names of the ops to plan, or None for those that decide about memory.
      forward_names: Names that ops of the forward pass had in the trace (see `forward_names`).
        TensorFlow's optimizer makes one op of two equal ones and may call it as that of the
        backward pass.

    Attributes:
      operations: All ops that run, inputs first.
      position: Their place in `operations`.
      planned: The kernels that decide about memory, in the same order.
      data_deps: For each planned op, the planned ops whose memory it reads, directly or through
        views and small ops.
      order_deps: The same through control edges, too.
      overwritten: For each planned op that writes to a variable, the planned ops that read its old
        content.
      readers: For each planned op, the planned ops that read it.
      read_once: Planned ops whose value the caller or an op that runs once reads.
      backward: Ops of the backward pass and of the optimizer's update.
      recomputable: Planned ops that may run again.
      small_bytes: The size up to which a tensor is small.
      early: For each output whether its memory is there from the beginning of the step; see
        `execute`.
    """

    def __init__(
        self, concrete: Any, traced: Any, planned_names: set[str] | None, forward_names: set[str]
    ):
        self.concrete = concrete
        self.variables = traced.variables
        self._planned_names = planned_names
        self.operations = reachable(concrete.graph)
        self.position = {operation: k for k, operation in enumerate(self.operations)}
        self._forward = _with_inputs(self.operations, forward_names)
        self.estimated: list[tf.Operation] = []
        self._estimates: dict[Any, int] = {}
        self._kept = loops.Kept(
            traced.graph, lambda tensor: self._estimates.get(tensor.ref(), tensor_bytes(tensor))
        )
        others = (o for o in self.operations if o.type not in op_rules.PURE_READS)
        handed_on = {
            op_rules.source(tensor).op
            for o in others
            for tensor in o.inputs
            if tensor.dtype == tf.resource
        }
        self._reading = {
            o
            for o in self.operations
            if o.type in LOOPS | CONDITIONS
            and o not in handed_on
            and bodies.only_reads(traced.graph, o)
        }
        # A loop looks at variables each time that it runs. Small writes to these are planned, too:
        # they run at any time otherwise.
        self._looked_at = {
            _handle(tensor)
            for o in self._reading
            for tensor in o.inputs
            if tensor.dtype == tf.resource
        }
        self._bytes: dict[tf.Operation, int] = {}
        for operation in self.operations:
            self._bytes[operation] = self._sized(operation)
        kernels = [
            operation for operation in self.operations if op_rules.role(operation) is Role.KERNEL
        ]
        self.small_bytes = _small_threshold(
            [size for operation in kernels for size in self._sizes(operation)]
        )
        self.planned: list[tf.Operation] = []
        self._behind: dict[
            tf.Operation, set[tf.Operation]
        ] = {}  # op -> the planned ops its value is made of
        self._behind_in_order: dict[
            tf.Operation, set[tf.Operation]
        ] = {}  # the same, through control edges too
        self.data_deps: dict[tf.Operation, set[tf.Operation]] = {}
        self.order_deps: dict[tf.Operation, set[tf.Operation]] = {}
        self.backward: set[tf.Operation] = set()
        for operation in self.operations:
            self._classify(operation)
        self._beside = {operation: self._small_outputs(operation) for operation in self.planned}
        self._find_overwrites()
        self._find_readers()
        self.early = self._early_results()

    def bytes_of(self, operation: tf.Operation) -> int:
        """Bytes of all its outputs, but for those that are small beside a larger one."""
        return self._bytes[operation] - self._beside.get(operation, 0)

    def planned_behind(self, tensor: tf.Tensor) -> set[tf.Operation]:
        """The planned ops that must be in memory to have this tensor."""
        return self._behind[op_rules.source(tensor).op]

    def only_reads(self, operation: tf.Operation) -> bool:
        """True for an op that takes variables and changes none of them."""
        return operation.type in op_rules.PURE_READS or operation in self._reading

    def may_repeat(self, operation: tf.Operation) -> bool:
        """True when running it again on the same inputs gives the same outputs and nothing else
        happens."""
        return op_rules.may_repeat(operation) or operation in self._reading

    def fixed_bytes(self) -> int:
        """What is resident all the time.

        Arguments, captured variables and tensors, constants, everything small that is kept, and the
        results of the step before, which a training loop still holds while this step runs; and
        those of this step that have their memory from the beginning.
        """
        total = sum(
            (tensor_bytes(tensor) or 0) * (1 + early)
            for tensor, early in zip(self.concrete.outputs, self.early, strict=True)
        )
        seen: set[int] = set()
        for variable in self.variables:
            seen.add(id(variable.handle))
            total += rounded_up(variable.shape.num_elements() * variable.dtype.size)
        for value in self.concrete.captured_inputs:
            if id(value) not in seen and value.dtype != tf.resource:
                total += tensor_bytes(value) or 0
            seen.add(id(value))
        arguments = self.concrete.inputs[
            : len(self.concrete.inputs) - len(self.concrete.captured_inputs)
        ]
        total += sum(tensor_bytes(tensor) or 0 for tensor in arguments)
        constants = sum(
            self._bytes[operation] for operation in self.operations if operation.type == "Const"
        )
        return total + constants + self.small_values_bytes()

    def small_values_bytes(self) -> int:
        """What of `fixed_bytes` is for small values: counted as resident, though they need not all
        be in memory at once."""
        once = set(self.operations) - set(self.planned)
        small = (o for o in once if o.type != "Const" and op_rules.role(o) is Role.KERNEL)
        return sum(map(self._bytes.__getitem__, small)) + sum(self._beside.values())

    def _early_results(self) -> tuple[bool, ...]:
        """The smallest results whose memory can be there before they are computed, up to
        `EARLY_SHARE`."""
        left = EARLY_SHARE * sum(self._bytes[operation] for operation in self.planned)
        early = [False] * len(self.concrete.outputs)
        for k in sorted(
            range(len(early)), key=lambda k: tensor_bytes(self.concrete.outputs[k]) or 0
        ):
            tensor = self.concrete.outputs[k]
            left -= tensor_bytes(tensor) or 0
            early[k] = (
                left >= 0
                and op_rules.can_be_filled(tensor)
                and op_rules.source(tensor).op.type != "Placeholder"
            )
        return tuple(early)

    def _find_readers(self) -> None:
        """Who reads each planned op: planned ops, or (`_read_once`) the caller and ops that run
        once."""
        planned = set(self.planned)
        self.readers: dict[tf.Operation, set[tf.Operation]] = {
            operation: set() for operation in self.planned
        }
        self.read_once = {
            o for tensor in self.concrete.outputs for o in self.planned_behind(tensor)
        }
        for operation in self.operations:
            if operation in planned:
                for before in self.data_deps[operation]:
                    self.readers[before].add(operation)
            elif op_rules.role(operation) is Role.KERNEL:
                self.read_once |= self._behind[operation]

    def notes(self) -> tuple[str, ...]:
        """What the report says about ops that could not be treated as usual."""
        notes = []
        unknown = sorted({o.type for o in self.planned if not op_rules.is_known(o)})
        if unknown:
            notes.append(
                "Ops of types that TensorFlow does not ship are kept and never recomputed:"
                f" {', '.join(unknown)}."
            )
        guessed = sorted(
            {
                o.type
                for o in self.estimated
                if o in self.data_deps and self._bytes[o] > self.small_bytes
            }
        )
        if guessed:
            notes.append(
                "The size of some outputs is not known before the step runs and is estimated from"
                f" their inputs: {', '.join(guessed)}."
            )
        own = sum(map(op_rules.ties_recomputation, self.operations))
        if own:
            notes.append(
                f"The step computes {own} {'part' if own == 1 else 'parts'} again by itself"
                " (tf.recompute_grad, which Keras's RematScope uses). That is kept; without it the"
                " plan has more to choose from."
            )
        return tuple(notes)

    def _sized(self, operation: tf.Operation) -> int:
        """Bytes of all outputs; what shapes do not tell is estimated, for each output on its
        own."""
        total = 0
        for k, tensor in enumerate(operation.outputs):
            if operation.type in LOOPS and not tensor.consumers():
                # Goes through the loop for the next iteration's sake, and is gone with the last.
                continue
            if (size := tensor_bytes(tensor)) is None:
                size = self._estimates[tensor.ref()] = self._estimated(operation, k)
                self.estimated.append(operation)
            total += size
        return total

    def _sizes(self, operation: tf.Operation) -> list[int]:
        """Bytes of each of an op's outputs; what a loop or condition makes counts as one."""
        if operation.type in LOOPS | CONDITIONS:
            return [self._bytes[operation]]
        return [self._size_of(tensor) for tensor in operation.outputs]

    def _small_outputs(self, operation: tf.Operation) -> int:
        """Bytes of the small outputs of an op that has a larger one, too."""
        sizes = self._sizes(operation)
        largest = max(sizes, default=0)
        small = max(self.small_bytes, BESIDE * largest)
        return sum(size for size in sizes if size <= small) if largest > self.small_bytes else 0

    def _estimated(self, operation: tf.Operation, output: int) -> int:
        """Bytes of an output whose shape is not known before the step runs."""
        if operation.type in loops.EMPTY_LISTS:
            return 0
        if operation.type in op_rules.SHAPES_OF_ANY:
            return ALLOCATION_GRANULE
        if (
            operation.type in op_rules.MASKS
            and (numbers := operation.inputs[0].shape.num_elements()) is not None
        ):
            return rounded_up(numbers // 2)
        if (
            operation.type in LOOPS | CONDITIONS
            and (size := self._kept.bytes_of(operation, output)) is not None
        ):
            return size
        if operation.type == "Fill" and op_rules.source(operation.inputs[0]).op.type == "Shape":
            return self._size_of(op_rules.source(operation.inputs[0]).op.inputs[0])
        sizes = [self._size_of(tensor) for tensor in operation.inputs]
        return max(sizes) if operation.type in op_rules.IN_PLACE else sum(sizes)

    def _size_of(self, tensor: tf.Tensor) -> int:
        """Bytes of a tensor made before, estimated where its shape is not known."""
        size = tensor_bytes(tensor)
        return self._estimates.get(tensor.ref(), 0) if size is None else size

    def _classify(self, operation: tf.Operation) -> None:
        role = op_rules.role(operation)
        if role is Role.SHAPE and any(
            op_rules.static_shape(operation, k) is None for k in range(len(operation.outputs))
        ):
            role = Role.KERNEL
        read = [op_rules.source(tensor).op for tensor in operation.inputs]
        behind = set().union(*(self._behind[before] for before in read if role is not Role.SHAPE))
        in_order = set().union(
            *(self._behind_in_order[before] for before in (*read, *operation.control_inputs))
        )
        if operation not in self._forward and _follows_gradients(operation, self.backward):
            self.backward.add(operation)
        if role is Role.KERNEL and self._decides(operation, behind):
            self.planned.append(operation)
            self.data_deps[operation], self.order_deps[operation] = behind, in_order
            self._behind[operation] = self._behind_in_order[operation] = {operation}
        else:
            self._behind[operation], self._behind_in_order[operation] = behind, in_order

    def _decides(self, operation: tf.Operation, behind: set[tf.Operation]) -> bool:
        """True for a kernel that decides about memory, given the planned ops that its value is made
        of."""
        if self._planned_names is not None:
            return operation.name in self._planned_names
        if self._bytes[operation] > self.small_bytes or any(
            self._bytes[o] > self.small_bytes for o in behind
        ):
            return True
        handles = (_handle(tensor) for tensor in operation.inputs if tensor.dtype == tf.resource)
        return not self.only_reads(operation) and not self._looked_at.isdisjoint(handles)

    def _find_overwrites(self) -> None:
        """Which planned ops write to a variable that other planned ops read, and what may therefore
        be recomputed."""
        readers: dict[
            int, set[tf.Operation]
        ] = {}  # variable handle -> planned ops that read its content so far
        self.overwritten: dict[tf.Operation, set[tf.Operation]] = {}
        read_by: dict[
            tf.Operation, set[int]
        ] = {}  # op -> handles whose content its value is read from directly
        small_writes: set[int] = set()
        direct_reads: dict[tf.Operation, set[int]] = {}
        planned = set(self.planned)
        for operation in self.operations:
            handles = {
                _handle(tensor) for tensor in operation.inputs if tensor.dtype == tf.resource
            }
            through = set()
            for tensor in operation.inputs:
                through |= read_by.get(tensor.op, set())
            if self.only_reads(operation):
                through |= handles
                direct_reads[operation] = handles
            elif operation in planned:
                overwritten = set().union(*(readers.get(handle, set()) for handle in handles)) - {
                    operation
                }
                if overwritten:
                    self.overwritten[operation] = overwritten
            else:
                small_writes |= handles
            if operation in planned:
                for handle in through:
                    readers.setdefault(handle, set()).add(operation)
            # A small op that runs once is done with the variable when it has run.
            elif op_rules.role(operation) is not Role.KERNEL:
                read_by[operation] = through
        # Only forward ops: a chain of recomputed gradients would tie every update of a variable to
        # the end of the step.
        self.recomputable = {
            o
            for o in self.planned
            if self.may_repeat(o)
            and o not in self.backward
            and small_writes.isdisjoint(direct_reads.get(o, ()))
        }


def _small_threshold(sizes: list[int]) -> int:
    """The largest size such that all tensors up to it together are at most SMALL_SHARE of all
    bytes."""
    allowed = SMALL_SHARE * sum(sizes)
    threshold = total = 0
    for size in sorted(sizes):
        total += size
        if total > allowed:
            break
        threshold = size
    # Of equally large tensors either all are small or none is.
    return (
        threshold
        if sum(size for size in sizes if size <= threshold) <= allowed
        else max((s for s in sizes if s < threshold), default=0)
    )


def forward_names(concrete: Any) -> set[str]:
    """Returns the names of the ops of a traced function that are no gradients and are not made of
    any."""
    backward: set[tf.Operation] = set()
    for operation in reachable(concrete.graph):
        if _follows_gradients(operation, backward):
            backward.add(operation)
    return {
        operation.name for operation in concrete.graph.get_operations() if operation not in backward
    }


def _follows_gradients(operation: tf.Operation, backward: set[tf.Operation]) -> bool:
    """True for an op of the backward pass, given those before it, and for what is made of such
    ops."""
    if in_backward_scope(operation) or not backward.isdisjoint(operation.control_inputs):
        return True
    # Not through lists: a loop of the forward pass is given those that its gradient will read, when
    # that is taken.
    return any(
        op_rules.source(tensor).op in backward
        for tensor in operation.inputs
        if tensor.dtype != tf.variant
    )


def _with_inputs(operations: list[tf.Operation], names: set[str]) -> set[tf.Operation]:
    """The ops of these names, and all that they are made of."""
    found: set[tf.Operation] = set()
    for operation in reversed(operations):
        if operation.name in names or operation in found:
            found.add(operation)
            found.update(tensor.op for tensor in operation.inputs if tensor.dtype != tf.variant)
    return found


def in_backward_scope(operation: tf.Operation) -> bool:
    """True when its name says that it computes a gradient."""
    return "gradient_tape/" in operation.name or operation.name.startswith("gradients/")


def _handle(tensor: tf.Tensor) -> int:
    """Identifies the variable behind a resource tensor: the argument of the graph that carries it
    in."""
    return id(op_rules.source(tensor).op)


def rounded_up(count: int) -> int:
    """Returns the bytes that the allocator hands out for a request of `count`."""
    return -(-count // ALLOCATION_GRANULE) * ALLOCATION_GRANULE
