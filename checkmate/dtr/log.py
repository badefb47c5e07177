"""Op logs: what a program did, as JSON lines in the public format of the DTR authors' simulator.

One object per line. Numbers are written as text, as the authors' logger does, and read either way.

    {"INSTRUCTION": "ANNOTATE", "ANNOTATION": "START" | "BACKWARD"}      what comes before START is
                                                                         not part of the program
    {"INSTRUCTION": "CONSTANT", "NAME": t}                               followed by MEMORY of t:
                                                                         resident all the time
    {"INSTRUCTION": "MEMORY", "NAME": t, "MEMORY": bytes}
    {"INSTRUCTION": "CALL", "NAME": op, "ARGS": [t, ...], "RESULT": [t, ...], "TIME": ns}    followed
                                                                                             by
                                                                                             MEMORY
                                                                                             and
                                                                                             ALIAS
                                                                                             of each
                                                                                             result
    {"INSTRUCTION": "ALIAS", "NAME": t, "ALIAS": index of the argument that it is a view of, or -1}
    {"INSTRUCTION": "MUTATE", "NAME": op, "ARGS": [t, ...], "MUTATE": [index, ...], "TIME": ns}   these
                                                                                                  arguments
                                                                                                  get
                                                                                                  new
                                                                                                  values
    {"INSTRUCTION": "COPY", "DST": t, "SRC": t}                          another name for a tensor
    {"INSTRUCTION": "COPY_FROM", "DST": t, "SRC": t}                     an existing name now means
                                                                         another tensor
    {"INSTRUCTION": "RELEASE", "NAME": t}                                the program drops a name

Source: Kirisame et al., "Dynamic Tensor Rematerialization" (ICLR 2021), appendix C.6.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from checkmate.core.graph import DFGraph
from checkmate.dtr.storage import FRESH
from checkmate.errors import LogError

TOO_LARGE = 2**63
"""No number of a log is as large; Python's own could be too large for any other."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A tensor that is there from the start: a weight, an input."""

    name: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Call:
    """An op made new tensors. `bytes` and `aliases` have one entry per result; the bytes of a view
    are not counted."""

    results: tuple[str, ...]
    op: str
    args: tuple[str, ...]
    time: int
    bytes: tuple[int, ...]
    aliases: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Mutate:
    """An op wrote into some of its arguments. It counts as making new tensors of the same size,
    which take over their names."""

    op: str
    args: tuple[str, ...]
    mutated: tuple[int, ...]
    time: int


@dataclass(frozen=True, slots=True)
class _Naming:
    """A name and the name of the tensor that it is for."""

    name: str
    source: str


class Copy(_Naming):
    """`name` is a new name of the tensor called `source`."""


class CopyFrom(_Naming):
    """The existing name `name` means the tensor called `source` from here."""


@dataclass(frozen=True, slots=True)
class Release:
    """The program drops a name."""

    name: str


@dataclass(frozen=True, slots=True)
class Annotate:
    """A remark: "START" or "BACKWARD"."""

    text: str


Instruction: TypeAlias = Constant | Call | Mutate | Copy | CopyFrom | Release | Annotate


@dataclass(frozen=True, slots=True)
class OpLog:
    """What a program did, in order.

    Args:
      instructions: From START on, if there is one.
      name: For people.
      lines: The line of the file that each instruction begins on; counted through when the log is
        no file.

    A name that is released without ever having been made is taken for one from before the log
    begins, and that instruction means nothing.

    Raises:
      LogError: An instruction names a tensor that does not exist there, makes one twice, or has an
        index out of range.
    """

    instructions: tuple[Instruction, ...]
    name: str = field(default="", compare=False)
    lines: tuple[int, ...] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "instructions", tuple(self.instructions))
        if not self.lines:
            object.__setattr__(self, "lines", tuple(range(1, len(self.instructions) + 1)))
        _check(self.instructions, self.lines)

    def __len__(self) -> int:
        return len(self.instructions)

    def __repr__(self) -> str:
        calls = sum(isinstance(instruction, (Call, Mutate)) for instruction in self.instructions)
        return f"OpLog({self.name!r}, calls={calls}, instructions={len(self.instructions)})"

    @classmethod
    def load(cls, path: str | os.PathLike) -> OpLog:
        """Reads a log file, line by line. Raises `LogError` with the line and what was expected
        there."""
        try:
            with Path(path).open(encoding="utf-8") as file:
                return cls.from_lines(file, name=Path(path).stem)
        except OSError as error:
            raise LogError(f"Cannot read {path}: {error.strerror or error}.", line=0) from error
        except UnicodeDecodeError as error:
            raise LogError(
                f"{path} is no text: {error}. An op log is a file of JSON lines.", line=0
            ) from error

    @classmethod
    def from_lines(cls, lines: Iterable[str], *, name: str = "") -> OpLog:
        """Reads a log from the lines of a file. What comes before START need not even be of the
        format."""
        numbered = [
            (number, line)
            for number, line in enumerate(lines, start=1)
            if not line.isspace() and line
        ]
        start = next((k + 1 for k, (_, line) in enumerate(numbered) if _is_start(line)), 0)
        parsed = list(_instructions(_Reader(numbered, start)))
        return cls(
            tuple([instruction for _, instruction in parsed]),
            name,
            tuple([number for number, _ in parsed]),
        )

    def save(self, path: str | os.PathLike) -> None:
        """Writes the log; `OpLog.load` reads it back equal."""
        Path(path).write_text("".join(line + "\n" for line in self.to_lines()), encoding="utf-8")

    def to_lines(self) -> Iterator[str]:
        """The lines of the file."""
        for instruction in (Annotate("START"), *self.instructions):
            for entry in _written(instruction):
                yield json.dumps(entry, separators=(",", ":"))

    @classmethod
    def from_graph(cls, graph: DFGraph) -> OpLog:
        """Makes a log of the plain step: ops in order, each value released after its last use,
        `graph.fixed_bytes` as one constant.

        Costs become nanoseconds: they are taken for seconds unless all are whole numbers. The
        format does not know workspaces, ops that may run only once, or what an op overwrites;
        `simulate(graph, ...)` does.
        """
        last_use = [max(users, default=i) for i, users in enumerate(graph.users)]
        kept = set(graph.outputs)
        instructions: list[Instruction] = (
            [Constant("fixed_bytes", graph.fixed_bytes)] if graph.fixed_bytes else []
        )
        times = whole_costs(graph)
        for i, op in enumerate(graph.ops):
            if op.is_backward and not graph.ops[i - 1].is_backward:
                instructions.append(Annotate("BACKWARD"))
            args = tuple(graph.ops[d].name for d in op.deps)
            instructions.append(
                Call((op.name,), op.kind or op.name, args, times[i], (op.output_bytes,), (FRESH,))
            )
            ending = [d for d in (*op.deps, i) if last_use[d] == i and d not in kept]
            instructions.extend(Release(graph.ops[d].name) for d in ending)
        return cls(tuple(instructions), graph.name)


def whole_costs(graph: DFGraph) -> list[int]:
    """The costs of a graph's ops as whole numbers: as they are if all are, and otherwise seconds to
    nanoseconds."""
    costs = [op.cost for op in graph.ops]
    scale = 1 if all(cost == int(cost) for cost in costs) else 10**9
    return [round(cost * scale) for cost in costs]


# ---- reading
# -----------------------------------------------------------------------------------------------------------------------


class _Reader:
    """The lines of a file, one JSON object at a time."""

    def __init__(self, numbered: list[tuple[int, str]], start: int):
        self._numbered = numbered
        self._next = start
        self.line = numbered[start - 1][0] if start else 0

    def more(self) -> bool:
        return self._next < len(self._numbered)

    def entry(self, expected: str) -> _Entry:
        if not self.more():
            raise LogError(
                f"The log ends after line {self.line}, where {expected} was expected. It is cut.",
                line=self.line + 1,
            )
        self.line, text = self._numbered[self._next]
        self._next += 1
        try:
            data = json.loads(text)
        except (json.JSONDecodeError, RecursionError) as error:
            cut = " It may be cut." if not self.more() else ""
            raise LogError(
                f"Line {self.line} is not JSON ({error}), where {expected} was expected.{cut}",
                line=self.line,
            ) from error
        if not isinstance(data, dict) or not isinstance(data.get("INSTRUCTION"), str):
            raise LogError(
                f"Line {self.line} is {text[:60]!r}; {expected}, a JSON object with a key"
                " INSTRUCTION, was expected.",
                line=self.line,
            )
        return _Entry(self.line, data)

    def of(self, kind: str, name: str) -> _Entry:
        """The next line, which must be the `kind` of the tensor `name`."""
        expected = f"{kind} of {name!r}"
        entry = self.entry(expected)
        if (entry.kind, entry.data.get("NAME")) != (kind, name):
            raise LogError(
                f"Line {entry.line} is {entry.kind} of {entry.data.get('NAME')!r}, where {expected}"
                " was expected. The log is cut or out of order.",
                line=entry.line,
            )
        return entry


def _is_start(line: str) -> bool:
    if '"START"' not in line:
        return False
    try:
        data = json.loads(line)
    except (json.JSONDecodeError, RecursionError):
        return False
    return isinstance(data, dict) and (data.get("INSTRUCTION"), data.get("ANNOTATION")) == (
        "ANNOTATE",
        "START",
    )


class _Entry:
    """One line."""

    def __init__(self, line: int, data: dict[str, Any]):
        self.line, self.data = line, data
        self.kind: str = data["INSTRUCTION"]

    def text(self, key: str) -> str:
        return self._checked(key, isinstance(self.data.get(key), str), "text")

    def names(self, key: str) -> tuple[str, ...]:
        value = self.data.get(key)
        return tuple(
            self._checked(
                key,
                isinstance(value, list) and all(isinstance(name, str) for name in value),
                "a list of names",
            )
        )

    def number(self, key: str, least: int = 0) -> int:
        return self._whole(key, self.data.get(key), "a whole number", least)

    def numbers(self, key: str) -> tuple[int, ...]:
        value = self._checked(key, isinstance(self.data.get(key), list), "a list of whole numbers")
        return tuple(self._whole(key, number, "a list of whole numbers", 0) for number in value)

    def _whole(self, key: str, value: Any, expected: str, least: int) -> int:
        good = isinstance(value, (int, str)) and not isinstance(value, bool)
        try:
            number = int(value) if good else least - 1
        except ValueError:
            number = least - 1
        self._checked(
            key, least <= number < TOO_LARGE, f"{expected}, {least} or more and less than 2^63,"
        )
        return number

    def _checked(self, key: str, good: bool, expected: str) -> Any:
        if not good:
            raise LogError(
                f"Line {self.line}: {key} of {self.kind} is {self.data.get(key)!r}, where"
                f" {expected} was expected.",
                line=self.line,
            )
        return self.data[key]


def _instructions(reader: _Reader) -> Iterator[tuple[int, Instruction]]:
    while reader.more():
        entry = reader.entry("an instruction")
        yield entry.line, _instruction(entry, reader)


def _instruction(entry: _Entry, reader: _Reader) -> Instruction:
    match entry.kind:
        case "CONSTANT":
            name = entry.text("NAME")
            return Constant(name, reader.of("MEMORY", name).number("MEMORY"))
        case "CALL":
            op, args, results, time = (
                entry.text("NAME"),
                entry.names("ARGS"),
                entry.names("RESULT"),
                entry.number("TIME"),
            )
            sizes, aliases = [], []
            for name in results:
                sizes.append(reader.of("MEMORY", name).number("MEMORY"))
                aliases.append(reader.of("ALIAS", name).number("ALIAS", FRESH))
            return Call(results, op, args, time, tuple(sizes), tuple(aliases))
        case "MUTATE":
            return Mutate(
                entry.text("NAME"),
                entry.names("ARGS"),
                entry.numbers("MUTATE"),
                entry.number("TIME"),
            )
        case "COPY":
            return Copy(entry.text("DST"), entry.text("SRC"))
        case "COPY_FROM":
            return CopyFrom(entry.text("DST"), entry.text("SRC"))
        case "RELEASE":
            return Release(entry.text("NAME"))
        case "ANNOTATE":
            return Annotate(entry.text("ANNOTATION"))
    known = "CONSTANT, CALL, MUTATE, COPY, COPY_FROM, RELEASE or ANNOTATE"
    after = (
        " MEMORY and ALIAS follow a CONSTANT or CALL." if entry.kind in ("MEMORY", "ALIAS") else ""
    )
    raise LogError(
        f"Line {entry.line} is {entry.kind}, where {known} was expected.{after}", line=entry.line
    )


def _check(instructions: tuple[Instruction, ...], lines: tuple[int, ...]) -> None:
    """Follows which names exist, and how many names each tensor has."""
    tensors: dict[str, list[int]] = {}  # name -> [how many names the tensor has]
    released: dict[str, int] = {}  # name -> line
    strays: dict[str, int] = {}
    for line, instruction in zip(lines, instructions, strict=True):

        def fail(what: str, line: int = line) -> LogError:
            return LogError(f"Line {line} {what}", line=line)

        def tensor(name: str, verb: str, fail=fail) -> list[int]:
            if name not in tensors:
                raise fail(
                    f"{verb} {name!r}, but no line before it makes a tensor of that name; a"
                    " CONSTANT, CALL or COPY was expected. The log is cut at its beginning or out"
                    " of order."
                )
            if tensors[name][0] <= 0:
                raise fail(
                    f"{verb} {name!r}, which line {released.get(name)} released; a tensor that is"
                    " still there was expected."
                )
            return tensors[name]

        def create(name: str, names: list[int], fail=fail) -> None:
            if name in tensors:
                raise fail(f"makes {name!r}, which exists already; a new name was expected.")
            if name in strays:
                raise fail(
                    f"makes {name!r}, which line {strays[name]} released before. The log is out of"
                    " order."
                )
            tensors[name] = names

        match instruction:
            case Constant(name=name):
                create(name, [1])
            case Call(results=results, args=args, aliases=aliases):
                for name in args:
                    tensor(name, "reads")
                if not results or not len(results) == len(instruction.bytes) == len(aliases):
                    raise fail(
                        f"is a CALL of {instruction.op!r} with {len(results)} results; one or more"
                        " was expected, with MEMORY and ALIAS each."
                    )
                for alias in aliases:
                    if not FRESH <= alias < len(args):
                        raise fail(
                            f"makes a view of argument {alias}; -1 to {len(args) - 1} was expected."
                        )
                for name in results:
                    create(name, [1])
            case Mutate(args=args, mutated=mutated):
                for name in args:
                    tensor(name, "reads")
                if (
                    not mutated
                    or len(set(mutated)) < len(mutated)
                    or not all(0 <= k < len(args) for k in mutated)
                ):
                    raise fail(
                        f"mutates the arguments {list(mutated)}; different indices from 0 to"
                        f" {len(args) - 1} were expected."
                    )
                for k in mutated:
                    tensors[args[k]][0] -= 1
                    tensors[args[k]] = [1]
            case Copy(name=name, source=source):
                names = tensor(source, "copies")
                create(name, names)
                names[0] += 1
            case CopyFrom(name=name, source=source):
                names = tensor(source, "copies")
                tensor(name, "replaces")[0] -= 1
                names[0] += 1
                tensors[name] = names
            case Release(name=name):
                if name in tensors:
                    tensor(name, "releases")[0] -= 1
                    released[name] = line
                else:
                    strays[name] = line


# ---- writing
# -----------------------------------------------------------------------------------------------------------------------


def _written(instruction: Instruction) -> Iterator[dict[str, Any]]:
    match instruction:
        case Constant(name=name):
            yield {"INSTRUCTION": "CONSTANT", "NAME": name}
            yield {"INSTRUCTION": "MEMORY", "NAME": name, "MEMORY": str(instruction.bytes)}
        case Call(results=results, op=op, args=args, time=time):
            yield {
                "INSTRUCTION": "CALL",
                "NAME": op,
                "ARGS": list(args),
                "RESULT": list(results),
                "TIME": str(time),
            }
            for name, size, alias in zip(
                results, instruction.bytes, instruction.aliases, strict=True
            ):
                yield {"INSTRUCTION": "MEMORY", "NAME": name, "MEMORY": str(size)}
                yield {"INSTRUCTION": "ALIAS", "NAME": name, "ALIAS": str(alias)}
        case Mutate(op=op, args=args, mutated=mutated, time=time):
            yield {
                "INSTRUCTION": "MUTATE",
                "NAME": op,
                "ARGS": list(args),
                "MUTATE": list(mutated),
                "TIME": str(time),
            }
        case Copy(name=name, source=source):
            yield {"INSTRUCTION": "COPY", "DST": name, "SRC": source}
        case CopyFrom(name=name, source=source):
            yield {"INSTRUCTION": "COPY_FROM", "DST": name, "SRC": source}
        case Release(name=name):
            yield {"INSTRUCTION": "RELEASE", "NAME": name}
        case Annotate(text=text):
            yield {"INSTRUCTION": "ANNOTATE", "ANNOTATION": text}
