"""The runtime of DTR: keeps memory within the budget by eviction, and brings back what is asked
for.

It decides; a backend executes. On paper the backend counts bytes (`Paper` here); in a framework it
would run kernels and ask the allocator. The runtime sees only what a backend says is in use.

Source: Kirisame et al., "Dynamic Tensor Rematerialization" (ICLR 2021), figure 1, section 2 and
appendix C. Where the paper leaves a choice, this follows the simulator its authors published: the
clock starts at 1; inputs that are there are locked before the missing ones are brought back, in
order; all outputs of a call are made again, those still there twice for a moment; the pool is
ordered by when a storage became evictable; the limit on recomputation is checked after each one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Protocol

from checkmate.dtr.heuristic import Heuristic
from checkmate.dtr.pool import Pool, Search
from checkmate.dtr.storage import Call, Storage, Tensor, apply
from checkmate.errors import EvictionError, ThrashingError
from checkmate.units import format_bytes


class Deallocation(str, Enum):
    """What happens to a storage when the program holds no reference to it any more.

    Source: Kirisame et al. (2021), section 2 and appendix D.2.
    """

    IGNORE = "ignore"  # nothing: it stays until it is evicted
    EAGER = "eager"  # it is evicted at once, and can come back if something needs it
    # It goes for good, as soon as nothing evicted depends on it; what was made of it can then not
    # be recomputed.
    BANISH = "banish"


class Backend(Protocol):
    """Who executes."""

    @property
    def in_use(self) -> int:
        """Bytes in use now."""

    def compute(self, call: Call, duplicates: Sequence[Tensor]) -> None:
        """Runs a call, whose inputs are all in memory; then drops the fresh copies of `duplicates`,
        outputs that were still there."""

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
        """Takes the storage off."""
        self.in_use -= storage.bytes


class Runtime:
    """One run of a program under a budget.

    Args:
      backend: Who executes.
      budget_bytes: `backend.in_use` never goes above it; may be infinite.
      heuristic: The score by which storages are evicted.
      deallocation: What a program's dropping its last reference does.
      recompute_limit: Cost of all recomputation beyond which the run is given up.
      search: Limits of the search for what to evict.

    Attributes:
      clock: The cost of everything run so far, plus 1.
      evictions: How often a storage was evicted; `eager_evictions` of them because nothing referred
        to it.
      rematerializations: How often a call ran again.
      recomputed_cost: What that cost.

    `EvictionError` and `ThrashingError` end a run: locks are given back, but what the program asked
    for was not done.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        budget_bytes: float,
        heuristic: Heuristic,
        deallocation: Deallocation = Deallocation.EAGER,
        recompute_limit: float = math.inf,
        search: Search | None = None,
    ):
        self.backend, self.budget_bytes = backend, budget_bytes
        self.recompute_limit = recompute_limit
        self.clock: float = 1
        self.calls = self.evictions = self.eager_evictions = self.rematerializations = 0
        self.recomputed_cost: float = 0
        self.neighbourhood = heuristic.neighbourhood()
        self.pool = Pool(heuristic, self.neighbourhood, search or Search())
        self._banishing = Deallocation(deallocation) is Deallocation.BANISH
        self._deallocate: Callable[[Storage], None] = {
            Deallocation.IGNORE: lambda storage: None,
            Deallocation.EAGER: self._evict_unreferenced,
            Deallocation.BANISH: self._banish,
        }[Deallocation(deallocation)]

    def call(
        self,
        name: str,
        inputs: Sequence[Tensor],
        sizes: Sequence[int],
        aliases: Sequence[int],
        cost: float,
        workspace_bytes: int = 0,
    ) -> tuple[Tensor, ...]:
        """Runs an op for the first time and returns its outputs, to each of which the program then
        holds one reference.

        Args:
          sizes: Bytes of each output; zero for views.
          aliases: For each output the index of the input that it is a view of, or `FRESH`.
        """
        call = apply(self.calls, name, inputs, sizes, aliases, cost, workspace_bytes)
        self.calls += 1
        self._materialize(call.outputs[0], first=True)
        for tensor in call.outputs:
            self._touch(tensor.storage)
        return call.outputs

    def materialize(self, tensor: Tensor) -> None:
        """Brings a tensor back into memory, if it is not there."""
        if not tensor.defined:
            self._materialize(tensor, first=False)

    def retain(self, tensor: Tensor) -> None:
        """The program holds one more reference to a tensor."""
        tensor.refs += 1
        tensor.storage.refs += 1

    def release(self, tensor: Tensor) -> None:
        """The program gives back a reference to a tensor."""
        tensor.refs -= 1
        tensor.storage.refs -= 1
        if not tensor.storage.refs:
            self._deallocate(tensor.storage)

    def pin(self, tensor: Tensor) -> None:
        """Brings a tensor into memory and keeps its storage there."""
        self.materialize(tensor)
        if not tensor.storage.pinned:
            self._lock(tensor.storage)
            tensor.storage.pinned = True

    def unpin(self, tensor: Tensor) -> None:
        """Lets go of a pinned storage, which is deallocated if nothing refers to it."""
        if tensor.storage.pinned:
            tensor.storage.pinned = False
            self._unlock(tensor.storage)
            if not tensor.storage.refs:
                self._deallocate(tensor.storage)

    # ---- bringing back
    # -------------------------------------------------------------------------------------------------------------

    def _materialize(self, target: Tensor, *, first: bool) -> None:
        """Depth first, with a stack of its own: chains of evicted tensors are longer than
        Python's."""
        stack = [_Frame(target)]
        try:
            while stack:
                frame = stack[-1]
                if frame.missing is None:
                    self._begin(frame)
                missing = self._next_missing(frame)
                if missing is not None:
                    stack.append(_Frame(missing))
                    continue
                self._run(frame, first=first and frame.tensor is target)
                stack.pop()
        finally:
            for frame in stack:
                for storage in frame.locked:
                    self._unlock(storage)

    def _begin(self, frame: _Frame) -> None:
        inputs = frame.tensor.call.inputs
        for tensor in inputs:
            self._touch(tensor.storage)
        for tensor in inputs:
            if tensor.defined:
                self._hold(frame, tensor)
        frame.missing = [tensor for tensor in reversed(inputs) if not tensor.defined]

    def _next_missing(self, frame: _Frame) -> Tensor | None:
        """Locks what has come back, up to the next input that is not there."""
        assert frame.missing is not None
        while frame.missing:
            if not frame.missing[-1].defined:
                return frame.missing[-1]
            self._hold(frame, frame.missing.pop())
        return None

    def _run(self, frame: _Frame, *, first: bool) -> None:
        call = frame.tensor.call
        self._make_room(call)
        outputs = [*(tensor for tensor in call.outputs if tensor is not frame.tensor), frame.tensor]
        fresh = [tensor.storage for tensor in outputs if not tensor.storage.material]
        self.backend.compute(call, [tensor for tensor in outputs if tensor.defined])
        self.clock += call.cost
        for tensor in outputs:
            tensor.defined = tensor.storage.material = True
        for storage in fresh:
            self.pool.add(storage)
        if first:  # a view gives the storage it is of a further cost, and perhaps further inputs
            fresh += [
                tensor.storage
                for tensor in outputs
                if tensor.storage not in fresh and len(call.inputs) > 1
            ]
            self.neighbourhood.stale.update(dict.fromkeys(tensor.storage for tensor in outputs))
        if fresh:
            self.neighbourhood.rematerialized(fresh)
        frame.locked.clear()
        for tensor in call.inputs:
            self._unlock(tensor.storage)
        if self._banishing:
            for tensor in call.inputs:
                self._banish(tensor.storage)
        if not first:
            self.rematerializations += 1
            self.recomputed_cost += call.cost
        if self.recomputed_cost > self.recompute_limit:
            raise ThrashingError(
                f"Recomputation has cost {self.recomputed_cost:g}, more than the limit of"
                f" {self.recompute_limit:g}, and the program is not done within"
                f" {format_bytes(self.budget_bytes)}. Raise the budget or the overhead limit.",
                budget_bytes=self.budget_bytes,
            )

    # ---- making room
    # ---------------------------------------------------------------------------------------------------------------

    def _make_room(self, call: Call) -> None:
        needed = call.bytes + call.workspace_bytes
        while self.backend.in_use + needed > self.budget_bytes:
            if not len(self.pool):
                raise EvictionError(
                    f"{call.name!r} needs {format_bytes(needed)} within"
                    f" {format_bytes(self.budget_bytes)}, of which"
                    f" {format_bytes(self.backend.in_use)} is locked or pinned and cannot be"
                    f" evicted: {format_bytes(self.backend.in_use + needed - self.budget_bytes)}"
                    " too much. Raise the budget.",
                    budget_bytes=self.budget_bytes,
                    needed_bytes=self.backend.in_use + needed,
                )
            self._evict(self.pool.choose(self.clock))

    def _evict(self, storage: Storage) -> None:
        self.backend.free(storage)
        self.evictions += 1
        self.pool.discard(storage)
        storage.material = False
        for tensor in storage.tensors:
            tensor.defined = False
        self.neighbourhood.evicted(storage)

    def _evict_unreferenced(self, storage: Storage) -> None:
        if storage.material and not storage.locks:
            self.eager_evictions += 1
            self._evict(storage)

    def _banish(self, storage: Storage) -> None:
        """Drops for good what nothing refers to and nothing evicted was made of, and then perhaps
        what it was made of."""
        waiting = [storage]
        while waiting:
            storage = waiting.pop()
            if (
                storage.banished
                or storage.refs
                or storage.locks > storage.pinned
                or not all(other.material for other in storage.after)
            ):
                continue
            if storage.pinned:
                storage.pinned = False
                self._unlock(storage)
            if storage.material:
                self._evict_unreferenced(storage)
            storage.banished = True
            waiting.extend(storage.before)
            dependents = list(storage.after)
            self.neighbourhood.detach(storage)
            for other in dependents:
                if not other.pinned:
                    self._lock(other)
                    other.pinned = True

    # ---- locks
    # ---------------------------------------------------------------------------------------------------------------------

    def _touch(self, storage: Storage) -> None:
        storage.last_access = self.clock
        self.pool.touched(storage)

    def _hold(self, frame: _Frame, tensor: Tensor) -> None:
        self._lock(tensor.storage)
        frame.locked.append(tensor.storage)

    def _lock(self, storage: Storage) -> None:
        if not storage.locks:
            self.pool.discard(storage)
        storage.locks += 1

    def _unlock(self, storage: Storage) -> None:
        storage.locks -= 1
        if not storage.locks:
            self.pool.add(storage)


class _Frame:
    """A call on its way: its inputs that are locked, and those still missing (None before it
    begins; the next one last)."""

    __slots__ = ("locked", "missing", "tensor")

    def __init__(self, tensor: Tensor):
        self.tensor = tensor
        self.locked: list[Storage] = []
        self.missing: list[Tensor] | None = None
