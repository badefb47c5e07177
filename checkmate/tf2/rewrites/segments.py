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

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import tensorflow as tf

from checkmate.tf2.graph.graph_writer import GraphCopy, reachable
from checkmate.tf2.graph.known_functions import Function
from checkmate.tf2.graph.operations import (
    can_be_filled,
    is_argument,
    is_loop,
    reads_variable,
    source_of,
)
from checkmate.tf2.graph.trace import TracedStep, rewritten
from checkmate.tf2.graph.turns import (
    COUNTER,
    END,
    Argument,
    Carries,
    Loop,
    Value,
    item_of,
    length_of,
    loop_of,
    readers_of,
)

MOST_SEGMENTS = 32


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
        pair.forward.operation.name: -(-pair.stack_bytes // max(1, most_bytes))
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
    for operation in traced.order:
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
    times = Counter(operation for pair in found for operation in _operations(pair))
    return [pair for pair in found if all(times[each] == 1 for each in _operations(pair))]


def _operations(pair: Pair) -> set[tf.Operation]:
    return {pair.forward.operation, *(each.operation for each in pair.gradients)}


def _pair(traced: TracedStep, operation: tf.Operation, value: Value) -> Pair | None:
    graph = traced.function.graph
    forward = loop_of(graph, operation, value)
    if forward is None or not _can_run_again(forward):
        return None
    pushed = forward.of(Carries.STACK)
    readers: dict[tf.Operation, dict[int, int]] = {}
    for k in pushed:
        for reader, place in readers_of(operation.outputs[k]):
            readers.setdefault(reader, {})[place] = k
    # The gradient's last turn is the number of turns that the loop has made.
    ends = {operation.outputs[COUNTER].ref(): forward.turns}

    def known(tensor: tf.Tensor) -> Any:
        source = source_of(tensor)
        return ends[source.ref()] if source.ref() in ends else value(source)

    gradients = []
    for reader, stacks in readers.items():
        gradient = loop_of(graph, reader, known, forward, stacks) if is_loop(reader) else None
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
        length = length_of(operation.inputs[k], value)
        if length is None:
            return None
        lengths[k] = length
    taken = sum(sizes[k] for k in pushed)
    return Pair(forward, tuple(gradients), tuple(readers.values()), lengths, taken)


def _can_run_again(loop: Loop) -> bool:
    operation = loop.operation
    if loop.of(Carries.POPPED):
        return False
    if not all(can_be_filled(operation.outputs[k]) for k in loop.of(Carries.STATE)):
        return False
    rows = [loop.arguments[k] for k in loop.of(Carries.ROWS)]
    return all(abs(each.step) < 2 and item_of(each).shape.is_fully_defined() for each in rows)


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
            joined = self.writer.concat(parts, 0, result.dtype, name=operation.name)
            self.names[result.ref()] = joined
            self.copies[operation] = (joined.partition(":")[0],)
        else:
            self.copy(operation, self.inputs(operation))

    def _write_forward(self, pair: Pair) -> None:
        loop, operation, count = pair.forward, pair.forward.operation, _segments(pair, self._counts)
        bounds = [loop.turns * k // count for k in range(count + 1)]
        state = self.inputs(operation)
        for k in loop.of(Carries.STATE):  # a variable that the step may write to afterwards
            if reads_variable(source_of(operation.inputs[k]).op):
                state[k] = self._kept(state[k], operation, k)
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
        name = f"{operation.name}/state"
        return self._made(self.writer.add("Snapshot", [value], dtype, name=name), operation)

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
            joined = self.writer.concat(parts, 0, item.dtype, name=f"{operation.name}/joined")
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
