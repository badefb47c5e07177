"""One application of an op: how it is run, and how it is run again."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from checkmate.dtr.storage import Call
from checkmate.tf2.eager import private_api
from checkmate.tf2.eager.op_kinds import OpKind
from checkmate.tf2.eager.tensors import Cell


class EagerCall(Call):
    """A call of a TensorFlow op.

    Attributes:
      arguments: All its inputs in one row, cells and real tensors; `inputs` are the cells among
        them.
      lengths: For each input argument how many of those it is, None for one that is no list.
      attrs: Names and values, as TensorFlow's own callers give them.
      results: Number of outputs where the op came by the slow path, else None.
      device: The device that the program asked for, or "".
      needs: Its memory and cost (`needs.Needs`).
      place: Where in the program it first ran (`EagerPolicy.place`).
    """

    __slots__ = ("arguments", "attrs", "device", "kind", "lengths", "needs", "place", "results")

    def __init__(
        self,
        number: int,
        kind: OpKind,
        arguments: tuple[Any, ...],
        inputs: tuple[Cell, ...],
        lengths: tuple[int | None, ...],
        attrs: Any,
        results: int | None,
        device: str,
    ):
        self.number, self.name, self.kind, self.arguments = number, kind.name, kind, arguments
        if attrs and not kind.plain_attrs:
            attrs = tuple([_copied(each) for each in attrs])
        self.inputs, self.lengths, self.attrs, self.results, self.device = (
            inputs,
            lengths,
            attrs or (),
            results,
            device,
        )
        self.outputs = ()
        self.bytes = self.workspace_bytes = 0
        self.cost = self.place = 0.0
        self.needs: Any = None

    def run(self, values: list[Any], name: str | None = None) -> Any:
        """Runs the op on real tensors. Returns what TensorFlow does: a tensor, a list (of lists),
        or None."""
        if self.results is not None:
            return private_api.real_execute(
                self.name, self.results, values, self.attrs, private_api.eager_context(), name
            )
        if self.kind.lists:
            rest = iter(values)
            values = [
                next(rest) if count is None else [next(rest) for _ in range(count)]
                for count in self.lengths
            ]
        return private_api.real_fast(
            private_api.raw_context(), self.name, name, *values, *self.attrs
        )

    def run_again(self) -> list[Any]:
        """Runs the op, whose inputs are all in memory, past every tape and on the device it first
        ran on. Returns its outputs in one list."""
        values = [each.value if type(each) is Cell else each for each in self.arguments]
        try:
            with private_api.Untaped():
                if self.device == private_api.current_device():
                    return flat(self.run(values))
                with tf.device(self.device):
                    return flat(self.run(values))
        except private_api.NotOkStatusException as error:
            private_api.raise_status(error, None)
            raise

    def all_attrs(self) -> tuple[Any, ...]:
        """The attributes with those that TensorFlow infers from the inputs, as gradient functions
        expect them."""
        attrs = list(self.attrs)
        known = set(attrs[::2])
        rest = iter(self.arguments)
        for (dtype, number, dtypes), count in zip(self.kind.inputs, self.lengths, strict=True):
            tensors = [next(rest) for _ in range(1 if count is None else count)]
            if number and number not in known:
                attrs += [number, len(tensors)]
                known.add(number)
            if dtype and dtype not in known and tensors:
                attrs += [dtype, _type_number(tensors[0])]
                known.add(dtype)
            if dtypes and dtypes not in known:
                attrs += [dtypes, [_type_number(tensor) for tensor in tensors]]
                known.add(dtypes)
        return tuple(attrs)


def _copied(attr: Any) -> Any:
    """A list of the program's, which it may change before the op runs again, as it is now."""
    return [_copied(each) for each in attr] if type(attr) is list else attr


def _type_number(argument: Any) -> int:
    return (argument.made if type(argument) is Cell else argument).dtype.as_datatype_enum


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
