"""The request of a user for whatever shapes, and its planning for some shapes."""

from __future__ import annotations

import contextlib
import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import tensorflow as tf

from checkmate.core.graph import DFGraph
from checkmate.core.plan import Plan
from checkmate.progress import Progress
from checkmate.solvers.result import SolveResult
from checkmate.tf2 import device as devices
from checkmate.tf2.graph.trace import TracedStep
from checkmate.tf2.memory.budget import BATCHES_MADE, MemoryBudget, auto_budget
from checkmate.tf2.memory.scratch import Scratch, give_own_memory
from checkmate.tf2.options import PlanOptions
from checkmate.tf2.report import Report
from checkmate.tf2.rewrites.split import Split
from checkmate.tf2.rewrites.step import Applied
from checkmate.units import is_share, parse_bytes


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """A step for one set of shapes, ready to run.

    Attributes:
      run: From the flattened arguments to the result of the step.
      rise_bytes: The predicted peak above the bytes in use when a step begins; 0 if not known.
      part: The plan of the function of which `graph`, `plan` and `result` are, where that is not
        the step as it was written: of a slice, or of the step whose largest ops are split.
      split: How its largest ops are split.
      record: The rewrites by which the step runs otherwise than it was written.
    """

    traced: TracedStep
    graph: DFGraph
    plan: Plan
    result: SolveResult | None
    run: Callable[..., Any] = field(repr=False)
    report: Report = field(repr=False)
    rise_bytes: int = 0
    part: Planned | None = None
    split: Split | None = None
    record: tuple[Applied, ...] = ()

    @property
    def in_slices(self) -> bool:
        return self.report.micro_batches is not None

    @property
    def plans_bodies(self) -> bool:
        """Whether a loop runs a body under a plan of its own."""
        own = self.split is None and not self.record
        return self.part is not None and (own or self.part.plans_bodies)

    @property
    def innermost(self) -> Planned:
        """The plan of the function of which `graph` is the graph."""
        return self.part.innermost if self.part else self

    def of_split(self, whole: TracedStep, split: Split) -> Planned:
        """The plan of the step `whole`, of which this is one in parts."""
        return replace(self, traced=whole, part=self, split=split)

    def reporting(self, **changes: Any) -> Planned:
        """The same with other fields of its report."""
        return replace(self, report=replace(self.report, **changes))

    @property
    def cost(self) -> float:
        """Seconds of the kernels of the step."""
        if micro := self.report.micro_batches:
            return micro.cost
        cost = self.result.cost if self.result else None
        return self.graph.total_cost if cost is None else cost

    @property
    def bound(self) -> float:
        """Seconds of the kernels below which there is no plan."""
        if micro := self.report.micro_batches:
            return micro.bound
        return self.result.bound if self.result else self.graph.total_cost


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a step is planned anew: a sentence, the same in few words, and the correction of its
    predictions: measured activations as a multiple of the predicted ones."""

    sentence: str
    words: str
    correction: float


class Clock:
    """Seconds per phase, shown by `progress` as they begin; a repeated phase adds up."""

    def __init__(self, progress: Progress | None = None) -> None:
        self.progress = progress or Progress("", {}, enabled=False)
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def phase(self, name: str, *, limit_s: float = math.inf) -> Iterator[None]:
        started = time.perf_counter()
        with self.progress.phase(name, limit_s=limit_s):
            yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started


def unchanged(traced: TracedStep, specs: tuple[Any, ...]) -> Callable[..., Any]:
    return lambda *flat: traced.function(*tf.nest.pack_sequence_as(specs, flat))


ANY_SIZE = 2**62

PHASES = {
    "tracing": 1,
    "measuring ops": 2,
    "splitting": 2,
    "solving": 3,
    "predicting": 3,
    "building": 4,
    "compiling": 4,
}
"""The phases of planning -> their numbers, as progress shows them."""


@dataclass(frozen=True, slots=True, eq=False)
class PlanRequest:
    """A step and the options for it, independent of shapes.

    Attributes:
      explains: Whether a refusal says what would fit, which takes some seconds to find out.
      has_output_buffers: Whether results lie in buffers that outlive a step (see
        `execution.replay`): of the main step, unless its plan is replayed in another function.
      plans_bodies: Whether loops that train run bodies under plans of their own.
      next_batches: The further batches, of an input pipeline or kept by the program, for which
        memory is set aside while the step runs.
      correction: Activations of real steps as a multiple of the predicted ones.
      others: Device -> the same step there, for other devices of this process that run the plan.
      progress: That of a whole of which this is a part while that is open; else each planning shows
        its own.
      anew: Why the step is planned anew, if it is.
    """

    step: Callable[..., Any]
    name: str
    options: PlanOptions
    explains: bool = True
    has_output_buffers: bool = True
    plans_bodies: bool = True
    next_batches: int = BATCHES_MADE
    correction: float = 1.0
    scratch: Scratch = field(default_factory=Scratch)
    others: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    progress: Progress | None = None
    anew: Reason | None = None

    @property
    def whole(self) -> Progress | None:
        """The progress of which this is a part, while it is open."""
        return self.progress if self.progress and self.progress.is_open else None

    def phase(self, name: str) -> AbstractContextManager[None]:
        """A phase of the whole, as a context."""
        return self.whole.phase(name) if self.whole else contextlib.nullcontext()

    def showing(self) -> AbstractContextManager[Progress]:
        """The progress of planning, as a context."""
        if self.whole:
            return self.whole.of_part(self.name)
        return Progress(self.name, PHASES, enabled=self.options.verbose)

    def resolve(self, plain_peak_bytes: int, other_bytes: int) -> int:
        """The budget in bytes. A share is one of the step's own peak, to which the other bytes are
        added."""
        budget = self.options.budget
        if budget == "auto":
            return auto_budget(devices.training_device())
        own = parse_bytes(budget, percent_of=plain_peak_bytes - other_bytes)
        return own + other_bytes if is_share(budget) else own


@dataclass(frozen=True, slots=True, eq=False)
class PlanTask:
    """The planning of one set of shapes.

    Attributes:
      memory: The kinds of bytes when planning began; the limit is 0 until the plain step's peak is
        known.
      batch: The arguments of the coming call, if they are in the memory that steps train in.
      paper_bytes: The memory of the device that the step is planned for on paper, whose pool is
        taken to be empty; 0 where it is this one, with all that is in use on it.
    """

    request: PlanRequest
    traced: TracedStep
    specs: tuple[Any, ...]
    clock: Clock
    memory: MemoryBudget
    batch: Sequence[tf.Tensor] | None = None
    released_bytes: int = 0
    paper_bytes: int = 0

    @classmethod
    def of(
        cls,
        request: PlanRequest,
        traced: TracedStep,
        specs: tuple[Any, ...],
        clock: Clock,
        values: Sequence[Any] = (),
        *,
        released_bytes: int,
        budget_bytes: int = 0,
    ) -> PlanTask:
        """The task of a traced step, whose variables then share no buffers. `values` are flattened
        values of the specs, if there are any."""
        give_own_memory(traced.variables)
        batch = in_memory(values, tf.nest.flatten(specs))
        gc.collect()  # deleted models keep their variables in reference cycles
        memory = MemoryBudget.of(
            traced,
            budget_bytes,
            devices.bytes_in_use(devices.training_device()),
            has_batch=batch is not None,
            released_bytes=released_bytes,
            next_batches=request.next_batches,
        )
        return cls(request, traced, specs, clock, memory, batch, released_bytes)

    @classmethod
    def on_paper(
        cls, request: PlanRequest, traced: TracedStep, specs: tuple[Any, ...], paper_bytes: int
    ) -> PlanTask:
        """The task of a step for another device, in which nothing else is in use."""
        memory = MemoryBudget.of(traced, 0, 0, next_batches=request.next_batches)
        memory = replace(memory, device_limit_bytes=paper_bytes)
        return cls(request, traced, specs, Clock(), memory, paper_bytes=paper_bytes)

    def of_parts(self, traced: TracedStep) -> PlanTask:
        """The task of the same step, whose largest ops are split."""
        before, has_batch = self.memory, self.batch is not None
        memory = MemoryBudget.of(
            traced,
            before.limit_bytes,
            before.start_bytes - (0 if has_batch else before.batch_bytes),
            has_batch=has_batch,
            released_bytes=self.released_bytes,
            next_batches=self.request.next_batches,
        )
        memory = replace(memory, device_limit_bytes=before.device_limit_bytes)
        return replace(self, traced=traced, memory=memory)

    def within(self, budget_bytes: int) -> PlanTask:
        return replace(self, memory=replace(self.memory, limit_bytes=budget_bytes))

    @property
    def budget_bytes(self) -> int:
        return self.memory.limit_bytes

    @property
    def other_bytes(self) -> int:
        return self.memory.other_bytes

    @property
    def examples(self) -> int | None:
        """The size of the batch, where the arguments agree about it."""
        sizes = {spec.shape[0] for spec in tf.nest.flatten(self.specs) if spec.shape.rank}
        return sizes.pop() if len(sizes) == 1 else None

    @property
    def reports(self) -> bool:
        return bool(self.paper_bytes) or devices.allocator_reports(devices.training_device())

    def report(self, graph: DFGraph, plain_peak_bytes: int, **more: Any) -> Report:
        """The report of a step that runs unchanged, before steps ran, with more or other fields."""
        fields: dict[str, Any] = {
            "name": self.request.name,
            "memory": self.memory,
            "plain_peak_bytes": plain_peak_bytes,
            "result": None,
            "tensorflow_ops": len(self.traced.flat.graph.get_operations()),
            "seconds": {},
            "notes": (*self.traced.notes, *self._notes()),
            "predicted_peak_bytes": plain_peak_bytes,
            "graph": graph,
            "plain_plan": self.traced.plain_plan(),
            "asked": self.request.options.budget,
            "examples": self.examples,
            "origin": f"planned anew: {anew.words}" if (anew := self.request.anew) else "",
        }
        return Report(**fields | more)

    def _notes(self) -> tuple[str, ...]:
        anew = self.request.anew
        notes = (f"The step was planned anew. {anew.sentence}",) if anew else ()
        if self.reports:
            return notes
        return (
            *notes,
            "This device's allocator does not report what is in use: the peak is predicted, and a"
            " reserve stands in for reading it off real steps.",
        )

    def fetch_region(self) -> int:
        """Has the allocator fetch the step's memory in one piece, before the ops that are measured
        cut its pool. Returns the largest piece of a step: half of the region where the allocator
        has a limit of its own, and so fetches no other; else `ANY_SIZE`."""
        if not self.reports or self.paper_bytes:
            return ANY_SIZE
        device, other = devices.training_device(), self.other_bytes
        plain = self.traced.plain_peak_bytes() + other
        needed = min(plain, self.budget_bytes or self.request.resolve(plain, other))
        has_limit = devices.cap_bytes(device) is not None
        if not has_limit:  # the system provides memory when it is first written to
            needed += devices.UNSPLIT_BYTES
        fetched = devices.fetch_region(device, needed - other - self.traced.between_bytes)
        # The results' buffers are taken from the same region.
        return fetched // 2 if fetched and has_limit else ANY_SIZE


def in_memory(values: Sequence[Any], specs: Sequence[tf.TensorSpec]) -> list[tf.Tensor] | None:
    """The values, if they are tensors of these specs in the memory that steps train in."""
    device = devices.training_device()
    eager = all(isinstance(value, tf.Tensor) and hasattr(value, "numpy") for value in values)
    if not values or not eager or len(values) != len(specs):
        return None
    there = all(
        value.shape == spec.shape and value.dtype == spec.dtype and value.device.endswith(device)
        for value, spec in zip(values, specs, strict=True)
    )
    return list(values) if there else None
