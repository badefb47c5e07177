"""fits(): whether a training step fits a device, and what would, on paper: nothing is run, the
device need not be here, and the model needs no weights."""

from __future__ import annotations

import html
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import keras
from typing_extensions import Unpack

from checkmate.errors import BudgetError, InfeasibleBudgetError, NoPlanFoundError, TraceError
from checkmate.progress import Progress
from checkmate.solvers.result import SolveStatus
from checkmate.tf2.costs.device_profile import DeviceProfile
from checkmate.tf2.graph.trace import TracedStep, trace
from checkmate.tf2.max_batch import (
    SMALL_BATCH,
    TWO_BATCHES,
    BatchSearch,
    GraphGrowth,
    largest_fitting,
    sized,
)
from checkmate.tf2.max_length import open_size
from checkmate.tf2.options import PlanKeywords, PlanOptions
from checkmate.tf2.planning.new_plan import measured, needs_unchanged, new_plan, with_budget
from checkmate.tf2.planning.request import PlanRequest, PlanTask
from checkmate.tf2.rewrites.slices import examples_of
from checkmate.tf2.training_step import check_exact, refuse_missing, training_step
from checkmate.tf2.uninitialized import uninitialized_variables
from checkmate.units import Bytes, format_bytes

LARGEST, LENGTH_SHARE, BATCH_S, SMALLER = 1 << 16, 0.05, 1.0, 0.04
"""No batch above this is looked at; how closely the largest length is found, for each of which the
step is traced anew; seconds for the plan of each batch; by which share the next is smaller where a
batch does not fit."""

LENGTH_UNIT = 32
"""Lengths are multiples of the power of two in the given one, up to this: models that halve their
sides and double them again take no others."""


@dataclass(frozen=True, slots=True)
class Fits:
    """The answer of `fits`; true if the step fits, as it is or planned.

    Attributes:
      name: The model's.
      device: The device.
      costs: Where the costs of ops come from.
      budget_bytes: The limit that was planned for.
      batch: The batch that was asked about.
      plain_peak_bytes: Predicted peak of the step as it was written.
      peak_bytes: Predicted peak of the planned step, the plain one's where it needs no plan; None
        where no plan was found.
      slowdown: Predicted time of the planned step over the plain one's; None without a plan.
      is_optimal: Whether the plan is proven to be the cheapest one in its order of ops.
      refusal: Why no plan was found, "" where one was.
      smallest_budget_bytes: Where none was found, the smallest budget for which one was.
      plain_batch: The largest batch whose plain step fits; None where it was not looked for.
      largest_batch: The same of a planned step.
      largest_slowdown: Predicted time of that step over its plain one's, 1.0 for equal.
      plain_length: The largest size of the dimensions that the model leaves open (pixels of a side,
        tokens) whose plain step fits; None where there are none.
      largest_length: The same of a planned step.

    Examples:
      >>> answer = checkmate.tf2.fits(model, "mse", "adam", images, labels, device="T4")
      >>> bool(answer), answer.plain_peak_bytes, answer.largest_batch
      >>> print(answer)
    """

    name: str
    device: str
    costs: str
    budget_bytes: int
    batch: int
    plain_peak_bytes: int
    peak_bytes: int | None = None
    slowdown: float | None = None
    is_optimal: bool = False
    refusal: str = field(default="", repr=False)
    smallest_budget_bytes: int | None = None
    plain_batch: int | None = None
    largest_batch: int | None = None
    largest_slowdown: float | None = None
    plain_length: int | None = None
    largest_length: int | None = None

    def __bool__(self) -> bool:
        return self.peak_bytes is not None

    @property
    def is_plain(self) -> bool:
        """Whether the step fits as it was written."""
        return self.peak_bytes is not None and self.slowdown is None

    def facts(self) -> list[tuple[str, str]]:
        """The printed rows, as (name, value) in order."""
        plain, budget = format_bytes(self.plain_peak_bytes), format_bytes(self.budget_bytes)
        if self.is_plain:
            answer = "fits as it is, without a plan"
        elif self.peak_bytes is not None and self.slowdown is not None:
            proof = ", and no plan in this order of ops is faster" if self.is_optimal else ""
            answer = (
                f"fits in {format_bytes(self.peak_bytes)}, {self.slowdown - 1:+.2%} time{proof}"
            )
        else:
            answer = "does not fit"
        rows = [
            ("device", self.device),
            ("budget", budget),
            ("costs", self.costs),
            ("peak, plain step", f"{plain} predicted for a batch of {self.batch}"),
            ("planned", answer),
        ]
        if self.largest_batch is not None and self.largest_slowdown is not None:
            batches = f"about {_most(self.plain_batch)} plain, {_most(self.largest_batch)} planned"
            price = f", {self.largest_slowdown - 1:+.1%} time per example"
            rows.append(("largest batch", batches + price * (self.largest_slowdown > 1)))
        if self.largest_length is not None:
            rows.append(
                (
                    "largest size",
                    f"about {self.plain_length} plain, {self.largest_length}"
                    " planned, of the dimensions that the model leaves open",
                )
            )
        return rows

    def __str__(self) -> str:
        width = max(len(name) for name, _ in self.facts())
        lines = [f"{name:<{width}}  {value}" for name, value in self.facts()]
        return "\n".join([f"{self.name} on {self.device}", *lines, self.refusal]).strip()

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def fits(
    model: keras.Model | Callable[[], keras.Model],
    loss: Any,
    optimizer: Any,
    input_spec: Any,
    label_spec: Any,
    *,
    device: str | os.PathLike,
    largest: bool = True,
    budget: Bytes = "auto",
    **options: Unpack[PlanKeywords],
) -> Fits:
    """Says on paper whether a training step fits a device, plain or planned, and which batch would.

    Nothing is run. What else is in use there is not known: the device's memory is taken to be free.
    Peaks are those of TensorFlow's allocator with the ops that TensorFlow runs here; on a GPU it
    may run others, with workspaces that only a profile of that GPU knows.

    Args:
      model: A Keras model, or a function that makes one, which is then made without weights.
      loss: As for `compile`, as is the optimizer.
      optimizer: An optimizer or its name.
      input_spec: As for `compile`: one batch.
      label_spec: The same for labels.
      device: A GPU by name ("A100-80GB", "T4"), an amount of memory ("80GB"), or a file that
        `checkmate profile` wrote on a device.
      largest: Also look for the largest batch and, where the model leaves dimensions open, for
        their largest size: each takes about ten plans more.
      budget: As in `PlanOptions`; "auto" is nine tenths of the device's memory.
      options: Its other fields but `batch_size`, `cost_model`, `plan` and `micro_batches`.

    Returns:
      The answer, to be printed.

    Raises:
      BudgetError: There is no such device, or a budget cannot be read.
      PlanFileError: A profile that cannot be read, or is of another version.
      TraceError: As for `compile`.

    Examples:
      >>> specs = tf.TensorSpec([32, 224, 224, 3]), tf.TensorSpec([32], tf.int32)
      >>> answer = checkmate.tf2.fits(
      ...     lambda: keras.applications.ResNet50(weights=None),
      ...     "sparse_categorical_crossentropy", "adam", *specs, device="T4", largest=False,
      ... )
      >>> print(answer)
    """
    asked = PlanOptions.of("fits", budget, options, _REFUSED, ("device", "largest"))
    refuse_missing("fits", loss, optimizer, label_spec)
    profile = DeviceProfile.of(device)
    with uninitialized_variables():
        made = model() if callable(model) and not isinstance(model, keras.Layer) else model
        step, specs = training_step(made, loss, optimizer, input_spec, label_spec)
        with Progress(made.name, enabled=asked.verbose) as progress:
            return step_fits(
                step, specs, made.name, profile, asked, progress, largest=largest, model=made
            )


_REFUSED = {
    "batch_size": "input_spec says it.",
    "cost_model": "the device says what ops cost.",
    "plan": "nothing is run under a plan.",
    "micro_batches": "plans on paper are of whole batches; `checkmate plan` plans slices.",
}


def step_fits(
    step: Callable[..., Any],
    specs: Any,
    name: str,
    profile: DeviceProfile,
    asked: PlanOptions,
    progress: Progress | None = None,
    *,
    largest: bool = True,
    model: keras.Model | None = None,
    traced: TracedStep | None = None,
) -> Fits:
    """The answer of `fits` for a training step and the specs of its arguments, which may be traced
    already. With a model, its open dimensions are looked at, too."""
    check_exact(specs)
    options = replace(asked, cost_model=profile.cost_model, verbose=False)
    if options.budget == "auto":
        options = replace(options, budget=profile.budget_bytes)
    request = PlanRequest(step, name, options, progress=progress)
    with request.phase(f"a batch of {examples_of(specs)}"):
        answer = _planned(request, specs, profile, traced)
    if answer.budget_bytes > profile.memory_bytes:
        raise BudgetError(
            f"A budget of {format_bytes(answer.budget_bytes)} is more than the"
            f" {format_bytes(profile.memory_bytes)} of {profile.name}."
        )
    if not largest:
        return answer
    request = replace(request, options=replace(options, budget=answer.budget_bytes))
    answer = _with_largest_batches(answer, request, specs, profile)
    if model is not None and (lengths := _largest_lengths(request, specs, model, profile)):
        answer = replace(answer, plain_length=lengths[0], largest_length=lengths[1])
    return answer


def _task(
    request: PlanRequest, specs: Any, profile: DeviceProfile, traced: TracedStep | None = None
) -> PlanTask:
    traced = traced or trace(request.step, *specs, name=request.name)
    return PlanTask.on_paper(request, traced, specs, profile.memory_bytes)


def _planned(
    request: PlanRequest, specs: Any, profile: DeviceProfile, traced: TracedStep | None = None
) -> Fits:
    task = _task(request, specs, profile, traced)
    costs = profile.costs_text(task.traced)
    answer = Fits(request.name, str(profile), costs, 0, examples_of(specs), 0)
    try:
        report = new_plan(task).report
    except (InfeasibleBudgetError, NoPlanFoundError) as refusal:
        _, plain = measured(task)
        return replace(
            answer,
            budget_bytes=request.resolve(plain, task.other_bytes),
            plain_peak_bytes=plain,
            refusal=str(refusal),
            smallest_budget_bytes=refusal.smallest_budget_bytes,
        )
    planned = report.result
    return replace(
        answer,
        budget_bytes=report.budget_bytes,
        plain_peak_bytes=report.plain_peak_bytes,
        peak_bytes=report.expected_peak_bytes,
        slowdown=report.predicted_slowdown if planned else None,
        is_optimal=planned is not None and planned.status is SolveStatus.OPTIMAL,
    )


def _with_largest_batches(
    answer: Fits, request: PlanRequest, specs: Any, profile: DeviceProfile
) -> Fits:
    """The answer with the largest batches that fit, plain and planned; without them where the step
    differs from batch to batch. Those found by linear growth are planned themselves, and smaller
    ones where they do not fit."""
    options, cost_model = request.options, request.options.cost_model
    try:
        with request.phase(TWO_BATCHES):
            small = sized(specs, SMALL_BATCH)
            growth = GraphGrowth.of(request.step, small, request.name, cost_model, on_paper=True)
    except BudgetError:
        return answer
    quick = replace(options, time_limit_s=options.time_limit_s or BATCH_S)
    plain, planned = BatchSearch(replace(request, options=quick), growth).on_paper(LARGEST)
    found: dict[int, Fits] = {}

    def lacks_plain(batch: int) -> int | None:
        return _needs_plain(request, sized(specs, batch), profile)

    def lacks(batch: int) -> int | None:
        found[batch] = at = _planned(request, sized(specs, batch), profile)
        return None if at else at.smallest_budget_bytes or at.plain_peak_bytes

    def settled(batch: int, needs: Callable[[int], int | None], known: int = 0) -> int:
        while batch > known:
            with request.phase(f"a batch of {batch}"):
                needed = needs(batch)
            if needed is None:
                return batch
            batch = int(batch * min(1 - SMALLER, answer.budget_bytes / needed))
        return known

    plain = settled(plain, lacks_plain)
    planned = settled(planned, lacks, known=plain)
    slowdown = found[planned].slowdown if planned in found else None
    return replace(
        answer, plain_batch=plain, largest_batch=planned, largest_slowdown=slowdown or 1.0
    )


def _needs_plain(request: PlanRequest, specs: Any, profile: DeviceProfile) -> int | None:
    """The budget that the plain step needs where it does not fit."""
    task = _task(request, specs, profile)
    costs, peak = measured(task)
    task = with_budget(task, peak)
    needed = needs_unchanged(task, costs, peak)
    return needed if needed > task.budget_bytes else None


def _most(batch: int | None) -> str:
    return f"{batch} or more" if batch and batch >= LARGEST else str(batch)


def _largest_lengths(
    request: PlanRequest, specs: Any, model: keras.Model, profile: DeviceProfile
) -> tuple[int, int] | None:
    """The largest sizes of open dimensions that fit, plain and planned."""
    found = open_size(model, specs)
    if found is None:
        return None
    size, at = found
    request = replace(request, explains=False)
    unit = min(LENGTH_UNIT, size & -size)

    def search(fits: Callable[[Any], bool], known: int = 0) -> int:
        def fits_at(units: int) -> bool:
            with request.phase(f"a size of {units * unit}"):
                try:
                    return fits(at(units * unit))
                except TraceError:  # too small for the model
                    return False

        known //= unit
        guess = max(size // unit, known)
        most = LARGEST // unit
        return unit * largest_fitting(fits_at, most, known=known, guess=guess, share=LENGTH_SHARE)

    plain = search(lambda specs: _needs_plain(request, specs, profile) is None)
    return plain, search(lambda specs: bool(_planned(request, specs, profile)), plain)
