"""compile(): one line from a Keras model to a training step that stays within a memory budget."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from checkmate.core.graph import DFGraph
from checkmate.core.plan import Plan
from checkmate.errors import TraceError
from checkmate.solvers.result import SolveResult
from checkmate.solvers.search import Solver
from checkmate.tf2.costs.measured import CostModel
from checkmate.tf2.memory.pipeline import too_much
from checkmate.tf2.planning.planned import Planned
from checkmate.tf2.planning.planner import Planner, check_asked, save
from checkmate.tf2.report import Report
from checkmate.units import Bytes, format_bytes


def compile(
    model: keras.Model,
    loss: Any,
    optimizer: Any,
    input_spec: Any,
    label_spec: Any,
    *,
    budget: Bytes = "auto",
    solver: str | Solver = "auto",
    cost_model: str | CostModel = "profile",
    time_limit_s: float | None = None,
    verbose: bool = True,
    plan: str | os.PathLike | None = None,
) -> PlannedStep:
    """Makes a training step of a Keras model that keeps its memory within a budget.

    The step computes what Keras's own would: prediction in training mode, loss (with the losses of
    layers and regularizers added), gradients, and the optimizer's update. The numbers are the
    model's own; only when values are kept or computed again differs. It is traced, its ops are
    measured on the training device, planned and built here; calling it then costs no planning.

    Args:
      model: A Keras 3 model, built or not.
      loss: A `keras.losses.Loss`, a function (label, prediction) -> scalar tensor, or the name of a
        Keras loss.
      optimizer: A `keras.optimizers.Optimizer` or its name. It is built if it is not yet.
      input_spec: The shape and dtype of one batch of inputs: a tensor, array, `tf.TensorSpec`, or a
        nest of them. A plan is confirmed on the tensors, or where there are none on made-up data.
      label_spec: The same for labels.
      budget: The limit for everything resident on the device while the step runs: variables,
        optimizer slots, the batch, activations, gradients, workspaces, and the results of the step
        before. "6GiB", a number of bytes, "60%" of the plain step's measured peak (predicted where
        it cannot be run, as the report says), or "auto": what is free on the device less a tenth,
        or 96 % of the cap where the allocator has one of its own (TF_CPU_BFC_MEM_LIMIT_IN_MB).
      solver: See `checkmate.solve`.
      cost_model: "profile" measures each distinct op on the device; "roofline" and "unit" run
        nothing.
      time_limit_s: The most seconds that the solver takes for one plan; its best plan until then is
        used. It is asked up to eight times, and up to three times once a plan is within the budget.
        Unless said, two seconds for the first and half for the others, and more for graphs of more
        than a thousand ops.
      verbose: Show progress on a terminal. Without a terminal nothing is shown.
      plan: A .json file that `save` wrote, to run its plan; it must be for this very step, and with
        a budget other than "auto" within it. Or a folder: a plan that lies there for this step and
        these options is run, else one is made and left there.

    Returns: A callable (inputs, labels) -> (prediction, loss). It has `plan`, `result`, `graph` and
      `report()`.

    Raises:
      TraceError: Specs that do not fit the model, a loss that is not a scalar, no trainable
        variables.
      BudgetError: A budget or a time limit that cannot be read.
      InfeasibleBudgetError: No plan fits; the message names the op that binds and the batch that
        could fit.
      NoPlanFoundError: The solver found none in its time.
      PlanFileError: The file of `plan` cannot be read, is for another step, or takes more than the
        budget.

    Example:
      >>> step = checkmate.tf2.compile(model, "mse", "adam", x0, y0, budget="2GiB")  # doctest: +SKIP
      >>> prediction, loss = step(x0, y0)  # doctest: +SKIP
    """
    train_step, specs = training_step(model, loss, optimizer, input_spec, label_spec)
    planner = Planner(
        train_step, model.name, budget, solver, cost_model, time_limit_s, verbose, plan
    )
    return PlannedStep(planner, specs, tf.nest.flatten((input_spec, label_spec)))


def training_step(
    model: keras.Model, loss: Any, optimizer: Any, input_spec: Any, label_spec: Any
) -> tuple[Callable, tuple[Any, Any]]:
    """Returns the function (inputs, labels) -> (prediction, loss) that trains a model, built now if
    it is not, and its specs."""
    optimizer = _known(keras.optimizers.get, optimizer, "optimizer")
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

    def train_step(inputs: Any, labels: Any) -> tuple[Any, tf.Tensor]:
        with tf.GradientTape() as tape:
            prediction = model(inputs, training=True)
            loss_value = loss_function(labels, prediction)
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


class PlannedStep:
    """A training step under a memory budget. Call it like the step it was made from.

    A batch smaller than the planned one runs too, under the same plan or, where its graph differs,
    one made for it. A larger one is refused.
    """

    def __init__(self, planner: Planner, specs: tuple[Any, ...], batch: Sequence[Any] = ()):
        check_asked(planner.budget, planner.solver, planner.time_limit_s)
        self._planner, self._specs, self._flat_specs = planner, specs, tf.nest.flatten(specs)
        for spec in self._flat_specs:
            if not spec.shape.is_fully_defined():
                raise TraceError(
                    f"A plan is made for exact shapes, but {spec} leaves some open. Give the batch"
                    " size you train with."
                )
        self._main = planner.plan(specs, batch=batch)
        self._by_shape = {_shapes(self._flat_specs): self._main}

    @property
    def plan(self) -> Plan:
        """The `Plan` that is replayed for the planned batch."""
        return self._main.plan

    @property
    def result(self) -> SolveResult | None:
        """The solver's answer, or None when the step fits as it is and runs unchanged."""
        return self._main.result

    @property
    def graph(self) -> DFGraph:
        """The `DFGraph` of the step, with measured costs."""
        return self._main.graph

    @property
    def budget_bytes(self) -> int:
        """The budget in bytes."""
        return self._planner.budget_bytes

    def report(self) -> Report:
        """Returns what was asked, what was found and what it costs; print it."""
        return self._main.report

    def save(self, path: str | os.PathLike) -> None:
        """Writes the plan for the planned batch as a .json file, for `plan=path` of another run."""
        save(path, self._main)

    @property
    def kept_at(self) -> Path | None:
        """Where the plan lies in the folder that was given as `plan`; None without a folder."""
        return self._planner.path_of(self._main.traced)

    def _ipython_display_(self) -> None:
        self.report()._ipython_display_()

    def __call__(self, *batch: Any) -> Any:
        """Runs one step.

        Raises:
          TraceError: The batch has another structure, another shape beyond the first dimension, or
            is larger than planned.
        """
        planned, flat = self.planned_for(*batch)
        if self._planner.next_batches and (
            more := too_much(self._main, self._planner.budget_bytes)
        ):
            planned = self._with_more_in_use(planned, flat, more)
        return planned.run(*flat)

    def _with_more_in_use(self, planned: Planned, flat: list[tf.Tensor], more: int) -> Planned:
        """The plan that these arguments run under once the main plan counts what came to be in
        use."""
        whole = planned is self._main
        self._main = self._planner.with_more_in_use(
            self._main, self._specs, flat if whole else (), more
        )
        self._by_shape = {_shapes(self._flat_specs): self._main}
        if whole:
            return self._main
        planned = self._by_shape[_shapes(flat)] = self._planner.plan(
            self._smaller(flat), like=self._main, batch=flat
        )
        return planned

    def planned_for(self, *batch: Any) -> tuple[Planned, list[tf.Tensor]]:
        """Returns the plan that a batch of these shapes runs under, made now if it is the first,
        and the batch flattened."""
        flat = self._flatten(batch)
        shapes = _shapes(flat)
        planned = self._by_shape.get(shapes)
        if planned is None:
            planned = self._by_shape[shapes] = self._planner.plan(
                self._smaller(flat), like=self._main, batch=flat
            )
        return planned, flat

    def _flatten(self, batch: tuple[Any, ...]) -> list[tf.Tensor]:
        try:
            tf.nest.assert_same_structure(self._specs, batch)
        except (ValueError, TypeError) as error:
            raise TraceError(
                f"The step was planned for {_shown(self._specs)} and is called with another"
                f" structure: {error}"
            ) from error
        flat = []
        for spec, value in zip(self._flat_specs, tf.nest.flatten(batch), strict=True):
            try:
                flat.append(
                    tf.cast(value, spec.dtype)
                    if tf.is_tensor(value)
                    else tf.convert_to_tensor(value, spec.dtype)
                )
            except (ValueError, TypeError, tf.errors.OpError) as error:
                raise TraceError(
                    f"An argument cannot be turned into {spec.dtype.name}{spec.shape.as_list()}:"
                    f" {error}"
                ) from error
        return flat

    def _smaller(self, flat: list[tf.Tensor]) -> tuple[Any, ...]:
        """The specs of a batch that differs from the planned one in its first dimension only, and
        is smaller."""
        for spec, value in zip(self._flat_specs, flat, strict=True):
            planned, found = spec.shape.as_list(), value.shape.as_list()
            if len(planned) != len(found) or planned[1:] != found[1:]:
                raise TraceError(
                    f"The step was planned for shape {planned} and is called with {found}. Make a"
                    " step for that shape."
                )
            if planned and found[0] > planned[0]:
                raise TraceError(
                    f"The step was planned for a batch of {planned[0]} and is called with"
                    f" {found[0]}, which may not fit {format_bytes(self.budget_bytes)}. Plan with"
                    " the largest batch you use."
                )
        return tf.nest.pack_sequence_as(
            self._specs, [tf.TensorSpec(value.shape, value.dtype) for value in flat]
        )


def as_spec(value: Any) -> Any:
    """Returns the nest of `tf.TensorSpec` of a nest of tensors, arrays, numbers or specs."""

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
    """Creates the variables of a model that has none yet, by calling it on symbolic inputs."""
    if model.built:
        return
    try:
        tf.function(lambda inputs: model(inputs, training=True)).get_concrete_function(input_spec)
    except (ValueError, TypeError, tf.errors.OpError) as error:
        raise TraceError(
            f"Model {model.name!r} cannot be built for inputs {_shown(input_spec)}: {error}"
        ) from error


def _scalar_loss(loss: Any) -> Callable[[Any, Any], tf.Tensor]:
    if isinstance(loss, str):
        per_example = _known(keras.losses.get, loss, "loss")
        return lambda labels, prediction: tf.reduce_mean(per_example(labels, prediction))
    if not callable(loss):
        raise TraceError(
            "A loss is a keras.losses.Loss, a function (label, prediction) -> scalar, or a name;"
            f" got {loss!r}."
        )
    return lambda labels, prediction: tf.convert_to_tensor(loss(labels, prediction))


def _known(get: Callable[[Any], Any], identifier: Any, what: str) -> Any:
    try:
        return get(identifier)
    except (ValueError, TypeError) as error:
        raise TraceError(f"Keras knows no {what} {identifier!r}: {error}") from error


def _shapes(flat: list[Any]) -> tuple:
    return tuple(tuple(each.shape.as_list()) for each in flat)


def _shown(specs: Any) -> str:
    return str(
        tf.nest.map_structure(lambda spec: f"{spec.dtype.name}{spec.shape.as_list()}", specs)
    )
