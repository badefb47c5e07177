"""The policy of eager mode: `checkmate.dtr.policy` with TensorFlow's allocator as its backend.

It differs from the simulator's in these points. The program's references are Python's, given back
at any moment. A storage that nothing can ask for any more is forgotten, so that a training loop
does not grow. Staleness is a distance in the program, which a backward pass goes back, and a read
for a recomputation makes no storage fresher. Of a call's missing inputs the latest is computed
first: to lock inputs in order would lock an activation per layer on the long way back of a
gradient. The memory that an op needs is known from ops like it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, cast

from checkmate.dtr.neighbourhood import Classes, Own
from checkmate.dtr.policy import Policy
from checkmate.dtr.storage import Call, Storage, Tensor
from checkmate.errors import ThrashingError
from checkmate.tf2.eager.budget import (
    REFUSALS,
    Allocator,
    Budget,
    EagerOptions,
    does_not_fit,
    is_refusal,
    thrashing,
)
from checkmate.tf2.eager.op_kinds import Needs
from checkmate.tf2.eager.storage import Cell, EagerCall, EagerStorage, Recorder


class EagerPolicy(Policy):
    """Keeps the allocator's count within the budget.

    Args:
      recorder: Told of each cell that the program gives back, if there is one.

    Attributes:
      clock: The place in the program, in seconds of what its ops cost when they first ran. In a
        backward pass that no tape records it is the place at which the op first ran whose gradient
        is next, since tapes read last what was made first.
      pass_ended: The clock at the end of the last backward pass.
      in_backward: A backward pass that no tape records is running.
      gradients: How many tapes are being asked for gradients, one inside of another.
      demand_bytes: The most memory that would have been in use without eviction.
    """

    latest_first = True
    counts_recomputation_reads = False

    def __init__(
        self, allocator: Allocator, options: EagerOptions, recorder: Recorder | None = None
    ):
        super().__init__(allocator, options.heuristic, options.search)
        # No cost is needed before the first eviction by score, and none is counted.
        self.neighbourhood, self._costs = Own(), self.neighbourhood
        self.allocator, self._tuning, self._recorder = allocator, options.tuning, recorder
        self.budget = Budget(allocator, options)
        self._overhead_limit = options.overhead_limit
        self.first_cost = self.pass_ended = 0.0
        self.in_backward, self.gradients = False, 0
        self.live: dict[EagerStorage, None] = {}
        self.demand_bytes = self._referenced_bytes = 0

    def advance(self, cost: float) -> None:
        self.first_cost += cost
        self.recompute_limit = (self._overhead_limit - 1) * self.first_cost
        if not self.in_backward:
            self.clock = self.first_cost

    def begin_gradients(self, *, recorded: bool) -> bool:
        """A tape is asked for gradients. Returns whether this begins a pass that goes back."""
        self.gradients += 1
        begins = not self.in_backward and not recorded
        self.in_backward = self.in_backward or begins
        return begins

    def end_gradients(self, *, began: bool) -> None:
        self.gradients -= 1
        if began:
            self.in_backward = False
            self.clock = self.pass_ended = self.first_cost

    def choose(self) -> Storage:
        if self.neighbourhood is not self._costs:
            self.neighbourhood = self._costs
            self.neighbourhood.restart(self.live)
        horizon = self._tuning.horizon_share * abs(self.clock - self.pass_ended)
        return self.pool.choose(self.clock, horizon)

    def adopt(self, storage: EagerStorage) -> None:
        self.live[storage] = None
        self.pool.add(storage)
        self.allocator.managed_bytes += storage.bytes

    def retain(self, cell: Cell) -> None:
        storage = cell.storage
        cell.refs += 1
        storage.refs += 1
        if storage.refs == 1:
            self._referenced_bytes += storage.bytes
            if storage.slot >= 0:  # its weight has changed
                self.neighbourhood.stale[storage] = None

    def release(self, cell: Cell) -> None:
        storage = cell.storage
        cell.refs -= 1
        storage.refs -= 1
        if self._recorder and not cell.refs:
            self._recorder.released(cell)
        if not storage.refs:
            self._referenced_bytes -= storage.bytes
            self._release_if_unreferenced(storage)

    def release_weak(self, cell: Cell) -> None:
        """A backward function that is not known to read the cell is gone."""
        cell.storage.weak_refs -= 1
        if not cell.storage.refs:
            self._release_if_unreferenced(cell.storage)

    def _release_if_unreferenced(self, storage: EagerStorage) -> None:
        """Evicts a storage that nothing refers to, and frees it for good if nothing was made of it
        that is still known; then perhaps its inputs."""
        waiting = [storage]
        while waiting:
            storage = waiting.pop()
            if storage.banished or storage.refs or storage.locks:
                continue
            if storage.users or storage.weak_refs:
                if storage.material:
                    self.evict(storage)
                continue
            waiting.extend(cast("Iterable[EagerStorage]", storage.deps))
            self._free(storage)

    def _free(self, storage: EagerStorage) -> None:
        if storage.material:
            self.pool.discard(storage)
            self.allocator.free(storage)
        self.neighbourhood.detach(storage)
        storage.banished, storage.material = True, False
        self.live.pop(storage, None)
        for tensor in storage.tensors:
            cell = cast("Cell", tensor)
            outputs = cell.call.outputs
            cell.call.outputs = (
                tuple([other for other in outputs if other is not cell]) if len(outputs) > 1 else ()
            )
            cell.forget()
        storage.tensors.clear()

    def evict(self, storage: Storage) -> None:
        super().evict(storage)
        classes = self.neighbourhood
        if isinstance(classes, Classes) and len(classes.values) > self._tuning.most_classes:
            classes.restart(self.live)

    def evict_all(self) -> None:
        for storage in list(self.pool):
            self.evict(storage)

    def ensure_resident(self, cells: Sequence[Cell], locked: list[Storage]) -> None:
        """Computes the missing inputs of an op, locks all of them and adds them to `locked`. The
        latest of the missing ones comes back before any is locked."""
        missing = self.missing(cells)
        if missing:
            self.materialize(missing[-1])
        for cell in sorted(cells, key=lambda cell: not cell.defined):
            self.materialize(cell)
            self.lock(cell.storage)
            locked.append(cell.storage)

    def make_room(self, call: Call) -> None:
        if self.budget.limited:
            assert isinstance(call, EagerCall)
            self.reserve(call.needs, call.name)

    def reserve(self, needs: Needs, name: str) -> None:
        budget = self.budget
        unmanaged = self.allocator.in_use - self.allocator.managed_bytes
        demand = unmanaged + self._referenced_bytes + needs.bytes
        self.demand_bytes = max(self.demand_bytes, demand)
        in_use = budget.before_bytes = self.evict_until(lambda in_use: budget.fits(in_use, needs))
        certain = needs.bytes if needs.measured else needs.least_bytes
        if in_use + certain > budget.promised_bytes:
            raise does_not_fit(name, in_use, certain, budget.promised_bytes, self.live)

    def ran(self, call: Call) -> None:
        if self.budget.limited:
            assert isinstance(call, EagerCall)
            self.learn(call.needs, call.name)

    def measure(self, needs: Needs, run: Callable[[], Any], *, rehearse: bool = False) -> Any:
        """Runs an op and learns its needs from the allocator's report; see `Allocator.watched`."""
        result, used, held = self.allocator.watched(run, rehearse=rehearse)
        needs.learn(used, held)
        self.budget.learn_loss(needs, held)
        return result

    def learn(self, needs: Needs, name: str) -> None:
        """Learns from an op that has run what the allocator lost on it, and what the op needed
        beyond the prediction."""
        budget = self.budget
        in_use, over = self.allocator.in_use, budget.over_bytes
        budget.learn_loss(needs, in_use - budget.before_bytes)
        if over <= 0:
            return
        used = int(budget.promised_bytes + over) - budget.before_bytes
        needs.raise_to(used)
        if not len(self.pool):
            budget.count_overshoot()
            raise does_not_fit(name, budget.before_bytes, used, budget.promised_bytes, self.live)
        budget.overshoot(budget.explain(name, used))

    def compute(self, call: Call, wanted: Tensor) -> list[Storage]:
        run = partial(super().compute, call, wanted)
        try:
            return run()
        except REFUSALS as error:
            assert isinstance(call, EagerCall)
            return self.after_refusal(call, error, run)

    def after_refusal(self, call: EagerCall, error: Exception, run: Callable[[], Any]) -> Any:
        """The allocator has no hole that is large enough, though enough bytes are free: evicts more
        and runs the call again, from now on with a smaller budget.

        TensorFlow waits ten seconds before it refuses.
        """
        budget = self.budget
        while is_refusal(error) and budget.limited and not call.kind.stateful and len(self.pool):
            stays = self.allocator.in_use - sum(storage.bytes for storage in self.pool)
            budget.usable_bytes -= max(call.needs.bytes, (budget.usable_bytes - stays) / 16)
            self.reserve(call.needs, call.name)
            try:
                return run()
            except REFUSALS as again:
                error = again
        raise error

    def thrashing(self) -> ThrashingError:
        ratio = self.recomputed_cost / self.first_cost
        return thrashing(ratio, self._overhead_limit, self.budget.promised_bytes, self.demand_bytes)

    def close(self) -> None:
        _ = self.allocator.in_use
        self.budget.close()
        self._overhead_limit = self.recompute_limit = math.inf
