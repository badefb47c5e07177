"""The runtime of eager dynamic rematerialization: runs what the program asks for, and hands out
handles in place of the results.

What differs from paper: an op's outputs are known after it ran, and objects die at any time and in
any thread.

The runtime holds the policy, which decides what stays in memory; the policy holds the budget and
the allocator. None of them refers back to the runtime.

Each op costs Python time, whatever its kernel does: more next to long kernels, which drive Python
out of the caches. By `checkmate bench dtr-eager --ops`, on one core of a 2.5 GHz server, a matrix
product of 1 ms on a tape took 53 us more forward and 41 us more backward (5.5 and 3.7 %). While
memory is far below the budget, ops whose needs are known are TensorFlow's own to run (`leaves`): 12
us more forward and 25 us more backward (1.3 and 2.2 %).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from checkmate.dtr.storage import Storage
from checkmate.tf2.eager import private_api
from checkmate.tf2.eager.allocator import REFUSALS, Allocator
from checkmate.tf2.eager.arguments import arranged, gathered, skipped
from checkmate.tf2.eager.backward import Backward
from checkmate.tf2.eager.needs import Made
from checkmate.tf2.eager.op_memory import NeedsTable
from checkmate.tf2.eager.options import EagerOptions
from checkmate.tf2.eager.policy import EagerPolicy
from checkmate.tf2.eager.recorder import Recorder
from checkmate.tf2.eager.references import References
from checkmate.tf2.eager.storage import (
    Cell,
    EagerCall,
    EagerStorage,
    OpRequest,
    flat,
)
from checkmate.tf2.eager.tensors import Handle, LazyTensor


class EagerRuntime:
    """Runs ops as the program asks for them, within the budget.

    Args:
      device: The device whose memory counts, as "GPU:0".
      recorder: Told of each call and each release, if there is one.

    Attributes:
      ops: How many ops the program ran.
      calls, reading, error, closed: See `backward.Program`.
    """

    def __init__(self, device: str, options: EagerOptions, recorder: Recorder | None = None):
        self.policy = EagerPolicy(Allocator(device, options.limited), options, recorder)
        self.references = References(self.policy)
        self.recorder = recorder
        self.device_name = f"/job:localhost/replica:0/task:0/device:{device}"
        self.ops = self.calls = 0
        self.reading: set[int] | None = None
        self.error: BaseException | None = None
        self.closed = False
        self._options, self._smallest_bytes = options, max(1, options.smallest_bytes)
        self._needs = NeedsTable(device)
        self._thread_state = private_api.thread_state()
        self._last_s = 0.0

    def leaves(self, asked: OpRequest, tensors: Sequence[Any]) -> bool:
        """Whether an op is TensorFlow's own to run and to put on tapes: all is calm, what it needs
        is known, and it reads no handle."""
        budget = self.policy.budget
        if not budget.calm or self.reading is not None:
            return False
        signatures = []
        for each in tensors:
            if type(each) is LazyTensor:
                return False
            signatures.append(private_api.signature_of(each))
        needs = self._needs.known(asked, tensors, signatures)
        if needs is None or not needs.measured or not needs.steady or not budget.is_calm(needs):
            return False
        self.ops += 1
        self.policy.position.first_cost += needs.cost
        return True

    def run(self, asked: OpRequest, tensors: Sequence[Any]) -> Any:
        """Runs an op for the program and puts it on the tapes that record. Returns what TensorFlow
        would, with handles in place of tensors."""
        self.ops += 1
        arguments = gathered(tensors)
        if self.reading is not None:
            self.reading.update(map(id, arguments.row))
        skip = skipped(arguments.row)
        self.references.depth += 1
        try:
            call = EagerCall(self.calls, asked, arguments, self._thread_state.device_name)
            call.needs = self._needs.of(call, arguments.signatures)
            result = self._first_run(call, arguments.values, asked.name, taped=skip is not None)
            made = flat(result) if type(result) is list or result is None else [result]
            outputs = self._adopt(call, made, taped=skip is not None)
            if skip is not None and outputs:
                self._put_on_tapes(call, outputs, skip)
            if self.policy.budget.limited:
                self.policy.learn(call.needs, call.name)
            self._tidy()
            return arranged(result, outputs)
        finally:
            self.references.op_ends()

    def _first_run(
        self, call: EagerCall, values: list[Any] | None, name: Any, *, taped: bool
    ) -> Any:
        """Runs a call on `values`, or on what they are once all of them are in memory."""
        needs, policy = call.needs, self.policy
        limited, position = policy.budget.limited, policy.position
        call.cost, call.place = needs.cost, position.place
        locked: list[Storage] = []
        try:
            if values is None or (limited and not policy.budget.fits_now(needs, call.name)):
                policy.bring(call.inputs, locked)
                if limited:
                    policy.make_room(needs, call.name)
                values = [each.value if type(each) is Cell else each for each in call.arguments]
            if taped:
                private_api.tape_stop()
            try:
                result = self._measured_run(call, values, name)
            finally:
                if taped:
                    private_api.tape_restart()
        finally:
            policy.unlock(locked)
        if limited:
            for cell in call.inputs:
                policy.touch(cell.storage)
        position.advance(needs.cost)
        return result

    def _measured_run(self, call: EagerCall, values: list[Any], name: Any) -> Any:
        """Runs a call, timed if it is recorded, and watched if its memory is not known."""
        needs, policy = call.needs, self.policy
        try:
            if policy.budget.limited and not needs.measured:
                result, used, held = policy.allocator.watched(
                    lambda: call.run(values, name), rehearse=call.kind.tries_algorithms
                )
                needs.learn(used, held)
                policy.budget.learn_loss(needs, held)
                return result
            started = time.perf_counter() if self.recorder else 0.0
            result = call.run(values, name)
            self._last_s = time.perf_counter() - started if self.recorder else 0.0
            return result
        except REFUSALS as error:
            return policy.after_refusal(call, error, lambda: call.run(values, name))

    def _adopt(self, call: EagerCall, values: list[Any], *, taped: bool) -> list[Any]:
        """Returns a handle for each output that can be evicted, and the tensor itself for the
        others."""
        outputs = (
            values
            if call.kind.stateful
            else [self._handle(call, value, k, taped=taped) for k, value in enumerate(values)]
        )
        if call.outputs:
            self.calls += 1
            if self.policy.neighbourhood.counts_made:
                self.policy.neighbourhood.rematerialized([cell.storage for cell in call.outputs])
        if self.recorder:
            made = [each.cell if type(each) is LazyTensor else each for each in outputs]
            self.recorder.called(call, made, self._last_s)
        return outputs

    def _handle(self, call: EagerCall, value: Any, index: int, *, taped: bool) -> Any:
        known = call.needs.made
        made = (
            self._needs.made(private_api.shape_of(value), value.dtype)
            if known is None
            else known[index]
        )
        if made.bytes < self._smallest_bytes or value.backing_device != self.device_name:
            return value
        if not call.needs.is_view or index:
            cell = self._fresh(call, value, index, made, taped=taped)
        elif type(call.arguments[0]) is Cell:
            cell = self._view(call, value, made)
        else:
            return value
        call.outputs += (cell,)
        return LazyTensor(self, cell, owner=True)

    def _fresh(self, call: EagerCall, value: Any, index: int, made: Made, *, taped: bool) -> Cell:
        position = self.policy.position
        is_gradient = position.gradients > 0 and not taped
        storage = EagerStorage(made.bytes, call.cost, position.place, is_gradient)
        cell = Cell(call, storage, made.bytes, value, index, made)
        for source in call.inputs:
            source.storage.after[storage] = None
            storage.before[source.storage] = None
        call.bytes += made.bytes
        self.policy.adopt(storage)
        return cell

    def _view(self, call: EagerCall, value: Any, made: Made) -> Cell:
        storage: EagerStorage = call.arguments[0].storage
        cell = Cell(call, storage, 0, value, 0, made)
        storage.cost += call.cost
        for source in call.inputs:
            if source.storage is not storage:
                source.storage.after[storage] = None
                storage.before[source.storage] = None
        if storage.slot >= 0:
            self.policy.neighbourhood.stale[storage] = None
        return cell

    def _put_on_tapes(self, call: EagerCall, outputs: list[Any], skip: tuple[int, ...]) -> None:
        cells = tuple([each.cell if type(each) is LazyTensor else each for each in outputs])
        backward = Backward(self, call, cells, skip)
        private_api.tape_record(call.name, cells, call.arguments, backward, None)

    def _tidy(self) -> None:
        stale, most = len(self.policy.neighbourhood.stale), self._options.tuning.most_stale
        if stale > most and stale > most + 4 * len(self.policy.memory.pool):
            self.policy.tidy()

    def aside(self, op: str, inputs: Sequence[Any], run: Callable[[list[Any]], Any]) -> Any:
        """Runs what cannot be run again, a whole function perhaps: it counts as one op, whose needs
        are known once it ran."""
        cells = [each.cell for each in inputs if type(each) is LazyTensor]
        if self.reading is not None:
            self.reading.update(map(id, cells))
        policy, locked = self.policy, list[Storage]()
        self.references.depth += 1
        try:
            policy.bring(cells, locked)
            values = [each.cell.value if type(each) is LazyTensor else each for each in inputs]
            if not policy.budget.limited:
                return run(values)
            needs = self._needs.of_opaque(op, values)
            policy.make_room(needs, op)
            if needs.measured:
                result = run(values)
            else:
                result, used, held = policy.allocator.watched(lambda: run(values))
                needs.learn(used, held)
            policy.learn(needs, op)
            return result
        finally:
            policy.unlock(locked)
            self.references.op_ends()

    def value(self, cell: Cell) -> Any:
        """The real tensor, brought back if it was evicted."""
        if self.reading is not None:
            self.reading.add(id(cell))
        if cell.defined:
            self.policy.touch(cell.storage)
            return cell.value
        self.references.depth += 1
        try:
            self.policy.materialize(cell)
            return cell.value
        finally:
            self.references.op_ends()

    def hold(self, handle: Handle, cell: Cell) -> None:
        """A handle has been made."""
        self.references.hold(handle, cell)

    def let_go(self, handle: Handle, cell: Cell) -> None:
        """A handle is dying."""
        self.references.let_go(handle, cell)

    def close(self) -> None:
        """Leaves the context: no budget any more, and TensorFlow converts handles that are still
        alive."""
        self.closed = True
        self.policy.close()
        self.references.outlive()
        self.references.catch_up()
