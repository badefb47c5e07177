"""The runtime of eager mode: runs the program's ops, and returns handles in place of the results;
the backward functions of these ops.

Unlike in the simulator, an op's outputs are known after it ran, and objects die at any time and in
any thread.

The runtime holds the policy, which decides what stays in memory; the policy holds the budget and
the allocator. None of them refers back to the runtime.

Each op costs Python time, whatever its kernel does: more next to long kernels, which drive Python
out of the caches (`benchmarks/eager_ops.py`; figures in `context.dtr`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, overload

import tensorflow as tf

from checkmate.dtr.storage import Storage
from checkmate.errors import UnsupportedError
from checkmate.tf2.eager import private_api
from checkmate.tf2.eager.budget import REFUSALS, Allocator, EagerOptions
from checkmate.tf2.eager.op_kinds import Signature
from checkmate.tf2.eager.op_memory import NeedsTable
from checkmate.tf2.eager.policy import EagerPolicy
from checkmate.tf2.eager.storage import Cell, EagerCall, EagerStorage, OpRequest, Recorder, flat
from checkmate.tf2.eager.tensors import LazyTensor, References


class EagerRuntime:
    """Runs ops as the program asks for them, within the budget.

    Args:
      device: The device whose memory counts, as "GPU:0".
      recorder: Told of each call and each release, if there is one.

    Attributes:
      calls: How many calls can be run again; the next one gets this number.
      reading: Where a gradient function notes the ids of the cells and tensors that it reads, while
        one runs whose reads are not known.
      error: An error of which TensorFlow could not be told; raised at the next chance.
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
        row, cells, values, signatures = _gathered(tensors)
        if self.reading is not None:
            self.reading.update(map(id, row))
        skip = _skipped(row)
        self.references.depth += 1
        try:
            call = EagerCall(self.calls, asked, row, cells, self._thread_state.device_name)
            call.needs = self._needs.of(call, signatures)
            result = self._first_run(call, values, asked.name, taped=skip is not None)
            made = flat(result) if type(result) is list or result is None else [result]
            outputs = self._adopt(call, made, taped=skip is not None)
            if skip is not None and outputs:
                taped = tuple([e.cell if type(e) is LazyTensor else e for e in outputs])
                backward = Backward(self, call, taped, skip)
                private_api.tape_record(call.name, taped, call.arguments, backward, None)
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
        needs, policy = call.needs, self.policy
        try:
            if policy.budget.limited and not needs.measured:
                return policy.measure(
                    needs, lambda: call.run(values, name), rehearse=call.kind.tries_algorithms
                )
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
        policy = self.policy
        if not call.needs.is_view or index:
            is_gradient = policy.gradients > 0 and not taped
            storage = EagerStorage(spec.bytes, call.cost, policy.clock, is_gradient)
            policy.adopt(storage)
            count = spec.bytes
        elif type(call.arguments[0]) is Cell:
            storage, count = call.arguments[0].storage, 0
            storage.cost += call.cost
            policy.neighbourhood.mark((storage,))
        else:
            return value
        cell = Cell(call, storage, count, value, index, spec)
        storage.link(call.inputs)
        call.bytes += count
        call.outputs += (cell,)
        return LazyTensor(self, cell, owner=True)

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
            result = run(values) if needs.measured else policy.measure(needs, lambda: run(values))
            policy.learn(needs, op)
            return result
        finally:
            for storage in locked:
                policy.unlock(storage)
            self.references.end_op()

    def value(self, cell: Cell) -> Any:
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

    def close(self) -> None:
        """Leaves the context: no budget any more, and TensorFlow converts handles that are still
        alive."""
        self.closed = True
        self.policy.close()
        self.references.settle()
        self.references.run_deferred()


def _gathered(
    tensors: Sequence[Any],
) -> tuple[list[Any], list[Cell], list[Any] | None, list[Signature]]:
    """The inputs of an op: cells and real tensors; the cells among them; all as real tensors, None
    where some cell is not in memory; shape and type of each. Runs for every op."""
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
    return row, cells, None if gone else values, signatures


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


class Backward:
    """The backward function of one call, which a tape records in place of tensors: it computes the
    gradient of the op when the tape asks for it.

    TensorFlow's own backward functions refer to tensors, which then cannot be evicted. These refer
    to cells. The gradient's ops are caught like all others, so that gradients can be evicted, and
    recorded by an outer tape.

    It refers to the cells that gradients of this op type have been seen to read, and to all of them
    before the first was. The others stay known (`EagerStorage.weak_refs`), so that a gradient that
    reads one after all gets it, recomputed.
    """

    __slots__ = ("_call", "_outputs", "_reads", "_runtime", "_skip")

    def __init__(
        self,
        runtime: EagerRuntime,
        call: EagerCall,
        outputs: tuple[Any, ...],
        skip: tuple[int, ...],
    ):
        self._runtime, self._call, self._outputs, self._skip = runtime, call, outputs, skip
        reads = self._reads = call.kind.reads
        for cells, known in ((call.arguments, 0), (outputs, 1)):
            for k, cell in enumerate(cells):
                if type(cell) is Cell:
                    storage = cell.storage
                    # As `EagerPolicy.retain`, shorter: other references exist while the op runs.
                    if reads is None or k in reads[known]:
                        cell.refs += 1
                        storage.refs += 1
                    else:
                        storage.weak_refs += 1

    def __del__(self) -> None:
        self._runtime.references.defer(
            _release, self._runtime.policy, self._call.arguments, self._outputs, self._reads
        )

    def __call__(self, *gradients: Any) -> list[Any]:
        """The gradients of the inputs, None where there is none, from those of the outputs."""
        runtime, call = self._runtime, self._call
        if runtime.error is not None:
            raise runtime.error
        if runtime.closed or not private_api.executing_eagerly():
            self._refuse_the_impossible()
        function = private_api.gradient_function(call.name)
        if function is None:
            return [None] * len(call.arguments)
        before, runtime.reading = runtime.reading, set() if call.kind.reads is None else None
        if runtime.policy.in_backward:
            runtime.policy.clock = call.clock
        try:
            result = function(_Operation(runtime, call, self._outputs, self._skip), *gradients)
            if runtime.reading is not None:
                self._learn(runtime.reading)
        finally:
            runtime.reading = before
        return list(result) if isinstance(result, (list, tuple)) else [result]

    def _refuse_the_impossible(self) -> None:
        if not private_api.executing_eagerly():
            raise UnsupportedError(
                "Under dtr() a gradient was asked for while a graph is traced, as tf.function,"
                " GradientTape.jacobian and tf.vectorized_map do. The tape recorded eager ops that"
                " may be evicted, and a graph cannot recompute them. Ask for the gradient eagerly."
            )
        if self._runtime.closed and private_api.is_recording():
            raise UnsupportedError(
                "A gradient of what was recorded under dtr() was asked for after the context was"
                " left, while another tape records: that tape would not see it. Ask for the"
                " gradient inside of the context."
            )

    def _learn(self, read: set[int]) -> None:
        if not self._runtime.closed:
            known = self._call.kind.reads or (frozenset[int](), frozenset[int]())
            inputs = {k for k, each in enumerate(self._call.arguments) if id(each) in read}
            outputs = {k for k, each in enumerate(self._outputs) if id(each) in read}
            self._call.kind.reads = (known[0] | inputs, known[1] | outputs)


def _release(
    policy: EagerPolicy, arguments: Sequence[Any], outputs: Sequence[Any], reads: Any
) -> None:
    for cells, known in ((arguments, 0), (outputs, 1)):
        for k, cell in enumerate(cells):
            if type(cell) is Cell:
                if reads is None or k in reads[known]:
                    policy.release(cell)
                else:
                    policy.release_weak(cell)


class _Operation(private_api.MockOp):
    def __init__(
        self,
        runtime: EagerRuntime,
        call: EagerCall,
        outputs: tuple[Any, ...],
        skip: tuple[int, ...],
    ):
        self._call, self.type, self.skip_input_indices = call, call.name, skip
        inputs_read, outputs_read = call.kind.reads or (frozenset(), frozenset())
        self.inputs, self.outputs = (
            _Seen(runtime, call.arguments, inputs_read),
            _Seen(runtime, outputs, outputs_read),
        )

    @property
    def attrs(self) -> tuple[Any, ...]:
        return self._call.all_attrs()

    def get_attr(self, attr: str) -> Any:
        attrs = self._call.attrs
        value = attrs[attrs.index(attr) + 1] if attr in attrs[::2] else None
        return value if type(value) is bool else super().get_attr(attr)


class _Seen(Sequence[Any]):
    """Inputs or outputs of an op as its gradient function sees them: handles, made when they are
    indexed.

    The runtime notes what is read (`EagerRuntime.reading`) from the first index on that is not
    known to be read.
    """

    def __init__(self, runtime: EagerRuntime, cells: Sequence[Any], known: frozenset[int]):
        self._runtime, self._cells, self._known = runtime, cells, known

    def __len__(self) -> int:
        return len(self._cells)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[k] for k in range(*index.indices(len(self._cells)))]
        each = self._cells[index]
        if type(each) is not Cell:
            return each
        if index not in self._known and self._runtime.reading is None:
            self._runtime.reading = set()
        return (
            self._runtime.value(each) if self._runtime.closed else LazyTensor(self._runtime, each)
        )


def vector_space(runtime: EagerRuntime) -> Any:
    """How tapes add gradients up under the runtime.

    A tape adds the partial gradients of a tensor at the end, or five at a time once they are large;
    here always five at a time, since to keep all of them takes most of the memory of a recurrent
    net. Sums of more than four terms may differ in rounding from the plain tape's.
    """

    def guarded(name: str, otherwise: Callable[..., Any]) -> Callable[..., Any]:
        # The tape cannot be told of an error here: it is kept, and raised at the next chance.
        def act(*args: Any) -> Any:
            if runtime.error is None:
                try:
                    return getattr(private_api.default_vspace, name)(*args)
                except BaseException as error:
                    runtime.error = error
            return otherwise(*args)

        return act

    makers = ("zeros_fn", "ones_fn", "zeros_like_fn", "ones_like_fn")
    add = guarded("aggregate_fn", lambda gradients: gradients[0])
    return private_api.vector_space(add, **{name: guarded(name, _nothing) for name in makers})


def _nothing(*_: Any) -> Any:
    """A tensor with which the tape continues after an error, until the error can be raised."""
    return tf.constant(0.0)


def gradients_through(runtime: EagerRuntime) -> Callable[..., Any]:
    """Stands for the function that asks a tape for gradients; raises what went wrong while
    gradients were added up.

    After an error TensorFlow's C++ never lets go of some gradients. Nothing else refers to them, so
    the runtime lets go of their values.
    """

    def gradients(*args: Any, **kwargs: Any) -> Any:
        first, result = runtime.calls, None
        began = runtime.policy.begin_gradients(recorded=private_api.is_recording())
        try:
            result = private_api.real_imperative_grad(*args, **kwargs)
            if runtime.error is not None:
                raise runtime.error
        except BaseException as error:
            del result
            runtime.references.abandon(first)
            if runtime.error is not None and runtime.error is not error:
                raise runtime.error from None  # what came after it came of it
            raise
        finally:
            runtime.error = None
            runtime.policy.end_gradients(began=began)
        return result

    return gradients
