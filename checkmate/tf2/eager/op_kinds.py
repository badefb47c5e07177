"""What the runtime has to know of each TensorFlow op type, and how an op is run again."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from checkmate.tf2.eager import fence

_VIEWS = frozenset({"ExpandDims", "Identity", "PreventGradient", "Reshape", "Snapshot", "Squeeze", "StopGradient"})
# They allocate nothing that could be evicted; TensorFlow runs and records them as it always does.
_PASSED_ON = frozenset({
    "Const", "DestroyResourceOp", "NoOp", "ReadVariableOp", "VarHandleOp", "VarIsInitializedOp", "VariableShape", "_EagerConst",
})  # fmt: skip


class OpKind:
    """One op type.

    Attributes:
      passed_on: Left to TensorFlow: it is no registered op (a function, which is one opaque op), or makes nothing to evict.
      stateful: It runs exactly once; what it makes cannot be recomputed.
      is_view: Its first output shares the memory of its first input.
      inputs: For each input argument the names of the attributes for (type, number, list of types); "" where there is none.
      is_list: For each input argument, whether it is a list of tensors.
      reads: (inputs, outputs) that its gradient has been seen to read, by index; None before the first gradient.
    """

    __slots__ = ("inputs", "is_list", "is_view", "lists", "name", "passed_on", "reads", "stateful")

    def __init__(self, name: str):
        self.name = name
        definition = fence.op_def(name)
        self.passed_on = definition is None or name in _PASSED_ON
        arguments = definition.input_arg if definition is not None else ()
        self.inputs = [(argument.type_attr, argument.number_attr, argument.type_list_attr) for argument in arguments]
        self.is_list = [bool(number or types) for _, number, types in self.inputs]
        self.lists = any(self.is_list)
        self.stateful = definition is not None and definition.is_stateful
        self.is_view = name in _VIEWS
        self.reads: tuple[set[int], set[int]] | None = None

    def lengths(self, attrs: Sequence[Any] | None) -> tuple[int | None, ...]:
        """For each input argument how many tensors it is, None for one that is no list, read from the attributes of the slow path."""
        if not self.lists:
            return (None,) * len(self.inputs)
        values = dict(zip((attrs or ())[::2], (attrs or ())[1::2], strict=True))
        return tuple(
            None if not is_list else values[number] if number else len(values[types])
            for (_, number, types), is_list in zip(self.inputs, self.is_list, strict=True)
        )


kind_of = cache(OpKind)
"""The `OpKind` of an op type's name."""


class Recipe:
    """How an op is run: its type, attributes, and how its inputs are grouped.

    Attributes:
      outputs: Number of outputs where the op came by the slow path, else None.
      device: The device that the program asked for, or "".
    """

    __slots__ = ("attrs", "device", "kind", "lengths", "outputs")

    def __init__(self, kind: OpKind, lengths: Sequence[int | None], attrs: Sequence[Any] | None, outputs: int | None, device: str):
        self.kind, self.lengths, self.attrs, self.outputs, self.device = kind, lengths, attrs or (), outputs, device

    def run(self, values: list[Any], name: str | None = None) -> Any:
        """Runs the op on real tensors, past every tape. Returns what TensorFlow does: a tensor, a list (of lists), or None."""
        stopped = not fence.tape_is_empty() and not fence.tape_is_stopped()
        if stopped:
            fence.tape_stop()
        try:
            if self.outputs is not None:
                return fence.real_execute(self.kind.name, self.outputs, values, self.attrs, fence.eager_context(), name)
            if self.kind.lists:
                rest = iter(values)
                values = [next(rest) if count is None else [next(rest) for _ in range(count)] for count in self.lengths]
            return fence.real_fast(fence.raw_context(), self.kind.name, name, *values, *self.attrs)
        finally:
            if stopped:
                fence.tape_restart()

    def run_again(self, values: list[Any]) -> list[Any]:
        """Runs the op on the device it first ran on. Returns its outputs in one list."""
        import tensorflow as tf

        try:
            if self.device == fence.current_device():
                return flat(self.run(values))
            with tf.device(self.device):
                return flat(self.run(values))
        except fence.NotOkStatusException as error:
            fence.raise_status(error, None)
            raise

    def all_attrs(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """The attributes with those that TensorFlow infers from the inputs, as gradient functions expect them."""
        attrs = list(self.attrs)
        known = set(attrs[::2])
        rest = iter(inputs)
        for (dtype, number, dtypes), count in zip(self.kind.inputs, self.lengths, strict=True):
            tensors = [next(rest) for _ in range(1 if count is None else count)]
            if number and number not in known:
                attrs += [number, len(tensors)]
                known.add(number)
            if dtype and dtype not in known and tensors:
                attrs += [dtype, tensors[0].dtype.as_datatype_enum]
                known.add(dtype)
            if dtypes and dtypes not in known:
                attrs += [dtypes, [tensor.dtype.as_datatype_enum for tensor in tensors]]
                known.add(dtypes)
        return tuple(attrs)


def flat(result: Any) -> list[Any]:
    """The outputs of an op in one list."""
    if type(result) is not list:
        return [] if result is None else [result]
    outputs = []
    for each in result:
        if type(each) is list:
            outputs.extend(each)
        else:
            outputs.append(each)
    return outputs
