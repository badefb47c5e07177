"""The training step of a Keras model, a loss and an optimizer, as a function that can be traced."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from checkmate.errors import TraceError
from checkmate.tf2.error_text import said, spec_meant
from checkmate.tf2.keras2 import is_keras2


def training_step(
    model: keras.Model, loss: Any, optimizer: Any, input_spec: Any, label_spec: Any
) -> tuple[Callable, tuple[Any, Any]]:
    """The function (inputs, labels) -> (prediction, loss) that trains a model, built now if it is
    not, and its specs."""
    if is_keras2(model):
        raise TraceError(
            f"Model {model.name!r} is one of tf_keras (Keras 2), and the step made here is that of"
            " a Keras 3 model. Compile the model and call checkmate.tf2.rematerialize(model), or"
            " put a step that you write under a budget with checkmate.tf2.function."
        )
    _refuse_what_is_no_model(model)
    optimizer = known_optimizer(optimizer)
    specs = (as_spec(input_spec), as_spec(label_spec))
    _build(model, specs[0])
    if not model.trainable_variables:
        raise TraceError(
            f"Model {model.name!r} has no trainable variables, so there is nothing to train. Set"
            " trainable=True on a layer."
        )
    if not optimizer.built:
        optimizer.build(model.trainable_variables)
    loss_function = _scalar_loss(loss)
    named = loss if isinstance(loss, str) else getattr(loss, "__name__", type(loss).__name__)

    def train_step(inputs: Any, labels: Any) -> tuple[Any, tf.Tensor]:
        with tf.GradientTape() as tape:
            prediction = model(inputs, training=True)
            try:
                loss_value = loss_function(labels, prediction)
            except Exception as error:  # a loss may raise anything
                raise TraceError(
                    f"The loss {named!r} cannot be computed for labels {shown(labels)} and a"
                    f" prediction {shown(prediction)}: {said(error).text}"
                ) from error
            if loss_value.shape.rank != 0:
                raise TraceError(
                    f"The loss must be one number per batch; got shape {loss_value.shape}. Reduce"
                    " it, for example with tf.reduce_mean."
                )
            if model.losses:
                loss_value += tf.add_n([tf.cast(extra, loss_value.dtype) for extra in model.losses])
            scaled = optimizer.scale_loss(loss_value)
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(scaled, variables), variables)
        return prediction, loss_value

    return train_step, specs


def refuse_missing(function: str, loss: Any, optimizer: Any, label_spec: Any) -> None:
    """Raises `TypeError` without a label_spec: an argument was left out, and those after it stand
    one place too early."""
    if label_spec is not None:
        return
    missing = "label_spec"
    if not isinstance(optimizer, (str, keras.optimizers.Optimizer)):
        is_optimizer = isinstance(loss, keras.optimizers.Optimizer)
        is_optimizer |= isinstance(loss, str) and loss.lower() in map(
            str.lower, dir(keras.optimizers)
        )
        missing = "loss" if is_optimizer else "optimizer"
    raise TypeError(
        f"{function}() is missing its {missing}: it takes a model, a loss, an optimizer, input_spec"
        " and label_spec."
    )


def check_exact(specs: Any) -> None:
    """Raises `TraceError` for a spec that leaves a dimension open, or is of text."""
    for spec in tf.nest.flatten(specs):
        refuse_text(spec.dtype)
        if not spec.shape.is_fully_defined():
            what = "batch size" if spec.shape.rank and spec.shape[0] is None else "sizes"
            raise TraceError(
                f"A plan is made for exact shapes, but {spec} leaves some open. Give the {what} you"
                " train with."
            )


def refuse_text(dtype: tf.DType) -> None:
    if dtype == tf.string:
        raise TraceError(
            "A plan is made for sizes that shapes tell, and those of text they do not. Look the"
            " text up before the step, as dataset.map(layer) does with a TextVectorization or"
            " StringLookup layer, and pass its numbers."
        )


def as_spec(value: Any) -> Any:
    if meant := spec_meant(value):
        raise TraceError(
            f"{value!r} is a shape, and a spec has a dtype, too. Did you mean {meant}?"
        )

    def one(leaf: Any) -> tf.TensorSpec:
        if isinstance(leaf, tf.TensorSpec):
            return leaf
        if isinstance(leaf, keras.KerasTensor):
            return tf.TensorSpec(leaf.shape, leaf.dtype)
        if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
            return tf.TensorSpec(leaf.shape, tf.as_dtype(leaf.dtype))
        if isinstance(leaf, (bool, int, float, np.generic)):
            return tf.TensorSpec((), tf.convert_to_tensor(leaf).dtype)
        raise TraceError(
            f"A spec is a tensor, an array, a tf.TensorSpec, or a nest of them; found {leaf!r}."
        )

    return tf.nest.map_structure(one, value)


def _build(model: keras.Model, input_spec: Any) -> None:
    """Creates the variables of an unbuilt model by calling it on symbolic inputs."""
    if model.built:
        return
    try:
        tf.function(lambda inputs: model(inputs, training=True)).get_concrete_function(input_spec)
    except Exception as error:  # a model may raise anything
        raise TraceError(
            f"Model {model.name!r} cannot be built for inputs {shown(input_spec)}:"
            f" {said(error).text}"
        ) from error


class _Named(keras.losses.Loss):
    """A loss that was given by its name: Keras's function of it, averaged as `fit` does, without
    what a layer's mask leaves out."""

    def __init__(self, per_example: Callable[[Any, Any], Any]):
        super().__init__(name="loss")
        self._per_example = per_example

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return self._per_example(y_true, y_pred)


def _scalar_loss(loss: Any) -> Callable[[Any, Any], tf.Tensor]:
    if isinstance(loss, str):
        found = _known(keras.losses, loss, "loss")
        loss = found if isinstance(found, keras.losses.Loss) else _Named(found)
    _refuse_class(loss, "loss")
    if isinstance(loss, keras.optimizers.Optimizer):
        raise TraceError("An optimizer stands where the loss belongs: the loss comes first.")
    if not callable(loss):
        raise TraceError(
            "A loss is a keras.losses.Loss, a function (label, prediction) -> scalar, or a name;"
            f" got {loss!r}."
        )
    return lambda labels, prediction: tf.convert_to_tensor(loss(labels, prediction))


def known_optimizer(optimizer: Any) -> Any:
    """The optimizer of this name, or the object itself; raises `TraceError` if it is neither."""
    return _known(keras.optimizers, optimizer, "optimizer")


def _known(module: Any, identifier: Any, what: str) -> Any:
    """An object of a module of Keras by its name, or the object itself."""
    _refuse_class(identifier, what)
    try:
        return module.get(identifier)
    except (ValueError, TypeError) as error:
        close = difflib.get_close_matches(str(identifier), map(str.lower, dir(module)), n=3)
        hint = f"Its names are those of {module.__name__}."
        if close:
            hint = f"Did you mean {' or '.join(map(repr, close))}?"
        raise TraceError(f"Keras knows no {what} {identifier!r}. {hint}") from error


def _refuse_what_is_no_model(model: Any) -> None:
    _refuse_class(model, "model")
    if not isinstance(model, keras.Layer):  # a model is a layer, and one layer can be trained, too
        raise TraceError(
            f"What is trained is a Keras 3 model; got {type(model).__name__}. For the step of"
            " anything else there is checkmate.tf2.function."
        )


def _refuse_class(value: Any, what: str) -> None:
    if isinstance(value, type):
        raise TraceError(
            f"The {what} given is a class, {value.__name__}. Did you mean {value.__name__}()?"
        )


def shown(values: Any) -> str:
    """Types and shapes of a nest of specs, tensors or arrays as text."""
    return str(tf.nest.map_structure(_shown, values)).replace("'", "")


def _shown(value: Any) -> str:
    if not hasattr(value, "dtype") or not hasattr(value, "shape"):
        return repr(value) if isinstance(value, (int, float, str)) else type(value).__name__
    shape = tf.TensorShape(value.shape)
    return f"{tf.as_dtype(value.dtype).name}{'[?]' if shape.rank is None else shape.as_list()}"
