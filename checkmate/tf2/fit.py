"""rematerialize(): `fit` of a compiled Keras model under a memory budget, with nothing else
changed.

Keras runs training through `model.train_function`, which `model.make_train_function()` makes: the
public place for another way to run `train_step`. The one made here takes the batch from Keras's
iterator and gives it to a `PlannedFunction` of the model's own `train_step`, whatever that is. All
else (epochs, callbacks, validation, saving) is Keras's.
"""

from __future__ import annotations

import inspect
import warnings
from functools import partial
from typing import Any

import keras
import tensorflow as tf
from typing_extensions import Unpack

from checkmate.errors import TraceError
from checkmate.tf2.distribute import ReplicatedFit
from checkmate.tf2.keras2 import EveryKerasCallback, Keras2Trainer, Trainer, is_keras2
from checkmate.tf2.options import PlanKeywords, PlanOptions
from checkmate.tf2.planned_function import PlannedFunction
from checkmate.units import Bytes

ATTRIBUTE = "make_train_function"
"""The model's method that is replaced, on this model only."""


def rematerialize(
    model: keras.Model, budget: Bytes = "auto", **options: Unpack[PlanKeywords]
) -> keras.Model:
    """Has `fit` and `train_on_batch` of a compiled model stay within a memory budget.

    The step is the model's own `train_step`, with its losses, metrics and optimizer, and its
    numbers do not change. It is planned when the first batch is there, and anew after the model is
    compiled again. `planned(model)` is the planned step.

    Where Keras would have XLA compile the training step (`jit_compile=True`, or "auto" on a GPU),
    XLA compiles it here, too: as a whole if it fits as it is, and else those parts of its plan for
    which that pays and fits. Evaluation and prediction run as they did.

    Under `MirroredStrategy` and `MultiWorkerMirroredStrategy` the budget is that of each replica; a
    model of tf_keras trains on one device.

    Layers of tf_keras draw random numbers, as for dropout, from a state that TensorFlow has for
    each function, and not from variables. They draw what plain `fit` draws while all batches have
    one size; a smaller last batch, whose plan is another function, begins its own sequence.

    One figure of Keras's own depends on what is known when the step is traced: where a model has
    several outputs, the mean of each output's loss over an epoch counts batches by their size when
    it is known, as it is here, and alike when it is not, as in plain `fit` over arrays. The two
    differ where the last batch is smaller. Training does not depend on these means.

    Where Keras does not know how many batches a dataset has, its training function is called once
    more at the end of an epoch, and may count a step of the optimizer in which nothing was trained;
    here no step begins without a batch, and `optimizer.iterations` is the number of steps.

    Args:
      model: A compiled model, built or not, of Keras 3 on TensorFlow, or of tf_keras (Keras 2).
      budget: As in `PlanOptions`.
      options: Its other fields.

    Returns:
      The same model. `release(model)` undoes it.

    Raises:
      TraceError: The model is not compiled, runs eagerly, is rematerialized already, makes its
        train function itself, or is one of tf_keras in the scope of a strategy.
      BudgetError: A budget or a time limit that cannot be read.

    Examples:
      >>> checkmate.tf2.rematerialize(model, budget="6GiB").fit(images, labels)
    """
    asked = PlanOptions.of("rematerialize", budget, options)
    trainer = _trainer_of(model)
    _check(trainer)
    training = Training(trainer, asked)
    setattr(model, ATTRIBUTE, training.make_train_function)
    model.train_function = None
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

    Examples:
      >>> model = checkmate.tf2.rematerialize(model, budget="6GiB")
      >>> checkmate.tf2.release(model).fit(images, labels)
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

    Examples:
      >>> checkmate.tf2.rematerialize(model, budget="6GiB").fit(images, labels)
      >>> print(checkmate.tf2.planned(model).report())
    """
    return _training_of(model).step


class Rematerialize(EveryKerasCallback):
    """`rematerialize` as a callback, with the same options: the model is under a budget while `fit`
    runs. Afterwards `planned` is its step, and `planned.report()` says what was found.

    Args:
      budget: As in `PlanOptions`, whose other fields are options, too.

    Attributes:
      planned: The planned training step of the latest `fit`.

    Examples:
      >>> budget = checkmate.tf2.Rematerialize(budget="6GiB")
      >>> model.fit(images, labels, callbacks=[budget])
    """

    def __init__(self, budget: Bytes = "auto", **options: Unpack[PlanKeywords]):
        super().__init__()
        PlanOptions.of("Rematerialize", budget, options)  # refused here rather than in fit
        self._budget, self._options = budget, options
        self.planned: PlannedFunction | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Puts the model under the budget."""
        if ATTRIBUTE in vars(self.model):  # a fit that was broken off did not come to its end
            release(self.model)
        rematerialize(self.model, self._budget, **self._options)
        self.model.make_train_function()
        self.planned = planned(self.model)

    def on_train_end(self, logs: Any = None) -> None:
        """Gives the model back as it was."""
        release(self.model)


class Training:
    """The train function of a model, made anew after it is compiled again."""

    def __init__(self, trainer: Trainer, options: PlanOptions):
        self._trainer, self._options = trainer, options
        self.step = self._planned_step()

    def make_train_function(self, force: bool = False) -> Any:
        """Called by Keras at the start of `fit` and `train_on_batch`."""
        model = self._trainer.model
        if model.train_function is None or force:
            if model.run_eagerly:
                raise TraceError(_EAGER.format(model.name))
            self.step = self._planned_step()
            model.train_function = partial(self._trainer.train, self.step)
        return model.train_function

    def _planned_step(self) -> PlannedFunction:
        model = self._trainer.model
        with model.distribute_strategy.scope():
            if tf.distribute.has_strategy():
                return ReplicatedFit(model, self._options)
        own = type(model).train_step is not self._trainer.base.train_step
        on_lost = warnings.warn if own else None
        asked = self._options.like_keras(model)
        return PlannedFunction(
            model.train_step, asked, name=model.name, autograph=False, on_lost=on_lost
        )


_EAGER = (
    "Model {!r} is compiled with run_eagerly=True, and a plan is for a graph. Compile it without,"
    " and debug it before it is put under a budget."
)


def _trainer_of(model: Any) -> Trainer:
    if isinstance(model, keras.Model):
        return Trainer(model)
    if is_keras2(model):
        return Keras2Trainer(model)
    hint = f" Did you mean {model.__name__}()?" if inspect.isroutine(model) else ""
    raise TraceError(
        "A model of Keras 3 or tf_keras is put under a budget; got"
        f" {type(model).__name__}.{hint} For other steps there is checkmate.tf2.function."
    )


def _check(trainer: Trainer) -> None:
    model = trainer.model
    trainer.refuse_unsupported()
    if not trainer.is_compiled:
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
    if ATTRIBUTE in vars(model) or getattr(type(model), ATTRIBUTE) is not getattr(
        trainer.base, ATTRIBUTE
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
            f"Model {getattr(model, 'name', model)!r} is not under a budget. Put it under one with"
            " checkmate.tf2.rematerialize(model, budget=...); the callback Rematerialize does so"
            " while fit runs, and keeps the planned step as its `planned`."
        )
    return training
