"""Footprint: the memory that one run of a kernel requests, in order. Node: a kernel in the order in
which a step runs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a kernel.

    Attributes:
      bytes: Bytes requested.
      output: The output that the memory is for; None for a workspace.
      until: How many requests the kernel has made when it releases a workspace; None if it does so
        when it ends.
    """

    bytes: int
    output: int | None = None
    until: int | None = None


@dataclass(frozen=True, slots=True)
class Footprint:
    """The requests of a kernel.

    Attributes:
      requests: In order. An output without a request lies in the memory of an input, or another
        kernel allocates it.
      in_place: Whether an output takes the buffer of an input that no other op holds; None if that
        was not observed.
    """

    requests: tuple[Request, ...]
    in_place: bool | None = None

    def row(self) -> list[Any]:
        """Returns the footprint as lists, for a JSON file."""
        return [self.in_place, [[each.bytes, each.output, each.until] for each in self.requests]]

    @classmethod
    def of_row(cls, row: Any) -> Footprint:
        """Returns the footprint of a row. Raises `ValueError` or `TypeError` for anything that is
        no row."""
        in_place, requests = row
        if in_place not in (None, True, False):
            raise ValueError("a footprint says neither yes nor no")
        found = tuple(Request(*each) for each in requests)
        for each in found:
            if (
                not all(value is None or type(value) is int for value in (each.output, each.until))
                or type(each.bytes) is not int
                or each.bytes < 1
            ):
                raise ValueError("a request is no positive number of bytes")
        return cls(found, in_place)


class Kind(Enum):
    """The effect of a node on memory.

    KERNEL: requests memory for its outputs, and for workspaces. VIEW: its k-th output lies in the
    memory of its k-th input, or of its first if it has fewer. RESIDENT: its outputs are in memory
    before the step and after it: variables, arguments, constants.
    """

    KERNEL = "kernel"
    VIEW = "view"
    RESIDENT = "resident"


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a graph whose nodes run one after another.

    Attributes:
      name: Unique. Its k-th output is the tensor (name, k).
      key: Nodes with the same key are evaluations of one op, and have one footprint.
      kind: See `Kind`.
      reads: The tensors that the node reads, by node name and output.
      output_bytes: Bytes of each output.
      workspace_bytes: Additional bytes that the kernel needs, if it has no footprint.
      in_place: Whether an output may take the buffer of an input of the same size, if the node has
        no footprint.
      shares: Whether an output may be a part of an input's memory.
      lists: The outputs that are lists, whose entries are requested one by one.
    """

    name: str
    key: str
    kind: Kind
    reads: tuple[tuple[str, int], ...]
    output_bytes: tuple[int, ...]
    workspace_bytes: int = 0
    in_place: bool = False
    shares: bool = False
    lists: tuple[int, ...] = ()

    def expected(self) -> Footprint:
        """Returns the footprint that is assumed before one is observed: outputs, then the
        workspace."""
        workspace = (Request(self.workspace_bytes),) if self.workspace_bytes else ()
        outputs = tuple(Request(size, output=k) for k, size in enumerate(self.output_bytes) if size)
        return Footprint((*outputs, *workspace), self.in_place)
