"""Replays a Plan inside the graph that TensorFlow is tracing: the same ops with the same
attributes, in the plan's order.

Ordering is by control edges: every evaluation waits for the one before it. Without that chain
TensorFlow's executor would start a recomputation as soon as its inputs are there, and nothing would
be saved. Small ops are in the chain, too: where their values lie in memory decides what is left in
one piece, and so every step has the same peak. Views, constants and reads stay off it. The bodies
of loops and conditions have chains of their own.

oneDNN fuses two kernels after all of this, without a look at what the chain has between them: that
would close a cycle. It does so only where both wait for the same control edges. Hence no edge
beside a data edge (Conv2D and its BiasAdd are then neighbours or differ). It takes any gradients of
a bias and of a filter for a pair that read the same tensor, as those of two convolutions do whose
results are added. Hence the former reads a view of it.

What outlives the step must not lie in the midst of the memory that the step takes and gives back: a
few bytes there keep the allocator from handing out what is around them in one piece, and no two
steps would have the same peak. So writes to a variable wait for everyone who looks at its memory
(else TensorFlow writes elsewhere), what is assigned is written into that memory (else the value's
becomes the variable's). Results would creep through the memory, too, from step to step, and batches
with them: so there are two rooms for each, which serve by turns and stay where they are, and it is
written there as soon as it is computed. Somebody who still holds what was in a room keeps that:
TensorFlow then gives the room other memory. Results that are too large to be in memory all the time
are copied at the end, when all else is free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle
from typing import Any

import tensorflow as tf

from checkmate.core.plan import Compute, Plan
from checkmate.tf2 import device as devices
from checkmate.tf2 import ops as op_rules
from checkmate.tf2.execution.graph_writer import reachable
from checkmate.tf2.execution.sequential import InOrder, edge_from
from checkmate.tf2.graph import grappler
from checkmate.tf2.graph.flat_graph import tensor_bytes
from checkmate.tf2.graph.trace import TracedStep
from checkmate.tf2.ops import Role

SCOPE, EVALUATION_MARK = "planned", "/evaluation_"
"""The k-th evaluation of op X is named planned/X/evaluation_k in the executed graph, so that it can
be counted there."""


class Rooms:
    """Memory for the early results of two steps, by turns, which stays where it is.

    Attributes:
      bytes: What they take.
      kept: What is to be in memory as long as these.
    """

    def __init__(self, traced: TracedStep):
        self.kept: Any = None
        results = [
            tensor for tensor, early in zip(traced.flat.outputs, traced.early, strict=True) if early
        ]
        with tf.init_scope(), tf.device(devices.training_device()):
            both = [
                [tf.Variable(tf.zeros(each.shape, each.dtype), trainable=False) for each in results]
                for _ in range(2)
            ]
        self.bytes = 2 * sum(tensor_bytes(each) or 0 for each in results)
        self._turns = cycle(both)

    def handles(self) -> list[tf.Tensor]:
        """The variables of those whose turn it is."""
        return [room.handle for room in next(self._turns)]


class Replayed:
    """The function that runs a plan of a traced step, on flattened arguments.

    Args:
      rooms: Those of a step that trains; without them memory for all results is taken in each step.

    Attributes:
      function: The `ConcreteFunction`, of handles of rooms and of the step's arguments.
      written: The graph of its body.
    """

    def __init__(
        self,
        traced: TracedStep,
        plan: Plan,
        rooms: Rooms | None = None,
        written: Written | None = None,
    ):
        self.rooms = rooms
        self.written = written or write(traced, plan, rooms)
        self.function = self._build()

    def __call__(self, *flat: tf.Tensor) -> Any:
        """Runs the step."""
        return grappler.run(self.function, self.rooms.handles() if self.rooms else [], *flat)

    def copy(self) -> Replayed:
        """Another function of the same plan and rooms, which draws random numbers of its own."""
        return Replayed(self.written.traced, self.written.plan, self.rooms, self.written)

    def _build(self) -> Any:
        traced, written = self.written.traced, self.written
        handles = [tf.TensorSpec([], tf.resource)] * len(written.handles)
        arguments = [
            tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in traced.argument_tensors()
        ]

        def replay(handles: Sequence[tf.Tensor], *flat: tf.Tensor) -> Any:
            return written.make(flat, handles)

        return tf.function(replay, autograph=False).get_concrete_function(handles, *arguments)


def rooms_bytes(run: Any) -> int:
    """Returns what a step's function holds for its results from call to call: nothing, but for a
    `Replayed` one with rooms."""
    return run.rooms.bytes if isinstance(run, Replayed) and run.rooms else 0


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """The ops of a plan, written down and not made yet.

    Attributes:
      outputs: The names of the tensors that the step returns, flattened.
      given: The names that the step's inputs have in what is written: its arguments, then what it
        captures.
      handles: The names of the handles of rooms.
    """

    traced: TracedStep
    plan: Plan
    writer: InOrder
    outputs: tuple[str, ...]
    given: tuple[str, ...]
    handles: tuple[str, ...]

    def make(self, arguments: Sequence[tf.Tensor], rooms: Sequence[tf.Tensor] = ()) -> Any:
        """Makes the ops in the graph being traced, and returns what the step returns, in the same
        structure.

        Args:
          arguments: A tensor for each argument of the step, flattened as the step's specs are.
          rooms: Handles of variables for the early results, as many as `handles`.
        """
        flat = self.traced.flat
        given = dict(zip(self.handles, rooms, strict=True)) | dict(
            zip(self.given, [*arguments, *flat.captured_inputs], strict=True)
        )
        outputs = self.writer.import_here(given, self.outputs, scope=SCOPE)
        for output, tensor in zip(outputs, flat.outputs, strict=True):
            output.set_shape(tensor.shape)  # a room's handle does not tell
        return self.traced.pack(outputs)


def write(traced: TracedStep, plan: Plan, rooms: Rooms | None = None) -> Written:
    """Writes down the ops of a plan that the judge has accepted for `traced.graph`.

    Args:
      rooms: Memory for the early results of `traced`; without it memory for those is taken in each
        step.
    """
    replayer = _Replayer(traced, sum(traced.early) if rooms else 0)
    for step in plan.steps:
        if isinstance(step, Compute):
            replayer.evaluate(step.op)
        else:
            replayer.gone.update(traced.groups[step.op])
    return Written(
        traced,
        plan,
        replayer.writer,
        tuple(replayer.finish()),
        tuple(replayer.given.values()),
        tuple(replayer.handles),
    )


class _Replayer:
    """Where each tensor of the traced step is, at this point of the replay."""

    def __init__(self, traced: TracedStep, rooms: int):
        self.traced = traced
        self.handles = [f"room_{k}:0" for k in range(rooms)]
        self.writer = InOrder(traced.function.graph)
        self.planned = {operation for group in traced.groups for operation in group}
        self.given = {tensor.ref(): f"given_{k}:0" for k, tensor in enumerate(traced.flat.inputs)}
        self.captured = dict(_captured(traced.flat))
        self.current: dict[tf.Operation, str] = {}  # planned op -> its latest evaluation
        # Planned ops whose latest evaluation is to be in memory no longer.
        self.gone: set[tf.Operation] = set()
        self.once: dict[tf.Operation, str] = {}  # any other op -> the one made for it
        self.evaluations: Counter[tf.Operation] = Counter()
        self.shown: dict[
            str, Any
        ] = {}  # tensor that is a variable's memory -> the variable's handle
        self.looking: dict[Any, list[str]] = {}  # handle -> ops that read such a tensor
        self.filters = Counter(
            op_rules.source(o.inputs[2]).ref()
            for o in self.planned
            if o.type in op_rules.FILTER_GRADIENTS
        )
        self.with_product: dict[
            str, tf.Tensor
        ] = {}  # evaluation that may be run within the kernel of a product -> what it makes
        self.markers: dict[str, str] = {}  # such an evaluation -> the op to wait for instead
        self.last: list[str] = []  # what the next op waits for: the one before, or a pair
        self.results: dict[int, str] = {}  # what is written already of what the step returns
        names = iter(self.handles)
        self.rooms = [
            (next(names, "") or self.room(tensor)) if early else ""
            for tensor, early in zip(traced.flat.outputs, traced.early, strict=True)
        ]

    def evaluate(self, i: int) -> None:
        """Runs DFGraph op i once more."""
        # Before the group: its ops may be run within one kernel, which nothing can come between.
        for operation in self.traced.groups[i]:
            for tensor in (*operation.inputs, *self.bias(operation)):
                self.prepare(tensor)
            for reader in self.lookers(operation):
                self.made(reader)
        ahead: list[str] = []  # what the next op reads, where it is the twin of the one before
        pair: list[str] = []  # an op, and its twin
        for k, operation in enumerate(self.traced.groups[i]):
            inputs = ahead or self.writer.apart(
                operation, [self.tensor(tensor) for tensor in operation.inputs], self.last
            )
            # What has to come before the first evaluation came before the others, too.
            after = [] if operation in self.current else self.befores(operation)
            name = f"{operation.name}{EVALUATION_MARK}{self.evaluations[operation]}"
            twin = self.twin(operation, self.traced.groups[i][k + 1 :])
            # Both of a pair come after the same ops and read the same tensor, or oneDNN leaves them
            # apart.
            ahead = [*map(self.tensor, twin.inputs[:2]), inputs[0]] if twin else []
            edges = [
                self.done(edge)
                for last in self.last
                for edge in edge_from(last, operation, [*inputs, *ahead])
            ]
            if edges and operation.type in op_rules.PRODUCTS:
                # An edge to the kernel itself would keep TensorFlow from fusing it with the next
                # one, which rounds once less.
                inputs[0], edges = self.writer.behind(edges, inputs[0], operation.inputs[0]), []
            after += edges
            if operation.type == "BiasAddGrad" and not twin:
                inputs = [self.in_rows(operation, inputs[0])]
            self.current[operation] = self.copy(operation, inputs, after, name)
            self.evaluations[operation] += 1
            self.gone.discard(operation)
            if operation.type in op_rules.IN_PLACE and any(
                op_rules.source(t).op.type in op_rules.PRODUCTS for t in operation.inputs
            ):
                self.with_product[self.current[operation]] = operation.outputs[0]
            pair.append(self.current[operation])
            if not twin:
                self.last, pair = pair, []
        for k in self.traced.results[i]:
            if k not in self.results:
                self.results[k] = self.result(k)
                self.last = [self.results[k].partition(":")[0]]

    def done(self, name: str) -> str:
        """The name of what to wait for in order to wait for an op: of one that reads it where it
        may be run within a product's kernel.

        An edge from the op itself would keep it from that.
        """
        if name not in self.with_product:
            return name
        if name not in self.markers:
            self.markers[name] = self.writer.behind(
                [], f"{name}:0", self.with_product[name]
            ).partition(":")[0]
        return self.markers[name]

    def bias(self, product: tf.Operation) -> list[tf.Tensor]:
        """What will be added to a product by an op that is too small to be one of the plan: it may
        be run within the product's kernel."""
        if product.type not in op_rules.PRODUCTS:
            return []
        small = [
            reader
            for reader in product.outputs[0].consumers()
            if reader.type == "BiasAdd" and reader not in self.planned
        ]
        return [reader.inputs[1] for reader in small if _is_weight(reader.inputs[1], self.planned)]

    def twin(
        self, gradient: tf.Operation, following: Sequence[tf.Operation]
    ) -> tf.Operation | None:
        """The gradient of a filter that comes next, within which oneDNN may compute that of the
        bias, as it does in the plain step.

        It rounds in another way there. It takes any filter's gradient that reads the same tensor,
        so there must be one only.
        """
        if (
            gradient.type != "BiasAddGrad"
            or not following
            or following[0].type not in op_rules.FILTER_GRADIENTS
        ):
            return None
        read = op_rules.source(gradient.inputs[0])
        return (
            following[0]
            if op_rules.source(following[0].inputs[2]) is read and self.filters[read.ref()] == 1
            else None
        )

    def in_rows(self, gradient: tf.Operation, name: str) -> str:
        """The name of a view of what a bias' gradient sums up, as a matrix of rows that it sums; of
        itself where that cannot be."""
        tensor = gradient.inputs[0]
        if (
            not tensor.shape.is_fully_defined()
            or tensor.shape.rank < 3
            or gradient.get_attr("data_format") != b"NHWC"
        ):
            return name
        rows = self.writer.constant([-1, tensor.shape[-1]], tf.int32)
        return self.writer.add("Reshape", [name, rows], tensor.dtype, name="rows")

    def prepare(self, tensor: tf.Tensor) -> None:
        """Makes the ops that run once and that a tensor is made of."""
        tensor = op_rules.source(tensor)
        operation, role = tensor.op, op_rules.role(tensor.op)
        if tensor.ref() in self.given or operation in self.planned:
            return
        if role is Role.VIEW:
            for each in operation.inputs:
                self.prepare(each)
        elif role is not Role.SHAPE or op_rules.static_shape(operation, tensor.value_index) is None:
            self.made(operation)

    def tensor(self, tensor: tf.Tensor) -> str:
        """The name of the tensor's value now. A view of a planned value is made afresh for whoever
        asks."""
        tensor = op_rules.source(tensor)
        operation = tensor.op
        if tensor.ref() in self.given:
            return self.given[tensor.ref()]
        if operation in self.planned:
            return f"{self.current[operation]}:{tensor.value_index}"
        if (
            op_rules.role(operation) is Role.SHAPE
            and (shape := op_rules.static_shape(operation, tensor.value_index)) is not None
        ):
            return self.writer.constant(shape, tensor.dtype)
        if op_rules.role(operation) is Role.VIEW:
            return f"{self.copy(operation, [self.tensor(each) for each in operation.inputs])}:{tensor.value_index}"
        return f"{self.made(operation)}:{tensor.value_index}"

    def copy(
        self, operation: tf.Operation, inputs: list[str], after: Sequence[str] = (), name: str = ""
    ) -> str:
        """The name of a new op like this one.

        What writes to a variable waits for all who look at its memory: while one does, TensorFlow
        would write to other memory.
        """
        handles = [
            op_rules.source(tensor).ref()
            for tensor in operation.inputs
            if tensor.dtype == tf.resource
        ]
        if operation.type not in op_rules.PURE_READS:
            after = [
                *after,
                *(reader for handle in handles for reader in self.looking.get(handle, ())),
            ]
        if operation.type == "AssignVariableOp" and self._has_room_for(operation):
            return self.writer.overwrite(
                *inputs, operation.inputs[1], after=after, name=name or operation.name
            )
        copy = self.writer.copy(operation, inputs, after=after, name=name)
        seen = {self.shown[name] for name in inputs if name in self.shown}
        for handle in seen:
            self.looking.setdefault(handle, []).append(copy)
        if operation.type == "ReadVariableOp" or (seen and op_rules.role(operation) is Role.VIEW):
            self.shown[f"{copy}:0"] = next(iter(seen), None) or handles[0]
        return copy

    def befores(self, operation: tf.Operation) -> list[str]:
        """The names of the ops that the traced step has this one wait for. A constant, which
        TensorFlow's gradients have wait, needs not."""
        if operation.type == "Const":
            return []
        return [
            self.made(before)
            for before in operation.control_inputs
            if self._is_made_once(before) or before in self.planned
        ]

    def made(self, operation: tf.Operation) -> str:
        """The name of the op made for one that runs once, made now if need be; for a planned op, of
        its latest evaluation."""
        pending = [operation]
        while pending:  # a stack of its own: chains of small ops can be longer than Python's
            top = pending[-1]
            inputs = [op_rules.source(tensor) for tensor in top.inputs]
            befores = [tensor.op for tensor in inputs if tensor.ref() not in self.given] + list(
                top.control_inputs
            )
            missing = (
                []
                if self._exists(top)
                else [
                    before
                    for before in befores
                    if self._is_made_once(before) and not self._exists(before)
                ]
            )
            if missing:
                pending.extend(missing)
                continue
            pending.pop()
            if not self._exists(top):
                chained = op_rules.role(top) is Role.KERNEL
                inputs, after = [self.tensor(tensor) for tensor in top.inputs], self.befores(top)
                self.once[top] = self.copy(
                    top, inputs, [*after, *map(self.done, self.last)] if chained else after
                )
                self.last = [self.once[top]] if chained else self.last
        return self.once.get(operation) or self.current[operation]

    def lookers(self, write: tf.Operation) -> list[tf.Operation]:
        """The small ops still to be made that read what a variable was before this op writes to it,
        and that can be made now."""
        reads = [before for before in write.control_inputs if before.type == "ReadVariableOp"]
        readers = dict.fromkeys(reader for read in reads for reader in read.outputs[0].consumers())
        return [
            operation
            for operation in readers
            if operation in self.runs and self._can_be_made(operation, write)
        ]

    @cached_property
    def runs(self) -> set[tf.Operation]:
        """The ops of the traced step that something needs."""
        return set(reachable(self.traced.flat.graph))

    def _can_be_made(self, operation: tf.Operation, write: tf.Operation) -> bool:
        """True for a small op not made yet, if all planned values that it is made of are in memory,
        and it need not come after a write."""
        if not self._is_made_once(operation) or self._exists(operation):
            return False
        pending, seen = [operation], {operation}
        while pending:
            top = pending.pop()
            if (
                top is write
                or top in self.gone
                or (top in self.planned and top not in self.current)
            ):
                return False
            if (
                top not in self.planned
                and not self._exists(top)
                and top.type not in ("Const", "Placeholder")
            ):
                befores = {
                    *(op_rules.source(tensor).op for tensor in top.inputs),
                    *top.control_inputs,
                } - seen
                pending += befores
                seen |= befores
        return True

    def finish(self) -> list[str]:
        """Runs the small side effects that nothing asked for yet, and returns the names of the
        step's results."""
        flat = self.traced.flat
        effects = [
            operation for operation in flat.graph.control_outputs if self._is_made_once(operation)
        ]
        for operation in effects:  # who reads what a variable was, before that is overwritten
            for tensor in operation.inputs:
                self.prepare(tensor)
        for operation in effects:
            self.made(operation)
        return [self.results.get(k) or self.result(k) for k in range(len(flat.outputs))]

    def room(self, tensor: tf.Tensor) -> str:
        """The name of memory for a result, there before anything is computed."""
        room = self.writer.room(tensor, after=self.last)
        self.last = [room.partition(":")[0]]
        return room

    def result(self, k: int) -> str:
        """The name of a value for the caller to keep: a copy in the room for it, or one made when
        all else is gone from memory."""
        tensor = self.traced.flat.outputs[k]
        if not self.rooms[k] and (
            not op_rules.can_be_copied(tensor.dtype) or op_rules.source(tensor).ref() in self.given
        ):
            return self.tensor(tensor)
        value = self.tensor(tensor)
        after = [self.done(last) for last in self.last if not value.startswith(f"{last}:")]
        if self.rooms[k] in self.handles:
            written = self.writer.overwrite(
                self.rooms[k], value, tensor, after=after, name="result"
            )
            return self.writer.read(self.rooms[k], tensor, after=[written])
        if self.rooms[k]:
            return self.writer.fill(self.rooms[k], value, tensor, after=after)
        return self.writer.deep_copy(value, tensor, after=after, name="result")

    def _has_room_for(self, assignment: tf.Operation) -> bool:
        """True when the variable has memory of the assigned value's size, and TensorFlow has a
        kernel that writes there."""
        handle, value = (
            self.captured.get(op_rules.source(assignment.inputs[0]).ref()),
            assignment.inputs[1],
        )
        if handle is None or not op_rules.can_be_filled(value):
            return False
        with tf.init_scope():  # now, and not when the step runs
            if not tf.executing_eagerly() or not tf.raw_ops.VarIsInitializedOp(resource=handle):
                return False
            return tf.raw_ops.VariableShape(input=handle).numpy().tolist() == value.shape.as_list()

    def _exists(self, operation: tf.Operation) -> bool:
        return operation in self.once or operation in self.current

    def _is_made_once(self, operation: tf.Operation) -> bool:
        return (
            operation not in self.planned
            and op_rules.role(operation) is not Role.ALIAS
            and operation.type not in ("NoOp", "Placeholder")
        )


def _is_weight(tensor: tf.Tensor, planned: set[tf.Operation]) -> bool:
    """True for what is read from a variable, in whatever shape or precision, without an op of the
    plan."""
    operation = op_rules.source(tensor).op
    if operation not in planned and (
        op_rules.role(operation) is Role.VIEW or operation.type == "Cast"
    ):
        return _is_weight(operation.inputs[0], planned)
    return operation.type == "ReadVariableOp"


def _captured(function: Any) -> list[tuple[Any, tf.Tensor]]:
    """(reference of the placeholder, value) of what a function captures."""
    values = function.captured_inputs
    return [
        (tensor.ref(), value)
        for tensor, value in zip(
            function.inputs[len(function.inputs) - len(values) :], values, strict=True
        )
    ]
