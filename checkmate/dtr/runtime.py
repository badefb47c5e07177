"""The runtime of DTR: keeps memory within the budget by eviction, and brings back what is asked
for.

The runtime decides; a backend (`memory.Backend`) executes. On paper the backend counts bytes
(`memory.Paper`). The runtime sees only what the backend says is in use.

Source: Kirisame et al., "Dynamic Tensor Rematerialization" (ICLR 2021), figure 1, section 2 and
appendix C. Where the paper leaves a choice, this follows the simulator its authors published: the
clock starts at 1; inputs that are there are locked before the missing ones are brought back, in
order; all outputs of a call are made again, those still there twice for a moment; the pool is
ordered by when a storage became evictable; the limit on recomputation is checked after each one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import closing
from enum import Enum

from checkmate.dtr.heuristic import Heuristic
from checkmate.dtr.memory import Backend, Memory
from checkmate.dtr.pool import Pool, Search
from checkmate.dtr.recomputation import Frame, frames
from checkmate.dtr.storage import Call, Storage, Tensor, apply
from checkmate.errors import EvictionError, ThrashingError
from checkmate.units import format_bytes


class Deallocation(str, Enum):
    """What happens to a storage when the program holds no reference to it any more.

    Source: Kirisame et al. (2021), section 2 and appendix D.2.
    """

    IGNORE = "ignore"  # nothing: it stays until it is evicted
    EAGER = "eager"  # it is evicted at once, and can come back if something needs it
    # It is freed for good, as soon as nothing evicted depends on it; what was made of it can then
    # not be recomputed.
    BANISH = "banish"


class Runtime:
    """One run of a program under a budget.

    Args:
      backend: Executes calls and counts bytes.
      budget_bytes: `backend.in_use` never goes above it; may be infinite.
      heuristic: The score by which storages are evicted.
      deallocation: What happens when the program drops the last reference to a storage.
      recompute_limit: Cost of all recomputation beyond which the run is given up.
      search: Limits of the search for what to evict.

    Attributes:
      clock: The cost of everything run so far, plus 1.
      memory: What is in memory, with the number of evictions.
      rematerializations: How often a call ran again.
      recomputed_cost: The cost of those runs.

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
        self.budget_bytes, self.recompute_limit = budget_bytes, recompute_limit
        self.clock: float = 1
        self.calls = self.rematerializations = 0
        self.recomputed_cost: float = 0
        neighbourhood = heuristic.neighbourhood()
        pool = Pool(heuristic, neighbourhood, search or Search())
        self.memory = Memory(backend, pool, neighbourhood)
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
            self.memory.lock(tensor.storage)
            tensor.storage.pinned = True

    def unpin(self, tensor: Tensor) -> None:
        """Lets go of a pinned storage, which is deallocated if nothing refers to it."""
        if tensor.storage.pinned:
            tensor.storage.pinned = False
            self.memory.unlock(tensor.storage)
            if not tensor.storage.refs:
                self._deallocate(tensor.storage)

    def _materialize(self, target: Tensor, *, first: bool) -> None:
        with closing(frames(target, self.memory, self._next_missing)) as calls:
            for frame in calls:
                self._run(frame, first=first and frame.tensor is target)

    def _next_missing(self, memory: Memory, frame: Frame) -> Tensor | None:
        """Inputs that are in memory are locked at once, the missing ones in order as they come
        back."""
        inputs = frame.tensor.call.inputs
        if frame.missing is None:
            for tensor in inputs:
                self._touch(tensor.storage)
            for tensor in inputs:
                if tensor.defined:
                    frame.lock(memory, tensor)
            frame.missing = [tensor for tensor in reversed(inputs) if not tensor.defined]
        return frame.next_missing(memory)

    def _run(self, frame: Frame, *, first: bool) -> None:
        call = frame.tensor.call
        self._make_room(call)
        fresh = self.memory.compute(call, frame.tensor)
        self.clock += call.cost
        neighbourhood = self.memory.neighbourhood
        if first:  # a view gives the storage it is of a further cost, and perhaps further inputs
            storages = dict.fromkeys(tensor.storage for tensor in call.outputs)
            if len(call.inputs) > 1:
                fresh += [storage for storage in storages if storage not in fresh]
            neighbourhood.stale.update(storages)
        if fresh:
            neighbourhood.rematerialized(fresh)
        frame.unlock(self.memory)
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

    def _make_room(self, call: Call) -> None:
        memory, needed = self.memory, call.bytes + call.workspace_bytes
        while memory.backend.in_use + needed > self.budget_bytes:
            in_use = memory.backend.in_use
            if not len(memory.pool):
                raise EvictionError(
                    f"{call.name!r} needs {format_bytes(needed)} within"
                    f" {format_bytes(self.budget_bytes)}, of which {format_bytes(in_use)} is locked"
                    " or pinned and cannot be evicted:"
                    f" {format_bytes(in_use + needed - self.budget_bytes)} too much. Raise the"
                    " budget.",
                    budget_bytes=self.budget_bytes,
                    needed_bytes=in_use + needed,
                )
            memory.evict(memory.pool.choose(self.clock))

    def _touch(self, storage: Storage) -> None:
        storage.last_access = self.clock
        self.memory.pool.touched(storage)

    def _evict_unreferenced(self, storage: Storage) -> None:
        if storage.material and not storage.locks:
            self.memory.eager_evictions += 1
            self.memory.evict(storage)

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
                self.memory.unlock(storage)
            if storage.material:
                self._evict_unreferenced(storage)
            storage.banished = True
            waiting.extend(storage.before)
            dependents = list(storage.after)
            self.memory.neighbourhood.detach(storage)
            for other in dependents:
                if not other.pinned:
                    self.memory.lock(other)
                    other.pinned = True
