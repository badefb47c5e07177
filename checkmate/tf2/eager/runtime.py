"""The runtime of eager mode: runs the program's ops, and returns handles in place of the results.

Unlike in the simulator, an op's outputs are known after it ran, and objects die at any time and in
any thread.

The runtime holds the policy, which decides what stays in memory; the policy holds the budget and
the allocator. None of them refers back to the runtime.

Each op costs Python time, whatever its kernel does: more next to long kernels, which drive Python
out of the caches. OVERHEAD
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from checkmate.dtr.storage import Storage
from checkmate.tf2.eager import private_api
from checkmate.tf2.eager.allocator import REFUSALS, Allocator
from checkmate.tf2.eager.backward import Backward
from checkmate.tf2.eager.budget import EagerOptions
from checkmate.tf2.eager.op_kinds import OutputSpec
from checkmate.tf2.eager.op_memory import NeedsTable
from checkmate.tf2.eager.policy import EagerPolicy
from checkmate.tf2.eager.recorder import Recorder
from checkmate.tf2.eager.references import References
from checkmate.tf2.eager.storage import (
    Arguments,
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
        self._smallest_bytes = max(1, options.smallest_bytes)
        self._needs = NeedsTable(device)
        self._thread_state = private_api.thread_state()
        self._last_s = 0.0

    def run(self, asked: OpRequest, tensors: Sequence[Any]) -> Any:
        """Runs an op for the program and puts it on the tapes that record. Returns TensorFlow's
        result, with handles in place of tensors."""
        self.ops += 1
        arguments = _gathered(tensors)
        if self.reading is not None:
            self.reading.update(map(id, arguments.row))
        skip = _skipped(arguments.row)
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
            return _arranged(result, outputs)
        finally:
            self.references.end_op()

    def _first_run(
        self, call: EagerCall, values: list[Any] | None, name: Any, *, taped: bool
    ) -> Any:
        """Runs a call on `values`; if they are None, once its inputs are in memory."""
        needs, policy = call.needs, self.policy
        limited = policy.budget.limited
        call.cost, call.clock = needs.cost, policy.clock
        locked: list[Storage] = []
        try:
            if values is None or (limited and not policy.budget.fits_now(needs, call.name)):
                policy.ensure_resident(call.inputs, locked)
                policy.make_room(call)
                values = [each.value if type(each) is Cell else each for each in call.arguments]
            if taped:
                private_api.tape_stop()
            try:
                result = self._measured_run(call, values, name)
            finally:
                if taped:
                    private_api.tape_restart()
        finally:
            for storage in locked:
                policy.unlock(storage)
        if limited:
            for cell in call.inputs:
                policy.touch(cell.storage)
        policy.advance(needs.cost)
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
            if self.policy.neighbourhood.counts_first_runs:
                self.policy.neighbourhood.rematerialized([cell.storage for cell in call.outputs])
        if self.recorder:
            made = [each.cell if type(each) is LazyTensor else each for each in outputs]
            self.recorder.called(call, made, self._last_s)
        return outputs

    def _handle(self, call: EagerCall, value: Any, index: int, *, taped: bool) -> Any:
        known = call.needs.outputs
        spec = (
            self._needs.spec(private_api.shape_of(value), value.dtype)
            if known is None
            else known[index]
        )
        if spec.bytes < self._smallest_bytes or value.backing_device != self.device_name:
            return value
        if not call.needs.is_view or index:
            cell = self._fresh(call, value, index, spec, taped=taped)
        elif type(call.arguments[0]) is Cell:
            cell = self._view(call, value, spec)
        else:
            return value
        call.outputs += (cell,)
        return LazyTensor(self, cell, owner=True)

    def _fresh(
        self, call: EagerCall, value: Any, index: int, spec: OutputSpec, *, taped: bool
    ) -> Cell:
        policy = self.policy
        is_gradient = policy.gradients > 0 and not taped
        storage = EagerStorage(spec.bytes, call.cost, policy.clock, is_gradient)
        cell = Cell(call, storage, spec.bytes, value, index, spec)
        storage.link(call.inputs)
        call.bytes += spec.bytes
        policy.adopt(storage)
        return cell

    def _view(self, call: EagerCall, value: Any, spec: OutputSpec) -> Cell:
        storage: EagerStorage = call.arguments[0].storage
        cell = Cell(call, storage, 0, value, 0, spec)
        storage.cost += call.cost
        storage.link(call.inputs)
        if storage.slot >= 0:
            self.policy.neighbourhood.stale[storage] = None
        return cell

    def _put_on_tapes(self, call: EagerCall, outputs: list[Any], skip: tuple[int, ...]) -> None:
        cells = tuple([each.cell if type(each) is LazyTensor else each for each in outputs])
        backward = Backward(self, call, cells, skip)
        private_api.tape_record(call.name, cells, call.arguments, backward, None)

    def run_opaque(self, op: str, inputs: Sequence[Any], run: Callable[[list[Any]], Any]) -> Any:
        """Runs an op that cannot run again, a whole function perhaps: it counts as one op, whose
        needs are known once it ran."""
        cells = [each.cell for each in inputs if type(each) is LazyTensor]
        if self.reading is not None:
            self.reading.update(map(id, cells))
        policy, locked = self.policy, list[Storage]()
        self.references.depth += 1
        try:
            policy.ensure_resident(cells, locked)
            values = [each.cell.value if type(each) is LazyTensor else each for each in inputs]
            if not policy.budget.limited:
                return run(values)
            needs = self._needs.of_opaque(op, values)
            policy.reserve(needs, op)
            if needs.measured:
                result = run(values)
            else:
                result, used, held = policy.allocator.watched(lambda: run(values))
                needs.learn(used, held)
            policy.learn(needs, op)
            return result
        finally:
            for storage in locked:
                policy.unlock(storage)
            self.references.end_op()

    def value(self, cell: Cell) -> Any:
        """The real tensor, recomputed if it was evicted."""
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
            self.references.end_op()

    def register(self, handle: Handle, cell: Cell) -> None:
        self.references.register(handle, cell)

    def unregister(self, handle: Handle, cell: Cell) -> None:
        self.references.unregister(handle, cell)

    def close(self) -> None:
        """Leaves the context: no budget any more, and TensorFlow converts handles that are still
        alive."""
        self.closed = True
        self.policy.close()
        self.references.settle()
        self.references.run_deferred()


def _gathered(tensors: Sequence[Any]) -> Arguments:
    """The inputs of an op, in one pass: this runs for every op."""
    row, cells, values, signatures, gone = [], [], [], [], False
    for each in tensors:
        if type(each) is LazyTensor:
            cell = each.cell
            row.append(cell)
            cells.append(cell)
            values.append(cell.value)
            signatures.append(cell.spec.signature)
            gone = gone or not cell.defined
        else:
            row.append(each)
            values.append(each)
            signatures.append(private_api.signature_of(each))
    # Values that are kept here could not be evicted until the missing ones are recomputed.
    return Arguments(row, cells, None if gone else values, signatures)


def _skipped(row: list[Any]) -> tuple[int, ...] | None:
    """The inputs that no tape asks for; None where no tape asks for any."""
    if not private_api.is_recording():
        return None
    skip = tuple([k for k, each in enumerate(row) if not private_api.tape_records((each,))])
    return skip if len(skip) < len(row) else None


def _arranged(result: Any, outputs: list[Any]) -> Any:
    """The outputs in the shape of TensorFlow's result: one, a list, a list of lists, or None."""
    if type(result) is not list:
        return outputs[0] if outputs else result
    rest = iter(outputs)
    return [[next(rest) for _ in each] if type(each) is list else next(rest) for each in result]
