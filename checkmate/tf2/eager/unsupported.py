"""What would silently be wrong under `dtr()` is refused: in a context of its own, TensorFlow's
entrances to it raise `UnsupportedError`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import tensorflow as tf

from checkmate.errors import UnsupportedError
from checkmate.tf2.ops.table import rule_of

_FORWARD_MODE = "forward-mode differentiation (tf.autodiff.ForwardAccumulator)"
_ABSENT = object()


def refuse_the_impossible(undo: ExitStack) -> None:
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


def refuse_op(op: str) -> None:
    """Raises for an op type that cannot run under the runtime."""
    if why := rule_of(op).eager_refusal:
        raise UnsupportedError(f"{op} does not work under dtr(): {why}")


def other_thread() -> UnsupportedError:
    """The error for ops and gradients in a thread that did not enter the context."""
    return UnsupportedError(
        "dtr() manages the tensors of the thread that entered it, and another thread recorded a"
        " gradient or used such a tensor. Enter dtr() in the thread that trains, and do all of a"
        " step there; input pipelines may run elsewhere."
    )
