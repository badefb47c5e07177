"""trace(): any training step -> a flat TensorFlow graph, and the DFGraph that stands for it.

Three kinds of ops of the flat graph do not become ops of the DFGraph; the executor makes them where they are needed:

* views, aliases and shapes, which own no memory;
* sources: arguments, constants and reads of variables, which are resident anyway;
* small ops, whose inputs and outputs are so small that keeping all of them costs less than `SMALL_SHARE` of the step's
  bytes (BatchNormalization's statistics, scalars of the optimizer). They run once and are counted in `fixed_bytes`.

What is left are the kernels that decide about memory, in the order of the trace but for two things. The optimizer's updates are
moved up to right after their gradients, so that a gradient can be freed before the next one is made; and a value that can wait,
because its inputs are kept for others anyway, is made right before it is wanted. A kernel whose value
only the very next kernel reads, and which is no smaller than what that one makes, is fused with it into one op of the DFGraph
(convolution + bias + activation): keeping its value alone would never pay, and TensorFlow computes such pairs in place. The
gradients of a convolution's bias and filter are one op, too: between them must come nothing (see `execute`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import tensorflow as tf

from checkmate.core.graph import DFGraph, Op
from checkmate.core.plan import Plan
from checkmate.errors import TraceError
from checkmate.tf2 import op_rules
from checkmate.tf2.op_rules import Role
from checkmate.tf2.simplify import reachable, simplify

SMALL_SHARE = 0.001
"""Tensors that together make up at most this share of all bytes of a step count as small."""

ALLOCATION_GRANULE = 256
"""TensorFlow's allocators hand out multiples of this many bytes."""


@dataclass(frozen=True, slots=True, eq=False)
class TracedStep:
    """A training step as TensorFlow sees it and as solvers see it.

    Attributes:
      function: The traced step.
      flat: The same step simplified (see `simplify`): the function whose ops are planned and copied by the executor.
      graph: The DFGraph, with unit costs and no workspaces until it is profiled.
      groups: groups[i] are the TensorFlow ops that graph.ops[i] stands for, in order.
      values: values[i] are those of them whose outputs others read: the value of graph.ops[i].
      plain_order: The ops of `graph` in the order of the trace, which is the order of the plain step.
      notes: What was treated with caution, and why, as sentences for the report.
    """

    function: Any
    flat: Any
    graph: DFGraph
    groups: tuple[tuple[tf.Operation, ...], ...]
    values: tuple[tuple[tf.Operation, ...], ...]
    plain_order: tuple[int, ...]
    notes: tuple[str, ...] = ()

    def argument_tensors(self) -> list[tf.Tensor]:
        """The placeholders of the step's own arguments, without those of what it captures."""
        inputs = self.flat.inputs
        return list(inputs[: len(inputs) - len(self.flat.captured_inputs)])

    def pack(self, outputs: list[tf.Tensor]) -> Any:
        """Returns the flat function's outputs in the structure that the step returns."""
        return tf.nest.pack_sequence_as(self.function.structured_outputs, outputs, expand_composites=True)

    def plain_plan(self) -> Plan:
        """Returns the plan of the step as it was written: every op once, in the order of the trace."""
        return Plan.from_order(self.graph, self.plain_order)


def trace(step: Callable, *specs: Any, name: str = "", like: TracedStep | None = None) -> TracedStep:
    """Traces a training step for the given argument specs.

    Args:
      step: A callable or `tf.function`: forward pass, gradients, and, if it likes, the optimizer's update.
      specs: What it is called with: tensors, arrays, `tf.TensorSpec`s, or nests of them, with static shapes.
      name: For people.
      like: The same step traced with other shapes; then the same ops are planned, so that its plans can fit this graph.

    Raises:
      TraceError: The step cannot be traced with these specs, or computes nothing.
    """
    function = step if hasattr(step, "get_concrete_function") else tf.function(step)
    try:
        concrete = function.get_concrete_function(*specs)
    except (ValueError, TypeError, tf.errors.OpError, AttributeError, IndexError, KeyError) as error:
        shown = tf.nest.map_structure(
            lambda spec: f"{spec.dtype.name}{list(spec.shape)}" if isinstance(spec, tf.TensorSpec) else repr(spec), specs
        )
        raise TraceError(f"The step cannot be traced with {shown}: {error}") from error
    return analyse(concrete, name=name or getattr(step, "__name__", "step"), like=like)


def analyse(concrete: Any, *, name: str, like: TracedStep | None = None) -> TracedStep:
    """Returns the DFGraph of a `ConcreteFunction` that is already traced."""
    simplified = simplify(concrete)
    flat = _FlatGraph(simplified, concrete.variables, {o.name for group in like.groups for o in group} if like else None)
    if not flat.planned:
        raise TraceError(f"{name!r} computes nothing that takes memory: there is nothing to plan.")
    groups = flat.fused(flat.with_late_values(flat.with_early_updates()))
    number = {operation: i for i, group in enumerate(groups) for operation in group}

    def numbers(operations: Iterable[tf.Operation], own: int) -> tuple[int, ...]:
        return tuple(sorted({number[operation] for operation in operations} - {own}))

    ops = []
    for i, group in enumerate(groups):
        ops.append(
            Op(
                name=group[-1].name,
                deps=numbers(chain.from_iterable(flat.data_deps[o] for o in group), i),
                output_bytes=sum(flat.bytes_of(o) for o in flat.values_of(group)),
                is_backward=any(o in flat.backward for o in group),
                recomputable=all(o in flat.recomputable for o in group),
                control_deps=numbers(chain.from_iterable(flat.order_deps[o] for o in group), i),
                overwrites=numbers(chain.from_iterable(flat.overwritten.get(o, ()) for o in group), i),
                kind="+".join(o.type for o in group),
            )
        )
    outputs = {number[o] for tensor in simplified.outputs for o in flat.planned_behind(tensor)}
    graph = DFGraph(tuple(ops), tuple(outputs), flat.fixed_bytes(), name)
    plain_order = sorted(range(len(groups)), key=lambda i: flat.position[groups[i][-1]])
    return TracedStep(concrete, simplified, graph, groups, tuple(map(flat.values_of, groups)), tuple(plain_order), flat.notes())


def tensor_bytes(tensor: tf.Tensor) -> int | None:
    """Returns the bytes the allocator hands out for a tensor, or None where shape or dtype do not tell."""
    count = tensor.shape.num_elements()
    if tensor.dtype in (tf.resource, tf.string):
        return 0
    if count is None or tensor.dtype == tf.variant:
        return None
    return -(-count * tensor.dtype.size // ALLOCATION_GRANULE) * ALLOCATION_GRANULE


class _FlatGraph:
    """The ops of a traced function that are really run, sorted into planned kernels and the rest."""

    def __init__(self, concrete: Any, variables: Sequence[tf.Variable], planned_names: set[str] | None):
        self.concrete = concrete
        self.variables = variables
        self._planned_names = planned_names
        self.operations = reachable(concrete)
        self.position = {operation: k for k, operation in enumerate(self.operations)}
        self.estimated: list[tf.Operation] = []
        self._bytes: dict[tf.Operation, int] = {}
        for operation in self.operations:
            self._bytes[operation] = self._measure(operation)
        self.small_bytes = _small_threshold([self._bytes[o] for o in self.operations if op_rules.role(o) is Role.KERNEL])
        self.planned: list[tf.Operation] = []
        self._behind: dict[tf.Operation, set[tf.Operation]] = {}  # op -> the planned ops its value is made of
        self._behind_in_order: dict[tf.Operation, set[tf.Operation]] = {}  # the same, through control edges too
        self.data_deps: dict[tf.Operation, set[tf.Operation]] = {}
        self.order_deps: dict[tf.Operation, set[tf.Operation]] = {}
        self.backward: set[tf.Operation] = set()
        for operation in self.operations:
            self._classify(operation)
        self._find_overwrites()
        self._find_readers()
        self._find_twins()

    def bytes_of(self, operation: tf.Operation) -> int:
        """Bytes of all its outputs."""
        return self._bytes[operation]

    def planned_behind(self, tensor: tf.Tensor) -> set[tf.Operation]:
        """The planned ops that must be in memory to have this tensor."""
        return self._behind[op_rules.source(tensor).op]

    def fixed_bytes(self) -> int:
        """What is resident all the time.

        Arguments, captured variables and tensors, constants, everything small that is kept, and the results of the step before,
        which a training loop still holds while this step runs.
        """
        total = sum(tensor_bytes(tensor) or 0 for tensor in self.concrete.outputs)
        seen: set[int] = set()
        for variable in self.variables:
            seen.add(id(variable.handle))
            total += _rounded(variable.shape.num_elements() * variable.dtype.size)
        for value in self.concrete.captured_inputs:
            if id(value) not in seen and value.dtype != tf.resource:
                total += tensor_bytes(value) or 0
            seen.add(id(value))
        arguments = self.concrete.inputs[: len(self.concrete.inputs) - len(self.concrete.captured_inputs)]
        total += sum(tensor_bytes(tensor) or 0 for tensor in arguments)
        planned = set(self.planned)
        for operation in self.operations:
            if operation.type == "Const" or (operation not in planned and op_rules.role(operation) is Role.KERNEL):
                total += self._bytes[operation]
        return total

    def with_early_updates(self) -> list[tf.Operation]:
        """The planned ops, those of the optimizer's update moved up as far as their inputs allow.

        An op is part of the update when it is backward and only writes to variables come of it. An update that overwrites a
        variable waits until no op after it can want a value again that is recomputed from the old content.
        """
        update = self._update_only()
        last_hazard = self._last_hazards()
        key: dict[tf.Operation, tuple[int, int]] = {}
        for operation in self.planned:
            own = self.position[operation]
            if operation in update:
                waits_for = self.order_deps[operation] | self.overwritten.get(operation, set())
                earliest = max((key[o][0] for o in waits_for), default=0)
                key[operation] = (max(earliest, last_hazard.get(operation, 0)), own)
            elif operation in self.twins:
                key[operation] = (self.position[self.twins[operation]], -1)
            else:
                key[operation] = (own, own)
        return sorted(self.planned, key=key.__getitem__)

    def with_late_values(self, order: list[tf.Operation]) -> list[tf.Operation]:
        """Moves ops down to right before their first reader where what must be kept for them until then is no larger than their value.

        Most often it is kept for others anyway. Ops with side effects stay where they are, and so does
        what a later op of the order overwrites.
        """
        position: dict[tf.Operation, float] = {operation: float(k) for k, operation in enumerate(order)}
        fixed = {*self.twins, *self.twins.values(), *self._read_once}
        ends = {
            o: min((position[w] for w, overwritten in self.overwritten.items() if o in overwritten), default=float("inf")) for o in order
        }
        for number, operation in enumerate(reversed(order)):
            if operation in fixed or not self._readers[operation] or not op_rules.may_repeat(operation):
                continue
            first = min(self._readers[operation], key=position.__getitem__)
            wanted = position[first]
            kept_longer = sum(
                self._bytes[o]
                for o in self.data_deps[operation]
                if o not in self._read_once and all(position[reader] < wanted for reader in self._readers[o] if reader is not operation)
            )
            stays = kept_longer <= min(self._bytes[operation], max(self._bytes[first], self.small_bytes))
            if stays and wanted < ends[operation]:
                # Ops moved to before the same reader keep their order: those that come earlier are moved later, and go first.
                position[operation] = wanted - 0.5 - number / (4 * len(order))
        return sorted(order, key=position.__getitem__)

    def fused(self, order: list[tf.Operation]) -> tuple[tuple[tf.Operation, ...], ...]:
        """Groups of planned ops that become one op each: chains in which each value is read by the next op of the chain only."""
        groups: list[list[tf.Operation]] = []
        for operation in order:
            group = [operation]
            while groups:
                last = groups[-1][-1]
                alike = all((last in kind) == (operation in kind) for kind in (self.recomputable, self.backward))
                alone = last not in self._read_once and self._readers[last] and self._readers[last] <= set(group)
                # Keeping a smaller input instead of the value can pay, but only where the value can be had again.
                worth = operation not in self.recomputable or self._bytes[last] >= self._bytes[operation]
                if not (self.twins.get(last) is operation or (alike and alone and worth)):
                    break
                group = groups.pop() + group
            groups.append(group)
        return tuple(map(tuple, groups))

    def values_of(self, group: tuple[tf.Operation, ...]) -> tuple[tf.Operation, ...]:
        """The ops of a group that others read, and its last one."""
        inside = set(group)
        return tuple(o for o in group if o is group[-1] or o in self._read_once or not self._readers[o] <= inside)

    def _find_readers(self) -> None:
        """Who reads each planned op: planned ops, or (`_read_once`) the caller and ops that run once."""
        planned = set(self.planned)
        self._readers: dict[tf.Operation, set[tf.Operation]] = {operation: set() for operation in self.planned}
        self._read_once = {o for tensor in self.concrete.outputs for o in self.planned_behind(tensor)}
        for operation in self.operations:
            if operation in planned:
                for before in self.data_deps[operation]:
                    self._readers[before].add(operation)
            elif op_rules.role(operation) is Role.KERNEL:
                self._read_once |= self._behind[operation]

    def _find_twins(self) -> None:
        """Gradients of a bias, each with the gradient of the filter of the same convolution, which come from the same tensor."""
        filters = {op_rules.source(o.inputs[2]).ref(): o for o in self.planned if o.type in op_rules.FILTER_GRADIENTS}
        self.twins: dict[tf.Operation, tf.Operation] = {}
        update = self._update_only()
        for operation in self.planned:
            if operation.type != "BiasAddGrad":
                continue
            twin = filters.pop(op_rules.source(operation.inputs[0]).ref(), None)
            if twin is not None and all(o in update or self.position[o] > self.position[twin] for o in self._readers[operation]):
                self.twins[operation] = twin

    def notes(self) -> tuple[str, ...]:
        """What the report says about ops that could not be treated as usual."""
        notes = []
        unknown = sorted({o.type for o in self.planned if not op_rules.is_known(o)})
        if unknown:
            notes.append(f"Ops of types that TensorFlow does not ship are kept and never recomputed: {', '.join(unknown)}.")
        guessed = sorted({o.type for o in self.estimated if o in self.data_deps})
        if guessed:
            notes.append(
                f"The size of some outputs is not known before the step runs and is estimated from their inputs: {', '.join(guessed)}."
            )
        return tuple(notes)

    def _measure(self, operation: tf.Operation) -> int:
        sizes = [tensor_bytes(tensor) for tensor in operation.outputs]
        if None in sizes:
            self.estimated.append(operation)
            known = [tensor_bytes(tensor) or self._bytes.get(tensor.op, 0) for tensor in operation.inputs]
            return sum(size or 0 for size in sizes) + sum(known)
        return sum(sizes)

    def _classify(self, operation: tf.Operation) -> None:
        role = op_rules.role(operation)
        if role is Role.SHAPE and any(op_rules.static_shape(operation, k) is None for k in range(len(operation.outputs))):
            role = Role.KERNEL
        behind: set[tf.Operation] = set()
        if role is not Role.SHAPE:
            for tensor in operation.inputs:
                behind |= self.planned_behind(tensor)
        befores = [op_rules.source(tensor).op for tensor in operation.inputs] + list(operation.control_inputs)
        in_order = set().union(*(self._behind_in_order[before] for before in befores))
        if _in_backward_scope(operation) or any(before in self.backward for before in befores):
            self.backward.add(operation)
        if self._planned_names is None:
            touches_memory = self._bytes[operation] > self.small_bytes or any(self._bytes[o] > self.small_bytes for o in behind)
        else:
            touches_memory = operation.name in self._planned_names
        if role is Role.KERNEL and touches_memory:
            self.planned.append(operation)
            self.data_deps[operation], self.order_deps[operation] = behind, in_order
            self._behind[operation] = self._behind_in_order[operation] = {operation}
        else:
            self._behind[operation], self._behind_in_order[operation] = behind, in_order

    def _find_overwrites(self) -> None:
        """Which planned ops write to a variable that other planned ops read, and what may therefore be recomputed."""
        readers: dict[int, set[tf.Operation]] = {}  # variable handle -> planned ops that read its content so far
        self.overwritten: dict[tf.Operation, set[tf.Operation]] = {}
        read_by: dict[tf.Operation, set[int]] = {}  # op -> handles whose content its value is read from directly
        small_writes: set[int] = set()
        direct_reads: dict[tf.Operation, int] = {}
        planned = set(self.planned)
        for operation in self.operations:
            handles = {_handle(tensor) for tensor in operation.inputs if tensor.dtype == tf.resource}
            through = set()
            for tensor in operation.inputs:
                if tensor.op not in planned:
                    through |= read_by.get(tensor.op, set())
            if operation.type in op_rules.PURE_READS:
                through |= handles
                if operation in planned:
                    direct_reads[operation] = next(iter(handles))
            elif operation in planned:
                overwritten = set().union(*(readers.get(handle, set()) for handle in handles)) - {operation}
                if overwritten:
                    self.overwritten[operation] = overwritten
            else:
                small_writes |= handles
            if operation in planned:
                for handle in through:
                    readers.setdefault(handle, set()).add(operation)
            else:
                read_by[operation] = through
        # Only forward ops: a chain of recomputed gradients would tie every update of a variable to the end of the step.
        self.recomputable = {
            o for o in self.planned if op_rules.may_repeat(o) and o not in self.backward and direct_reads.get(o) not in small_writes
        }

    def _update_only(self) -> set[tf.Operation]:
        """The optimizer's update: backward ops, not gradients themselves, from which nothing but writes to variables comes."""
        update: set[tf.Operation] = set()
        for operation in reversed(self.planned):
            if operation in self._read_once or not self._only_from_gradients(operation):
                continue
            writes = any(tensor.dtype == tf.resource for tensor in operation.inputs) and op_rules.is_stateful(operation)
            if writes or (self._readers[operation] and self._readers[operation] <= update):
                update.add(operation)
        return update

    def _only_from_gradients(self, operation: tf.Operation) -> bool:
        return operation in self.backward and not _in_backward_scope(operation) and self.data_deps[operation] <= self.backward

    def _last_hazards(self) -> dict[tf.Operation, int]:
        """For each op that overwrites a variable, the position of the last op that could ask for a recomputed reader of it."""
        bit = {o: 1 << k for k, o in enumerate(self.planned)}
        again: dict[tf.Operation, int] = {}  # op -> what may have to run again for it, as bits
        for operation in self.planned:
            bits = 0
            for before in self.data_deps[operation]:
                if before in self.recomputable:
                    bits |= bit[before] | again[before]
            again[operation] = bits
        hazards: dict[tf.Operation, int] = {}
        for writer, read in self.overwritten.items():
            bits = sum(bit[o] for o in read if o in self.recomputable)
            if not bits:
                continue
            for operation in reversed(self.planned):
                if again[operation] & bits and operation is not writer:
                    if self.position[operation] > self.position[writer]:
                        self.recomputable -= read  # also the plain step wants the old content later: keep what was read from it
                    else:
                        hazards[writer] = self.position[operation]
                    break
        return hazards


def _small_threshold(sizes: list[int]) -> int:
    """The largest size such that all tensors up to it together are at most SMALL_SHARE of all bytes."""
    allowed = SMALL_SHARE * sum(sizes)
    threshold = total = 0
    for size in sorted(sizes):
        total += size
        if total > allowed:
            break
        threshold = size
    # Of equally large tensors either all are small or none is.
    return threshold if sum(size for size in sizes if size <= threshold) <= allowed else max((s for s in sizes if s < threshold), default=0)


def _in_backward_scope(operation: tf.Operation) -> bool:
    return "gradient_tape/" in operation.name or operation.name.startswith("gradients/")


def _handle(tensor: tf.Tensor) -> int:
    """Identifies the variable behind a resource tensor: the argument of the graph that carries it in."""
    return id(op_rules.source(tensor).op)


def _rounded(count: int) -> int:
    return -(-count // ALLOCATION_GRANULE) * ALLOCATION_GRANULE
