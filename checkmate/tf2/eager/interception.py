"""Catches the program's ops, on TensorFlow's fast path and on its slow path, and refuses what would
silently be wrong: in a context of its own, TensorFlow's entry points to it raise
`UnsupportedError`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from threading import get_ident
from typing import Any

import tensorflow as tf

from checkmate.errors import UnsupportedError
from checkmate.tf2.eager import private_api
from checkmate.tf2.eager.op_kinds import OpKind, kind_of
from checkmate.tf2.eager.runtime import EagerRuntime, gradients_through, vector_space
from checkmate.tf2.eager.storage import OpRequest
from checkmate.tf2.eager.tensors import LazyTensor, SettledTensor

_INT32 = tf.int32.as_datatype_enum
_TENSORS = frozenset({LazyTensor, private_api.EagerTensor})
_FORWARD_MODE = "forward-mode differentiation (tf.autodiff.ForwardAccumulator)"
_ABSENT = object()


class Interception:
    """A context in which every eager op of this thread goes through a runtime. Leaving it puts
    TensorFlow back as it was, whatever happened."""

    def __init__(self, runtime: EagerRuntime):
        self._runtime, self._thread = runtime, runtime.references.thread
        self._undo = ExitStack()

    def __enter__(self) -> Interception:
        runtime = self._runtime
        self._undo.callback(runtime.close)
        try:
            private_api.replace(
                self._undo,
                fast=self._fast,
                slow=self._slow,
                cancellable=self._cancellable,
                must_record=self._must_record,
                shape_slice=_shape_slice,
                gradients=gradients_through(runtime),
                vector_space=vector_space(runtime),
            )
            _refuse_the_impossible(self._undo)
        except BaseException:
            self._undo.close()
            raise
        return self

    def __exit__(self, *exception: Any) -> None:
        self._undo.close()

    def _fast(self, context: Any, op: str, name: Any, *args: Any) -> Any:
        kind = kind_of(op)
        if kind.passed_on or get_ident() != self._thread:
            return self._passed_on(kind, context, name, args)
        count = kind.count
        tensors: Sequence[Any] = args[:count]
        lengths = kind.one_each
        for each in tensors:
            if type(each) not in _TENSORS:
                tensors, lengths = _row(kind, tensors)
                break
        if kind.of_shape and type(tensors[0]) is LazyTensor:
            return _static(kind, tensors[0], args[count:])
        return self._runtime.run(OpRequest(kind, lengths, args[count:], None, name), tensors)

    def _slow(
        self, op_name: Any, num_outputs: int, inputs: Any, attrs: Any, ctx: Any, name: Any = None
    ) -> Any:
        inputs = list(inputs)
        if self._elsewhere():
            if _any_lazy(inputs):
                raise _other_thread()
            return private_api.real_execute(op_name, num_outputs, inputs, attrs, ctx, name)
        op = _text(op_name)
        kind = kind_of(op)
        _refuse_op(kind)
        if kind.of_shape and type(inputs[0]) is LazyTensor:
            return [_static(kind, inputs[0], attrs)]
        if not kind.passed_on and all([type(each) in _TENSORS for each in inputs]):
            asked = OpRequest(kind, kind.lengths(attrs), attrs, num_outputs, name)
            result = self._runtime.run(asked, inputs)
            return result if isinstance(result, list) else [result]

        def run(values: list[Any]) -> Any:
            return private_api.real_execute(op_name, num_outputs, values, attrs, ctx, name)

        if not kind.is_registered:
            return self._runtime.run_opaque(op, inputs, run)
        value = self._runtime.value
        result = run([value(each.cell) if type(each) is LazyTensor else each for each in inputs])
        if not kind.is_constant and private_api.real_must_record():
            private_api.record_gradient(op, inputs, attrs, result)
        return result

    def _cancellable(
        self, op_name: Any, num_outputs: int, inputs: Any, *rest: Any, **named: Any
    ) -> Any:
        if self._elsewhere() and _any_lazy(inputs):
            raise _other_thread()
        run = private_api.real_execute_with_cancellation
        return self._runtime.run_opaque(
            _text(op_name),
            list(inputs),
            lambda values: run(op_name, num_outputs, values, *rest, **named),
        )

    def _passed_on(self, kind: OpKind, context: Any, name: Any, args: tuple[Any, ...]) -> Any:
        """Has TensorFlow run an op. Handles among the inputs go by the slow path, which finds their
        values."""
        elsewhere = self._elsewhere()
        if not elsewhere:
            _refuse_op(kind)
        if _any_lazy(args):
            if elsewhere:
                raise _other_thread()
            raise private_api.FallbackException("values come first")
        result = private_api.real_fast(context, kind.name, name, *args)
        if self._runtime.recorder and kind.reads_variable:
            self._runtime.recorder.read(args[0], result)
        return result

    def _must_record(self) -> bool:
        """Eager ops of this thread are recorded as they run, those of a graph as TensorFlow does
        it."""
        graph = not private_api.executing_eagerly()
        return (self._elsewhere() or graph) and private_api.real_must_record()

    def _elsewhere(self) -> bool:
        """Whether this is another thread, where input pipelines may run and training is refused."""
        if get_ident() == self._thread:
            return False
        if not private_api.tape_is_empty():
            raise _other_thread()
        return True


def _row(kind: OpKind, arguments: Sequence[Any]) -> tuple[list[Any], tuple[int | None, ...]]:
    """All input tensors in one row, and for each argument how many of them it is, None for one that
    is no list.

    Python numbers become tensors where their type is plain; whatever else is no tensor,
    TensorFlow's slow path converts.
    """
    tensors: list[Any] = []
    lengths: list[int | None] = []
    for argument, is_list, dtype in zip(arguments, kind.is_list, kind.types, strict=True):
        found = type(argument)
        if found in _TENSORS:
            tensors.append(argument)
            lengths.append(None)
        elif (
            is_list
            and found in (list, tuple)
            and all([type(each) in _TENSORS for each in argument])
        ):
            tensors.extend(argument)
            lengths.append(len(argument))
        elif (
            dtype == _INT32
            and not is_list
            and (
                found is int
                or (found in (list, tuple) and all([type(each) is int for each in argument]))
            )
        ):
            tensors.append(tf.constant(argument, tf.int32))
            lengths.append(None)
        else:
            raise private_api.FallbackException("something is to be converted to a tensor first")
    return tensors, tuple(lengths)


def _text(op_name: Any) -> str:
    return op_name.decode() if isinstance(op_name, bytes) else op_name


def _any_lazy(arguments: Any) -> bool:
    for argument in arguments:
        if type(argument) is LazyTensor or (
            type(argument) in (list, tuple) and any(type(each) is LazyTensor for each in argument)
        ):
            return True
    return False


def _static(kind: OpKind, tensor: LazyTensor, attrs: Any) -> Any:
    """Shapes are known without the value."""
    assert kind.of_shape is not None
    chosen = dict(zip((attrs or ())[::2], (attrs or ())[1::2], strict=True))
    dtype = tf.as_dtype(chosen.get("out_type", tf.int32))
    return tf.constant(kind.of_shape(tensor.shape), dtype)


def _shape_slice(tensors: Any, axis: int) -> Any:
    """Sizes of tensors along an axis; TensorFlow's own takes EagerTensors only."""
    if any(type(each) in (LazyTensor, SettledTensor) for each in tensors):
        return tf.constant([private_api.shape_of(each)[axis] for each in tensors], tf.int32)
    return private_api.real_shape_slice(tensors, axis)


def _refuse_the_impossible(undo: ExitStack) -> None:
    """Puts functions that raise in the place of TensorFlow's; `undo` puts these back."""
    for name in ("__init__", "__enter__", "jvp"):
        _put(undo, tf.autodiff.ForwardAccumulator, name, _refused(_FORWARD_MODE))
    for name in ("jacobian", "batch_jacobian"):
        _put(undo, tf.GradientTape, name, _refused(f"GradientTape.{name}"))
    default = tf.distribute.get_strategy()
    for name in ("run", "scope"):
        method = getattr(tf.distribute.Strategy, name)
        _put(undo, tf.distribute.Strategy, name, _only_for(default, method))


def _put(undo: ExitStack, owner: Any, name: str, function: Callable[..., Any]) -> None:
    before = vars(owner).get(name, _ABSENT)
    if before is _ABSENT:
        undo.callback(delattr, owner, name)
    else:
        undo.callback(setattr, owner, name, before)
    setattr(owner, name, function)


def _refused(what: str) -> Callable[..., Any]:
    def refused(*args: Any, **kwargs: Any) -> Any:
        raise UnsupportedError(
            f"{what} does not work under dtr(): its results would silently be wrong or missing."
            " Leave the context for it, or use GradientTape.gradient."
        )

    return refused


def _only_for(default: Any, method: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self is not default and type(self) is not type(default):
            raise UnsupportedError(
                f"{type(self).__name__} does not work under dtr(): it trains in several threads."
                " Use one device, without a strategy."
            )
        return method(self, *args, **kwargs)

    return guarded


def _refuse_op(kind: OpKind) -> None:
    if kind.refusal:
        raise UnsupportedError(f"{kind.name} does not work under dtr(): {kind.refusal}")


def _other_thread() -> UnsupportedError:
    return UnsupportedError(
        "dtr() manages the tensors of the thread that entered it, and another thread recorded a"
        " gradient or used such a tensor. Enter dtr() in the thread that trains, and do all of a"
        " step there; input pipelines may run elsewhere."
    )
