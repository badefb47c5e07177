"""Which tensors stay in memory: the policy of `checkmate.dtr.runtime`, on real storages and the
allocator's count.

What differs from paper: the program's references are Python's, given back at any moment; a storage
that nothing can ask for any more is forgotten, so that a training loop leaves nothing behind;
staleness is a distance in the program, which a backward pass goes back, since tapes read last what
was made first, and what comes back for another is no fresher for it; of an op's missing inputs the
latest comes back first; and an op's needs are what the allocator said of its like, with a margin
for what the allocator loses in holes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from checkmate.dtr.heuristic import Heuristic
from checkmate.dtr.neighbourhood import Classes
from checkmate.dtr.pool import Pool, Search
from checkmate.dtr.runtime import Deallocation, Runtime
from checkmate.dtr.storage import Call, Storage, Tensor
from checkmate.errors import EvictionError, ThrashingError
from checkmate.tf2.eager import private_api
from checkmate.tf2.eager.allocator import Allocator
from checkmate.tf2.eager.calls import EagerCall
from checkmate.tf2.eager.op_memory import Needs
from checkmate.tf2.eager.ranks import Asleep, Unsorted, ranked
from checkmate.tf2.eager.tensors import Cell
from checkmate.units import format_bytes

CLASSES_AT_MOST, STALE_AT_MOST = 50_000, 4096
"""Evictions leave classes that never go, and scores to look at again; beyond these numbers both are
put in order."""

PLENTY = 0.75
"""Below this share of the budget nobody asks after an op what it took; what was too much is seen
before the next one."""

SPARE = 1 / 1024
"""Share of the budget that is kept for the small tensors that programs make between ops, if
`strict`."""

CALM, UNASKED = 1 / 8, 3
"""Until memory first comes above this share of the budget, ops are TensorFlow's own: what they make
is not evicted, and takes less time. The allocator is asked before every fourth of them."""

HORIZON = 1 / 8
"""Share of the way since the last backward pass that is added to every distance: what is near may
be far in time, and is not kept at any cost."""

MARGIN = 1 / 32
"""Share of the budget that is kept for what the allocator loses on an op's memory, before more is
known, if not `strict`."""


class EagerPolicy(Runtime):
    """Keeps the allocator's count within the budget.

    Args:
      allocator: Executes and counts.
      budget_bytes: Bytes in use, everything included; infinite for no limit.
      heuristic, search: See `checkmate.dtr`.
      overhead_limit: Given up when recomputation has cost more than (overhead_limit - 1) times what
        ran first.
      strict: Memory above the budget is an error.

    Attributes:
      first_cost: What the program's ops cost, without recomputation.
      place: Where the program is, in seconds of `first_cost`. In a backward pass it is where the op
        ran whose gradient is next, so that what lies far from it will be wanted late, however often
        it has come back meanwhile.
      pass_began: The place at which the last backward pass was over.
      demand_bytes: The most memory that would have been in use without eviction.
      overshoots: How often memory went above the budget: by an op that took more than was foreseen,
        or by what no op was seen to take.
      calm: Memory has never come above a small share of the budget (`CALM`).
      observer: Told of each cell that the program gives back, if any.
    """

    pool: Any  # a Pool, once something was evicted
    neighbourhood: Any

    def __init__(
        self,
        allocator: Allocator,
        *,
        budget_bytes: float,
        heuristic: Heuristic,
        overhead_limit: float,
        strict: bool,
        search: Search | None,
    ):
        super().__init__(
            allocator,
            budget_bytes=budget_bytes,
            heuristic=heuristic,
            deallocation=Deallocation.EAGER,
            search=search,
        )
        self.allocator = allocator
        allocator.refused = self.after_refusal
        self.limited = not math.isinf(budget_bytes)
        self._promised_bytes = (
            budget_bytes  # of which `budget_bytes` is what the allocator can give
        )
        self._heuristic, self._search = heuristic, search or Search()
        self.neighbourhood, self.pool = Asleep(), Unsorted()
        self._deallocate = self._retire
        self._overhead_limit, self._strict = overhead_limit, strict
        self._margin_bytes = MARGIN * budget_bytes if self.limited else 0.0
        self.first_cost = self.place = self.pass_began = 0.0
        self.demand_bytes = 0
        self.overshoots = 0
        self._live: dict[Storage, None] = {}
        self._away_bytes = self._passing_bytes = 0
        self._before_bytes = self._foreseen_bytes = self._unasked = 0
        self.calm = self.limited
        self.observer: Any = None

    # ---- references
    # ----------------------------------------------------------------------------------------------------------------

    def retain(self, tensor: Tensor) -> None:
        """The program holds one more reference."""
        storage: Any = tensor.storage
        tensor.refs += 1
        storage.refs += 1
        if storage.refs == 1:
            if storage.passing:
                self._passed(storage)
            if not storage.material:
                self._away_bytes += storage.bytes
            elif storage.slot >= 0:
                self.neighbourhood.stale[storage] = None

    def release(self, tensor: Tensor) -> None:
        """The program gives back a reference."""
        storage = tensor.storage
        tensor.refs -= 1
        storage.refs -= 1
        if self.observer and not tensor.refs:
            self.observer.released(tensor)
        if not storage.refs:
            if not storage.material:
                self._away_bytes -= storage.bytes
            self._retire(storage)

    def weigh(self, cell: Cell) -> None:
        """Takes up an anchor: the cell will not be asked for any more unless something refers to
        it."""
        storage: Any = cell.storage
        storage.anchors -= 1
        if not storage.refs:
            self._retire(storage)

    def _retire(self, storage: Any) -> None:
        """Evicts what nothing refers to; forgets it for good if nothing was made of it that is
        still known."""
        waiting = [storage]
        while waiting:
            storage = waiting.pop()
            if storage.banished or storage.refs or storage.locks:
                continue
            if storage.after or storage.anchors:
                self._evict_unreferenced(storage)
                continue
            waiting.extend(storage.before)
            self._bury(storage)

    def _passed(self, storage: Any) -> None:
        if storage.passing:
            storage.passing = False
            self._passing_bytes -= storage.bytes

    def _bury(self, storage: Storage) -> None:
        self._passed(storage)
        if storage.material:
            self.pool.discard(storage)
        self.neighbourhood.detach(storage)
        storage.banished, storage.material = True, False
        self._live.pop(storage, None)
        for cell in storage.tensors:
            outputs = cell.call.outputs
            cell.call.outputs = (
                tuple([other for other in outputs if other is not cell]) if len(outputs) > 1 else ()
            )
            cell.call = cell.value = None
            cell.defined = False
        storage.tensors.clear()

    # ---- bringing back
    # -------------------------------------------------------------------------------------------------------------

    def bring(self, cells: Sequence[Cell], locked: list[Storage]) -> None:
        """Locks the inputs of an op. The latest of the missing ones has the longest way back, and
        comes back before any is locked."""
        gone = [cell for cell in cells if not cell.defined]
        if gone:
            self.materialize(max(gone, key=_number))
        for cell in sorted(cells, key=lambda cell: not cell.defined):
            self.materialize(cell)
            self._lock(cell.storage)
            locked.append(cell.storage)

    def _begin(self, frame: Any) -> None:
        frame.missing = sorted(
            (cell for cell in frame.tensor.call.inputs if not cell.defined), key=_number
        )
        if not frame.missing:
            self._hold_inputs(frame)

    def _next_missing(self, frame: Any) -> Tensor | None:
        """As `bring`: on paper inputs are locked in order, which on the long way back of a gradient
        locks an activation per layer."""
        if not frame.locked and frame.missing and frame.missing[-1].defined:
            self._hold_inputs(frame)
        return (
            frame.missing[-1]
            if not frame.locked and frame.missing
            else super()._next_missing(frame)
        )

    def _touch(self, storage: Storage) -> None:
        """The program reads it. That it is read to bring another back says nothing about when the
        program will."""
        storage.last_access = self.place
        self.pool.touched(storage)

    def _hold_inputs(self, frame: Any) -> None:
        inputs = frame.tensor.call.inputs
        for cell in inputs:
            if cell.defined:
                self._hold(frame, cell)
        frame.missing = sorted((cell for cell in inputs if not cell.defined), key=_number)

    def _run(self, frame: Any, *, first: bool) -> None:
        call = frame.tensor.call
        away = [
            cell.storage for cell in call.outputs if not cell.storage.material and cell.storage.refs
        ]
        try:
            super()._run(frame, first=first)
        except ThrashingError:
            raise ThrashingError(
                f"Recomputation has cost {self.recomputed_cost / self.first_cost:.1f} times what"
                f" ran first, more than the overhead limit of {self._overhead_limit:g} allows,"
                f" within {format_bytes(self._promised_bytes)}. With"
                f" {format_bytes(self.demand_bytes)} nothing would have been recomputed so far; the"
                " smallest budget that works is between the two. Try"
                f" {format_bytes((self._promised_bytes + self.demand_bytes) / 2)}, or raise the"
                " overhead limit.",
                budget_bytes=self._promised_bytes,
                enough_bytes=self.demand_bytes,
            ) from None
        finally:
            self._away_bytes -= sum(
                storage.bytes for storage in dict.fromkeys(away) if storage.material
            )
        for cell in call.outputs:
            if cell.storage.material and not cell.storage.refs and not cell.storage.passing:
                cell.storage.passing = True
                self._passing_bytes += cell.storage.bytes
        if self.limited:
            self.settle(call.needs, call.name)

    # ---- making room
    # ---------------------------------------------------------------------------------------------------------------

    def roomy(self, needs: Needs, name: str) -> bool:
        """Whether an op fits as things are."""
        in_use = self._before_bytes = self.allocator.in_use
        self.look_back(f"before {name!r}")
        self._foresee(in_use, needs)
        return self._fits(in_use, needs)

    def look_back(self, when: str) -> None:
        """Tells of memory above the budget that no op was seen to take, as of the last look at the
        allocator."""
        over = self.allocator.recent_peak - self._promised_bytes
        if over > 0:
            self._went_over(
                over,
                f"{when}, by data, variables, a function that met new shapes, or an op whose"
                " outputs are as large as its inputs' values say",
            )

    def is_calm(self, needs: Needs) -> bool:
        """Whether memory has been far below the budget all the time, and stays there with this op,
        and the hole it may be given."""
        self._unasked -= 1
        if self._unasked < 0 or self._foreseen_bytes + 2 * needs.bytes > CALM * self.budget_bytes:
            self._unasked = UNASKED
            self._foresee(self.allocator.in_use, needs)
        else:
            self._foreseen_bytes += needs.bytes
        return self.calm

    def _foresee(self, in_use: int, needs: Needs) -> None:
        self._foreseen_bytes = in_use + needs.bytes
        if (
            self._foreseen_bytes + needs.bytes > CALM * self.budget_bytes
            or self.allocator.recent_peak > self._promised_bytes
        ):
            self.calm = False

    def room_for(self, needs: Needs, name: str) -> None:
        """Evicts until an op fits."""
        in_use = self.allocator.in_use
        self.demand_bytes = max(
            self.demand_bytes, in_use - self._passing_bytes + self._away_bytes + needs.bytes
        )
        while not self._fits(in_use, needs) and len(self.pool):
            if type(self.pool) is Unsorted or len(self.neighbourhood.stale) > STALE_AT_MOST:
                self.tidy()
            self._evict(self.pool.choose(self.place, HORIZON * abs(self.place - self.pass_began)))
            in_use = self.allocator.in_use
        self._before_bytes, self._foreseen_bytes = in_use, in_use + needs.bytes
        certain = needs.bytes if needs.measured else needs.least_bytes
        if in_use + certain > self._promised_bytes:
            raise self._stuck(name, in_use, certain)

    def settle(self, needs: Needs, name: str) -> None:
        """Learns from an op that has run what the allocator lost on it, and what it took more than
        was foreseen."""
        if (
            self._foreseen_bytes <= PLENTY * self.budget_bytes
            and self.allocator.recent_peak <= self._promised_bytes
        ):
            return
        in_use, over = self.allocator.in_use, self.allocator.recent_peak - self._promised_bytes
        self.learn_waste(needs, in_use - self._before_bytes)
        if over <= 0:
            return
        foreseen, took = needs.bytes, int(self._promised_bytes + over) - self._before_bytes
        needs.raise_to(foreseen + int(over))
        if not len(self.pool):
            self.allocator.forget_peak()
            self.overshoots += 1
            raise self._stuck(name, self._before_bytes, took)
        self._went_over(
            over,
            f"{name!r} took {format_bytes(took)} where {format_bytes(foreseen)} were foreseen,"
            f" beside {format_bytes(self._before_bytes)}. Allocators give out whole holes, and that"
            " an op needs scratch memory is known once it ran",
        )

    def _went_over(self, over: float, why: str) -> None:
        self.allocator.forget_peak()
        self.overshoots += 1
        self._margin_bytes += over
        if self._strict:
            raise EvictionError(
                f"Memory went {format_bytes(over)} above the budget of"
                f" {format_bytes(self._promised_bytes)}: {why}. The budget must be at least"
                f" {format_bytes(self._promised_bytes + over)} for what ran so far; strict=False"
                " goes on, and `stats.overshoots` counts.",
                budget_bytes=self._promised_bytes,
                needed_bytes=int(self._promised_bytes + over),
            )

    def learn_waste(self, needs: Needs, held_bytes: int) -> None:
        """An op's outputs were given holes of `held_bytes` together."""
        if needs.made is not None:
            self._margin_bytes = max(self._margin_bytes, held_bytes - needs.least_bytes)

    def after_refusal(self, call: EagerCall, error: Exception, run: Callable[[], Any]) -> Any:
        """The allocator has no hole that is large enough, though there is room in all: evicts more
        and tries again, from now on with less.

        TensorFlow waits ten seconds before it refuses.
        """
        while (
            private_api.is_refusal(error)
            and self.limited
            and not call.kind.stateful
            and len(self.pool)
        ):
            stays = self.allocator.in_use - sum(storage.bytes for storage in self.pool)
            self.budget_bytes -= max(call.needs.bytes, (self.budget_bytes - stays) / 16)
            self.room_for(call.needs, call.name)
            try:
                return run()
            except (private_api.NotOkStatusException, tf.errors.ResourceExhaustedError) as again:
                error = again
        raise error

    def _make_room(self, call: Call) -> None:
        assert isinstance(call, EagerCall)
        if self.limited:
            self.room_for(call.needs, call.name)

    def _fits(self, in_use: int, needs: Needs) -> bool:
        """With a margin, since the allocator counts whole holes, and gives out one of less than
        twice what was asked for.

        A margin as large as what the op takes is always enough. Where the budget need not be kept
        to the byte, it is what was ever lost.
        """
        margin = (
            max(needs.bytes, SPARE * self.budget_bytes)
            if self._strict
            else min(needs.bytes, self._margin_bytes)
        )
        return in_use + needs.bytes + margin <= self.budget_bytes

    def _evict(self, storage: Storage) -> None:
        super()._evict(storage)
        self._passed(storage)
        if storage.refs:
            self._away_bytes += storage.bytes

    def _stuck(self, name: str, in_use: int, needed: int) -> EvictionError:
        locked = sorted(
            (storage for storage in self._live if storage.locks and storage.material),
            key=lambda storage: -storage.bytes,
        )
        listed = ", ".join(
            f"{storage.tensors[0].call.name} {format_bytes(storage.bytes)}"
            for storage in locked[:5]
        )
        held = sum(storage.bytes for storage in locked)
        return EvictionError(
            f"{name!r} needs {format_bytes(needed)} beside {format_bytes(in_use)} that cannot be"
            f" evicted: together {format_bytes(in_use + needed)},"
            f" {format_bytes(in_use + needed - self._promised_bytes)} more than the budget of"
            f" {format_bytes(self._promised_bytes)}. Of it, {format_bytes(held)} are inputs of"
            " running ops"
            + (f" ({listed}{', ...' if len(locked) > 5 else ''})" if locked else "")
            + f", {format_bytes(max(0, in_use - held))} are variables, data and other tensors that"
            f" cannot be recomputed. The budget must be at least {format_bytes(in_use + needed)};"
            " or make the batch smaller.",
            budget_bytes=self._promised_bytes,
            needed_bytes=in_use + needed,
        )

    def tidy(self) -> None:
        """Forgets the dead in the policy's notes; at the first eviction, and after many, works them
        out afresh."""
        classes = self.neighbourhood
        if type(self.pool) is Unsorted or (
            isinstance(classes, Classes) and len(classes.values) > CLASSES_AT_MOST
        ):
            inside = list(self.pool)
            for storage in self._live:
                storage.around, storage.slot = None, -1
            self.neighbourhood = ranked(self._heuristic)
            self.neighbourhood.restart(self._live)
            self.pool = Pool(self._heuristic, self.neighbourhood, self._search)
            for storage in inside:
                self.pool.add(storage)
        else:
            stale = self.neighbourhood.stale
            alive = [storage for storage in stale if storage.slot >= 0]
            stale.clear()
            stale.update(dict.fromkeys(alive))


def _number(tensor: Tensor) -> int:
    return tensor.call.number
