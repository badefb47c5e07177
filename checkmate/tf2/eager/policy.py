"""Which real tensors stay in memory: the policy of `checkmate.dtr.runtime`, with the allocator's
count.

What differs from paper: the program's references are Python's, given back at any moment; a storage
that nothing can ask for any more is forgotten, so that a training loop does not grow;
staleness is a distance in the program, which a backward pass goes back, and what comes back for
another tensor is no fresher for it; of an op's missing inputs the latest comes back first; and what
an op needs is known from ops like it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from typing import Any, cast

from checkmate.dtr.memory import Memory
from checkmate.dtr.neighbourhood import Classes
from checkmate.dtr.pool import Pool
from checkmate.dtr.recomputation import Frame, frames
from checkmate.dtr.storage import Storage
from checkmate.tf2.eager.allocator import REFUSALS, Allocator, is_refusal
from checkmate.tf2.eager.budget import Budget
from checkmate.tf2.eager.eviction_errors import does_not_fit, thrashing
from checkmate.tf2.eager.locking import next_missing, number
from checkmate.tf2.eager.needs import Needs
from checkmate.tf2.eager.options import EagerOptions
from checkmate.tf2.eager.position import Position
from checkmate.tf2.eager.ranks import Asleep, Ranked, Unsorted, ranked
from checkmate.tf2.eager.recorder import Recorder
from checkmate.tf2.eager.storage import Cell, EagerCall, EagerStorage


class EagerPolicy:
    """Keeps the allocator's count within the budget.

    Args:
      allocator: Executes and counts.
      recorder: Told of each cell that the program gives back, if there is one.

    Attributes:
      memory: What is in memory, and what may be evicted.
      budget: What is known of the bytes in use.
      position: Where the program is; the runtime moves it.
      live: All storages that something can still ask for.
      rematerializations: How often a call ran again; `recomputed_cost` is what that cost.
      demand_bytes: The most memory that would have been in use without eviction.
    """

    def __init__(
        self, allocator: Allocator, options: EagerOptions, recorder: Recorder | None = None
    ):
        self.allocator, self._options, self._recorder = allocator, options, recorder
        self.budget, self.position = Budget(allocator, options), Position()
        self.neighbourhood: Ranked = Asleep()
        self.memory = Memory(allocator, Unsorted(), self.neighbourhood)
        self.live: dict[EagerStorage, None] = {}
        self._overhead_limit = options.overhead_limit
        self.rematerializations = 0
        self.recomputed_cost = 0.0
        self.demand_bytes = 0
        self._away_bytes = self._passing_bytes = 0

    def adopt(self, storage: EagerStorage) -> None:
        """A new storage is in memory."""
        self.live[storage] = None
        self.memory.pool.add(storage)

    def retain(self, cell: Cell) -> None:
        """The program holds one more reference."""
        storage = cell.storage
        cell.refs += 1
        storage.refs += 1
        if storage.refs == 1:
            if storage.passing:
                self._passed(storage)
            if not storage.material:
                self._away_bytes += storage.bytes
            elif storage.slot >= 0:
                self.neighbourhood.stale[storage] = None

    def release(self, cell: Cell) -> None:
        """The program gives back a reference."""
        storage = cell.storage
        cell.refs -= 1
        storage.refs -= 1
        if self._recorder and not cell.refs:
            self._recorder.released(cell)
        if not storage.refs:
            if not storage.material:
                self._away_bytes -= storage.bytes
            self._retire(storage)

    def raise_anchor(self, cell: Cell) -> None:
        """One backward function less may ask for the cell."""
        cell.storage.anchors -= 1
        if not cell.storage.refs:
            self._retire(cell.storage)

    def _retire(self, storage: EagerStorage) -> None:
        """Evicts what nothing refers to; forgets it for good if nothing was made of it that is
        still known."""
        waiting = [storage]
        while waiting:
            storage = waiting.pop()
            if storage.banished or storage.refs or storage.locks:
                continue
            if storage.after or storage.anchors:
                if storage.material:
                    self.evict(storage)
                continue
            waiting.extend(cast("Iterable[EagerStorage]", storage.before))
            self._bury(storage)

    def _passed(self, storage: EagerStorage) -> None:
        if storage.passing:
            storage.passing = False
            self._passing_bytes -= storage.bytes

    def _bury(self, storage: EagerStorage) -> None:
        self._passed(storage)
        if storage.material:
            self.memory.pool.discard(storage)
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

    def bring(self, cells: Sequence[Cell], locked: list[Storage]) -> None:
        """Locks the inputs of an op, and adds them to `locked`. The latest of the missing ones has
        the longest way back, and comes back before any is locked."""
        gone = [cell for cell in cells if not cell.defined]
        if gone:
            self.materialize(max(gone, key=number))
        for cell in sorted(cells, key=lambda cell: not cell.defined):
            self.materialize(cell)
            self.memory.lock(cell.storage)
            locked.append(cell.storage)

    def unlock(self, locked: Iterable[Storage]) -> None:
        """Takes the locks of `bring` back."""
        for storage in locked:
            self.memory.unlock(storage)

    def touch(self, storage: Storage) -> None:
        """The program reads a storage. That it is read to bring another back says nothing about
        when the program will."""
        storage.last_access = self.position.place
        self.memory.pool.touched(storage)

    def materialize(self, cell: Cell) -> None:
        """Brings a cell back into memory, if it is not there."""
        if cell.defined:
            return
        with closing(frames(cell, self.memory, next_missing)) as calls:
            for frame in calls:
                self._run_again(frame)

    def _run_again(self, frame: Frame) -> None:
        call = cast("EagerCall", frame.tensor.call)
        away = {
            cell.storage: None
            for cell in call.outputs
            if not cell.storage.material and cell.storage.refs
        }
        try:
            self._compute(call, frame)
        finally:
            self._away_bytes -= sum(storage.bytes for storage in away if storage.material)
        for cell in call.outputs:
            if cell.storage.material and not cell.storage.refs and not cell.storage.passing:
                cell.storage.passing = True
                self._passing_bytes += cell.storage.bytes
        if self.budget.limited:
            self.learn(call.needs, call.name)

    def _compute(self, call: EagerCall, frame: Frame) -> None:
        if self.budget.limited:
            self.make_room(call.needs, call.name)
        run = lambda: self.memory.compute(call, frame.tensor)  # noqa: E731
        try:
            fresh = run()
        except REFUSALS as error:
            fresh = self.after_refusal(call, error, run)
        if fresh:
            self.neighbourhood.rematerialized(fresh)
        frame.unlock(self.memory)
        self.rematerializations += 1
        self.recomputed_cost += call.cost
        first_cost, limit = self.position.first_cost, self._overhead_limit
        if self.recomputed_cost > (limit - 1) * first_cost:
            ratio = self.recomputed_cost / first_cost
            raise thrashing(ratio, limit, self.budget.promised_bytes, self.demand_bytes)

    def make_room(self, needs: Needs, name: str) -> None:
        """Evicts until an op fits."""
        budget, in_use = self.budget, self.allocator.in_use
        demand = in_use - self._passing_bytes + self._away_bytes + needs.bytes
        self.demand_bytes = max(self.demand_bytes, demand)
        tuning, position = self._options.tuning, self.position
        while not budget.fits(in_use, needs) and len(self.memory.pool):
            if len(self.neighbourhood.stale) > tuning.most_stale or not self._is_sorted():
                self.tidy()
            horizon = tuning.horizon_share * abs(position.place - position.pass_began)
            self.evict(self.memory.pool.choose(position.place, horizon))
            in_use = self.allocator.in_use
        budget.begin(in_use, needs)
        certain = needs.bytes if needs.measured else needs.least_bytes
        if in_use + certain > budget.promised_bytes:
            raise does_not_fit(name, in_use, certain, budget.promised_bytes, self.live)

    def learn(self, needs: Needs, name: str) -> None:
        """Learns from an op that has run what the allocator lost on it, and what the op took more
        than was foreseen."""
        budget = self.budget
        if budget.has_plenty():
            return
        in_use, over = self.allocator.in_use, budget.over_bytes
        budget.learn_loss(needs, in_use - budget.before_bytes)
        if over <= 0:
            return
        foreseen, took = needs.bytes, int(budget.promised_bytes + over) - budget.before_bytes
        needs.raise_to(foreseen + int(over))
        if not len(self.memory.pool):
            budget.count_overshoot()
            raise does_not_fit(name, budget.before_bytes, took, budget.promised_bytes, self.live)
        budget.overshoot(budget.explain(name, took, foreseen))

    def after_refusal(self, call: EagerCall, error: Exception, run: Callable[[], Any]) -> Any:
        """The allocator has no hole that is large enough, though enough bytes are free: evicts more
        and runs the call again, from now on with a smaller budget.

        TensorFlow waits ten seconds before it refuses.
        """
        budget = self.budget
        while (
            is_refusal(error)
            and budget.limited
            and not call.kind.stateful
            and len(self.memory.pool)
        ):
            pool = self.memory.pool
            stays = self.allocator.in_use - sum(storage.bytes for storage in pool)
            budget.usable_bytes -= max(call.needs.bytes, (budget.usable_bytes - stays) / 16)
            self.make_room(call.needs, call.name)
            try:
                return run()
            except REFUSALS as again:
                error = again
        raise error

    def evict(self, storage: Storage) -> None:
        """Drops the values of a storage that is in the pool."""
        self.memory.evict(storage)
        assert isinstance(storage, EagerStorage)
        self._passed(storage)
        if storage.refs:
            self._away_bytes += storage.bytes

    def evict_all(self) -> None:
        """Evicts all that can be evicted."""
        for storage in list(self.memory.pool):
            self.evict(storage)

    def _is_sorted(self) -> bool:
        return type(self.memory.pool) is Pool

    def tidy(self) -> None:
        """Forgets the dead among the stale; at the first eviction, and after many, works everything
        out afresh."""
        classes = self.neighbourhood.plain
        if self._is_sorted() and not (
            isinstance(classes, Classes) and len(classes.values) > self._options.tuning.most_classes
        ):
            self.neighbourhood.forget_dead()
            return
        inside = list(self.memory.pool)
        for storage in self.live:
            storage.around, storage.slot = None, -1
        self.neighbourhood = self.memory.neighbourhood = ranked(self._options.heuristic)
        self.neighbourhood.restart(self.live)
        pool = self.memory.pool = Pool(
            self._options.heuristic, self.neighbourhood, self._options.search
        )
        for each in inside:
            pool.add(each)

    def close(self) -> None:
        """No budget and no overhead limit any more."""
        _ = self.allocator.in_use
        self.budget.close()
        self._overhead_limit = math.inf
