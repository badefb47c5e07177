"""uninitialized_variables(): variables without values, so that a step is traced without the memory
of its weights.

A trace needs the shape and type of a variable, and nothing else. TensorFlow has a class of
variables without an initial value, which hold no memory until they are assigned; it makes them
itself while it loads a SavedModel. The shape is that of the initial value, which is traced and not
computed. Keras's variables know their shape before that.

That class is private. This file alone uses
`tensorflow.python.ops.resource_variable_ops.UninitializedVariable` and its method
`_read_variable_op`. If they are missing, or if they behave otherwise (see `_kind`), variables are
made with their values, and a warning says so. `test_uninitialized` asserts that the installed
TensorFlow has both.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from checkmate.errors import CheckmateError

log = logging.getLogger("checkmate")

WITH_VALUE_BYTES = 1024
"""Variables of at most this size get their values, such as the states of random generators, which
Keras reads outside of traces, too."""


class NoValueError(CheckmateError):
    """The value of a variable was read that has none."""


@contextmanager
def uninitialized_variables() -> Iterator[None]:
    """Has the variables that are made in this context hold no memory, those of Keras layers and
    optimizers among them.

    Excepted are variables of at most `WITH_VALUE_BYTES`, and those whose initial value is a tensor
    or an array and not a function: that value is in memory already. A variable without a value can
    be traced and assigned. Reading it outside of a trace raises `NoValueError`.

    Examples:
      >>> with uninitialized_variables():
      ...     layer = keras.layers.Dense(100_000)
      ...     layer.build((None, 100_000))  # 40 GB with its values
      >>> layer.kernel.shape
      TensorShape([100000, 100000])
    """
    kind = _kind()
    if kind is None:
        yield
        return

    def create(next_creator: Callable[..., tf.Variable], **kwargs: Any) -> tf.Variable:
        spec = _spec(kwargs["initial_value"], kwargs.get("dtype"))
        if spec is None or spec.shape.num_elements() * spec.dtype.size <= WITH_VALUE_BYTES:
            return next_creator(**kwargs)
        return kind(**{**kwargs, "shape": spec.shape, "dtype": spec.dtype})

    with tf.variable_creator_scope(create):
        yield


def _kind() -> Callable[..., tf.Variable] | None:
    """The class of variables without values, or None if this TensorFlow has none that works."""
    try:
        kind = _without_value()
        probe = kind(shape=(2, 3), dtype=tf.float32)
        traced = tf.function(lambda: probe + 1.0).get_concrete_function().structured_outputs
        if isinstance(probe, tf.Variable) and traced.shape == probe.shape == (2, 3):
            probe.numpy()
        why = "one was made with a value"
    except NoValueError:
        return kind
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        why = str(error)
    log.warning(
        "TensorFlow %s has no variables without values, so those of the model take memory: %s",
        tf.__version__,
        why,
    )
    return None


def _without_value() -> Callable[..., tf.Variable]:
    """TensorFlow's class, with reads that tell. Its own return an empty tensor of another shape."""
    from tensorflow.python.ops.resource_variable_ops import UninitializedVariable

    class Uninitialized(UninitializedVariable):
        def _read_variable_op(self, *args: Any, **kwargs: Any) -> tf.Tensor:
            self._refuse_without_value()
            return super()._read_variable_op(*args, **kwargs)

        def sparse_read(self, *args: Any, **kwargs: Any) -> tf.Tensor:
            self._refuse_without_value()
            return super().sparse_read(*args, **kwargs)

        def _refuse_without_value(self) -> None:
            if tf.executing_eagerly() and not self.is_initialized():
                raise NoValueError(f"Variable {self.name!r} has no value: it is made for a trace.")

    return Uninitialized


def _spec(initial_value: Any, dtype: Any) -> tf.TensorSpec | None:
    """The shape and type of an initial value that is a function, or None if that does not tell."""
    if not callable(initial_value):
        return None
    # Tracing hundreds of initializers takes seconds. Keras's function refers to the variable.
    refers_to = inspect.isfunction(initial_value) and inspect.getclosurevars(initial_value)
    variable = refers_to.nonlocals.get("self") if refers_to else None
    if isinstance(variable, keras.Variable):
        return tf.TensorSpec(variable.shape, dtype or variable.dtype)
    value = tf.function(initial_value, autograph=False).get_concrete_function().structured_outputs
    if not isinstance(value, tf.Tensor | tf.TensorSpec) or not value.shape.is_fully_defined():
        return None
    return tf.TensorSpec(value.shape, dtype or value.dtype)
