"""The instructions of an op log, and their text: JSON lines in the format of the DTR authors.

One object per line. Numbers are written as text, as the authors' logger writes them; both text and
numbers are read.

    {"INSTRUCTION": "ANNOTATE", "ANNOTATION": "START" | "BACKWARD"}
        What comes before START is not part of the program.
    {"INSTRUCTION": "CONSTANT", "NAME": t}
        Resident all the time. MEMORY of t follows.
    {"INSTRUCTION": "MEMORY", "NAME": t, "MEMORY": bytes}
    {"INSTRUCTION": "CALL", "NAME": op, "ARGS": [t, ...], "RESULT": [t, ...], "TIME": ns}
        MEMORY and ALIAS of each result follow.
    {"INSTRUCTION": "ALIAS", "NAME": t, "ALIAS": k}
        k is the index of the argument that t is a view of, or -1.
    {"INSTRUCTION": "MUTATE", "NAME": op, "ARGS": [t, ...], "MUTATE": [index, ...], "TIME": ns}
        The arguments with these indices get new values.
    {"INSTRUCTION": "COPY", "DST": t, "SRC": t}
        Another name for a tensor.
    {"INSTRUCTION": "COPY_FROM", "DST": t, "SRC": t}
        An existing name now means another tensor.
    {"INSTRUCTION": "RELEASE", "NAME": t}
        The program drops a name.

Source: Kirisame et al., "Dynamic Tensor Rematerialization" (ICLR 2021), appendix C.6.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from checkmate.core.json_files import parse_json
from checkmate.dtr.storage import FRESH
from checkmate.errors import LogError

TOO_LARGE = 2**63


@dataclass(frozen=True, slots=True)
class Constant:
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
    name: str


@dataclass(frozen=True, slots=True)
class Annotate:
    text: str


Instruction: TypeAlias = Constant | Call | Mutate | Copy | CopyFrom | Release | Annotate


def parsed(lines: Iterable[str]) -> list[tuple[int, Instruction]]:
    """Reads the lines of a file, from START on if there is one, with the line number of each
    instruction. Raises `LogError` with the line and what was expected there."""
    numbered = [
        (number, line) for number, line in enumerate(lines, start=1) if line and not line.isspace()
    ]
    start = next((k + 1 for k, (_, line) in enumerate(numbered) if _is_start(line)), 0)
    reader = _Reader(numbered, start)
    found = []
    while reader.more():
        entry = reader.entry("an instruction")
        found.append((entry.line, _instruction(entry, reader)))
    return found


class _Reader:
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
            data = parse_json(text)
        except ValueError as error:
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
                f"Line {entry.line} is {entry.kind} of {reprlib.repr(entry.data.get('NAME'))},"
                f" where {expected} was expected. The log is cut or out of order.",
                line=entry.line,
            )
        return entry


def _is_start(line: str) -> bool:
    if '"START"' not in line:
        return False
    try:
        data = parse_json(line)
    except ValueError:
        return False
    return isinstance(data, dict) and (data.get("INSTRUCTION"), data.get("ANNOTATION")) == (
        "ANNOTATE",
        "START",
    )


class _Entry:
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
                f"Line {self.line}: {key} of {self.kind} is {reprlib.repr(self.data.get(key))},"
                f" where {expected} was expected.",
                line=self.line,
            )
        return self.data[key]


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


def written(instruction: Instruction) -> Iterator[dict[str, Any]]:
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
