"""The runtime of the simulator: runs a program's calls and follows its references.

Where the paper leaves a choice, it follows the simulator that the authors published: the clock
starts at 1; inputs that are in memory are locked before the missing ones are recomputed, in order;
all outputs of a call are made again, those still in memory twice for a moment; the pool is ordered
by when a storage became evictable; the limit on recomputation is checked after each one.

Source: Kirisame et al., "Dynamic Tensor Rematerialization" (ICLR 2021), figure 1 and appendix C.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from enum import Enum

from checkmate.dtr.heuristic import Heuristic
from checkmate.dtr.policy import Backend, Policy
from checkmate.dtr.pool import Search
from checkmate.dtr.storage import Call, Storage, Tensor, apply
from checkmate.errors import EvictionError, ThrashingError
from checkmate.units import format_bytes


class Deallocation(str, Enum):
    """The treatment of a storage to which the program holds no reference any more.

    Source: Kirisame et al. (2021), section 2 and appendix D.2.
    """

    IGNORE = "ignore"  # nothing: it stays until it is evicted
    EAGER = "eager"  # it is evicted at once, and can come back if something needs it
    # It is freed for good, as soon as nothing evicted depends on it; what was made of it can then
    # not be recomputed.
    BANISH = "banish"


class Runtime(Policy):
    """One run of a program under a budget.

    Args:
      budget_bytes: `backend.in_use` never goes above it; may be infinite.

    Attributes:
      clock: The cost of everything run so far, plus 1.

    `EvictionError` and `ThrashingError` end a run: locks are given back, but the call that the
    program asked for was not run.
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
        super().__init__(backend, heuristic, search or Search())
        self.budget_bytes, self.recompute_limit = budget_bytes, recompute_limit
        self.clock = 1
        self.calls = self.eager_evictions = 0
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
        self.evaluate(call.outputs[0], first=True)
        storages = dict.fromkeys(tensor.storage for tensor in call.outputs)
        if len(inputs) > 1:  # a view may give its storage further inputs
            self.neighbourhood.rematerialized(storages)
        for storage in storages:
            self.touch(storage)
        return call.outputs

    def retain(self, tensor: Tensor) -> None:
        tensor.refs += 1
        tensor.storage.refs += 1

    def release(self, tensor: Tensor) -> None:
        tensor.refs -= 1
        tensor.storage.refs -= 1
        if not tensor.storage.refs:
            self._deallocate(tensor.storage)

    def pin(self, tensor: Tensor) -> None:
        self.materialize(tensor)
        if not tensor.storage.pinned:
            self.lock(tensor.storage)
            tensor.storage.pinned = True

    def unpin(self, tensor: Tensor) -> None:
        if tensor.storage.pinned:
            tensor.storage.pinned = False
            self.unlock(tensor.storage)
            if not tensor.storage.refs:
                self._deallocate(tensor.storage)

    def make_room(self, call: Call) -> None:
        needed = call.bytes + call.workspace_bytes
        in_use = self.evict_until(lambda in_use: in_use + needed <= self.budget_bytes)
        if in_use + needed > self.budget_bytes:
            raise EvictionError(
                f"{call.name!r} needs {format_bytes(needed)} within"
                f" {format_bytes(self.budget_bytes)}, of which {format_bytes(in_use)} is locked or"
                " pinned and cannot be evicted:"
                f" {format_bytes(in_use + needed - self.budget_bytes)} too much. Raise the budget.",
                budget_bytes=self.budget_bytes,
                needed_bytes=in_use + needed,
            )

    def thrashing(self) -> ThrashingError:
        return ThrashingError(
            f"Recomputation has cost {self.recomputed_cost:g}, more than the limit of"
            f" {self.recompute_limit:g}, and the program is not done within"
            f" {format_bytes(self.budget_bytes)}. Raise the budget or the overhead limit.",
            budget_bytes=self.budget_bytes,
        )

    def ran(self, call: Call) -> None:
        self.clock += call.cost
        if self._banishing:
            for tensor in call.inputs:
                self._banish(tensor.storage)

    def _evict_unreferenced(self, storage: Storage) -> None:
        if storage.material and not storage.locks:
            self.eager_evictions += 1
            self.evict(storage)

    def _banish(self, storage: Storage) -> None:
        """Frees for good a storage without references or evicted users, then perhaps its inputs."""
        waiting = [storage]
        while waiting:
            storage = waiting.pop()
            if (
                storage.banished
                or storage.refs
                or storage.locks > storage.pinned
                or not all(user.material for user in storage.users)
            ):
                continue
            if storage.pinned:
                storage.pinned = False
                self.unlock(storage)
            if storage.material:
                self._evict_unreferenced(storage)
            storage.banished = True
            waiting.extend(storage.deps)
            users = list(storage.users)
            self.neighbourhood.detach(storage)
            for user in users:
                if not user.pinned:
                    self.lock(user)
                    user.pinned = True
