"""compile(): one line from a Keras model to a training step that stays within a memory budget."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import keras
import tensorflow as tf
from typing_extensions import Unpack

from checkmate.core.graph import DFGraph
from checkmate.core.plan import Plan
from checkmate.errors import TraceError
from checkmate.solvers.result import SolveResult
from checkmate.tf2.error_text import said
from checkmate.tf2.options import PlanKeywords, PlanOptions
from checkmate.tf2.planning.planner import Planner
from checkmate.tf2.planning.request import Planned, PlanRequest, Reason
from checkmate.tf2.planning.running import HAS_DRAWN, OutOfMemory, RunningStep
from checkmate.tf2.planning.store import path_of, save
from checkmate.tf2.report import Report
from checkmate.tf2.training_step import check_exact, refuse_missing, shown, training_step
from checkmate.units import Bytes, format_bytes

log = logging.getLogger("checkmate")

Result = TypeVar("Result")

OUT_OF_MEMORY = 1.1
"""By which factor activations are taken to be more than predicted where memory ran out."""


def compile(
    model: keras.Model,
    loss: Any,
    optimizer: Any,
    input_spec: Any,
    label_spec: Any = None,
    budget: Bytes = "auto",
    **options: Unpack[PlanKeywords],
) -> PlannedStep[tuple[Any, tf.Tensor]]:
    """Makes a training step of a Keras model that keeps its memory within a budget.

    The step computes what Keras's own would: prediction in training mode, loss (with the losses of
    layers and regularizers added), gradients, and the optimizer's update. The numbers are the
    model's own; only when values are kept or computed again differs. It is traced, its ops are
    run alone on the training device, and it is planned and built here, on paper: no step runs
    before the first call. The first calls confirm what was predicted: where a step takes more than
    the budget, or so much more comes to be in use on the device that the next one would, a warning
    says so and the next step runs under a plan made anew, three times at most.

    Args:
      model: A Keras 3 model, built or not.
      loss: A `keras.losses.Loss`, a function (label, prediction) -> scalar tensor, or the name of a
        Keras loss.
      optimizer: A `keras.optimizers.Optimizer` or its name. It is built if it is not yet.
      input_spec: The shape and dtype of one batch of inputs: a tensor, array, `tf.TensorSpec`, or a
        nest of them.
      label_spec: The same for labels.
      budget: As in `PlanOptions`.
      options: Its other fields, but `batch_size`.

    Returns:
      A callable (inputs, labels) -> (prediction, loss). It has `plan`, `result`, `graph` and
      `report()`.

    Raises:
      TypeError: The loss, or another argument, was left out.
      TraceError: Specs that do not fit the model, a loss that is not a scalar, no trainable
        variables.
      BudgetError: A budget or a time limit that cannot be read.
      InfeasibleBudgetError: No plan fits; the message names the op that binds and the batch that
        could fit.
      NoPlanFoundError: The solver found none in its time.
      PlanFileError: The file of `plan` cannot be read, is for another step, or takes more than the
        budget.

    Examples:
      >>> step = checkmate.tf2.compile(
      ...     model, "mse", "adam", images, labels, budget="2GiB"
      ... )
      >>> prediction, loss = step(images, labels)
    """
    asked = PlanOptions.of("compile", budget, options, {"batch_size": "input_spec says it."})
    refuse_missing("compile", loss, optimizer, label_spec)
    train_step, specs = training_step(model, loss, optimizer, input_spec, label_spec)
    request = PlanRequest(train_step, model.name, asked.like_keras(model))
    return PlannedStep(request, specs, tf.nest.flatten((input_spec, label_spec)))


class StepFigures:
    """The figures of a planned step: of its largest batch, and of the first kind of call."""

    _name: str
    _main: RunningStep

    @property
    def planned(self) -> Planned:
        """The planned batch's step: the traced step, its plan, and the function that runs."""
        return self._main.planned

    @property
    def plan(self) -> Plan:
        """The `Plan` that is replayed for the planned batch."""
        return self.planned.plan

    @property
    def result(self) -> SolveResult | None:
        """The solver's answer, or None when the step fits and runs unchanged."""
        return self.planned.result

    @property
    def graph(self) -> DFGraph:
        """The `DFGraph` of the step, with measured costs."""
        return self.planned.graph

    @property
    def budget_bytes(self) -> int:
        """The budget in bytes."""
        return self._main.budget_bytes

    def report(self) -> Report:
        """The budget, the plan and its cost; print it. Peaks are predicted until steps have run,
        and then also measured by the allocator."""
        ran = self._main
        return replace(
            self.planned.report,
            steps=ran.steps,
            measured_peak_bytes=ran.peak_bytes or None,
            step_seconds=ran.seconds,
        )

    def save(self, path: str | os.PathLike) -> None:
        """Writes the plan for the planned batch as a file, for `plan=path` of another run.

        Args:
          path: The file, whose name ends in .json.

        Raises:
          PlanFileError: The file cannot be written.
        """
        save(path, self.planned)

    def _ipython_display_(self) -> None:
        self.report()._ipython_display_()


class PlannedStep(StepFigures, Generic[Result]):
    """A training step under a memory budget. Call it like the step it was made from.

    A batch smaller than the planned one runs too, under the same plan or, where its graph differs,
    one made for it. A larger one is refused. `compile` makes it.

    Args:
      request: The step and what is asked for it.
      specs: The nest of specs of its arguments.
      batch: Flattened values of these specs that are in memory, where there are any.

    Examples:
      >>> step = checkmate.tf2.compile(model, "mse", "adam", images, labels, budget="60%")
      >>> step.plan.recomputed, step.result.overhead, step.budget_bytes
      >>> print(step.report())
    """

    def __init__(self, request: PlanRequest, specs: tuple[Any, ...], batch: Sequence[Any] = ()):
        self._planner, self._specs = Planner(request), specs
        self._flat_specs = tf.nest.flatten(specs)
        check_exact(specs)
        self._name = request.name
        self._main = self._in_training(self._planner.plan(specs, batch=batch))
        self._by_shape = {_shapes(self._flat_specs): self._main}

    @property
    def kept_at(self) -> Path | None:
        """Where the plan lies in the folder that was given as `plan`; None without a folder."""
        return path_of(self._planner.request, self.planned.traced)

    def __repr__(self) -> str:
        return f"<PlannedStep of {self._name!r}: {self.report().in_a_line()}>"

    def __call__(self, *batch: Any) -> Result:
        """Runs one step.

        Raises:
          TraceError: The batch has another structure, another shape beyond the first dimension, or
            is larger than planned.
          tf.errors.ResourceExhaustedError: Memory ran out, and there is no lower plan.
        """
        flat = self._flatten(batch)
        running = self._running(flat)
        if reason := running.reason_to_plan_anew():
            running = self._anew(running, flat, reason)
        while True:
            try:
                return running(*flat)
            except OutOfMemory as out:
                reason = Reason(str(out), "memory ran out", OUT_OF_MEMORY)
                lower = self._anew(running, flat, reason)
                if lower is running:
                    raise out.__cause__ from None  # type: ignore[misc]
                running = lower

    def planned_for(self, *batch: Any) -> tuple[Planned, list[tf.Tensor]]:
        """Returns the plan that a batch of these shapes runs under, made now if it is the first,
        and the batch flattened.

        Args:
          batch: The arguments of a call.

        Raises:
          TraceError: As for a call.
        """
        flat = self._flatten(batch)
        return self._running(flat).planned, flat

    def _running(self, flat: list[tf.Tensor]) -> RunningStep:
        found = self._by_shape.get(_shapes(flat))
        if found is None:
            planned = self._planner.plan(self._smaller(flat), like=self.planned, batch=flat)
            found = self._by_shape[_shapes(flat)] = self._in_training(planned)
        return found

    def _anew(self, running: RunningStep, flat: list[tf.Tensor], reason: Reason) -> RunningStep:
        """The main plan made anew, by what steps took; the same where no other plan is found, or
        where its random numbers would begin again."""
        if any(each.has_drawn for each in self._by_shape.values()):
            if reason.correction >= 1:
                log.warning("%s %s", reason.sentence, HAS_DRAWN)
            running.is_final = True
            return running
        batch = flat if running is self._main else ()
        planned = self._planner.anew(self.planned, self._specs, batch, reason)
        if planned is self.planned:
            running.is_final = True
            return running
        self._main = self._in_training(planned)
        self._by_shape = {_shapes(self._flat_specs): self._main}
        return self._running(flat)

    def _in_training(self, planned: Planned) -> RunningStep:
        return RunningStep(planned, self._planner.budget_bytes, self._name)

    def _flatten(self, batch: tuple[Any, ...]) -> list[tf.Tensor]:
        try:
            tf.nest.assert_same_structure(self._specs, batch)
        except (ValueError, TypeError) as error:
            raise TraceError(
                f"The step was planned for {shown(self._specs)} and is called with"
                f" {shown(batch)}, which has another structure."
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
                    f"An argument cannot be turned into {shown(spec)}: {said(error).text}"
                ) from error
        return flat

    def _smaller(self, flat: list[tf.Tensor]) -> tuple[Any, ...]:
        """The specs of a smaller batch, which differs in its first dimension only; else None."""
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


def _shapes(flat: list[Any]) -> tuple:
    return tuple(tuple(each.shape.as_list()) for each in flat)
