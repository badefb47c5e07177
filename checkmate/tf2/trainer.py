"""Trainer: a compiled Keras 3 model, as `fit` under a budget sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from checkmate.errors import TraceError


class Trainer:
    """What `rematerialize` asks of a model, and how its Keras runs `train_step`.

    A model of another Keras has a subclass, in which all differs that differs between the two.

    Attributes:
      model: The model.
    """

    def __init__(self, model: Any):
        self.model = model

    @property
    def base(self) -> Any:
        """The class whose `train_step` and `make_train_function` are Keras's own."""
        return keras.Model

    @property
    def is_compiled(self) -> bool:
        """Whether `model.compile` was called."""
        return self.model.compiled

    def refuse_unsupported(self) -> None:
        """Refuses a way to train that no plan is made for.

        Raises:
          TraceError: Keras runs on another backend, or `keras.distribution` is in use.
        """
        if keras.backend.backend() != "tensorflow":
            raise TraceError(
                f"Keras runs on {keras.backend.backend()!r} here. Plans are for TensorFlow: set"
                " KERAS_BACKEND=tensorflow."
            )
        if keras.distribution.distribution() is not None:
            raise TraceError(
                "keras.distribution does not train on several devices with TensorFlow, whose own"
                " way is tf.distribute. Make and compile the model in the scope of a"
                " MirroredStrategy, and keras.distribution.set_distribution(None)."
            )

    def train(self, step: Callable[[Any], Any], batches: Iterator[Any]) -> Any:
        """Runs as many steps as Keras asks for at a time, and returns the logs of the last.

        Raises:
          StopIteration: There is no batch.
        """
        logs = None
        for number in range(self.model.steps_per_execution):
            try:
                data = next(batches)
            except (StopIteration, tf.errors.OutOfRangeError):
                if number == 0:
                    raise StopIteration from None
                break
            logs = step(tf.nest.map_structure(_without_optional, data))
        return logs


def _without_optional(leaf: Any) -> Any:
    return None if isinstance(leaf, tf.experimental.Optional) else leaf
