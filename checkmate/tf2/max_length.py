"""max_length(): the longest inputs that train within a budget; each length is planned for real."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import keras
import tensorflow as tf
from typing_extensions import Unpack

from checkmate.core.replay import floor
from checkmate.errors import BudgetError, InfeasibleBudgetError, NoPlanFoundError, TraceError
from checkmate.progress import Progress
from checkmate.tf2 import device as devices
from checkmate.tf2.compile import PlannedStep
from checkmate.tf2.max_batch import (
    TENTH,
    TWENTIETH,
    check_limits,
    is_allowed,
    largest_fitting,
    sentence,
)
from checkmate.tf2.memory.budget import auto_budget
from checkmate.tf2.options import PlanKeywords, PlanOptions
from checkmate.tf2.planning.request import PlanRequest
from checkmate.tf2.training_step import as_spec, refuse_missing, training_step
from checkmate.units import Bytes

SHORT = 32
"""The length that is tried first where the specs leave it open."""


@dataclass(frozen=True, slots=True)
class MaxLength:
    """The result of `max_length`.

    Attributes:
      length: The largest size of the open dimensions, such as tokens, that trains within the
        budget: a step of it is planned.
      plain_length: The largest one found whose plain step is predicted to fit, 0 for none.
      overhead: Predicted cost of the plan over that of the plain step at this length, 1.0 for
        equal.
      budget_bytes: The budget.
      binding_op: The op that needs the most memory at this length; "" for the largest length that
        was to be tried.
      step: The planned step for `length`, ready to train.
      tried: (length, what was found) for each length planned on the way.

    Examples:
      >>> frames = keras.Input((None, 8))
      >>> model = keras.Model(frames, keras.layers.Dense(1)(frames))
      >>> specs = tf.TensorSpec([4, None, 8]), tf.TensorSpec([4, None, 1])
      >>> print(checkmate.tf2.max_length(model, "mse", "adam", *specs, budget="1GiB", largest=64))
    """

    length: int
    plain_length: int
    overhead: float
    budget_bytes: int
    binding_op: str
    step: PlannedStep[tuple[Any, tf.Tensor]] = field(repr=False)
    tried: tuple[tuple[int, str], ...] = field(repr=False)

    def __str__(self) -> str:
        return sentence("length", self.length, self.plain_length, self, "on the plain step's time")


def max_length(
    model: keras.Model,
    loss: Any,
    optimizer: Any,
    input_spec: Any,
    label_spec: Any = None,
    *,
    overhead_limit: float | str | None = None,
    largest: int = 1 << 16,
    budget: Bytes = "auto",
    **options: Unpack[PlanKeywords],
) -> MaxLength:
    """Finds the longest inputs (tokens, frames, pixels of a side) that a model can be trained on
    within a budget.

    All open dimensions have the same size. The first length is that of the given arrays, and is
    doubled while its step can be planned, then bisected to a twentieth. Each is traced, measured
    and planned for this device, which takes as long as `compile`; nothing is trained.

    Args:
      model: As for `compile`, as are loss and optimizer.
      loss: A loss, a function, or a name.
      optimizer: An optimizer or its name.
      input_spec: As for `compile`. Open are the dimensions beyond the batch that are None here or
        in the labels, such as in `tf.TensorSpec([4, None], tf.int32)`; where there are none, those
        that the model's inputs leave open.
      label_spec: The same.
      overhead_limit: As for `max_batch`.
      largest: No length above this is tried.
      budget: As in `PlanOptions`, but no share.
      options: Its other fields, but `batch_size` and `plan`.

    Returns:
      The length and the planned step for it.

    Raises:
      TraceError: As for `compile`, or no dimension is open.
      BudgetError: A budget or limit that cannot be read.
      InfeasibleBudgetError: Not even the shortest length that the model takes fits.

    Examples:
      >>> frames = keras.Input((None, 8))
      >>> model = keras.Model(frames, keras.layers.Dense(1)(frames))
      >>> specs = tf.TensorSpec([4, None, 8]), tf.TensorSpec([4, None, 1])
      >>> found = checkmate.tf2.max_length(
      ...     model, "mse", "adam", *specs, budget="1GiB", largest=64, rounding=True
      ... )
    """
    asked = PlanOptions.of("max_length", budget, options, _REFUSED, ("overhead_limit", "largest"))
    check_limits(asked, overhead_limit, largest)
    refuse_missing("max_length", loss, optimizer, label_spec)
    specs = as_spec(input_spec), as_spec(label_spec)
    open_ = open_size(model, specs)
    if open_ is None:
        raise TraceError(
            "max_length needs a dimension whose size is open, the same in all inputs: None in a"
            " spec, or in the inputs of the model. Found"
            f" {[each.shape.as_list() for each in tf.nest.flatten(specs)]}."
        )
    size, at = open_
    known = auto_budget(devices.training_device()) if budget == "auto" else budget
    asked = replace(asked, budget=known)
    function, _ = training_step(model, loss, optimizer, *at(size))
    with Progress(model.name, enabled=asked.verbose) as progress:
        request = PlanRequest(function, model.name, asked, progress=progress, explains=False)
        found = _LengthSearch(request, at, overhead_limit).found(size, largest)
        progress.done(str(found))
    return found


_REFUSED = {
    "batch_size": "input_spec says it.",
    "plan": "each length that is tried has a plan of its own. Save the plan of `step` instead.",
}


@dataclass(slots=True)
class _LengthSearch:
    request: PlanRequest
    specs_at: Callable[[int], tuple[Any, Any]]
    overhead_limit: float | str | None
    step: PlannedStep | None = None
    refusal: InfeasibleBudgetError | NoPlanFoundError | None = None
    plain: dict[int, bool] = field(default_factory=dict)
    tried: list[tuple[int, str]] = field(default_factory=list)

    def found(self, size: int, largest: int) -> MaxLength:
        length = largest_fitting(self._fits, largest, guess=size, step=size, share=TWENTIETH)
        step, self.step = self.step, None
        if step is None:
            raise self.refusal or BudgetError("No length that the model takes fits the budget.")
        fit = max((each for each, fits in self.plain.items() if fits), default=0)
        more = min((each for each, fits in self.plain.items() if not fits), default=None)
        if more is not None and fit:

            def is_plain(length: int) -> bool:
                return self._fits(length) and self.plain[length]

            fit = largest_fitting(is_plain, more - 1, known=fit, share=TENTH)
        binding = "" if length >= largest else step.graph.ops[floor(step.graph).op].name
        report, tried = step.report(), tuple(self.tried)
        return MaxLength(
            length, fit, report.predicted_slowdown, report.budget_bytes, binding, step, tried
        )

    def _fits(self, length: int) -> bool:
        try:
            with self.request.phase(f"a length of {length}"):
                step: PlannedStep = PlannedStep(self.request, self.specs_at(length))
        except (InfeasibleBudgetError, NoPlanFoundError) as error:
            self.tried.append((length, type(error).__name__))
            self.refusal, self.plain[length] = error, False
            return False
        except TraceError as error:  # of a length that the model does not take
            self.tried.append((length, str(error)))
            return False
        report = step.report()
        self.plain[length] = report.result is None
        self.tried.append((length, f"fits, at a cost of {report.predicted_slowdown - 1:+.1%}"))
        if not is_allowed(self.overhead_limit, step.graph, report.predicted_slowdown):
            return False
        self.step = step
        return True


def open_size(
    model: keras.Model, specs: tuple[Any, Any]
) -> tuple[int, Callable[[int], tuple[Any, Any]]] | None:
    """The size that open dimensions have, `SHORT` where specs leave it open, and the specs at
    another size. Open are those beyond the batch that the specs leave open, or else the model's
    inputs; None where none are, or they have several sizes."""
    inputs, labels = (tf.nest.flatten(each) for each in specs)
    is_open = [[d for d, side in enumerate(spec.shape) if d and side is None] for spec in inputs]
    of_labels = [[d for d, side in enumerate(spec.shape) if d and side is None] for spec in labels]
    size = SHORT
    if not any(is_open + of_labels):
        made = tf.nest.flatten(getattr(model, "inputs", None) or [])
        if len(made) != len(inputs):
            return None
        is_open = [[d for d, side in enumerate(each.shape) if d and side is None] for each in made]
        sizes = {spec.shape[d] for spec, open_ in zip(inputs, is_open, strict=True) for d in open_}
        if len(sizes) != 1:
            return None
        (size,) = sizes
        if any(side is None for each in tf.nest.flatten(model.outputs) for side in each.shape[1:]):
            of_labels = [
                [d for d, side in enumerate(spec.shape) if d and side == size] for spec in labels
            ]

    def at(length: int) -> tuple[Any, Any]:
        def resized(spec: tf.TensorSpec, open_: Sequence[int]) -> tf.TensorSpec:
            shape = [length if d in open_ else side for d, side in enumerate(spec.shape)]
            return tf.TensorSpec(shape, spec.dtype)

        return (
            tf.nest.pack_sequence_as(specs[0], list(map(resized, inputs, is_open))),
            tf.nest.pack_sequence_as(specs[1], list(map(resized, labels, of_labels))),
        )

    return int(size), at
