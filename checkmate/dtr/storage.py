"""Storages, which DTR evicts, the tensors that view them, and the calls that make those.

Source: Kirisame et al., "Dynamic Tensor Rematerialization" (ICLR 2021), section 2 and appendix C.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

FRESH = -1
"""Alias index of an output that has memory of its own."""


class Call:
    """One application of an op to tensors. Running it makes all its outputs, whichever of them is
    needed.

    Attributes:
      number: Calls are numbered in the order in which they first run.
      bytes: Bytes of its outputs; a view of an input needs none.
      workspace_bytes: Scratch memory that it needs in addition while it runs.
    """

    __slots__ = ("bytes", "cost", "inputs", "name", "number", "outputs", "workspace_bytes")

    def __init__(
        self, number: int, name: str, inputs: Sequence[Tensor], cost: float, workspace_bytes: int
    ):
        self.number, self.name, self.inputs = number, name, tuple(inputs)
        self.cost, self.workspace_bytes = cost, workspace_bytes
        self.outputs: tuple[Tensor, ...] = ()
        self.bytes = 0


class Tensor:
    """One output of a call: a view of a storage, which may be another tensor's.

    Attributes:
      bytes: Bytes that it adds to memory: the storage's for its first view, zero for others.
      defined: Its call has run since the storage was last evicted. Evicting a storage undefines
        every view of it.
    """

    __slots__ = ("bytes", "call", "defined", "refs", "storage")

    def __init__(self, call: Call, storage: Storage, count: int):
        self.call, self.storage, self.bytes = call, storage, count
        self.refs = 1
        self.defined = False


class Storage:
    """A piece of memory and its views: what is evicted and rematerialized as a whole.

    Attributes:
      cost: The sum of the costs of the calls that made its views.
      material: It is in memory.
      locks: How many reasons there are not to evict it now: running calls that read it, and one
        if it is pinned.
      deps, users: The storages its views were made of, and those made of its views (dicts, as sets
        that keep their order).
      around: Data of the neighbourhood in use.
      slot: Its place in the pool's arrays, or -1.
      weight: Factor of its cost in scores; 0 has it evicted first.
    """

    __slots__ = (
        *("around", "banished", "bytes", "cost", "deps", "last_access", "locks"),
        *("material", "pinned", "refs", "slot", "tensors", "users"),
    )
    weight: float = 1

    def __init__(self, count: int):
        self.bytes = count
        self.cost: float = 0
        self.tensors: list[Tensor] = []
        self.material = self.pinned = self.banished = False
        self.locks = self.refs = 0
        self.last_access: float = 0
        self.deps: dict[Storage, None] = {}
        self.users: dict[Storage, None] = {}
        self.around: Any = None
        self.slot = -1

    def neighbours(self) -> Iterator[Storage]:
        return chain(self.deps, self.users)

    def link(self, inputs: Iterable[Tensor]) -> None:
        for tensor in inputs:
            source = tensor.storage
            if source is not self:
                source.users[self] = None
                self.deps[source] = None

    def detach(self) -> None:
        """Cuts it out of the graph: nothing is recomputed through it any more."""
        for other in self.deps:
            del other.users[self]
        for other in self.users:
            del other.deps[self]
        self.deps, self.users = {}, {}


def apply(
    number: int,
    name: str,
    inputs: Sequence[Tensor],
    sizes: Sequence[int],
    aliases: Sequence[int],
    cost: float,
    workspace_bytes: int,
) -> Call:
    """Links a new call, whose outputs are not in memory yet, to its inputs.

    Args:
      aliases: For each output the index of the input that it is a view of, or `FRESH`.
    """
    call = Call(number, name, inputs, cost, workspace_bytes)
    outputs = []
    for size, alias in zip(sizes, aliases, strict=True):
        storage = Storage(size) if alias == FRESH else inputs[alias].storage
        if not (storage.tensors and storage.tensors[-1].call is call):
            storage.cost += cost
        tensor = Tensor(call, storage, size if alias == FRESH else 0)
        storage.tensors.append(tensor)
        storage.refs += 1
        call.bytes += tensor.bytes
        outputs.append(tensor)
    call.outputs = tuple(outputs)
    for tensor in outputs:
        tensor.storage.link(inputs)
    return call
