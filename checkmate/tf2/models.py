"""From what a user calls a model to a traced training step: a name of keras.applications, a .keras
file, or module:function."""

from __future__ import annotations

import difflib
import importlib
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from checkmate.errors import TraceError
from checkmate.tf2.error_text import said
from checkmate.tf2.graph.trace import trace
from checkmate.tf2.rewrites.step import Step
from checkmate.tf2.training_step import training_step
from checkmate.tf2.uninitialized import NoValueError, uninitialized_variables

log = logging.getLogger("checkmate")


@dataclass(frozen=True, slots=True)
class Workload:
    """A model and a batch to train it on, of tensors or of specs where none is to be made."""

    model: keras.Model
    loss: Callable[[Any, Any], Any] | str
    inputs: Any
    labels: Any
    optimizer: Any = "adam"


def step_on_paper(
    model: str, *, batch: int, size: int | None, loss: str | None, optimizer: str
) -> tuple[Step, keras.Model]:
    """Traces the training step that `checkmate.tf2.compile` would plan; nothing is run, and no
    batch and no weights are made. A model whose function reads its variables gets their values, and
    a warning says so.

    Args:
      size: Pixels of an image's side, or tokens of a sequence, where the model leaves it open.
      loss: Name of a Keras loss, or None for the model's own, else cross-entropy after a softmax,
        else the mean squared error.
    """

    def made() -> tuple[Step, keras.Model]:
        work = workload(model, batch=batch, size=size, loss=loss)
        step, specs = training_step(work.model, work.loss, optimizer, work.inputs, work.labels)
        traced = trace(step, *specs, name=work.model.name)
        return Step.of(step, specs, traced), work.model

    try:
        with uninitialized_variables():
            return made()
    # The model's own code may raise the error as another.
    except Exception as error:
        if not _reads_a_value(error):
            raise
    log.warning("%s reads its variables, so they are made with their values.", model)
    keras.backend.clear_session()
    return made()


def _reads_a_value(error: BaseException | None) -> bool:
    """Whether an error comes of reading a variable that has no value."""
    while error is not None:
        if isinstance(error, NoValueError):
            return True
        error = error.__cause__ or error.__context__
    return False


def workload(
    model: str, *, batch: int, size: int | None = None, loss: str | None = None
) -> Workload:
    """Returns the model with its loss and the specs of a batch; see `step_on_paper`."""
    if ":" in model and not os.path.exists(model):
        return _from_function(model, batch, size, loss)
    found = _loaded(model) if model.endswith(".keras") else application(model, size)
    return _specified(found, _loss(found, loss), batch, size)


def _check_file(path: str) -> None:
    if not os.path.exists(path):
        raise TraceError(f"There is no file {path}.")


def _loaded(path: str) -> keras.Model:
    _check_file(path)
    try:
        return keras.models.load_model(path)
    except (ValueError, TypeError, OSError) as error:
        raise TraceError(f"Keras cannot load {path}: {said(error).text}") from error


def application(name: str, size: int | None = None) -> keras.Model:
    """Makes a model of keras.applications, untrained. Case does not matter: "ResNet50",
    "resnet50"."""
    shape = {"input_shape": (size, size, 3)} if size else {}
    return getattr(keras.applications, _application_name(name))(weights=None, **shape)


def _application_name(name: str) -> str:
    known = {each.lower(): each for each in dir(keras.applications) if each[0].isupper()}
    if name.lower() not in known:
        close = [known[each] for each in difflib.get_close_matches(name.lower(), known, n=3)]
        hint = f"There are {', '.join(sorted(known.values()))}."
        if close:
            hint = f"Did you mean {' or '.join(close)}?"
        raise TraceError(
            f"keras.applications has no {name!r}, and it is no .keras file and no module:function."
            f" {hint}"
        )
    return known[name.lower()]


def _from_function(target: str, batch: int, size: int | None, loss: str | None) -> Workload:
    """The result of `module:function`: a model, (model, loss), or (model, loss, inputs, labels)."""
    module, function = target.split(":", 1)
    sys.path.insert(0, os.getcwd())
    try:
        made = getattr(importlib.import_module(module), function)()
    # The user's own code may raise anything, and call sys.exit.
    except (Exception, SystemExit) as error:
        raise TraceError(
            f"Cannot call {target}: {said(error).text} It is found from the current folder, and"
            " called without arguments."
        ) from error
    finally:
        sys.path.remove(os.getcwd())
    if isinstance(made, keras.Model):
        made = made, _loss(made, loss)
    has_length = isinstance(made, tuple) and len(made) in (2, 4)
    if not has_length or not isinstance(made[0], keras.Model):
        raise TraceError(
            f"{target} must return a model, (model, loss) or (model, loss, inputs, labels); it"
            f" returned {made!r}."
        )
    own_loss: Any = loss or made[1]
    if len(made) == 4:
        return Workload(made[0], own_loss, *made[2:])
    return _specified(made[0], own_loss, batch, size)


def _loss(model: keras.Model, name: str | None) -> Any:
    found = name or getattr(model, "loss", None)
    if isinstance(found, str) or callable(found):
        return found
    softmax = getattr(model.layers[-1], "activation", None) is keras.activations.softmax
    return (
        keras.losses.SparseCategoricalCrossentropy() if softmax else keras.losses.MeanSquaredError()
    )


def _specified(model: keras.Model, loss: Any, batch: int, size: int | None) -> Workload:
    """The model with a batch of its input and output shapes; labels of a sparse loss are
    integers."""
    if not hasattr(model, "inputs") or not model.inputs:
        raise TraceError(
            f"Model {model.name!r} does not say what it takes. Return (model, loss, inputs, labels)"
            " from a module:function."
        )
    named = loss if isinstance(loss, str) else getattr(loss, "name", getattr(loss, "__name__", ""))

    def spec(tensor: Any, *, label: bool = False) -> tf.TensorSpec:
        shape = [batch, *(size if side is None else side for side in tensor.shape[1:])]
        if None in shape:
            raise TraceError(
                f"Model {model.name!r} leaves the shape {tuple(tensor.shape)} open. Give --size."
            )
        if label and "sparse" in named.lower():
            return tf.TensorSpec(shape[:-1], tf.int32)
        return tf.TensorSpec(shape, "float32" if label else tensor.dtype)

    def tensors(side: str) -> Any:
        """The symbolic inputs or outputs in their structure; a Sequential has one, in a list."""
        is_single = isinstance(model, keras.Sequential)
        return getattr(model, f"{side}s")[0] if is_single else getattr(model, side)

    outputs = tf.nest.map_structure(lambda tensor: spec(tensor, label=True), tensors("output"))
    return Workload(model, loss, tf.nest.map_structure(spec, tensors("input")), outputs)
