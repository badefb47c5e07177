"""Where ops of the program are caught: one door for the fast path, one for the slow path, and what
is refused."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from threading import get_ident
from typing import Any

import tensorflow as tf

from checkmate.errors import UnsupportedError
from checkmate.tf2.eager import private_api
from checkmate.tf2.eager.backward import gradients_through, vector_space
from checkmate.tf2.eager.op_kinds import OpKind, kind_of
from checkmate.tf2.eager.tensors import LazyTensor, SettledTensor
from checkmate.tf2.ops import rule_of

_SHAPE_OPS = {
    "Shape": lambda shape: list(shape),
    "Size": lambda shape: tf.TensorShape(shape).num_elements(),
    "Rank": lambda shape: len(shape),
}

_INT32 = tf.int32.as_datatype_enum
_ABSENT = object()


class Interception:
    """A context in which every eager op of this thread goes through a runtime. Leaving it puts
    TensorFlow back as it was, whatever happened."""

    def __init__(self, runtime: Any):
        self._runtime, self._thread = runtime, runtime.thread
        self._undo = ExitStack()

    def __enter__(self) -> Interception:
        runtime = self._runtime
        self._undo.callback(runtime.close)
        try:
            self._replace(private_api.tfe, "TFE_Py_FastPathExecute", self._fast)
            self._replace(private_api.tfe, "TFE_Py_TensorShapeSlice", _shape_slice)
            self._replace(private_api.execute, "execute", self._slow)
            self._replace(private_api.execute, "execute_with_cancellation", self._cancellable)
            self._replace(
                private_api.execute,
                "must_record_gradient",
                lambda: self._elsewhere() and private_api.real_must_record(),
            )
            self._replace(
                private_api.imperative_grad, "imperative_grad", gradients_through(runtime)
            )
            private_api.tfe.TFE_Py_RegisterVSpace(vector_space(runtime))
            self._undo.callback(private_api.tfe.TFE_Py_RegisterVSpace, private_api.default_vspace)
            self._refuse_the_impossible()
        except BaseException:
            self._undo.close()
            raise
        return self

    def __exit__(self, *exception: Any) -> None:
        self._undo.close()

    def _replace(self, owner: Any, name: str, stand_in: Any) -> None:
        before = vars(owner).get(name, _ABSENT)
        (
            self._undo.callback(delattr, owner, name)
            if before is _ABSENT
            else self._undo.callback(setattr, owner, name, before)
        )
        setattr(owner, name, stand_in)

    # ---- the doors
    # -----------------------------------------------------------------------------------------------------------------

    def _fast(self, context: Any, op: str, name: Any, *args: Any) -> Any:
        kind = kind_of(op)
        if kind.passed_on or get_ident() != self._thread:
            return self._aside(context, op, name, args)
        count = kind.count
        tensors: Any = args[:count]
        lengths = kind.one_each
        for each in tensors:
            if type(each) not in _TENSORS:
                tensors, lengths = _row(kind, tensors)
                break
        if op in _SHAPE_OPS and type(tensors[0]) is LazyTensor:
            return _static(op, tensors[0], args[count:])
        if self._runtime.leaves(kind, tensors, lengths, args[count:]):
            return private_api.real_fast(context, op, name, *args)
        return self._runtime.run(kind, tensors, lengths, args[count:], None, name)

    def _slow(
        self, op_name: Any, num_outputs: int, inputs: Any, attrs: Any, ctx: Any, name: Any = None
    ) -> Any:
        op = op_name.decode() if isinstance(op_name, bytes) else op_name
        kind = kind_of(op)
        inputs = list(inputs)
        if self._elsewhere():
            if _any_lazy(inputs):
                raise _other_thread()
            return private_api.real_execute(op_name, num_outputs, inputs, attrs, ctx, name)
        _refuse_op(op)
        if op in _SHAPE_OPS and type(inputs[0]) is LazyTensor:
            return [_static(op, inputs[0], attrs)]
        if not kind.passed_on and all([type(each) in _TENSORS for each in inputs]):
            lengths = kind.lengths(attrs)
            if not self._runtime.leaves(kind, inputs, lengths, attrs):
                result = self._runtime.run(kind, inputs, lengths, attrs, num_outputs, name)
                return result if isinstance(result, list) else [result]
        if private_api.op_def(op) is None:
            return self._runtime.aside(
                op,
                inputs,
                lambda values: private_api.real_execute(
                    op_name, num_outputs, values, attrs, ctx, name
                ),
            )
        values = [
            self._runtime.value(each._cell) if type(each) is LazyTensor else each for each in inputs
        ]
        result = private_api.real_execute(op_name, num_outputs, values, attrs, ctx, name)
        if op != "Const" and private_api.real_must_record():
            private_api.record_gradient(op, inputs, attrs, result)
        return result

    def _cancellable(
        self,
        op_name: Any,
        num_outputs: int,
        inputs: Any,
        attrs: Any,
        ctx: Any,
        cancellation_manager: Any,
        name: Any = None,
    ) -> Any:
        if self._elsewhere() and _any_lazy(inputs):
            raise _other_thread()
        op = op_name.decode() if isinstance(op_name, bytes) else op_name
        return self._runtime.aside(
            op,
            list(inputs),
            lambda values: private_api.real_execute_with_cancellation(
                op_name, num_outputs, values, attrs, ctx, cancellation_manager, name
            ),
        )

    def _aside(self, context: Any, op: str, name: Any, args: tuple[Any, ...]) -> Any:
        """What is not ours to run. Handles among its inputs go by the slow path, which finds their
        values."""
        elsewhere = self._elsewhere()
        if not elsewhere:
            _refuse_op(op)
        if _any_lazy(args):
            raise (
                _other_thread()
                if elsewhere
                else private_api.FallbackException("values are to be found first")
            )
        result = private_api.real_fast(context, op, name, *args)
        if self._runtime.observer and op == "ReadVariableOp":
            self._runtime.observer.read(args[0], result)
        return result

    # ---- what is refused
    # -----------------------------------------------------------------------------------------------------------

    def _elsewhere(self) -> bool:
        """Whether this is another thread. What input pipelines run there is none of ours; training
        there is refused."""
        if get_ident() == self._runtime.thread:
            return False
        if not private_api.tape_is_empty():
            raise _other_thread()
        return True

    def _refuse_the_impossible(self) -> None:
        self._refuse(
            tf.autodiff.ForwardAccumulator,
            "__init__",
            "forward-mode differentiation (tf.autodiff.ForwardAccumulator)",
        )
        self._refuse(
            tf.autodiff.ForwardAccumulator,
            "__enter__",
            "forward-mode differentiation (tf.autodiff.ForwardAccumulator)",
        )
        self._refuse(
            tf.autodiff.ForwardAccumulator,
            "jvp",
            "forward-mode differentiation (tf.autodiff.ForwardAccumulator)",
        )
        self._refuse(tf.GradientTape, "jacobian", "GradientTape.jacobian")
        self._refuse(tf.GradientTape, "batch_jacobian", "GradientTape.batch_jacobian")
        default = tf.distribute.get_strategy()
        for name in ("run", "scope"):
            self._replace(
                tf.distribute.Strategy,
                name,
                _only_for(default, getattr(tf.distribute.Strategy, name)),
            )

    def _refuse(self, owner: Any, name: str, what: str) -> None:
        def refused(*args: Any, **kwargs: Any) -> Any:
            raise UnsupportedError(
                f"{what} does not work under dtr(): its results would silently be wrong or missing."
                " Leave the context for it, or use GradientTape.gradient."
            )

        self._replace(owner, name, refused)


_TENSORS = frozenset({LazyTensor, private_api.EagerTensor})


def _row(kind: OpKind, arguments: tuple[Any, ...]) -> tuple[list[Any], tuple[int | None, ...]]:
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


def _refuse_op(op: str) -> None:
    if why := rule_of(op).eager_refusal:
        raise UnsupportedError(f"{op} does not work under dtr(): {why}")


def _any_lazy(arguments: Any) -> bool:
    for argument in arguments:
        if type(argument) is LazyTensor or (
            type(argument) in (list, tuple) and any(type(each) is LazyTensor for each in argument)
        ):
            return True
    return False


def _static(op: str, tensor: LazyTensor, attrs: Any) -> Any:
    """Shapes are known without the value."""
    chosen = dict(zip((attrs or ())[::2], (attrs or ())[1::2], strict=True)).get(
        "out_type", tf.int32
    )
    return tf.constant(_SHAPE_OPS[op](tensor._shape_tuple()), tf.as_dtype(chosen))


def _shape_slice(tensors: Any, axis: int) -> Any:
    """Sizes of tensors along an axis; TensorFlow's own takes EagerTensors only."""
    if any(type(each) in (LazyTensor, SettledTensor) for each in tensors):
        return tf.constant([each._shape_tuple()[axis] for each in tensors], tf.int32)
    return private_api.real_shape_slice(tensors, axis)


def _only_for(default: Any, method: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self is not default and type(self) is not type(default):
            raise UnsupportedError(
                f"{type(self).__name__} does not work under dtr(): it trains in several threads."
                " Use one device, without a strategy."
            )
        return method(self, *args, **kwargs)

    return guarded


def _other_thread() -> UnsupportedError:
    return UnsupportedError(
        "dtr() manages the tensors of the thread that entered it, and another thread recorded a"
        " gradient or used such a tensor. Enter dtr() in the thread that trains, and do all of a"
        " step there; input pipelines may run elsewhere."
    )
