"""Footprint: what one run of a kernel asks the allocator for, in order. Node: a kernel in the order
in which a step runs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a kernel.

    Attributes:
      bytes: What is asked for.
      output: The output that it is memory for; None for a workspace.
      until: How many requests the kernel has made when it gives a workspace back; None where that
        is when the kernel ends.
    """

    bytes: int
    output: int | None = None
    until: int | None = None


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a kernel asks for.

    Attributes:
      requests: In order. An output that none of them is for lies in the memory of an input, or is
        made by another kernel.
      in_place: Whether the kernel writes an output over an input that nobody else holds; None where
        that was not seen.
    """

    requests: tuple[Request, ...]
    in_place: bool | None = None


class Kind(Enum):
    """What a node does to memory.

    KERNEL: asks for memory for its outputs, and for workspaces. VIEW: its k-th output lies in the
    memory of its k-th input, or of its first where it has fewer. RESIDENT: its outputs are in
    memory before the step and after it: variables, arguments, constants.
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
      reads: The tensors that it reads, by node name and output.
      output_bytes: Of each output.
      workspace_bytes: What the kernel takes beyond them, where no footprint tells.
      in_place: Whether it may write an output over an input of the same size, where no footprint
        tells.
      shares: Whether its output may be a part of an input's memory.
    """

    name: str
    key: str
    kind: Kind
    reads: tuple[tuple[str, int], ...]
    output_bytes: tuple[int, ...]
    workspace_bytes: int = 0
    in_place: bool = False
    shares: bool = False

    def expected(self) -> Footprint:
        """Returns the footprint that the node is expected to have before it was seen: outputs, then
        the workspace."""
        workspace = (Request(self.workspace_bytes),) if self.workspace_bytes else ()
        outputs = tuple(Request(size, output=k) for k, size in enumerate(self.output_bytes) if size)
        return Footprint((*outputs, *workspace), self.in_place)
