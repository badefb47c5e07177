"""The instructions of an op log: what a program did, one object for each.

Source: Kirisame et al., "Dynamic Tensor Rematerialization" (ICLR 2021), appendix C.6.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


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
