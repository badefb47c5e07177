"""Whether an op log makes sense: each instruction names tensors that exist there, and makes each
tensor once."""

from __future__ import annotations

from collections.abc import Sequence

from checkmate.dtr.instructions import (
    Call,
    Constant,
    Copy,
    CopyFrom,
    Instruction,
    Mutate,
    Release,
)
from checkmate.dtr.storage import FRESH
from checkmate.errors import LogError


def check(instructions: Sequence[Instruction], lines: Sequence[int]) -> None:
    """Raises `LogError` with the line of the first instruction that makes no sense."""
    names = _Names()
    for names.line, instruction in zip(lines, instructions, strict=True):
        names.follow(instruction)


class _Names:
    """Which names exist, and how many names each tensor has.

    Attributes:
      line: The line of the instruction that is followed now.
    """

    line = 0

    def __init__(self) -> None:
        self._tensors: dict[str, list[int]] = {}  # by name: [how many names its tensor has]
        self._released: dict[str, int] = {}  # by name: the line
        self._unknown: dict[str, int] = {}  # the same, of names that the log never made

    def follow(self, instruction: Instruction) -> None:
        match instruction:
            case Constant(name=name):
                self._create(name, [1])
            case Call(results=results, args=args):
                for name in args:
                    self._tensor(name, "reads")
                self._check_call(instruction)
                for name in results:
                    self._create(name, [1])
            case Mutate(args=args, mutated=mutated):
                for name in args:
                    self._tensor(name, "reads")
                self._check_mutation(instruction)
                for k in mutated:
                    self._tensors[args[k]][0] -= 1
                    self._tensors[args[k]] = [1]
            case Copy(name=name, source=source):
                names = self._tensor(source, "copies")
                self._create(name, names)
                names[0] += 1
            case CopyFrom(name=name, source=source):
                names = self._tensor(source, "copies")
                self._tensor(name, "replaces")[0] -= 1
                names[0] += 1
                self._tensors[name] = names
            case Release(name=name):
                if name in self._tensors:
                    self._tensor(name, "releases")[0] -= 1
                    self._released[name] = self.line
                else:
                    self._unknown[name] = self.line

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

    def _tensor(self, name: str, verb: str) -> list[int]:
        if name not in self._tensors:
            raise self._error(
                f"{verb} {name!r}, but no line before it makes a tensor of that name; a CONSTANT,"
                " CALL or COPY was expected. The log is cut at its beginning or out of order."
            )
        if self._tensors[name][0] <= 0:
            raise self._error(
                f"{verb} {name!r}, which line {self._released.get(name)} released; a tensor that"
                " is still there was expected."
            )
        return self._tensors[name]

    def _create(self, name: str, names: list[int]) -> None:
        if name in self._tensors:
            raise self._error(f"makes {name!r}, which exists already; a new name was expected.")
        if name in self._unknown:
            raise self._error(
                f"makes {name!r}, which line {self._unknown[name]} released before. The log is out"
                " of order."
            )
        self._tensors[name] = names

    def _error(self, what: str) -> LogError:
        return LogError(f"Line {self.line} {what}", line=self.line)
