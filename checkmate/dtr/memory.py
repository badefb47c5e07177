"""What is in memory and what may be evicted: locks, evictions and recomputed calls, told to a
backend.

Whoever decides (the runtime on paper, the policy of eager TensorFlow) holds one `Memory`; it holds
the backend that executes. Neither refers back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from checkmate.dtr.neighbourhood import Own
from checkmate.dtr.storage import Call, Storage, Tensor
from checkmate.errors import ThrashingError


class Backend(Protocol):
    """Executes calls and counts bytes."""

    @property
    def in_use(self) -> int:
        """Bytes in use now."""

    def compute(self, call: Call, duplicates: Sequence[Tensor]) -> None:
        """Runs a call, whose inputs are all in memory; then drops the new copies of `duplicates`,
        outputs that were still in memory."""

    def free(self, storage: Storage) -> None:
        """Drops the values of a storage."""


class Paper:
    """The backend that only counts.

    Args:
      out_of_time: Asked before every call; True ends the run with `ThrashingError`.

    Attributes:
      in_use: Bytes of all storages in memory.
      peak: The most bytes in use at any moment, the workspace of the running call and duplicates
        included.
    """

    def __init__(self, out_of_time: Callable[[], bool] = lambda: False) -> None:
        self.in_use = self.peak = 0
        self._out_of_time = out_of_time

    def compute(self, call: Call, duplicates: Sequence[Tensor]) -> None:
        """Adds the outputs."""
        if self._out_of_time():
            raise ThrashingError(
                f"There was no time left for {call.name!r} and what comes after it."
            )
        self.in_use += call.bytes
        self.peak = max(self.peak, self.in_use + call.workspace_bytes)
        for tensor in duplicates:
            self.in_use -= tensor.bytes

    def free(self, storage: Storage) -> None:
        """Subtracts the storage."""
        self.in_use -= storage.bytes


class Candidates(Protocol):
    """Storages that may be evicted (`pool.Pool`)."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Storage]: ...

    def add(self, storage: Storage) -> object:
        """Puts a storage at the end that is not among them."""

    def discard(self, storage: Storage) -> object:
        """Takes a storage out that is among them."""

    def touched(self, storage: Storage) -> None:
        """Tells that the storage was read."""

    def choose(self, clock: float, horizon: float = 0) -> Storage:
        """The storage to evict next."""


class Memory:
    """Storages in memory, those that may be evicted, and those that are locked.

    Attributes:
      pool: What may be evicted: in memory and not locked.
      neighbourhood: Counts costs; told of each eviction and return.
      evictions: How often a storage was evicted; `eager_evictions` of them because nothing referred
        to it.
    """

    def __init__(self, backend: Backend, pool: Candidates, neighbourhood: Own):
        self.backend, self.pool, self.neighbourhood = backend, pool, neighbourhood
        self.evictions = self.eager_evictions = 0

    def lock(self, storage: Storage) -> None:
        """Keeps a storage in memory until it is unlocked as often as it was locked."""
        if not storage.locks:
            self.pool.discard(storage)
        storage.locks += 1

    def unlock(self, storage: Storage) -> None:
        """Takes one lock back."""
        storage.locks -= 1
        if not storage.locks:
            self.pool.add(storage)

    def evict(self, storage: Storage) -> None:
        """Drops the values of a storage that is in the pool."""
        self.backend.free(storage)
        self.evictions += 1
        self.pool.discard(storage)
        storage.material = False
        for tensor in storage.tensors:
            tensor.defined = False
        self.neighbourhood.evicted(storage)

    def compute(self, call: Call, wanted: Tensor) -> list[Storage]:
        """Runs a call whose inputs are locked. Returns the storages that it brought into memory;
        that of `wanted`, one of its outputs, becomes evictable last."""
        outputs = [*(tensor for tensor in call.outputs if tensor is not wanted), wanted]
        fresh = [tensor.storage for tensor in outputs if not tensor.storage.material]
        self.backend.compute(call, [tensor for tensor in outputs if tensor.defined])
        for tensor in outputs:
            tensor.defined = tensor.storage.material = True
        for storage in fresh:
            self.pool.add(storage)
        return fresh
