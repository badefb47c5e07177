"""Writes down what an eager program does, as an op log."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from checkmate.dtr.log import OpLog
from checkmate.dtr.log_format import Call, Constant, Instruction, Release
from checkmate.dtr.storage import FRESH
from checkmate.tf2.device import value_bytes
from checkmate.tf2.eager import private_api
from checkmate.tf2.eager.storage import Cell, EagerCall


class Recorder:
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
            Call(results, call.name, tuple(args), round(seconds * 1e9), sizes, aliases)
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
