"""The runtime of DTR on real tensors: the policy is `checkmate.dtr.runtime`; here it meets kernels and the allocator.

What differs from paper: an op's outputs are known after it ran; the program's references are Python's, given back at any moment; a storage
that nothing can ask for any more is forgotten, so that a training loop leaves nothing behind; and what is evicted first and last is ranked:
values that only a recomputation wanted go first, gradients (whose way back is the whole backward pass) last.
"""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import tensorflow as tf

from checkmate.dtr.heuristic import HEURISTICS, Heuristic
from checkmate.dtr.neighbourhood import Classes, Nothing, Own, Regions
from checkmate.dtr.pool import Pool, Search
from checkmate.dtr.runtime import Deallocation, Runtime
from checkmate.dtr.storage import Call, Storage, Tensor
from checkmate.errors import EvictionError, ThrashingError
from checkmate.tf2.eager import fence
from checkmate.tf2.eager.backward import Backward
from checkmate.tf2.eager.needs import Needs, NeedsTable, rounded
from checkmate.tf2.eager.op_kinds import OpKind, Recipe, flat
from checkmate.tf2.eager.tensors import Cell, EagerCall, EagerStorage, LazyTensor, SettledTensor
from checkmate.units import format_bytes

GRADIENTS_LAST = 1e9
"""What the cost of a gradient is multiplied with in a score."""

CLASSES_AT_MOST, STALE_AT_MOST = 50_000, 4096
"""Evictions leave classes that never go, and scores to look at again; beyond these numbers both are put in order."""


class Allocator:
    """TensorFlow's allocator as the accountant, and the kernels as the backend of the policy.

    Attributes:
      peak_bytes: The most bytes in use since the beginning.
      recent_peak: The same, since its statistics were last reset.
    """

    def __init__(self, device: str, counts: bool):
        self.device, self._counts = device, counts
        self.peak_bytes = self.recent_peak = 0

    @property
    def in_use(self) -> int:
        """Bytes in use now; 0 where nobody counts."""
        if not self._counts:
            return 0
        info = fence.memory_info(self.device)
        self.recent_peak = info["peak"]
        if self.recent_peak > self.peak_bytes:
            self.peak_bytes = self.recent_peak
        return info["current"]

    def compute(self, call: Call, duplicates: Sequence[Tensor]) -> None:
        """Runs a call again and takes over the outputs that are not there."""
        assert isinstance(call, EagerCall)
        values = [each.value if type(each) is Cell else each for each in call.arguments]
        made = call.recipe.run_again(values)
        for cell in call.outputs:
            if not cell.defined:
                cell.value = made[cell.index]

    def free(self, storage: Storage) -> None:
        """Lets the values go."""
        for cell in storage.tensors:
            cell.value = None

    def watched(self, run: Callable[[], Any]) -> tuple[Any, int]:
        """Runs something and returns (its result, the most bytes it had in use above what was before)."""
        before = self.in_use
        tf.config.experimental.reset_memory_stats(self.device)
        result = run()
        info = tf.config.experimental.get_memory_info(self.device)
        self.peak_bytes = max(self.peak_bytes, info["peak"])
        return result, info["peak"] - before


class EagerRuntime(Runtime):
    """Runs ops as the program asks for them, and keeps the allocator's count within the budget.

    Args:
      device: Whose memory counts.
      budget_bytes: Bytes in use on it, everything included; infinite for no limit.
      heuristic, search: See `checkmate.dtr`.
      overhead_limit: Given up when recomputation has cost more than (overhead_limit - 1) times what ran first.
      smallest_bytes: Outputs below are left to TensorFlow and are never evicted.
      observer: Told of each call and each release (`recorder.Recorder`).

    Attributes:
      ops: How many the program ran.
      first_cost: What they cost, without recomputation.
      demand_bytes: The most memory that would have been in use without eviction.
      overshoots: How often an op took more than was foreseen, and memory went above the budget.
      reading: Where a gradient function notes what it reads, while one runs.
      closed: The context has been left.
    """

    def __init__(
        self,
        device: str,
        *,
        budget_bytes: float = math.inf,
        heuristic: Heuristic = HEURISTICS["dtr_eq"],
        overhead_limit: float = math.inf,
        smallest_bytes: int = 4096,
        search: Search | None = None,
        observer: Any = None,
    ):
        self.allocator = Allocator(device, math.isfinite(budget_bytes))
        self._slack_bytes = 0.0 if math.isinf(budget_bytes) else budget_bytes / 32
        super().__init__(self.allocator, budget_bytes=budget_bytes, heuristic=heuristic, deallocation=Deallocation.EAGER, search=search)
        self._heuristic, self._search = heuristic, search or Search()
        self.neighbourhood = _ranked(heuristic)
        self.pool = Pool(heuristic, self.neighbourhood, self._search)
        self._deallocate = self._retire
        self._overhead_limit, self._smallest_bytes, self.observer = overhead_limit, smallest_bytes, observer
        self.device_name = f"/job:localhost/replica:0/task:0/device:{device}"
        self.ops = 0
        self.first_cost = 0.0
        self.demand_bytes = 0
        self.overshoots = 0
        self.reading: set[int] | None = None
        self.gradients = 0
        self.thread = threading.get_ident()
        self.error: BaseException | None = None
        self.closed = False
        self.last_s = 0.0
        self._needs = NeedsTable(device)
        self._live: dict[Storage, None] = {}
        self._away_bytes = 0
        self._depth = 0
        self._later: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._handles: dict[int, weakref.ref] = {}

    # ---- running -------------------------------------------------------------------------------------------------------------------

    def run(self, kind: OpKind, tensors: list[Any], lengths: tuple[int | None, ...], attrs: Any, outputs: int | None, name: Any) -> Any:
        """Runs an op for the program and puts it on the tapes that record. Returns what TensorFlow would, with handles in place of tensors."""
        self.ops += 1
        recipe = Recipe(kind, lengths, attrs, outputs, fence.current_device())
        arguments = tuple([each._cell if type(each) is LazyTensor else each for each in tensors])
        if self.reading is not None:
            self.reading.update(map(id, arguments))
        taped = not fence.tape_is_empty() and not fence.tape_is_stopped() and fence.tape_records(tensors)
        self._depth += 1
        try:
            needs = self._needs.of(recipe, arguments)
            result = self._first_run(recipe, arguments, needs, name)
            made = flat(result)
            if not made:
                return result
            held = self._adopt(recipe, arguments, needs, made, is_gradient=self.gradients > 0 and not taped)
            del made
            if type(result) is list:
                rest = iter(held)
                result = [[next(rest) for _ in each] if type(each) is list else next(rest) for each in result]
            else:
                result = held[0]
            if taped:
                self._put_on_tape(recipe, arguments, held, tensors)
            if self.budget_bytes != math.inf:
                self._settle(needs, kind.name)
            elif len(self.neighbourhood.stale) > STALE_AT_MOST:
                self._tidy()
            return result
        finally:
            self._depth -= 1
            if self._later and not self._depth:
                self.catch_up()

    def _first_run(self, recipe: Recipe, arguments: tuple[Any, ...], needs: Needs, name: Any) -> Any:
        cells = [each for each in arguments if type(each) is Cell]
        limited = self.budget_bytes != math.inf
        locked: list[Storage] = []
        try:
            if not all([cell.defined for cell in cells]) or (limited and not self._fits(self.allocator.in_use, needs)):
                self._bring(cells, locked)
                self._room_for(needs, recipe.kind.name)
            values = [each.value if type(each) is Cell else each for each in arguments]
            if self.observer:
                started = time.perf_counter()
                result = recipe.run(values, name)
                self.last_s = time.perf_counter() - started
            elif not limited or needs.measured:
                result = recipe.run(values, name)
            else:
                result, used = self.allocator.watched(lambda: recipe.run(values, name))
                needs.learn(used)
        finally:
            for storage in locked:
                self._unlock(storage)
        if limited:
            for cell in cells:
                self._touch(cell.storage)
        self.clock += needs.cost
        self.first_cost += needs.cost
        self.recompute_limit = (self._overhead_limit - 1) * self.first_cost
        return result

    def _bring(self, cells: list[Cell], locked: list[Storage]) -> None:
        """Locks the inputs of an op. The latest of the missing ones has the longest way back, and comes back before any is locked."""
        gone = [cell for cell in cells if not cell.defined]
        if gone:
            self.materialize(max(gone, key=_number))
        for cell in sorted(cells, key=lambda cell: not cell.defined):
            self.materialize(cell)
            self._lock(cell.storage)
            locked.append(cell.storage)

    def _adopt(self, recipe: Recipe, arguments: tuple[Any, ...], needs: Needs, made: list[Any], *, is_gradient: bool) -> list[Any]:
        """Returns a handle for each output that can be evicted, and the tensor itself for the others."""
        sizes = [self._evictable_bytes(recipe.kind, value) for value in made]
        if not any(sizes):
            if self.observer:
                self.observer.called(recipe, arguments, made, self.last_s)
            return made
        call = EagerCall(self.calls, recipe, arguments, needs)
        self.calls += 1
        held, fresh = [], []
        for index, (value, size) in enumerate(zip(made, sizes, strict=True)):
            view = recipe.kind.is_view and index == 0
            if not size or (view and type(arguments[0]) is not Cell):
                held.append(value)
                continue
            storage = arguments[0].storage if view else EagerStorage(size, is_gradient)
            cell = Cell(call, storage, 0 if view else size, value, index)
            storage.tensors.append(cell)
            storage.cost += needs.cost
            call.outputs = (*call.outputs, cell)
            call.bytes += cell.bytes
            if not view:
                storage.material = True
                fresh.append(storage)
            self._link(call, storage)
            held.append(LazyTensor(self, cell, owner=True))
        for storage in fresh:
            self._live[storage] = None
            storage.last_access = self.clock
            self.pool.add(storage)
        if call.outputs:
            self.neighbourhood.rematerialized(fresh)
        if self.observer:
            self.observer.called(recipe, arguments, held, self.last_s)
        return held

    def _evictable_bytes(self, kind: OpKind, value: Any) -> int:
        """Bytes of an output that can be evicted, or 0."""
        if kind.stateful:
            return 0
        count = _item_bytes(value._datatype_enum())
        for size in value._shape_tuple():
            count *= size
        return rounded(count) if count and count >= self._smallest_bytes and value.backing_device == self.device_name else 0

    def _link(self, call: EagerCall, storage: EagerStorage) -> None:
        for cell in call.inputs:
            if cell.storage is not storage:
                cell.storage.after[storage] = None
                storage.before[cell.storage] = None

    def _put_on_tape(self, recipe: Recipe, arguments: tuple[Any, ...], held: list[Any], tensors: list[Any]) -> None:
        skip = tuple(k for k, tensor in enumerate(tensors) if not fence.tape_records([tensor])) if len(tensors) > 1 else ()
        outputs = [each._cell if type(each) is LazyTensor else each for each in held]
        fence.tape_record(recipe.kind.name, held, tensors, Backward(self, recipe, arguments, outputs, skip), None)

    def aside(self, op: str, inputs: Sequence[Any], run: Callable[[list[Any]], Any]) -> Any:
        """Runs what is not ours to record, a whole function perhaps: it counts as one op, whose needs are known once it ran."""
        cells = [each._cell for each in inputs if type(each) is LazyTensor]
        if self.reading is not None:
            self.reading.update(map(id, cells))
        locked: list[Storage] = []
        self._depth += 1
        try:
            self._bring(cells, locked)
            values = [each._cell.value if type(each) is LazyTensor else each for each in inputs]
            if self.budget_bytes == math.inf:
                return run(values)
            needs = self._needs.of_opaque(op, values)
            self._room_for(needs, op)
            if needs.measured:
                result = run(values)
            else:
                result, used = self.allocator.watched(lambda: run(values))
                needs.learn(used)
            self._settle(needs, op)
            return result
        finally:
            for storage in locked:
                self._unlock(storage)
            self._depth -= 1
            self.catch_up()

    # ---- values --------------------------------------------------------------------------------------------------------------------

    def value(self, cell: Cell) -> Any:
        """The real tensor, brought back if it was evicted."""
        if self.reading is not None:
            self.reading.add(id(cell))
        if not cell.defined:
            self._depth += 1
            try:
                self.materialize(cell)
                return cell.value
            finally:
                self._depth -= 1
                self.catch_up()
        self._touch(cell.storage)
        return cell.value

    def evict_all(self) -> None:
        """Evicts all that can be."""
        for storage in list(self.pool):
            self._evict(storage)

    def _begin(self, frame: Any) -> None:
        for cell in frame.tensor.call.inputs:
            self._touch(cell.storage)
        frame.missing = sorted((cell for cell in frame.tensor.call.inputs if not cell.defined), key=_number)
        if not frame.missing:
            self._hold_inputs(frame)

    def _next_missing(self, frame: Any) -> Tensor | None:
        """As `_bring`: on paper inputs are locked in order, which on the long way back of a gradient locks an activation per layer."""
        if not frame.locked and frame.missing and frame.missing[-1].defined:
            self._hold_inputs(frame)
        return frame.missing[-1] if not frame.locked and frame.missing else super()._next_missing(frame)

    def _hold_inputs(self, frame: Any) -> None:
        inputs = frame.tensor.call.inputs
        for cell in inputs:
            if cell.defined:
                self._hold(frame, cell)
        frame.missing = sorted((cell for cell in inputs if not cell.defined), key=_number)

    # ---- references ----------------------------------------------------------------------------------------------------------------

    def hold(self, handle: Any) -> None:
        """A handle has been made."""
        self._handles[id(handle)] = weakref.ref(handle)
        self.retain(handle._cell)

    def let_go(self, handle: Any) -> None:
        """A handle is dying. The one that came out of its op takes the tensor off all tapes, as an EagerTensor does."""
        self._handles.pop(id(handle), None)
        self.soon(self._forget if handle._owner else self.release, handle._cell)

    def _forget(self, cell: Cell) -> None:
        fence.tape_forget(cell.id)
        self.release(cell)

    def soon(self, act: Callable[..., None], *arguments: Any) -> None:
        """Does something when no op is on its way, and in the thread of the runtime. Objects die at any time and in any thread."""
        if self._depth or threading.get_ident() != self.thread:
            self._later.append((act, arguments))
            return
        self._depth = 1
        try:
            act(*arguments)
        finally:
            self._depth = 0
        if self._later:
            self.catch_up()

    def catch_up(self) -> None:
        """Does what waits, unless an op is still on its way."""
        if self._depth:
            return
        self._depth += 1
        try:
            while self._later:
                act, arguments = self._later.popleft()
                act(*arguments)
        finally:
            self._depth -= 1

    def retain(self, tensor: Tensor) -> None:
        """The program holds one more reference."""
        super().retain(tensor)
        storage = tensor.storage
        if storage.refs == 1:
            if not storage.material:
                self._away_bytes += storage.bytes
            elif storage.slot >= 0:
                self.neighbourhood.stale[storage] = None

    def release(self, tensor: Tensor) -> None:
        """The program gives back a reference."""
        if self.observer and tensor.refs == 1:
            self.observer.released(tensor)
        storage = tensor.storage
        if storage.refs == 1 and not storage.material:
            self._away_bytes -= storage.bytes
        super().release(tensor)

    def weigh(self, cells: Sequence[Cell]) -> None:
        """Takes up anchors: these will not be asked for any more unless something refers to them."""
        for cell in cells:
            cell.storage.anchors -= 1
            if not cell.storage.refs:
                self._retire(cell.storage)

    def _retire(self, storage: Storage) -> None:
        """Evicts what nothing refers to; forgets it for good if nothing was made of it that is still known."""
        waiting = [storage]
        while waiting:
            storage = waiting.pop()
            if storage.banished or storage.refs or storage.locks:
                continue
            if storage.after or storage.anchors:
                self._evict_unreferenced(storage)
                continue
            before = list(storage.before)
            self._bury(storage)
            waiting.extend(before)

    def _bury(self, storage: Storage) -> None:
        if storage.material:
            self.backend.free(storage)
            self.pool.discard(storage)
        storage.banished = True
        self.neighbourhood.detach(storage)
        self._live.pop(storage, None)
        for cell in storage.tensors:
            cell.call.outputs = tuple(other for other in cell.call.outputs if other is not cell)
            cell.call, cell.value, cell.defined = None, None, False
        storage.tensors.clear()
        storage.material = False

    # ---- making room ---------------------------------------------------------------------------------------------------------------

    def _make_room(self, call: Call) -> None:
        assert isinstance(call, EagerCall)
        if self.budget_bytes != math.inf:
            self._room_for(call.needs, call.name)

    def _room_for(self, needs: Needs, name: str) -> None:
        in_use = self.allocator.in_use
        self.demand_bytes = max(self.demand_bytes, in_use + self._away_bytes + needs.bytes)
        while not self._fits(in_use, needs) and len(self.pool):
            self._evict(self.pool.choose(self.clock))
            in_use = self.allocator.in_use
        certain = needs.bytes if needs.measured else needs.least_bytes
        if in_use + certain > self.budget_bytes:
            raise EvictionError(self._stuck(name, in_use, certain))
        if len(self.neighbourhood.stale) > STALE_AT_MOST + 4 * len(self.pool):
            self._tidy()

    def _fits(self, in_use: int, needs: Needs) -> bool:
        """With a margin: the allocator hands out a whole hole for a tensor of more than half its size."""
        return in_use + needs.bytes + min(needs.bytes, self._slack_bytes) <= self.budget_bytes

    def _settle(self, needs: Needs, name: str) -> None:
        """Learns from an op that took more than was foreseen."""
        in_use, over = self.allocator.in_use, self.allocator.recent_peak - self.budget_bytes
        if over <= 0:
            return
        tf.config.experimental.reset_memory_stats(self.allocator.device)
        self.overshoots += 1
        self._slack_bytes += over
        needs.learn(needs.bytes + int(over))
        if not len(self.pool):
            raise EvictionError(self._stuck(name, in_use, int(self.budget_bytes + over) - in_use))

    def _evict(self, storage: Storage) -> None:
        super()._evict(storage)
        if storage.refs:
            self._away_bytes += storage.bytes

    def _run(self, frame: Any, *, first: bool) -> None:
        away = [cell.storage for cell in frame.tensor.call.outputs if not cell.storage.material and cell.storage.refs]
        try:
            super()._run(frame, first=first)
        except ThrashingError:
            raise ThrashingError(
                f"Recomputation has cost {self.recomputed_cost / self.first_cost:.1f} times what ran first, more than the overhead limit of "
                f"{self._overhead_limit:g} allows, within {format_bytes(self.budget_bytes)}. With {format_bytes(self.demand_bytes)} nothing "
                "would have been recomputed so far; raise the budget towards that, or the overhead limit."
            ) from None
        finally:
            self._away_bytes -= sum(storage.bytes for storage in dict.fromkeys(away) if storage.material)
        if self.budget_bytes != math.inf:
            self._settle(frame.tensor.call.needs, frame.tensor.call.name)

    def _stuck(self, name: str, in_use: int, needed: int) -> str:
        locked = sorted((storage for storage in self._live if storage.locks and storage.material), key=lambda storage: -storage.bytes)
        listed = ", ".join(f"{storage.tensors[0].call.name} {format_bytes(storage.bytes)}" for storage in locked[:5])
        held = sum(storage.bytes for storage in locked)
        return (
            f"{name!r} needs {format_bytes(needed)} beside {format_bytes(in_use)} that cannot be evicted: together "
            f"{format_bytes(in_use + needed)}, {format_bytes(in_use + needed - self.budget_bytes)} more than the budget of "
            f"{format_bytes(self.budget_bytes)}. Of it, {format_bytes(held)} are inputs of running ops"
            + (f" ({listed}{', ...' if len(locked) > 5 else ''})" if locked else "")
            + f", {format_bytes(max(0, in_use - held))} are variables, data and other tensors that cannot be recomputed. "
            f"The budget must be at least {format_bytes(in_use + needed)}; or make the batch smaller."
        )

    def _tidy(self) -> None:
        """Forgets the dead in the policy's notes; after many evictions, works its classes out afresh."""
        if isinstance(self.neighbourhood, Classes) and len(self.neighbourhood.values) > CLASSES_AT_MOST:
            inside = list(self.pool)
            for storage in self._live:
                storage.around, storage.slot = 0, -1
            self.neighbourhood = _ranked(self._heuristic)
            for storage in self._live:
                if not storage.material:
                    self.neighbourhood.evicted(storage)
            self.pool = Pool(self._heuristic, self.neighbourhood, self._search)
            for storage in inside:
                self.pool.add(storage)
        else:
            stale = self.neighbourhood.stale
            alive = [storage for storage in stale if storage.slot >= 0]
            stale.clear()
            stale.update(dict.fromkeys(alive))

    # ---- the end -------------------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """No budget any more; handles that live on become tensors that TensorFlow converts when they are used."""
        self.closed = True
        self.budget_bytes = self.recompute_limit = self._overhead_limit = math.inf
        self.catch_up()
        for reference in list(self._handles.values()):
            handle = reference()
            if handle is not None:
                handle.__class__ = SettledTensor


@cache
def _item_bytes(dtype: int) -> int:
    """Bytes per element, 0 for what is no number."""
    found = tf.as_dtype(dtype)
    return found.size if found.is_floating or found.is_integer or found.is_bool or found.is_complex else 0


def _number(tensor: Tensor) -> int:
    return tensor.call.number


# ---- ranks -------------------------------------------------------------------------------------------------------------------------


class _Ranked(Own):
    """Costs nothing to evict what nobody refers to, and very much to evict a gradient."""

    def own(self, storage: Storage) -> float:
        if not storage.refs:
            return 0.0
        return super().own(storage) * (GRADIENTS_LAST if storage.is_gradient else 1.0)

    def classes(self, storage: Storage) -> Sequence[int]:
        return super().classes(storage) if storage.refs else ()

    def cost(self, storage: Storage) -> float:
        return super().cost(storage) if storage.refs else 0.0


class _RankedOwn(_Ranked, Own):
    pass


class _RankedNothing(_Ranked, Nothing):
    pass


class _RankedClasses(_Ranked, Classes):
    pass


class _RankedRegions(_Ranked, Regions):
    pass


def _ranked(heuristic: Heuristic) -> Own:
    """What counts costs for a heuristic, with ranks."""
    plain = heuristic.neighbourhood()
    if isinstance(plain, Regions):
        return _RankedRegions(descendants=heuristic.cost == "neighbourhood")
    return {Own: _RankedOwn, Nothing: _RankedNothing, Classes: _RankedClasses}[type(plain)]()
