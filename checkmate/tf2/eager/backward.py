"""Backward functions, which a tape records in place of tensors: each computes the gradient of one
op when the tape asks for it.

TensorFlow's own backward functions refer to tensors, which then cannot be evicted. These refer to
cells. The gradient's ops are caught like all others, so that gradients can be evicted, and recorded
by an outer tape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, overload

import tensorflow as tf

from checkmate.errors import UnsupportedError
from checkmate.tf2.eager import private_api
from checkmate.tf2.eager.policy import EagerPolicy
from checkmate.tf2.eager.storage import Cell, EagerCall
from checkmate.tf2.eager.tensors import LazyTensor, Values


class Program(Values, Protocol):
    """The part of the runtime that backward functions use.

    Attributes:
      calls: How many calls can be run again; the next one gets this number.
      reading: Where a gradient function notes the ids of the cells and tensors that it reads, while
        one runs whose reads are not known.
      error: An error of which TensorFlow could not be told; raised at the next chance.
    """

    policy: EagerPolicy
    calls: int
    reading: set[int] | None
    error: BaseException | None
    closed: bool


class Backward:
    """The backward function of one call.

    It refers to the cells that gradients of this op type have been seen to read, and to all of them
    before the first was. The others stay known (`EagerStorage.weak_refs`), so that a gradient that
    reads one after all gets it, recomputed.
    """

    __slots__ = ("_call", "_outputs", "_reads", "_runtime", "_skip")

    def __init__(
        self, runtime: Program, call: EagerCall, outputs: tuple[Any, ...], skip: tuple[int, ...]
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
        self, runtime: Program, call: EagerCall, outputs: tuple[Any, ...], skip: tuple[int, ...]
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

    The runtime notes what is read (`Program.reading`) from the first index on that is not known to
    be read.
    """

    def __init__(self, runtime: Program, cells: Sequence[Any], known: frozenset[int]):
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


def vector_space(runtime: Program) -> Any:
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


def gradients_through(runtime: Program) -> Callable[..., Any]:
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
