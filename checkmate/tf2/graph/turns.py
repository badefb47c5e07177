"""loop_of(): what a loop's arguments carry from turn to turn, and how many turns it makes.

TensorFlow's `while_loop` makes a loop's first two arguments: the turns so far, and the most turns
that there may be. A loop that has a gradient leaves it a stack of each value that this reads, with
an entry per turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import tensorflow as tf

from checkmate.tf2.graph import bodies
from checkmate.tf2.graph.operations import is_argument, is_constant, source_of

COUNTER, END = 0, 1
"""The arguments of a loop that its condition compares; the second has no other reader."""

Value = Callable[[tf.Tensor], Any]


class Carries(Enum):
    """Kinds of arguments of a loop, by their value in the next turn."""

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
    """A loop that only computes values and makes a known number of turns."""

    operation: tf.Operation
    turns: int
    arguments: tuple[Argument, ...]

    def of(self, *carries: Carries) -> list[int]:
        return [k for k, each in enumerate(self.arguments) if each.carries in carries]


def loop_of(
    graph: tf.Graph,
    operation: tf.Operation,
    value: Value,
    forward: Loop | None = None,
    stacks: Mapping[int, int] | None = None,
) -> Loop | None:
    """Returns None for a loop that does not only compute values, or whose turns are not known. A
    gradient is told its loop and the stacks that it pops, and `value` the values of tensors."""
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


def readers_of(tensor: tf.Tensor) -> list[tuple[tf.Operation, int]]:
    """The ops, with the number of their input, that read a tensor, also through aliases."""
    found = []
    for reader in tensor.consumers():
        for k, each in enumerate(reader.inputs):
            if each is not tensor:
                continue
            same = [output for output in reader.outputs if source_of(output) is source_of(tensor)]
            found += [pair for output in same for pair in readers_of(output)] or [(reader, k)]
    return found


def _uses(body: Any, k: int) -> list[tf.Operation]:
    """The ops of a body that read an argument otherwise than to pass it on."""
    given = body.inputs[k]
    found = dict.fromkeys(reader for reader, _ in readers_of(given))
    return [reader for reader in found if not any(source_of(o) is given for o in reader.outputs)]


def length_of(tensor: tf.Tensor, value: Value) -> int | None:
    """The number of entries of a list that no loop has made, if it is known."""
    made = source_of(tensor).op
    if made.type == "TensorListSetItem":
        return length_of(made.inputs[0], value)
    if made.type == "TensorListReserve":
        count = value(made.inputs[1])
        return None if count is None else int(count)
    return None


def item_of(argument: Argument) -> tf.Tensor:
    assert argument.item is not None
    return argument.item
