"""Storages of real tensors, the outputs of ops that view them, and the calls that make those; the
log of what an eager program does with them."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from checkmate.dtr import log_format
from checkmate.dtr.log import OpLog
from checkmate.dtr.log_format import Constant, Instruction, Release
from checkmate.dtr.storage import FRESH, Call, Storage, Tensor
from checkmate.tf2.device import value_bytes
from checkmate.tf2.eager import private_api
from checkmate.tf2.eager.op_kinds import Needs, OpKind, OutputSpec

GRADIENT_WEIGHT = 1e9
"""Factor of a gradient's cost in its score: to have one back takes the whole backward pass up to
it."""


class EagerStorage(Storage):
    """A storage that holds real tensors.

    Attributes:
      is_gradient: No tape records it, and having it back takes the whole backward pass.
      weak_refs: How many backward functions may ask for it although they are not known to read it.
    """

    __slots__ = ("is_gradient", "weak_refs")

    def __init__(self, count: int, cost: float, last_access: float, is_gradient: bool):
        # All fields of `Storage`, written out: one object is made for every op that runs.
        self.bytes, self.cost, self.last_access = count, cost, last_access
        self.is_gradient = is_gradient
        self.tensors = []
        self.material, self.pinned, self.banished = True, False, False
        self.locks = self.refs = self.weak_refs = 0
        self.deps, self.users = {}, {}
        self.around = None
        self.slot = -1

    @property
    def weight(self) -> float:  # type: ignore[override]
        """Storages without references are evicted first: a value that was recomputed only for
        another, or that no tape and no handle asks for. Gradients are evicted last."""
        return (GRADIENT_WEIGHT if self.is_gradient else 1) if self.refs else 0


class Cell(Tensor):
    """An output that may be evicted. Tapes take it for a tensor (`private_api.TAPE_FIELDS`).

    Handles and cells have ids of their own: a real tensor that dies takes its entry on all tapes
    with it, and to evict is to let real tensors die.

    Attributes:
      value: The real tensor while it is in memory.
      index: Which output of its call it is.
      spec: Its shape and type.
    """

    __slots__ = (*private_api.TAPE_FIELDS, "index", "spec", "value")
    call: EagerCall
    storage: EagerStorage
    value: Any
    index: int
    spec: OutputSpec

    def __init__(
        self,
        call: EagerCall,
        storage: EagerStorage,
        count: int,
        value: Any,
        index: int,
        spec: OutputSpec,
    ):
        self.call, self.storage, self.bytes = call, storage, count
        self.refs, self.defined = 0, True
        self.value, self.index, self.spec = value, index, spec
        private_api.show_to_tapes(self, spec.on_tapes)
        storage.tensors.append(self)

    def forget(self) -> None:
        """Nothing can ask for it any more: lets go of its call and its value."""
        self.call = self.value = None  # type: ignore[assignment]
        self.defined = False


@dataclass(slots=True)
class OpRequest:
    """An op that the program asks for.

    Attributes:
      lengths: For each input argument how many tensors it is, None for one that is no list.
      attrs: Names and values, as TensorFlow's own callers give them.
      results: Number of outputs where the op came by the slow path, else None.
    """

    kind: OpKind
    lengths: tuple[int | None, ...]
    attrs: Any
    results: int | None = None
    name: Any = None


class EagerCall(Call):
    """A call of a TensorFlow op.

    Attributes:
      arguments: All its inputs in one row, cells and real tensors; `inputs` are the cells among
        them.
      lengths, attrs, results: See `OpRequest`.
      device: The device that the program asked for, or "".
      clock: The clock when it first ran (`EagerPolicy.clock`).
    """

    __slots__ = ("arguments", "attrs", "clock", "device", "kind", "lengths", "needs", "results")
    inputs: tuple[Cell, ...]
    outputs: tuple[Cell, ...]
    needs: Needs

    def __init__(
        self, number: int, asked: OpRequest, row: list[Any], cells: list[Cell], device: str
    ):
        kind, attrs = asked.kind, asked.attrs
        if attrs and not kind.plain_attrs:
            attrs = tuple([_copied(each) for each in attrs])
        self.number, self.name, self.kind = number, kind.name, kind
        self.arguments, self.inputs = tuple(row), tuple(cells)
        self.lengths, self.attrs, self.results = asked.lengths, attrs or (), asked.results
        self.device = device
        self.outputs = ()
        self.bytes = self.workspace_bytes = 0
        self.cost = self.clock = 0.0

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
            with private_api.tapes_stopped():
                if self.device == private_api.thread_state().device_name:
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
    return (argument.spec if type(argument) is Cell else argument).dtype.as_datatype_enum


def flat(result: Any) -> list[Any]:
    if type(result) is not list:
        return [] if result is None else [result]
    outputs = []
    for each in result:
        if type(each) is list:
            outputs.extend(each)
        else:
            outputs.append(each)
    return outputs


class Recorder:
    """Writes down what an eager program does, as an op log."""

    def __init__(self) -> None:
        self._instructions: list[Instruction] = []
        self._names: dict[int, str] = {}  # of cells and real tensors that are alive, by id()
        self._variables: dict[int, str] = {}
        self._count = 0
        self._done = False

    def log(self, name: str) -> OpLog:
        self._done = True
        return OpLog(tuple(self._instructions), name)

    def called(self, call: EagerCall, outputs: Sequence[Any], seconds: float) -> None:
        """An op ran. `outputs` are cells, or tensors where they cannot be evicted."""
        if self._done or not outputs:
            return
        args = [self._name_of(argument) for argument in call.arguments]
        aliases = tuple(0 if call.needs.is_view and k == 0 else FRESH for k in range(len(outputs)))
        results = tuple(self._keep(each, self._name("t")) for each in outputs)
        sizes = tuple(
            0 if alias != FRESH else _bytes(each)
            for each, alias in zip(outputs, aliases, strict=True)
        )
        self._instructions.append(
            log_format.Call(results, call.name, tuple(args), round(seconds * 1e9), sizes, aliases)
        )

    def read(self, variable: Any, value: Any) -> None:
        """A variable was read: what comes out is the variable's own memory."""
        if self._done:
            return
        key = private_api.id_of(variable)
        if key not in self._variables:
            self._variables[key] = self._constant("v", value_bytes(value))
        self._names[id(value)] = self._variables[key]
        weakref.finalize(value, self._names.pop, id(value), None)

    def released(self, tensor: Cell) -> None:
        self._release(id(tensor))

    def _release(self, key: int) -> None:
        name = self._names.pop(key, None)
        if name is not None and not self._done:
            self._instructions.append(Release(name))

    def _name_of(self, argument: Any) -> str:
        name = self._names.get(id(argument))
        if name is None:
            name = self._keep(argument, self._constant("c", _bytes(argument)))
        return name

    def _constant(self, letter: str, count: int) -> str:
        name = self._name(letter)
        self._instructions.append(Constant(name, count))
        return name

    def _name(self, letter: str) -> str:
        self._count += 1
        return f"{letter}{self._count}"

    def _keep(self, tensor: Any, name: str) -> str:
        self._names[id(tensor)] = name
        if not isinstance(tensor, Cell):
            weakref.finalize(tensor, self._release, id(tensor)).atexit = False
        return name


def _bytes(tensor: Any) -> int:
    return tensor.storage.bytes if isinstance(tensor, Cell) else value_bytes(tensor)
