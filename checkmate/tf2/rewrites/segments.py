"""segmented(): loops that have a gradient, in segments.

A loop leaves its gradient a stack of each value that this reads, with an entry per turn, and is one
op of a plan: all stacks are in memory at once. Here the loop becomes several, each with some of the
turns, and so does its gradient:

  forward 1 ── state ──► forward 2 ── state ──► forward 3 ── state ──► what reads the loop
      └── stacks ─► gradient 1 ◄── gradients ── gradient 2 ◄── gradients ── gradient 3

They are ordinary ops: a plan keeps the stacks of a segment, or drops them and runs the segment
again from the state at its start. That state is a value of its own, so that a plan may keep it
without the stacks. An iteration does what it did, so every bit is the same; only conditions are
new.

A loop is left as it is unless the number of its turns is known, its body only computes values, and
all that it carries from turn to turn is a number that counts, a list that takes an entry per turn,
or tensors of known shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import pairwise
from typing import Any

import tensorflow as tf

from checkmate.tf2.graph import bodies
from checkmate.tf2.graph.graph_writer import GraphCopy, reachable
from checkmate.tf2.graph.known_functions import Function
from checkmate.tf2.graph.operations import (
    can_be_copied,
    is_argument,
    is_constant,
    is_loop,
    source_of,
)
from checkmate.tf2.graph.trace import TracedStep, rewritten

MOST_SEGMENTS = 32

COUNTER, END = 0, 1
"""Arguments of each loop that TensorFlow's `while_loop` makes: the turns so far, and the most turns
that there may be. Its condition alone reads the second."""

Value = Callable[[tf.Tensor], Any]


class Carries(Enum):
    """What an argument of a loop is to the next turn."""

    SAME = auto()  # what it was
    COUNT = auto()  # a number, larger by a step
    STACK = auto()  # a list with one entry more
    POPPED = auto()  # a list with one entry less
    ROWS = auto()  # a list of which each turn reads or sets an entry of its own
    STATE = auto()  # a tensor or list that the turn computes


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a loop. `first` and `step` tell the number of a COUNT, or the entry of ROWS,
    turn by turn; `item` is the tensor that a turn pushes to a STACK or sets in ROWS."""

    carries: Carries
    first: int = 0
    step: int = 0
    item: tf.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop of the forward pass that can be divided, or a gradient of one."""

    operation: tf.Operation
    turns: int
    arguments: tuple[Argument, ...]

    def of(self, *carries: Carries) -> list[int]:
        return [k for k, each in enumerate(self.arguments) if each.carries in carries]


@dataclass(frozen=True, slots=True)
class Pair:
    """A loop and those that are its gradients: `stacks[i]` are, by argument of gradient i, the
    loop's output that it pops; `lengths`, by argument, those of its ROWS."""

    forward: Loop
    gradients: tuple[Loop, ...]
    stacks: tuple[Mapping[int, int], ...]
    lengths: Mapping[int, int]
    stack_bytes: int


def segmented(traced: TracedStep, most_bytes: int) -> TracedStep | None:
    """The step with each loop of which the stacks take more bytes in as many segments as bring
    those of a segment below that, as far as there are turns, but at most `MOST_SEGMENTS`; None
    where that changes nothing."""
    counts = {
        pair.forward.operation.name: -(-pair.stack_bytes // most_bytes)
        for pair in pairs_of(traced)
        if pair.stack_bytes > most_bytes
    }
    return in_segments(traced, counts)


def in_segments(traced: TracedStep, counts: Mapping[str, int]) -> TracedStep | None:
    """The step with the loops of these names in so many segments, as far as that is possible; None
    where none is divided."""
    pairs = [pair for pair in pairs_of(traced) if _segments(pair, counts) > 1]
    if not pairs:
        return None
    writer = _SegmentWriter(traced, pairs, counts)
    for operation in reachable(traced.flat.graph):
        writer.write(operation)
    outputs = [writer.names[tensor.ref()] for tensor in traced.flat.outputs]
    flat = writer.writer.function_like(traced.flat, outputs)
    return rewritten(traced, flat, writer.origins)


def _segments(pair: Pair, counts: Mapping[str, int]) -> int:
    asked = counts.get(pair.forward.operation.name, 1)
    return max(1, min(asked, pair.forward.turns, MOST_SEGMENTS))


def pairs_of(traced: TracedStep) -> list[Pair]:
    """The loops of a step that can be divided, with their gradients, inputs first."""
    graph = traced.function.graph
    loops = [operation for operation in reachable(traced.flat.graph) if is_loop(operation)]
    if not loops:
        return []
    value = Function(traced.flat.graph, graph).value
    pairs = [_pair(traced, loop, value) for loop in loops]
    found = [pair for pair in pairs if pair is not None]
    # A gradient of a gradient reads the stacks of both.
    gradients = {each.operation for pair in found for each in pair.gradients}
    both = {pair.forward.operation for pair in found} & gradients
    return [pair for pair in found if both.isdisjoint(_operations(pair))]


def _operations(pair: Pair) -> set[tf.Operation]:
    return {pair.forward.operation, *(each.operation for each in pair.gradients)}


def _pair(traced: TracedStep, operation: tf.Operation, value: Value) -> Pair | None:
    graph = traced.function.graph
    forward = _loop(graph, operation, value)
    if forward is None or not _can_run_again(forward):
        return None
    pushed = forward.of(Carries.STACK)
    readers: dict[tf.Operation, dict[int, int]] = {}
    for k in pushed:
        for reader, place in _readers(operation.outputs[k]):
            readers.setdefault(reader, {})[place] = k
    # The gradient's last turn is the number of turns that the loop has made.
    ends = {operation.outputs[COUNTER].ref(): forward.turns}

    def known(tensor: tf.Tensor) -> Any:
        source = source_of(tensor)
        return ends[source.ref()] if source.ref() in ends else value(source)

    gradients = []
    for reader, stacks in readers.items():
        gradient = _loop(graph, reader, known, forward, stacks) if is_loop(reader) else None
        if gradient is None or gradient.turns != forward.turns:
            return None
        popped = gradient.of(Carries.POPPED)
        if gradient.of(Carries.STACK):  # for a gradient of this gradient
            return None
        if set(popped) != set(stacks) or any(reader.outputs[k].consumers() for k in popped):
            return None
        gradients.append(gradient)
    sizes = traced.estimates.get(operation.name)
    if not gradients or sizes is None:
        return None
    lengths = {}
    for k in forward.of(Carries.ROWS):
        length = _length(operation.inputs[k], value)
        if length is None:
            return None
        lengths[k] = length
    taken = sum(sizes[k] for k in pushed)
    return Pair(forward, tuple(gradients), tuple(readers.values()), lengths, taken)


def _can_run_again(loop: Loop) -> bool:
    operation = loop.operation
    if loop.of(Carries.POPPED):
        return False
    for k in loop.of(Carries.STATE):
        tensor = operation.outputs[k]
        if not can_be_copied(tensor.dtype) or not tensor.shape.is_fully_defined():
            return False
    rows = [loop.arguments[k] for k in loop.of(Carries.ROWS)]
    return all(abs(each.step) < 2 and item_of(each).shape.is_fully_defined() for each in rows)


def _loop(
    graph: tf.Graph,
    operation: tf.Operation,
    value: Value,
    forward: Loop | None = None,
    stacks: Mapping[int, int] | None = None,
) -> Loop | None:
    """A loop that only computes values and makes a known number of turns, or None. A gradient is
    told its loop and the stacks that it pops."""
    body = bodies.body_of(graph, operation, "body")
    condition = bodies.body_of(graph, operation, "cond")
    if body is None or condition is None or not bodies.only_reads(graph, operation):
        return None
    if not END < len(body.inputs) == len(operation.inputs):  # a gradient has been taken since
        return None
    reading = _Reading(operation, body, value, forward, stacks or {})
    arguments = tuple(map(reading.argument, range(len(body.inputs))))
    turns = _turns(operation, condition, arguments, value)
    counter = arguments[COUNTER]
    if turns is None or turns < 1:
        return None
    if (counter.carries, counter.step) != (Carries.COUNT, 1):
        return None
    if arguments[END].carries is not Carries.SAME or _uses(body, END):
        return None
    if operation.inputs[END].dtype != operation.inputs[COUNTER].dtype:
        return None
    return Loop(operation, turns, arguments)


class _Reading:
    """Reads off a loop's body what its arguments carry."""

    def __init__(
        self,
        operation: tf.Operation,
        body: Any,
        value: Value,
        forward: Loop | None,
        stacks: Mapping[int, int],
    ) -> None:
        self._operation, self._body, self._value = operation, body, value
        self._forward, self._stacks = forward, stacks

    def argument(self, k: int) -> Argument:
        given, result = self._body.inputs[k], source_of(self._body.outputs[k])
        uses = _uses(self._body, k)
        if result is given:
            return Argument(Carries.SAME)
        if given.dtype != tf.variant:
            return self._count(k, result) or Argument(Carries.STATE)
        maker = self._operation.inputs[k].op
        alone = uses == [result.op]
        if alone and result.op.type == "TensorListPushBack" and maker.type == "EmptyTensorList":
            return Argument(Carries.STACK, item=source_of(result.op.inputs[1]))
        if alone and result.op.type == "TensorListPopBack" and k in self._stacks:
            return Argument(Carries.POPPED)
        return self._rows(uses, result) or Argument(Carries.STATE)

    def _count(self, k: int, result: tf.Tensor) -> Argument | None:
        if result.op.type not in ("AddV2", "Add", "Sub") or not result.dtype.is_integer:
            return None
        if result.shape.rank != 0:
            return None
        terms, given = list(map(source_of, result.op.inputs)), self._body.inputs[k]
        others = [each for each in terms if each is not given]
        first = self._value(self._operation.inputs[k])
        step = self._unchanging(others[0]) if len(others) == 1 else None
        subtracts = result.op.type == "Sub"
        if first is None or step is None or (subtracts and terms[0] is not given):
            return None
        return Argument(Carries.COUNT, int(first), -int(step) if subtracts else int(step))

    def _unchanging(self, tensor: tf.Tensor) -> Any:
        """The value of a tensor that is the same in each turn, if that is known."""
        if not is_argument(tensor.op):
            return tf.get_static_value(tensor)
        k = _number(self._body, tensor)
        same = source_of(self._body.outputs[k]) is tensor
        return self._value(self._operation.inputs[k]) if same else None

    def _rows(self, uses: Sequence[tf.Operation], result: tf.Tensor) -> Argument | None:
        """A list whose entries the turns set, and may read, one each, in order or in reverse, or
        always the same one, which is set alone."""
        sets = [each for each in uses if each.type == "TensorListSetItem"]
        if sets != [result.op] or {each.type for each in uses} - {
            "TensorListSetItem",
            "TensorListGetItem",
        }:
            return None
        places = {self._place(source_of(each.inputs[1])) for each in uses}
        place = places.pop()
        if places or place is None or (not place[1] and len(uses) > 1):
            return None
        return Argument(Carries.ROWS, *place, item=source_of(result.op.inputs[2]))

    def _place(self, index: tf.Tensor) -> tuple[int, int] | None:
        """The number that an index has in the first turn, and by how much it grows."""
        if is_constant(index.op):
            return int(tf.get_static_value(index)), 0
        if is_argument(index.op):
            found = self.argument(_number(self._body, index))
            return (found.first, found.step) if found.carries is Carries.COUNT else None
        if index.op.type != "TensorListPopBack" or self._forward is None:
            return None
        taken = source_of(index.op.inputs[0])
        output = self._stacks.get(_number(self._body, taken)) if is_argument(taken.op) else None
        item = None if output is None else self._forward.arguments[output].item
        if item is None or not is_argument(item.op):
            return None
        pushed = self._forward.arguments[_number(item.graph, item)]
        if pushed.carries is not Carries.COUNT:
            return None
        return pushed.first + (self._forward.turns - 1) * pushed.step, -pushed.step


def _turns(
    operation: tf.Operation, condition: Any, arguments: Sequence[Argument], value: Value
) -> int | None:
    """The number of turns of a loop whose condition compares counts with numbers that are known;
    None for another."""
    found = []
    pending = [source_of(condition.outputs[0])]
    while pending:
        test = pending.pop()
        if test.op.type == "LogicalAnd":
            pending += map(source_of, test.op.inputs)
            continue
        turns = _turns_until(operation, condition, arguments, value, test.op)
        if turns is None:
            return None
        found.append(turns)
    return min(found)


_SIGNS = {"Less": 1, "LessEqual": 1, "Greater": -1, "GreaterEqual": -1}


def _turns_until(
    operation: tf.Operation,
    condition: Any,
    arguments: Sequence[Argument],
    value: Value,
    test: tf.Operation,
) -> int | None:
    """The number of turns until a comparison fails of a count with a number; None for another."""
    if test.type not in _SIGNS:
        return None
    sides: list[tuple[int, int]] = []  # the first number and the step of each
    for tensor in map(source_of, test.inputs):
        number = tf.get_static_value(tensor)
        step = 0
        if is_argument(tensor.op):
            argument = arguments[k := _number(condition, tensor)]
            number, step = argument.first, argument.step
            if argument.carries is Carries.SAME:
                number = value(operation.inputs[k])
            elif argument.carries is not Carries.COUNT:
                return None
        if number is None or not tensor.dtype.is_integer:
            return None
        sides.append((int(number), step))
    # The comparison holds while what is left is above 0.
    left, closer = (_SIGNS[test.type] * (b - a) for a, b in zip(*sides, strict=True))
    left += test.type.endswith("Equal")
    return -(-left // -closer) if closer < 0 else None


def _number(graph: Any, argument: tf.Tensor) -> int:
    return next(k for k, each in enumerate(graph.inputs) if each is argument)


def _readers(tensor: tf.Tensor) -> list[tuple[tf.Operation, int]]:
    """The ops, with the number of their input, that read a tensor, also through aliases."""
    found = []
    for reader in tensor.consumers():
        for k, each in enumerate(reader.inputs):
            if each is not tensor:
                continue
            same = [output for output in reader.outputs if source_of(output) is source_of(tensor)]
            found += [pair for output in same for pair in _readers(output)] or [(reader, k)]
    return found


def _uses(body: Any, k: int) -> list[tf.Operation]:
    """The ops of a body that read an argument otherwise than to pass it on."""
    given = body.inputs[k]
    found = dict.fromkeys(reader for reader, _ in _readers(given))
    return [reader for reader in found if not any(source_of(o) is given for o in reader.outputs)]


class _SegmentWriter(GraphCopy):
    """Copies ops, and loops in segments.

    Attributes:
      origins: Name of a written op -> the op of whose work it does a part.
    """

    def __init__(
        self, traced: TracedStep, pairs: Sequence[Pair], counts: Mapping[str, int]
    ) -> None:
        super().__init__(traced.flat)
        self.origins: dict[str, str] = {}
        self._library = traced.function.graph
        self._forward = {pair.forward.operation: pair for pair in pairs}
        self._gradients = {
            loop.operation: (pair, loop, stacks)
            for pair in pairs
            for loop, stacks in zip(pair.gradients, pair.stacks, strict=True)
        }
        self._counts = counts
        self._returned = {tensor.ref() for tensor in traced.flat.outputs}
        self._segments: dict[tf.Operation, list[str]] = {}
        self._conditions: dict[tf.Operation, str] = {}
        # What the parts of a list are that a loop has set entries of.
        self._parts: dict[Any, list[str]] = {}

    def write(self, operation: tf.Operation) -> None:
        if is_argument(operation):
            return
        if operation in self._forward:
            self._write_forward(self._forward[operation])
        elif operation in self._gradients:
            self._write_gradient(*self._gradients[operation])
        elif operation.type == "TensorListStack" and operation.inputs[0].ref() in self._parts:
            parts = self._parts[operation.inputs[0].ref()]
            result = operation.outputs[0]
            joined = self.writer.join(parts, result.dtype, name=operation.name)
            self.names[result.ref()] = joined
            self.copies[operation] = (joined.partition(":")[0],)
        else:
            self.copy(operation, self.inputs(operation))

    def _write_forward(self, pair: Pair) -> None:
        loop, operation, count = pair.forward, pair.forward.operation, _segments(pair, self._counts)
        bounds = [loop.turns * k // count for k in range(count + 1)]
        state = self.inputs(operation)
        rows = [k for k in loop.of(Carries.ROWS) if self._is_read(operation.outputs[k])]
        segments: list[str] = []
        taken: list[str] = []  # before the next segment, so that a plan may free the lists
        for first, end in pairwise(bounds):
            inputs = self._inputs(loop, state, first, end)
            segments.append(self._segment(loop, inputs, len(segments), taken))
            for k in loop.of(Carries.STATE):
                if end < loop.turns or self._is_read(operation.outputs[k]):
                    state[k] = self._kept(f"{segments[-1]}:{k}", operation, k)
            taken = [
                name
                for k in rows
                for name in self._collect(loop, k, f"{segments[-1]}:{k}", first, end)
            ]
        self._segments[operation] = segments
        self._finish(loop, state, segments)
        for k in rows:
            self._complete(pair, k)

    def _write_gradient(self, pair: Pair, loop: Loop, stacks: Mapping[int, int]) -> None:
        count = len(self._segments[pair.forward.operation])
        bounds = [loop.turns * k // count for k in range(count + 1)]
        state, operation = self.inputs(loop.operation), loop.operation
        # A list that nothing reads afterwards, and of which each turn reads its own entry, need not
        # be handed on.
        apart = {
            k
            for k in loop.of(Carries.ROWS)
            if loop.arguments[k].step and not self._is_read(operation.outputs[k])
        }
        chained = [k for k in loop.of(Carries.STATE, Carries.ROWS) if k not in apart]
        segments: list[str] = []
        for number in reversed(range(count)):
            first, end = (loop.turns - bounds[k] for k in (number + 1, number))
            inputs = self._inputs(loop, state, first, end)
            for k, output in stacks.items():
                inputs[k] = f"{self._segments[pair.forward.operation][number]}:{output}"
            segments.append(self._segment(loop, inputs, number))
            for k in chained:
                state[k] = f"{segments[-1]}:{k}"
        self._finish(loop, state, segments)

    def _inputs(self, loop: Loop, state: Sequence[str], first: int, end: int) -> list[str]:
        """The inputs of a segment that makes the turns from `first` to before `end`."""
        inputs = list(state)
        for k in loop.of(Carries.COUNT):
            inputs[k] = self._count(loop, k, first)
        inputs[END] = self._count(loop, COUNTER, end)
        return inputs

    def _finish(self, loop: Loop, state: list[str], segments: Sequence[str]) -> None:
        for k in loop.of(Carries.COUNT):
            state[k] = self._count(loop, k, loop.turns)
        outputs = zip(loop.operation.outputs, state, strict=True)
        self.names |= {tensor.ref(): name for tensor, name in outputs}
        self.copies[loop.operation] = tuple(segments)

    def _count(self, loop: Loop, k: int, turns: int) -> str:
        counted = loop.arguments[k]
        number = counted.first + counted.step * turns
        return self.writer.constant(number, loop.operation.inputs[k].dtype)

    def _segment(
        self, loop: Loop, inputs: Sequence[str], number: int, after: Sequence[str] = ()
    ) -> str:
        operation, after = loop.operation, [*self.before(loop.operation), *after]
        name = f"{operation.name}/part_{number}"
        name = self.writer.copy(operation, inputs, after=after, name=name)
        condition = self.writer.nodes[-1].attr["cond"].func
        condition.Clear()
        condition.name = self._condition(loop)
        return self._made(name, operation)

    def _condition(self, loop: Loop) -> str:
        """The function that compares a loop's first two arguments."""
        operation = loop.operation
        if operation not in self._conditions:
            specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in operation.inputs]

            def condition(*arguments: tf.Tensor) -> tf.Tensor:
                return arguments[COUNTER] < arguments[END]

            with tf.init_scope():
                function = tf.function(condition, autograph=False).get_concrete_function(*specs)
            function.add_to_graph(self._library)
            self._conditions[operation] = function.name
        return self._conditions[operation]

    def _kept(self, value: str, operation: tf.Operation, k: int) -> str:
        """A copy of a value, which may be kept without what is made with it."""
        dtype = operation.outputs[k].dtype
        return self._made(self.writer.add("Snapshot", [value], dtype, name="state"), operation)

    def _collect(self, loop: Loop, k: int, rows: str, first: int, end: int) -> list[str]:
        """Takes the entries that some turns have set out of a list; returns the names of ops."""
        argument, tensor = loop.arguments[k], loop.operation.outputs[k]
        parts = self._parts.setdefault(tensor.ref(), [])
        if argument.step:
            numbers = sorted(argument.first + argument.step * turn for turn in range(first, end))
        else:  # each turn sets it anew
            numbers = [argument.first] if end == loop.turns else []
        taken = [self._entries(rows, numbers, argument, loop.operation)] if numbers else []
        parts[:] = [*taken, *parts] if argument.step < 0 else [*parts, *taken]
        return [name.partition(":")[0] for name in taken]

    def _complete(self, pair: Pair, k: int) -> None:
        """Adds the entries that no turn sets, and makes a list where an op reads one."""
        loop, operation, argument = pair.forward, pair.forward.operation, pair.forward.arguments[k]
        tensor, given = operation.outputs[k], self.names[operation.inputs[k].ref()]
        ends = (argument.first, argument.first + argument.step * (loop.turns - 1))
        parts = self._parts[tensor.ref()]
        for numbers, place in (
            (range(max(ends) + 1, pair.lengths[k]), len(parts)),
            (range(min(ends)), 0),
        ):
            if numbers:
                parts.insert(place, self._entries(given, numbers, argument, operation))
        if any(reader.type != "TensorListStack" for reader in tensor.consumers()):
            item = item_of(argument)
            joined = self.writer.join(parts, item.dtype, name=f"{operation.name}/joined")
            rows = self.writer.list_of(joined, item, name=f"{operation.name}/rows")
            self.names[tensor.ref()] = self._made(rows, operation)
            self._made(joined, operation)

    def _entries(
        self, rows: str, numbers: Sequence[int], argument: Argument, operation: tf.Operation
    ) -> str:
        name = f"{operation.name}/entries"
        return self._made(
            self.writer.entries(rows, numbers, item_of(argument), name=name), operation
        )

    def _is_read(self, tensor: tf.Tensor) -> bool:
        return bool(tensor.consumers()) or tensor.ref() in self._returned

    def _made(self, name: str, operation: tf.Operation) -> str:
        self.origins[name.partition(":")[0]] = operation.name
        return name


def _length(tensor: tf.Tensor, value: Value) -> int | None:
    """The number of entries of a list that no loop has made, if it is known."""
    made = source_of(tensor).op
    if made.type == "TensorListSetItem":
        return _length(made.inputs[0], value)
    if made.type == "TensorListReserve":
        count = value(made.inputs[1])
        return None if count is None else int(count)
    return None


def item_of(argument: Argument) -> tf.Tensor:
    assert argument.item is not None
    return argument.item
