"""rematerialize(): `fit` of a compiled Keras model under a memory budget, with nothing else
changed.

Keras runs training through `model.train_function`, which `model.make_train_function()` makes: the
public place for another way to run `train_step`. The one made here takes the batch from Keras's
iterator and gives it to a `PlannedFunction` of the model's own `train_step`, whatever that is. All
else (epochs, callbacks, validation, saving) is Keras's.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf
from typing_extensions import Unpack

from checkmate.errors import TraceError
from checkmate.tf2.distribute import ReplicatedFit
from checkmate.tf2.options import PlanKeywords, PlanOptions
from checkmate.tf2.planned_function import PlannedFunction

ATTRIBUTE = "make_train_function"
"""The model's method that is replaced, on this model only."""


def rematerialize(model: keras.Model, **options: Unpack[PlanKeywords]) -> keras.Model:
    """Has `fit` and `train_on_batch` of a compiled model stay within a memory budget.

    The step is the model's own `train_step`, with its losses, metrics and optimizer, and its
    numbers do not change. It is planned when the first batch is there, and anew after the model is
    compiled again. `planned(model)` is the planned step.

    XLA would undo a plan, as it computes once what is written twice. The training step therefore
    runs without it, also where the model was compiled with `jit_compile=True` or "auto"; evaluation
    and prediction run as they did.

    Under `MirroredStrategy` and `MultiWorkerMirroredStrategy` the budget is that of each replica.

    One figure of Keras's own depends on what is known when the step is traced: where a model has
    several outputs, the mean of each output's loss over an epoch counts batches by their size when
    it is known, as it is here, and alike when it is not, as in plain `fit` over arrays. The two
    differ where the last batch is smaller. Training does not depend on these means.

    Args:
      model: A compiled Keras 3 model, built or not, on TensorFlow.
      options: The fields of `PlanOptions`.

    Returns:
      The same model. `release(model)` undoes it.

    Raises:
      TraceError: The model is not compiled, runs eagerly, is rematerialized already, or makes its
        train function itself.
      BudgetError: A budget or a time limit that cannot be read.

    Example:
      >>> checkmate.tf2.rematerialize(model, budget="6GiB").fit(images, labels)  # doctest: +SKIP
    """
    asked = PlanOptions.of("rematerialize", options)
    _check(model)
    training = Training(model, asked)
    setattr(model, ATTRIBUTE, training.make_train_function)
    model.train_function = None
    _warn_of_xla(model)
    return model


def release(model: keras.Model) -> keras.Model:
    """Undoes `rematerialize`: the model trains as Keras has it. Weights and the optimizer's state
    stay as training left them.

    Args:
      model: A model that `rematerialize` was given.

    Returns:
      The same model.

    Raises:
      TraceError: The model is not under a budget.

    Example:
      >>> checkmate.tf2.release(model).fit(images, labels)  # doctest: +SKIP
    """
    _training_of(model)
    delattr(model, ATTRIBUTE)
    model.train_function = None
    return model


def planned(model: keras.Model) -> PlannedFunction:
    """Returns the planned training step of a model under a budget, which has `plan`, `result`,
    `graph` and `report()`.

    Args:
      model: A model that `rematerialize` was given.

    Raises:
      TraceError: The model is not under a budget.

    Example:
      >>> print(checkmate.tf2.planned(model).report())  # doctest: +SKIP
    """
    return _training_of(model).step


class Rematerialize(keras.callbacks.Callback):
    """`rematerialize` as a callback: the model is under a budget while `fit` runs.

    Args:
      options: The fields of `PlanOptions`.

    Attributes:
      planned: The planned training step of the latest `fit`.

    Example:
      >>> budget = checkmate.tf2.Rematerialize(budget="6GiB")  # doctest: +SKIP
      >>> model.fit(images, labels, callbacks=[budget])  # doctest: +SKIP
    """

    def __init__(self, **options: Unpack[PlanKeywords]):
        super().__init__()
        PlanOptions.of("Rematerialize", options)  # refused here rather than in fit
        self._options = options
        self.planned: PlannedFunction | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Puts the model under the budget."""
        if ATTRIBUTE in vars(self.model):  # a fit that was broken off did not come to its end
            release(self.model)
        rematerialize(self.model, **self._options)
        self.model.make_train_function()
        self.planned = planned(self.model)

    def on_train_end(self, logs: Any = None) -> None:
        """Gives the model back as it was."""
        release(self.model)


class Training:
    """The train function of one model, made anew when Keras asks for one because the model was
    compiled again."""

    def __init__(self, model: keras.Model, options: PlanOptions):
        self._model, self._options = model, options
        self.step = self._planned_step()

    def make_train_function(self, force: bool = False) -> Any:
        """What Keras calls at the start of `fit` and `train_on_batch`."""
        model = self._model
        if model.train_function is None or force:
            if model.run_eagerly:
                raise TraceError(_EAGER.format(model.name))
            self.step = self._planned_step()
            model.train_function = self._train_function
        return model.train_function

    def _planned_step(self) -> PlannedFunction:
        with self._model.distribute_strategy.scope():
            if tf.distribute.has_strategy():
                return ReplicatedFit(self._model, self._options)
        own = type(self._model).train_step is not keras.Model.train_step
        on_lost = warnings.warn if own else None
        return PlannedFunction(
            self._model.train_step,
            self._options,
            name=self._model.name,
            autograph=False,
            on_lost=on_lost,
            has_pipeline=True,
        )

    def _train_function(self, iterator: Iterator[Any]) -> Any:
        """Runs as many steps as Keras asks for at a time, and returns the logs of the last."""
        logs = None
        for number in range(self._model.steps_per_execution):
            try:
                data = next(iterator)
            except (StopIteration, tf.errors.OutOfRangeError):
                if number == 0:
                    raise StopIteration from None
                break
            logs = self.step(tf.nest.map_structure(_without_optional, data))
        return logs


_EAGER = (
    "Model {!r} is compiled with run_eagerly=True, and a plan is for a graph. Compile it without,"
    " and debug it before it is put under a budget."
)


def _check(model: Any) -> None:
    if not isinstance(model, keras.Model):
        raise TraceError(
            f"A Keras 3 model is put under a budget; got {type(model).__name__}. For other steps"
            " there is checkmate.tf2.function."
        )
    if keras.backend.backend() != "tensorflow":
        raise TraceError(
            f"Keras runs on {keras.backend.backend()!r} here. Plans are for TensorFlow: set"
            " KERAS_BACKEND=tensorflow."
        )
    if not model.compiled:
        raise TraceError(
            f"Model {model.name!r} is not compiled, so there is no training step to plan. Call"
            " model.compile(...) first."
        )
    if model.run_eagerly:
        raise TraceError(_EAGER.format(model.name))
    if isinstance(getattr(vars(model).get(ATTRIBUTE), "__self__", None), Training):
        raise TraceError(
            f"Model {model.name!r} is under a budget already. Call checkmate.tf2.release(model)"
            " before it gets another."
        )
    if keras.distribution.distribution() is not None:
        raise TraceError(
            "keras.distribution does not train on several devices with TensorFlow, whose own way is"
            " tf.distribute. Make and compile the model in the scope of a MirroredStrategy, and"
            " keras.distribution.set_distribution(None)."
        )
    if ATTRIBUTE in vars(model) or getattr(type(model), ATTRIBUTE) is not getattr(
        keras.Model, ATTRIBUTE
    ):
        raise TraceError(
            f"Model {model.name!r} makes its train function itself, so what it runs is not known."
            " Put its step under a budget with checkmate.tf2.function, or override train_step"
            " instead."
        )


def _training_of(model: keras.Model) -> Training:
    training = getattr(vars(model).get(ATTRIBUTE), "__self__", None)
    if not isinstance(training, Training):
        raise TraceError(
            f"Model {getattr(model, 'name', model)!r} is not under a budget: nothing was planned"
            " and there is nothing to undo."
        )
    return training


def _warn_of_xla(model: keras.Model) -> None:
    if model.jit_compile:
        warnings.warn(
            f"Model {model.name!r} is compiled for XLA (jit_compile=True, or 'auto' on this"
            " machine). XLA computes once what a plan computes twice, so the memory saved would be"
            " lost: the training step runs without XLA. To train without this message, compile"
            " with jit_compile=False.",
            stacklevel=3,
        )


def _without_optional(leaf: Any) -> Any:
    return None if isinstance(leaf, tf.experimental.Optional) else leaf
