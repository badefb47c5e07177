"""The steps of a run, on numbered tensors; from the instructions of an op log to such steps, which
are checked on the way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from checkmate.dtr.log_format import Call, Constant, Copy, CopyFrom, Instruction, Mutate, Release
from checkmate.dtr.storage import FRESH
from checkmate.errors import LogError


@dataclass(frozen=True, slots=True)
class Run:
    """Run an op for the first time. Its outputs get the next numbers; see `Runtime.call` for the
    fields."""

    op: str
    inputs: tuple[int, ...]
    sizes: tuple[int, ...]
    aliases: tuple[int, ...]
    cost: int
    workspace_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Hold:
    """Change why a tensor is held, by a method of `Runtime`."""

    method: Literal["retain", "release", "pin", "unpin"]
    tensor: int


Step: TypeAlias = Run | Hold


def steps_of(instructions: Sequence[Instruction], lines: Sequence[int]) -> Iterator[Step]:
    """Constants are pinned, a mutation makes new tensors, and what is still referenced at the end
    is brought back and pinned.

    Args:
      lines: The line of the file that each instruction begins on.

    Raises:
      LogError: As `OpLog`.
    """
    names = _Names()
    for names.line, instruction in zip(lines, instructions, strict=True):
        yield from names.follow(instruction)
    yield from (Hold("pin", each) for each in names.tensors.values() if names.counts[each] > 0)


class _Names:
    """Which tensor each name means, and how many names each tensor has."""

    line = 0

    def __init__(self) -> None:
        self.tensors: dict[str, int] = {}
        self.counts: list[int] = []
        self._sizes: list[int] = []
        self._released: dict[str, int] = {}  # by name: the line
        self._unknown: dict[str, int] = {}  # the same, of names that the log never made

    def follow(self, instruction: Instruction) -> Iterator[Step]:
        match instruction:
            case Constant(name=name):
                yield Run("constant", (), (instruction.bytes,), (FRESH,), 0)
                yield Hold("pin", self._create(name, instruction.bytes))
            case Call(aliases=aliases):
                args = tuple(self._tensor(name, "reads") for name in instruction.args)
                self._check_call(instruction)
                sizes = tuple(
                    size if alias == FRESH else 0
                    for size, alias in zip(instruction.bytes, aliases, strict=True)
                )
                yield Run(instruction.op, args, sizes, aliases, instruction.time)
                for name, size, alias in zip(instruction.results, sizes, aliases, strict=True):
                    self._create(name, size if alias == FRESH else self._sizes[args[alias]])
            case Mutate(mutated=mutated):
                args = tuple(self._tensor(name, "reads") for name in instruction.args)
                self._check_mutation(instruction)
                sizes = tuple(self._sizes[args[k]] for k in mutated)
                yield Run(instruction.op, args, sizes, (FRESH,) * len(mutated), instruction.time)
                for k, size in zip(mutated, sizes, strict=True):
                    self._new(instruction.args[k], size)
                for k in mutated:
                    yield self._drop(args[k])
            case Copy(name=name, source=source):
                tensor = self._tensor(source, "copies")
                self._check_new(name)
                yield self._name(name, tensor)
            case CopyFrom(name=name, source=source):
                tensor, old = self._tensor(source, "copies"), self._tensor(name, "replaces")
                if tensor != old:  # else nothing changes, and dropping first could be the end of it
                    yield self._drop(old)
                    yield self._name(name, tensor)
            case Release(name=name):
                if name in self.tensors:
                    yield self._drop(self._tensor(name, "releases"))
                    self._released[name] = self.line
                else:
                    self._unknown[name] = self.line

    def _create(self, name: str, size: int) -> int:
        self._check_new(name)
        return self._new(name, size)

    def _new(self, name: str, size: int) -> int:
        self.tensors[name] = len(self.counts)
        self.counts.append(1)
        self._sizes.append(size)
        return self.tensors[name]

    def _name(self, name: str, tensor: int) -> Hold:
        self.tensors[name] = tensor
        self.counts[tensor] += 1
        return Hold("retain", tensor)

    def _drop(self, tensor: int) -> Hold:
        self.counts[tensor] -= 1
        return Hold("release", tensor)

    def _check_call(self, call: Call) -> None:
        if not call.results or not len(call.results) == len(call.bytes) == len(call.aliases):
            raise self._error(
                f"is a CALL of {call.op!r} with {len(call.results)} results; one or more was"
                " expected, with MEMORY and ALIAS each."
            )
        for alias in call.aliases:
            if not FRESH <= alias < len(call.args):
                raise self._error(
                    f"makes a view of argument {alias}; -1 to {len(call.args) - 1} was expected."
                )

    def _check_mutation(self, mutation: Mutate) -> None:
        mutated, count = mutation.mutated, len(mutation.args)
        if (
            not mutated
            or len(set(mutated)) < len(mutated)
            or not all(0 <= k < count for k in mutated)
        ):
            raise self._error(
                f"mutates the arguments {list(mutated)}; different indices from 0 to {count - 1}"
                " were expected."
            )

    def _check_new(self, name: str) -> None:
        if name in self.tensors:
            raise self._error(f"makes {name!r}, which exists already; a new name was expected.")
        if name in self._unknown:
            raise self._error(
                f"makes {name!r}, which line {self._unknown[name]} released before. The log is out"
                " of order."
            )

    def _tensor(self, name: str, verb: str) -> int:
        if name not in self.tensors:
            raise self._error(
                f"{verb} {name!r}, but no line before it makes a tensor of that name; a CONSTANT,"
                " CALL or COPY was expected. The log is cut at its beginning or out of order."
            )
        if self.counts[self.tensors[name]] <= 0:
            raise self._error(
                f"{verb} {name!r}, which line {self._released.get(name)} released; a tensor that"
                " is still there was expected."
            )
        return self.tensors[name]

    def _error(self, what: str) -> LogError:
        return LogError(f"Line {self.line} {what}", line=self.line)
