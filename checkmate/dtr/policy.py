"""The policy of DTR: evicts storages within a budget and recomputes evicted tensors on demand.

The policy decides; a backend executes. The simulator's `Runtime` counts bytes by `CountingBackend`;
the `EagerPolicy` of `checkmate.tf2.eager` has TensorFlow's allocator and kernels as its backend.

Source: Kirisame et al., "Dynamic Tensor Rematerialization" (ICLR 2021), figure 1, section 2 and
appendix C.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from checkmate.dtr.heuristic import Heuristic
from checkmate.dtr.pool import Pool, Search
from checkmate.dtr.storage import Call, Storage, Tensor
from checkmate.errors import ThrashingError


class Backend(Protocol):
    @property
    def in_use(self) -> int: ...

    def compute(self, call: Call, duplicates: Sequence[Tensor]) -> None:
        """Runs a call whose inputs are in memory, then drops the new copies of `duplicates`,
        outputs that were still in memory."""

    def free(self, storage: Storage) -> None: ...


class CountingBackend:
    """The backend that only counts.

    Args:
      out_of_time: Asked before every call; True ends the run with `ThrashingError`.

    Attributes:
      peak: The most bytes in use at any moment, the workspace of the running call and duplicates
        included.
    """

    def __init__(self, out_of_time: Callable[[], bool] = lambda: False) -> None:
        self.in_use = self.peak = 0
        self._out_of_time = out_of_time

    def compute(self, call: Call, duplicates: Sequence[Tensor]) -> None:
        if self._out_of_time():
            raise ThrashingError(
                f"There was no time left for {call.name!r} and what comes after it."
            )
        self.in_use += call.bytes
        self.peak = max(self.peak, self.in_use + call.workspace_bytes)
        for tensor in duplicates:
            self.in_use -= tensor.bytes

    def free(self, storage: Storage) -> None:
        self.in_use -= storage.bytes


class _Frame:
    """A call that is about to run.

    Attributes:
      missing: Its inputs that are not in memory, the next one last; None before any is locked.
    """

    __slots__ = ("locked", "missing", "tensor")

    def __init__(self, tensor: Tensor):
        self.tensor = tensor
        self.locked: list[Storage] = []
        self.missing: list[Tensor] | None = None


class Policy:
    """Locks, evictions and recomputation.

    A subclass says when a call fits (`make_room`) and when storages are released.

    Attributes:
      clock: The moment from which staleness is counted.
      recompute_limit: Cost of all recomputation beyond which the run is given up.
      pool: Storages that may be evicted: in memory and not locked.
      neighbourhood: Counts costs; told of each eviction and rematerialization.
      rematerializations: How often a call ran again; `recomputed_cost` is the cost of those runs.
    """

    latest_first = False
    """Of a call's missing inputs, the one whose call is the latest is computed first, before any
    input is locked. Otherwise inputs in memory are locked at once, the others in order."""

    counts_recomputation_reads = True
    """A read for a recomputation makes a storage fresher, too."""

    def __init__(self, backend: Backend, heuristic: Heuristic, search: Search):
        self.backend = backend
        self.neighbourhood = heuristic.neighbourhood()
        self.pool = Pool(heuristic, self.neighbourhood, search)
        self.clock: float = 0
        self.recompute_limit = math.inf
        self.evictions = self.rematerializations = 0
        self.recomputed_cost: float = 0

    def make_room(self, call: Call) -> None:
        """Evicts until a call fits; raises `EvictionError` if it cannot."""
        raise NotImplementedError

    def thrashing(self) -> ThrashingError:
        raise NotImplementedError

    def choose(self) -> Storage:
        return self.pool.choose(self.clock)

    def lock(self, storage: Storage) -> None:
        """Keeps a storage in memory until it is unlocked as often as it was locked."""
        if not storage.locks:
            self.pool.discard(storage)
        storage.locks += 1

    def unlock(self, storage: Storage) -> None:
        storage.locks -= 1
        if not storage.locks:
            self.pool.add(storage)

    def touch(self, storage: Storage) -> None:
        storage.last_access = self.clock
        self.pool.touched(storage)

    def evict(self, storage: Storage) -> None:
        self.backend.free(storage)
        self.evictions += 1
        self.pool.discard(storage)
        storage.material = False
        for tensor in storage.tensors:
            tensor.defined = False
        self.neighbourhood.evicted(storage)

    def evict_until(self, fits: Callable[[int], bool]) -> int:
        """Evicts by score until the bytes in use fit or the pool is empty; returns these bytes."""
        in_use = self.backend.in_use
        while not fits(in_use) and len(self.pool):
            self.evict(self.choose())
            in_use = self.backend.in_use
        return in_use

    def materialize(self, tensor: Tensor) -> None:
        if not tensor.defined:
            self.evaluate(tensor)

    def evaluate(self, target: Tensor, *, first: bool = False) -> None:
        """Runs the call of `target`, and before it, depth first, the calls of missing inputs.

        The stack is a list: chains of evicted tensors are longer than Python's stack. An error
        takes back all locks of calls that did not run.
        """
        stack: list[_Frame] = []
        missing: Tensor | None = target
        try:
            while missing is not None or stack:
                while missing is not None:
                    stack.append(_Frame(missing))
                    late = self.missing(missing.call.inputs) if self.latest_first else None
                    missing = late[-1] if late else None
                missing = self._lock_inputs(stack[-1])
                if missing is None:
                    again = not first or len(stack) > 1
                    call = self._run(stack[-1].tensor, again=again)
                    stack.pop()
                    for tensor in call.inputs:
                        self.unlock(tensor.storage)
                    self.ran(call)
                    if again and self.recomputed_cost > self.recompute_limit:
                        raise self.thrashing()
        finally:
            for frame in stack:
                for storage in frame.locked:
                    self.unlock(storage)

    def _run(self, wanted: Tensor, *, again: bool) -> Call:
        call = wanted.call
        self.make_room(call)
        fresh = self.compute(call, wanted)
        if fresh:
            self.neighbourhood.rematerialized(fresh)
        if again:
            self.rematerializations += 1
            self.recomputed_cost += call.cost
        return call

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

    def ran(self, call: Call) -> None:
        """Told after each run of a call, whose inputs are unlocked."""

    def missing(self, inputs: Iterable[Tensor]) -> list[Tensor]:
        """Inputs that are not in memory, the one to compute first at the end."""
        found = [tensor for tensor in inputs if not tensor.defined]
        if self.latest_first:
            return sorted(found, key=lambda tensor: tensor.call.number)
        return found[::-1]

    def _lock_inputs(self, frame: _Frame) -> Tensor | None:
        """Locks inputs in memory. Returns the next one to compute, None once all are locked."""
        inputs = frame.tensor.call.inputs
        if frame.missing is None:
            if self.counts_recomputation_reads:
                for tensor in inputs:
                    self.touch(tensor.storage)
            for tensor in inputs:
                if tensor.defined:
                    self._lock_input(frame, tensor)
            frame.missing = self.missing(inputs)
        while frame.missing:
            if not frame.missing[-1].defined:
                return frame.missing[-1]
            self._lock_input(frame, frame.missing.pop())
        return None

    def _lock_input(self, frame: _Frame, tensor: Tensor) -> None:
        self.lock(tensor.storage)
        frame.locked.append(tensor.storage)
