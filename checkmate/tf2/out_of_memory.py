"""ExplainOutOfMemory: when TensorFlow runs out of memory, what filled it, and the ways out with
their price."""

from __future__ import annotations

import logging
import re
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import keras
import tensorflow as tf

from checkmate.errors import CheckmateError, TraceError
from checkmate.plot.usage import PARTS, layers, usage
from checkmate.progress import Progress
from checkmate.tf2 import device as devices
from checkmate.tf2.costs.device_profile import DeviceProfile
from checkmate.tf2.costs.measured import with_costs
from checkmate.tf2.costs.roofline import rates_of
from checkmate.tf2.error_text import said
from checkmate.tf2.fits import Fits, step_fits
from checkmate.tf2.graph.sizes import tensor_bytes
from checkmate.tf2.graph.trace import trace
from checkmate.tf2.keras2 import EveryKerasCallback
from checkmate.tf2.memory.budget import argument_bytes, auto_budget
from checkmate.tf2.options import PlanOptions
from checkmate.tf2.planned_function import Call
from checkmate.tf2.rewrites.slices import Slices
from checkmate.tf2.rewrites.step import Step, with_all_variables
from checkmate.tf2.rewrites.tile import Tile
from checkmate.units import format_bytes

log = logging.getLogger("checkmate")

LAYERS_SHOWN, WAYS_SHOWN, MOST_SLICES = 5, 3, 8

PLAN_S = 5.0
"""Seconds for each plan on paper."""

FIT, FUNCTION = "checkmate.tf2.rematerialize(model, {})", "@checkmate.tf2.function({})"

ANOTHER_BATCH = " So the batch that failed was larger than this one, or another step needed more."

SOME_BATCH = 2
"""The batch of a step that is traced to learn which batch failed, where none follows it."""

PHASES = {"looking for what filled the memory": 1}

MARGIN = 0.1
"""The share by which a smaller batch is smaller than what memory in proportion to it tells."""


@dataclass(frozen=True, slots=True)
class WayOut:
    """A way to train within the memory that there is.

    Attributes:
      what: The change, as it is written.
      peak_bytes: The predicted peak.
      slowdown: Predicted time for an example over that of the plain step; None where it is not
        known.
      changes: What else changes.
    """

    what: str
    peak_bytes: int
    slowdown: float | None
    changes: str

    def __str__(self) -> str:
        price = "" if self.slowdown is None else f", {self.slowdown - 1:+.1%} time predicted"
        return f"{self.what}: {format_bytes(self.peak_bytes)}{price}; {self.changes}"


@dataclass(frozen=True, slots=True)
class OutOfMemoryReport:
    """The bytes at the peak of a step by kind, and what would fit. Print it.

    Attributes:
      name: The step's.
      requested: TensorFlow's request that failed, in its words.
      budget_bytes: What a step can take of the device, less a reserve.
      peak_bytes: Predicted peak of the step, with what else is in use.
      kinds: (kind, bytes) of all bytes at the peak, most first.
      layers: (layer, bytes) of forward values that wait for the backward pass, most first.
      ways: The ways out, least time first.
      tried: Why others are none, as sentences.

    Examples:
      >>> explain = checkmate.tf2.ExplainOutOfMemory()
      >>> model.fit(images, labels, callbacks=[explain])
      >>> if explain.report:
      ...     print(explain.report.kinds, explain.report.ways)
    """

    name: str
    requested: str
    budget_bytes: int
    peak_bytes: int
    kinds: tuple[tuple[str, int], ...]
    layers: tuple[tuple[str, int], ...]
    ways: tuple[WayOut, ...]
    tried: tuple[str, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        over = self.peak_bytes - self.budget_bytes
        size = f"about {format_bytes(abs(over))} {'more' if over > 0 else 'less'} than"
        lines = [
            f"Out of memory in {self.name!r}: {self.requested}",
            f"A step takes {format_bytes(self.peak_bytes)} at its peak (predicted), {size} the"
            f" {format_bytes(self.budget_bytes)} that there are for it."
            f"{'' if over > 0 else ANOTHER_BATCH} At the peak:",
            *(f"  {format_bytes(size):>11}  {kind}" for kind, size in self.kinds if size),
            "Most of the activations that wait for the backward pass are of",
            *(f"  {format_bytes(size):>11}  {layer}" for layer, size in self.layers),
        ]
        if self.ways:
            lines.append("What would fit, by price:")
            lines += [f"  {k}. {way}" for k, way in enumerate(self.ways, 1)]
        return "\n".join([*lines, *self.tried])


class ExplainOutOfMemory(EveryKerasCallback):
    """When TensorFlow runs out of memory, says what filled it and what would fit: as a callback of
    `fit`, or as a context of a step that is called there.

    The step is traced and planned on paper, which takes some seconds, and nothing of it runs.
    TensorFlow's error is raised on, with the explanation at the end of its message. Where the
    explanation fails, too, the error says so and is TensorFlow's own. Peaks are predicted; times
    are estimates from sizes and arithmetic.

    Args:
      step: For a loop of your own: the step, a function of a batch or a `tf.function`.
      batch: The arguments of a call, or specs.

    Attributes:
      report: The `OutOfMemoryReport` of the latest error; None before one.

    Examples:
      >>> explain = checkmate.tf2.ExplainOutOfMemory()
      >>> model.fit(images, labels, callbacks=[explain])
      >>> with checkmate.tf2.ExplainOutOfMemory(train_step, images, labels):
      ...     train_step(images, labels)
    """

    def __init__(self, step: Callable[..., Any] | None = None, *batch: Any):
        super().__init__()
        self._step, self._batch = step, batch
        self._train_function: Any = None
        self.report: OutOfMemoryReport | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Has an error of the training function explained."""
        model = self.model
        self._train_function = train = model.train_function

        def explained(iterator: Any) -> Any:
            try:
                return train(iterator)
            except tf.errors.ResourceExhaustedError as error:
                self.on_train_end()
                # The batch that failed is gone. The next one, if there is one, may be smaller.
                raise self._explained(
                    error,
                    model.train_step,
                    lambda: (next(iterator, iterator.element_spec),),
                    model.name,
                    FIT,
                ) from error
            except BaseException:
                self.on_train_end()
                raise

        model.train_function = explained

    def on_train_end(self, logs: Any = None) -> None:
        """Gives the model its training function back."""
        if self._train_function is not None:
            self.model.train_function, self._train_function = self._train_function, None

    def __enter__(self) -> ExplainOutOfMemory:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, tf.errors.ResourceExhaustedError) and self._step is not None:
            name = getattr(self._step, "__name__", "the step")
            batch = self._batch
            raise self._explained(error, self._step, lambda: batch, name, FUNCTION) from error

    def _explained(
        self,
        error: tf.errors.ResourceExhaustedError,
        function: Callable[..., Any],
        batch: Callable[[], tuple[Any, ...]],
        name: str,
        door: str,
    ) -> tf.errors.ResourceExhaustedError:
        """TensorFlow's error with the explanation; `batch` returns arguments of the function."""
        try:
            call = Call.of(batch(), {})
            template = call.without_tensors()

            def step(*tensors: tf.Tensor) -> Any:
                return function(*template.with_tensors(tensors)[0])

            with Progress(name, PHASES) as progress, progress.phase(*PHASES):
                self.report = explain(step, call.specs, name, error, door)
            text = str(self.report)
        # Memory may run out here, too, and a step may be one that cannot be traced.
        except Exception as failure:
            text = f"What filled the memory is not known: {said(failure).text}"
            log.info("The explanation failed.", exc_info=failure)
        message = f"{error.message}\n\n{text}"
        return tf.errors.ResourceExhaustedError(error.node_def, error.op, message)


def explain(
    step: Callable[..., Any],
    specs: Callable[[int | None], tuple[tf.TensorSpec, ...]],
    name: str,
    error: Any,
    door: str,
) -> OutOfMemoryReport:
    """The report of a step that ran out of memory; `specs` are those of its arguments for a batch,
    `door` is the call that puts it under a budget."""
    device = devices.training_device()
    is_open = any(not spec.shape.is_fully_defined() for spec in specs(None))

    def on_paper(batch: int | None) -> Step:
        function = tf.function(step)
        return Step.of(function, specs(batch), trace(function, *specs(batch), name=name))

    paper = on_paper(SOME_BATCH if is_open else None)
    batch = _failed_batch(_requested(error), paper, is_open)
    if is_open and batch is None:
        raise TraceError("no batch follows the one that failed.")
    if batch:
        paper = on_paper(batch)
    traced = paper.traced
    in_use = devices.bytes_in_use(device)
    others = max(0, in_use - traced.before_bytes)
    budget = auto_budget(device)
    profile = DeviceProfile(devices.describe(device), budget - others, rates_of(device))
    options = PlanOptions(budget=max(1, budget - others), time_limit_s=PLAN_S, verbose=False)
    found = step_fits(
        paper.source, paper.specs, name, profile, options, largest=False, traced=traced
    )
    graph = with_costs(traced, "roofline")
    used = usage(graph, traced.plain_plan())
    kinds = _kinds(traced, used, found.plain_peak_bytes, others)
    held = sorted(layers(graph, traced.plain_plan()), key=lambda each: -each.plain_bytes)
    ways, tried = _ways(paper, found, graph.total_cost, door)
    ways = [replace(way, peak_bytes=way.peak_bytes + others) for way in ways]
    return OutOfMemoryReport(
        name,
        _requested(error),
        budget,
        found.plain_peak_bytes + others,
        tuple(sorted(kinds, key=lambda each: -each[1])),
        tuple((each.name, each.plain_bytes) for each in held[:LAYERS_SHOWN] if each.plain_bytes),
        tuple(ways[:WAYS_SHOWN]),
        tried,
    )


def _failed_batch(requested: str, paper: Step, is_other: bool) -> int | None:
    """The batch in whose step there is a tensor of the shape that did not fit; None where it may be
    that on paper, unless it is another one, or is not to be told."""
    found = re.search(r"shape\[([\d,]+)\]", requested)
    if not found:
        return None
    first, *rest = map(int, found[1].split(","))
    sizes = [
        output.shape[0]
        for operation in paper.traced.flat.graph.get_operations()
        for output in operation.outputs
        if output.shape.rank == 1 + len(rest) and output.shape[1:] == rest and output.shape[0]
    ]
    times = paper.examples * first
    batches = [times // size for size in sizes if times % size == 0]
    others = [each for each in batches if each != paper.examples]
    return statistics.mode(others) if others and (is_other or others == batches) else None


def _kinds(traced: Any, used: Any, peak_bytes: int, others: int) -> list[tuple[str, int]]:
    """The bytes at the peak of the plain step by kind; they add up to its predicted peak with what
    else is in use."""
    at_peak = dict(zip(PARTS, used.bytes_by_part[used.peak].tolist(), strict=True))
    sizes = [(each.trainable, tensor_bytes(each) or 0) for each in traced.variables]
    weights = sum(size for trainable, size in sizes if trainable)
    slots = sum(size for trainable, size in sizes if not trainable)
    batch = argument_bytes(traced)
    rest = max(0, at_peak["resident"] - weights - slots - batch)
    return [
        ("weights", weights),
        ("slots of the optimizer, and other variables", slots),
        ("the batch", batch),
        ("results, constants and small values", rest),
        ("activations: values of the forward pass", at_peak["forward"]),
        (
            "gradients, and what else the backward pass makes",
            at_peak["backward"] + at_peak["update"],
        ),
        ("scratch of the op that runs", at_peak["workspace"]),
        ("next batches, rounding and holes", max(0, peak_bytes - sum(at_peak.values()))),
        ("else in use on the device", others),
    ]


def _ways(
    paper: Step, found: Fits, plain_cost: float, door: str
) -> tuple[list[WayOut], tuple[str, ...]]:
    budget, ways, tried = found.budget_bytes, list[WayOut](), list[str]()
    same = "the same numbers"
    if found.peak_bytes is not None:
        what = door.format('budget="auto"')
        ways.append(WayOut(what, found.peak_bytes, found.slowdown or 1.0, same))
    elif found.smallest_budget_bytes is not None:
        tried.append(
            "No plan of the whole batch fits: the smallest budget that one was found for is"
            f" {format_bytes(found.smallest_budget_bytes)}."
        )
    count, tile = 2, Tile()
    while count <= min(MOST_SLICES, paper.examples):
        slices = Slices.of(paper.examples, count)
        try:
            part = tile.apply(paper, slices.size).pieces[0].traced
        except CheckmateError as error:
            tried.append(f"Not in slices of the batch: {error}")
            break
        graph = with_all_variables(paper.traced, part, with_costs(part, "roofline"))
        peak = part.plain_peak_bytes(graph)
        if peak <= budget:
            slowdown = slices.count * graph.total_cost / plain_cost
            what = door.format(f"micro_batches={slices.count}")
            ways.append(WayOut(what, peak, slowdown, f"{same}, up to the order of sums"))
            break
        count *= 2
    fixed = paper.traced.graph.fixed_bytes
    grows = max(1, found.plain_peak_bytes - fixed)  # in proportion to the batch
    batch = min(found.batch - 1, int(found.batch * (1 - MARGIN) * (budget - fixed) / grows))
    if batch > 0:
        peak = fixed + int(batch / found.batch * grows)
        changes = f"other gradients, {found.batch / batch:.1f} times the steps for an epoch"
        ways.append(WayOut(f"a batch of about {batch}", peak, None, changes))
    halved = fixed + grows // 2
    if keras.config.dtype_policy().compute_dtype == "float32" and halved <= budget:
        what = 'keras.config.set_dtype_policy("mixed_bfloat16"), before the model is made'
        changes = "values rounded to 16 bits; faster where the device has units for it"
        ways.append(WayOut(what, halved, None, changes))
    return sorted(ways, key=lambda each: each.slowdown or float("inf")), tuple(tried)


def _requested(error: Any) -> str:
    """The tensor that did not fit, in TensorFlow's words."""
    found = re.search(r"OOM when allocating tensor with shape\S*.*?(?=\n|\[Op|$)", error.message)
    text = found[0] if found else error.message.strip().split("\n")[0]
    return re.sub(r"/job:\S*/device:", "", text).strip()
