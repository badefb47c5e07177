"""The runtime of DTR on real tensors: runs what the program asks for, and hands out what stands for
the results.

What differs from paper: an op's outputs are known after it ran, and objects die at any time and in
any thread.

Per op that costs Python time, whatever the kernel does: more beside long kernels, which drive
Python out of the caches. By `checkmate bench dtr-eager --ops`, on one core of a 2.5 GHz server, a
matrix product of 1 ms on a tape took 53 us more forward and 41 us more backward (5.5 and 3.7 %).
While memory is far below the budget, ops whose needs are known are TensorFlow's own to run
(`leaves`): 12 us more forward and 25 us more backward (1.3 and 2.2 %).
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any
from weakref import ref

import tensorflow as tf

from checkmate.dtr.heuristic import HEURISTICS, Heuristic
from checkmate.dtr.pool import Search
from checkmate.dtr.storage import Storage
from checkmate.tf2.eager import private_api
from checkmate.tf2.eager.allocator import Allocator
from checkmate.tf2.eager.backward import Backward
from checkmate.tf2.eager.calls import EagerCall, flat
from checkmate.tf2.eager.op_kinds import OpKind
from checkmate.tf2.eager.op_memory import NeedsTable, signature_of
from checkmate.tf2.eager.policy import STALE_AT_MOST, EagerPolicy
from checkmate.tf2.eager.tensors import Cell, EagerStorage, LazyTensor, Made, SettledTensor


class EagerRuntime(EagerPolicy):
    """Runs ops as the program asks for them, within the budget.

    Args:
      device: Whose memory counts.
      smallest_bytes: Outputs below are left to TensorFlow and are never evicted.
      observer: Told of each call and each release (`recorder.Recorder`).
      budget_bytes, heuristic, overhead_limit, strict, search: See `EagerPolicy`.

    Attributes:
      ops: How many the program ran.
      reading: Where a gradient function notes what it reads, while one runs.
      gradients: How many tapes are being asked for gradients, one inside of another.
      returning: A backward pass that no tape records is on its way: the place of the program goes
        back.
      error: What went wrong where TensorFlow could not be told; raised at the next chance.
      closed: The context has been left.
    """

    def __init__(
        self,
        device: str,
        *,
        budget_bytes: float = math.inf,
        heuristic: Heuristic = HEURISTICS["dtr_eq"],
        overhead_limit: float = math.inf,
        strict: bool = False,
        smallest_bytes: int = 4096,
        search: Search | None = None,
        observer: Any = None,
    ):
        allocator = Allocator(device, math.isfinite(budget_bytes))
        super().__init__(
            allocator,
            budget_bytes=budget_bytes,
            heuristic=heuristic,
            overhead_limit=overhead_limit,
            strict=strict,
            search=search,
        )
        self._smallest_bytes, self.observer = max(1, smallest_bytes), observer
        self.device_name = f"/job:localhost/replica:0/task:0/device:{device}"
        self.ops = 0
        self.reading: set[int] | None = None
        self.gradients, self.returning = 0, False
        self.thread = get_ident()
        self.error: BaseException | None = None
        self.closed = False
        self.last_s = 0.0
        self._needs = NeedsTable(device)
        self._thread_state = private_api.thread_state()
        self._depth = 0
        self._later: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._handles: dict[int, ref] = {}

    # ---- running
    # -------------------------------------------------------------------------------------------------------------------

    def leaves(
        self, kind: OpKind, tensors: Sequence[Any], lengths: tuple[int | None, ...], attrs: Any
    ) -> bool:
        """Whether an op is TensorFlow's own to run and to put on tapes: all is calm, what it needs
        is known, and it reads no handle."""
        if not self.calm or self.reading is not None:
            return False
        signatures = []
        for each in tensors:
            if type(each) is LazyTensor:
                return False
            signatures.append(signature_of(each))
        needs = self._needs.known(kind, lengths, attrs or (), signatures, tensors)
        if needs is None or not needs.measured or not needs.steady or not self.is_calm(needs):
            return False
        self.ops += 1
        self.first_cost += needs.cost
        return True

    def run(
        self,
        kind: OpKind,
        tensors: Sequence[Any],
        lengths: tuple[int | None, ...],
        attrs: Any,
        results: int | None,
        name: Any,
    ) -> Any:
        """Runs an op for the program and puts it on the tapes that record. Returns what TensorFlow
        would, with handles in place of tensors."""
        self.ops += 1
        # In one pass: it is done for every op.
        arguments, cells, values, signatures, gone = (
            [],
            [],
            [],
            [],
            False,
        )
        for each in tensors:
            if type(each) is LazyTensor:
                cell = each._cell
                arguments.append(cell)
                cells.append(cell)
                values.append(cell.value)
                signatures.append(cell.made.signature)
                gone = gone or not cell.defined
            else:
                arguments.append(each)
                values.append(each)
                signatures.append(signature_of(each))
        if gone:
            values.clear()  # or what is evicted until the others are back stays in memory
        if self.reading is not None:
            self.reading.update(map(id, arguments))
        skip: tuple[int, ...] | None = None  # the inputs that no tape asks for, if one records
        if not private_api.tape_is_empty() and not private_api.tape_is_stopped():
            skip = tuple(
                [
                    k
                    for k, argument in enumerate(arguments)
                    if not private_api.tape_records((argument,))
                ]
            )
            if len(skip) == len(arguments):
                skip = None
        self._depth += 1
        try:
            call = EagerCall(
                self.calls,
                kind,
                tuple(arguments),
                tuple(cells),
                lengths,
                attrs,
                results,
                self._thread_state.device_name,
            )
            call.needs = self._needs.of(call, signatures)
            result = self._first_run(call, None if gone else values, name, skip is not None)
            held = self._adopt(
                call,
                flat(result) if type(result) is list or result is None else [result],
                skip is not None,
            )
            if skip is not None and held:
                outputs = tuple([each._cell if type(each) is LazyTensor else each for each in held])
                private_api.tape_record(
                    call.name, outputs, call.arguments, Backward(self, call, outputs, skip), None
                )
            if self.limited:
                self.settle(call.needs, kind.name)
            stale = len(self.neighbourhood.stale)
            if stale > STALE_AT_MOST and stale > STALE_AT_MOST + 4 * len(self.pool):
                self.tidy()
            if type(result) is not list:
                return held[0] if held else result
            rest = iter(held)
            return [
                [next(rest) for _ in each] if type(each) is list else next(rest) for each in result
            ]
        finally:
            self._depth -= 1
            if self._later and not self._depth:
                self.catch_up()

    def _first_run(self, call: EagerCall, values: list[Any] | None, name: Any, taped: bool) -> Any:
        """Runs a call on `values`, or on what they are once all of them are in memory."""
        needs, cells, limited = call.needs, call.inputs, self.limited
        call.cost, call.place = needs.cost, self.place
        locked: list[Storage] = []
        try:
            if values is None or (limited and not self.roomy(needs, call.name)):
                self.bring(cells, locked)
                if limited:
                    self.room_for(needs, call.name)
                values = [each.value if type(each) is Cell else each for each in call.arguments]
            if taped:
                private_api.tape_stop()
            try:
                if not limited or needs.measured:
                    started = time.perf_counter() if self.observer else 0.0
                    result = call.run(values, name)
                    self.last_s = time.perf_counter() - started if self.observer else 0.0
                else:
                    result, used, held = self.allocator.watched(lambda: call.run(values, name))
                    needs.learn(used, held)
                    self.learn_waste(needs, held)
            except (private_api.NotOkStatusException, tf.errors.ResourceExhaustedError) as error:
                result = self.after_refusal(call, error, lambda: call.run(values, name))
            finally:
                if taped:
                    private_api.tape_restart()
        finally:
            for storage in locked:
                self._unlock(storage)
        if limited:
            for cell in cells:
                self._touch(cell.storage)
        self.clock += needs.cost
        self.first_cost += needs.cost
        if not self.returning:
            self.place = self.first_cost
        self.recompute_limit = (self._overhead_limit - 1) * self.first_cost
        return result

    def _adopt(self, call: EagerCall, values: list[Any], taped: bool) -> list[Any]:
        """Returns a handle for each output that can be evicted, and the tensor itself for the
        others."""
        if call.kind.stateful:
            held = values
        elif len(values) == 1:
            held = [self._handle(call, values[0], 0, taped)]
        else:
            held = [self._handle(call, value, index, taped) for index, value in enumerate(values)]
        if call.outputs:
            self.calls += 1
            if self.neighbourhood.listens:
                self.neighbourhood.made([cell.storage for cell in call.outputs])
        if self.observer:
            self.observer.called(call, held, self.last_s)
        return held

    def _handle(self, call: EagerCall, value: Any, index: int, taped: bool) -> Any:
        known = call.needs.made
        made: Made = (
            self._needs.made(value._shape_tuple(), value.dtype) if known is None else known[index]
        )
        if made.bytes < self._smallest_bytes or value.backing_device != self.device_name:
            return value
        if call.needs.is_view and index == 0:
            if type(call.arguments[0]) is not Cell:
                return value
            cell = self._view(call, value, made)
        else:
            storage = EagerStorage(
                made.bytes, call.cost, self.place, self.gradients > 0 and not taped
            )
            cell = Cell(call, storage, made.bytes, value, index, made)
            for source in call.inputs:
                source.storage.after[storage] = None
                storage.before[source.storage] = None
            call.bytes += made.bytes
            self._live[storage] = None
            self.pool.add(storage)
        call.outputs += (cell,)
        return LazyTensor(self, cell, owner=True)

    def _view(self, call: EagerCall, value: Any, made: Made) -> Cell:
        storage = call.arguments[0].storage
        cell = Cell(call, storage, 0, value, 0, made)
        storage.cost += call.cost
        for source in call.inputs:
            if source.storage is not storage:
                source.storage.after[storage] = None
                storage.before[source.storage] = None
        if storage.slot >= 0:
            self.neighbourhood.stale[storage] = None
        return cell

    def aside(self, op: str, inputs: Sequence[Any], run: Callable[[list[Any]], Any]) -> Any:
        """Runs what is not ours to record, a whole function perhaps: it counts as one op, whose
        needs are known once it ran."""
        cells = [each._cell for each in inputs if type(each) is LazyTensor]
        if self.reading is not None:
            self.reading.update(map(id, cells))
        locked: list[Storage] = []
        self._depth += 1
        try:
            self.bring(cells, locked)
            values = [each._cell.value if type(each) is LazyTensor else each for each in inputs]
            if not self.limited:
                return run(values)
            needs = self._needs.of_opaque(op, values)
            self.room_for(needs, op)
            if needs.measured:
                result = run(values)
            else:
                result, used, held = self.allocator.watched(lambda: run(values))
                needs.learn(used, held)
            self.settle(needs, op)
            return result
        finally:
            for storage in locked:
                self._unlock(storage)
            self._depth -= 1
            self.catch_up()

    # ---- values
    # --------------------------------------------------------------------------------------------------------------------

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

    # ---- what Python tells
    # -----------------------------------------------------------------------------------------------------------

    def hold(self, handle: Any, cell: Cell) -> None:
        """A handle has been made."""
        self._handles[id(handle)] = ref(handle)
        self.retain(cell)

    def let_go(self, handle: Any, cell: Cell) -> None:
        """A handle is dying. The one that came out of its op takes the tensor off all tapes, as an
        EagerTensor does."""
        self._handles.pop(id(handle), None)
        self.soon(self._forget if handle._owner else self.release, cell)

    def abandon(self, first: int) -> None:
        """Lets go of all handles of calls from number `first` on: whoever holds them still will
        hardly ask."""
        for reference in list(self._handles.values()):
            handle = reference()
            if handle is not None and handle._cell.call.number >= first:
                self.let_go(handle, handle._cell)
                handle.abandon()

    def _forget(self, cell: Cell) -> None:
        private_api.tape_forget(cell._id)
        self.release(cell)

    def soon(self, act: Callable[..., None], *arguments: Any) -> None:
        """Does something when no op is on its way, and in the thread of the runtime. Objects die at
        any time and in any thread."""
        if self._depth or get_ident() != self.thread:
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
        self._depth = 1
        try:
            while self._later:
                act, arguments = self._later.popleft()
                act(*arguments)
        finally:
            self._depth = 0

    # ---- the end
    # -------------------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """No budget any more; handles that live on become tensors that TensorFlow converts when
        they are used."""
        _ = self.allocator.in_use
        self.closed, self.limited = True, False
        self.budget_bytes = self.recompute_limit = self._overhead_limit = math.inf
        for reference in list(self._handles.values()):
            handle = reference()
            if handle is not None:
                handle.__class__ = SettledTensor
        self.catch_up()
