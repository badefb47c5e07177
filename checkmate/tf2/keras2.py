"""Models of tf_keras (Keras 2): the one file that knows that package.

tf_keras is neither required nor imported: who has a model of it has imported it.

What is used of it and not public:

* `Model._train_counter`, the batches of this `fit`, which its `TensorBoard` callback reads and its
  own train function counts
* `Callback._implements_train_batch_hooks`, and the same of `test` and `predict`: its `fit` asks
  each callback for them, which a callback of Keras 3 does not have

`Keras2Trainer.refuse_unsupported` looks for each of them, and refuses a tf_keras without.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from checkmate.errors import TraceError


class Trainer:
    """A compiled model as `rematerialize` needs it: here of Keras 3, in a subclass of tf_keras."""

    def __init__(self, model: Any):
        self.model = model

    @property
    def base(self) -> Any:
        return keras.Model

    @property
    def is_compiled(self) -> bool:
        return self.model.compiled

    def refuse_unsupported(self) -> None:
        """Raises `TraceError` where Keras runs on another backend, or `keras.distribution` is in
        use."""
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
        """Runs as many steps as Keras asks for at a time, and returns the logs of the last. Raises
        `StopIteration` where no batch is left."""
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


COUNTER = "_train_counter"
HOOKS = tuple(f"_implements_{kind}_batch_hooks" for kind in ("train", "test", "predict"))


def is_keras2(model: Any) -> bool:
    package = sys.modules.get("tf_keras")
    return package is not None and isinstance(model, package.Model)


class Keras2Trainer(Trainer):
    @property
    def base(self) -> Any:
        return sys.modules["tf_keras"].Model

    @property
    def is_compiled(self) -> bool:
        return getattr(self.model, "optimizer", None) is not None

    def refuse_unsupported(self) -> None:
        """Raises `TraceError` where the model was made in the scope of a strategy, or where this
        tf_keras lacks an attribute used here."""
        package = sys.modules["tf_keras"]
        missing = [name for name in HOOKS if not hasattr(package.callbacks.Callback, name)]
        missing += [COUNTER] if not hasattr(self.model, COUNTER) else []
        if missing:
            raise TraceError(
                f"`fit` under a budget uses {', '.join(missing)} of tf_keras, which"
                f" {package.__version__} does not have; 2.21 does. Put a training step of the"
                " model under a budget with checkmate.tf2.function instead."
            )
        with self.model.distribute_strategy.scope():
            if tf.distribute.has_strategy():
                raise TraceError(
                    f"Model {self.model.name!r} is one of tf_keras in the scope of a strategy, and"
                    " budgets with tf.distribute are for models of Keras 3. Make the model with"
                    " `import keras`, or outside of the scope."
                )

    def train(self, step: Callable[[Any], Any], batches: Iterator[Any]) -> Any:
        """As `Trainer.train`. Steps at which the batches end have no logs, as in tf_keras."""
        logs = None
        for _ in range(int(self.model.steps_per_execution.numpy())):
            logs = step(next(batches))
            getattr(self.model, COUNTER).assign_add(1)
        return logs


class EveryKerasCallback(keras.callbacks.Callback):
    """A callback that `fit` of Keras 3 and of tf_keras take."""

    def _implements_train_batch_hooks(self) -> bool:
        own, base = type(self), keras.callbacks.Callback
        return own.on_train_batch_end is not base.on_train_batch_end

    def _implements_test_batch_hooks(self) -> bool:
        return False

    def _implements_predict_batch_hooks(self) -> bool:
        return False
