"""max_batch(): the largest batch that trains within a budget, found on paper and then planned for
real."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import keras
import tensorflow as tf
from typing_extensions import Unpack

from checkmate.core.allocator import rounded_up
from checkmate.core.graph import DFGraph
from checkmate.core.plan import Plan
from checkmate.core.replay import floor, replay
from checkmate.errors import BudgetError, InfeasibleBudgetError, NoPlanFoundError
from checkmate.progress import Progress
from checkmate.solvers.result import SolveResult
from checkmate.solvers.search import Search
from checkmate.solvers.solve import solve
from checkmate.tf2 import device as devices
from checkmate.tf2.compile import PlannedStep
from checkmate.tf2.costs.measured import CostModel, Measurement, profile, with_costs
from checkmate.tf2.graph.trace import TracedStep, trace
from checkmate.tf2.memory.budget import (
    BATCHES_MADE,
    RESERVES,
    ahead,
    argument_bytes,
    auto_budget,
    other_bytes_in_use,
)
from checkmate.tf2.options import PlanKeywords, PlanOptions, is_count
from checkmate.tf2.planning.budget_loop import TUNING
from checkmate.tf2.planning.plan_search import time_limit
from checkmate.tf2.planning.request import PlanRequest
from checkmate.tf2.training_step import as_spec, refuse_missing, training_step
from checkmate.units import Bytes, format_bytes, is_share, parse_bytes

TWENTIETH, HUNDREDTH, TENTH = 0.05, 0.01, 0.1
"""How closely the largest batch is found: on paper at first, from small batches; from a batch near
the answer, where predictions are no closer to the real allocator; and in slices, where each batch
is planned for real."""

QUICK = 0.5
"""The share of a plan's usual seconds that the search for one may take on paper."""


def largest_fitting(
    fits: Callable[[int], bool],
    largest: int,
    *,
    known: int = 0,
    guess: int | None = None,
    step: int | None = None,
    share: float = HUNDREDTH,
) -> int:
    """The largest number up to `largest` that fits, to about a share of it, if fitting is
    monotonic; `known` fits or is 0. With a guess near the answer, few calls of `fits` are
    needed; the first step from it is a 64th of it where none is given."""
    step = step or max(1, 2 * known if guess is None else guess // 64)
    guess = min(largest, max(1, 2 * known) if guess is None else guess)
    if known >= largest:
        return known
    if fits(guess):
        low, high = guess, guess + step
        while high <= largest and fits(high):
            step *= 2
            low, high = high, high + step
        high = min(high, largest + 1)
    else:
        low, high = max(known, guess - step), guess
        while low > known and not fits(low):
            step *= 2
            low, high = max(known, low - step), low
    return _bisected(fits, low, high, share)


def _bisected(fits: Callable[[int], bool], low: int, high: int, share: float) -> int:
    """The largest number that fits, to about a share of it; `low` fits and `high` does not."""
    while high - low > max(1, int(low * share)):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


SMALL_BATCH = 2
"""The batch that is traced to learn what grows; twice as many examples are traced to learn by how
much."""


@dataclass(frozen=True, slots=True)
class GraphGrowth:
    """The graphs of a step at two batches, from which its graph at any batch is extrapolated.
    `made` traces and measures the graph at a batch; an example has `example_bytes`; `other_bytes`
    are in use on the device and not counted by the graph."""

    small: DFGraph
    large: DFGraph
    large_batch: int
    plain_order: tuple[int, ...]
    example_bytes: float
    other_bytes: int
    made: Callable[[int], DFGraph]

    @classmethod
    def of(
        cls,
        function: Callable,
        specs: Any,
        name: str,
        cost_model: str | CostModel,
        *,
        on_paper: bool = False,
    ) -> GraphGrowth:
        """With `on_paper` nothing else is in use on the device."""
        once, large_batch = tf.function(function), 2 * SMALL_BATCH
        # TensorFlow's graph optimizer may treat the two batches differently.
        for as_written in (False, True):
            small: TracedStep = trace(once, *specs, name=name, as_written=as_written)
            at_batch = partial(trace, name=name, like=small, as_written=as_written)
            large = at_batch(once, *sized(specs, large_batch))
            if _same_ops(small.graph, large.graph):
                break
        else:
            raise BudgetError(
                f"The step of {name!r} has other ops for a batch of {large_batch} than for"
                f" {SMALL_BATCH}, so what a batch needs does not follow from another. Compile the"
                " batches you consider one by one."
            )
        return cls(
            with_costs(small, cost_model),
            with_costs(large, cost_model),
            large_batch,
            small.plain_order,
            argument_bytes(small) / SMALL_BATCH,
            0 if on_paper else other_bytes_in_use(small),
            lambda batch: with_costs(at_batch(once, *sized(specs, batch)), cost_model),
        )

    def remeasured(self, batch: int) -> GraphGrowth:
        """The growth through the measured graph at this batch, since launch times and workspaces do
        not grow in proportion. The same growth if the batch is no larger than the measured ones, or
        has other ops."""
        if batch <= 2 * SMALL_BATCH or batch == self.large_batch:
            return self
        large = self.made(batch)
        if not _same_ops(large, self.small):
            return self
        return replace(self, large=large, large_batch=batch)

    def cost_model(self, batch: int) -> CostModel:
        """Costs and workspaces at a batch, as the option `cost_model`."""
        graph = self.at(batch)

        def of_step(
            traced: TracedStep, on_progress: Callable[[int, int], None]
        ) -> list[Measurement]:
            if not _same_ops(traced.graph, graph):
                return profile(traced, on_progress)
            return [Measurement(op.cost, op.workspace_bytes, op.in_place) for op in graph.ops]

        return of_step

    def scaled(self, batch: int, took_bytes: int, budget_bytes: int) -> int:
        """The batch expected to need the budget, where `batch` needed more, by linear growth."""
        if took_bytes <= budget_bytes:
            return batch
        empty = self.at(0).fixed_bytes
        return int(batch * max(0, budget_bytes - empty) / max(took_bytes - empty, 1))

    def plain_peak_bytes(self, graph: DFGraph) -> int:
        return replay(graph, Plan.from_order(graph, self.plain_order)).peak_bytes

    def at(self, batch: int) -> DFGraph:
        """The graph at a batch, with sizes and costs extrapolated linearly."""
        times = (batch - SMALL_BATCH) / (self.large_batch - SMALL_BATCH)

        def grown(small: float, large: float) -> float:
            return max(small + (large - small) * times, 0)

        sizes = [
            rounded_up(int(grown(a.output_bytes, b.output_bytes)))
            for a, b in zip(self.small.ops, self.large.ops, strict=True)
        ]
        ops = tuple(
            replace(
                a,
                output_bytes=size,
                workspace_bytes=int(grown(a.workspace_bytes, b.workspace_bytes)),
                cost=max(grown(a.cost, b.cost), min(a.cost, b.cost)),
                in_place=tuple(d for d in a.in_place if d in b.in_place and sizes[d] >= size),
            )
            for a, b, size in zip(self.small.ops, self.large.ops, sizes, strict=True)
        )
        fixed = int(grown(self.small.fixed_bytes, self.large.fixed_bytes))
        return replace(self.small, ops=ops, fixed_bytes=fixed)


def _same_ops(one: DFGraph, other: DFGraph) -> bool:
    return [op.deps for op in one.ops] == [op.deps for op in other.ops]


def sized(spec: Any, batch: int) -> Any:
    def one(leaf: tf.TensorSpec) -> tf.TensorSpec:
        if not leaf.shape.rank:
            raise BudgetError(
                f"max_batch needs arguments whose first dimension is the batch; found {leaf}."
            )
        return tf.TensorSpec([batch, *leaf.shape[1:]], leaf.dtype)

    return tf.nest.map_structure(one, as_spec(spec))


MOST_ROUNDS = 3
"""How often the batch that was found is measured, and the search goes on from what was learnt."""

BELOW = "below the floor"

STEP_DOWN = 0.03
"""By which share the next batch is smaller when a real step refutes what was found on paper."""


@dataclass(frozen=True, slots=True)
class MaxBatch:
    """The result of `max_batch`.

    Attributes:
      batch: The largest batch that trains within the budget; a real step of it was planned and,
        where the allocator reports, run.
      plain_batch: The largest batch whose plain step is predicted to fit, 0 for none.
      overhead: Predicted cost of the plan over that of the plain step at this batch, 1.0 for equal.
      budget_bytes: The budget.
      binding_op: The op that needs the most memory at this batch: the one to make smaller for more;
        "" for the largest batch that was to be tried.
      step: The planned step for `batch`, ready to train.
      tried: (batch, what was found) for each batch planned on the way.

    Examples:
      >>> found = checkmate.tf2.max_batch(
      ...     model, "mse", "adam", images, labels, budget="64MiB", largest=64
      ... )
      >>> print(found.batch, found.plain_batch, found.binding_op)
    """

    batch: int
    plain_batch: int
    overhead: float
    budget_bytes: int
    binding_op: str
    step: PlannedStep[tuple[Any, tf.Tensor]] = field(repr=False)
    tried: tuple[tuple[int, str], ...] = field(repr=False)

    def __str__(self) -> str:
        return sentence("batch", self.batch, self.plain_batch, self, "per example")


def sentence(what: str, size: int, plain: int, found: Any, per: str) -> str:
    """The answer of `max_batch` or `max_length`, for people."""
    binds = f"op {found.binding_op!r} binds" if found.binding_op else "no larger one was tried"
    times = f"{size / plain:.1f} times plain's {plain}" if plain else "plain fits none"
    return (
        f"{what} {size} trains within {format_bytes(found.budget_bytes)} ({times}), predicted to"
        f" cost {found.overhead - 1:+.1%} {per}; {binds}"
    )


def max_batch(
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
) -> MaxBatch:
    """Finds the largest batch that a model can be trained on within a budget.

    The step is traced for two small batches; sizes and costs grow in a straight line between them
    and beyond, so that every other batch is planned on paper. The batch that is found is measured
    in the place of the second, and the search goes on from there, at most a few times. The answer
    is then compiled, which plans it; where that refuses, a slightly smaller batch is tried. Where
    one op bounds the batch, as it was written, larger ones are then planned with it in parts, for
    real. So are those in slices with `micro_batches`; with "auto" up to one whose data and results
    leave too little memory, whose cost is above `overhead_limit`, or `largest`.

    Args:
      model: As for `compile`, as are loss and optimizer.
      loss: A loss, a function, or a name.
      optimizer: An optimizer or its name.
      input_spec: As for `compile`; the first dimension of every array is the batch and may be None.
      label_spec: The same.
      overhead_limit: The most that the plan may cost over the plain step: 1.2 for a fifth more;
        "forward" for one more forward pass, which is the limit that Checkmate's and Chen's papers
        use; None for any.
      largest: No batch above this is tried.
      budget: As in `PlanOptions`, but no share.
      options: Its other fields, but `batch_size` and `plan`. `time_limit_s` is for the plan of each
        batch.

    Returns:
      The batch and the planned step for it.

    Raises:
      TraceError: As for `compile`, or an argument without a batch dimension.
      BudgetError: A budget or limit that cannot be read.
      InfeasibleBudgetError: Not even a batch of 1 fits.

    Examples:
      >>> found = checkmate.tf2.max_batch(
      ...     model, "mse", "adam", images, labels, budget="6GiB", overhead_limit=1.2, largest=64
      ... )
    """
    asked = PlanOptions.of("max_batch", budget, options, _REFUSED, ("overhead_limit", "largest"))
    check_limits(asked, overhead_limit, largest)
    refuse_missing("max_batch", loss, optimizer, label_spec)
    specs = sized(input_spec, SMALL_BATCH), sized(label_spec, SMALL_BATCH)
    function, specs = training_step(model, loss, optimizer, *specs)
    with Progress(model.name, enabled=asked.verbose) as progress:
        with progress.phase(TWO_BATCHES):
            growth = GraphGrowth.of(function, specs, model.name, asked.cost_model)
        request = PlanRequest(function, model.name, asked, progress=progress)
        found = BatchSearch(request, growth, overhead_limit).found(specs, largest)
        progress.done(str(found))
    return found


_REFUSED = {
    "batch_size": "max_batch finds the batch size.",
    "plan": "each batch that is tried has a plan of its own. Save the plan of `step` instead.",
}


def check_limits(asked: PlanOptions, overhead_limit: float | str | None, largest: int) -> None:
    if not is_count(largest):
        raise BudgetError(f"largest is a whole number of at least 1; got {largest!r}.")
    is_number = isinstance(overhead_limit, (int, float)) and overhead_limit >= 1
    if overhead_limit not in (None, "forward") and not is_number:
        raise BudgetError(
            "overhead_limit is a number from 1 on (1.2 for a fifth more time), 'forward', or None;"
            f" got {overhead_limit!r}."
        )
    if is_share(asked.budget):
        raise BudgetError(
            "A share of the plain step's peak is no budget for a size that is not known yet; got"
            f" {asked.budget!r}. Give bytes."
        )


def is_allowed(limit: float | str | None, graph: DFGraph, overhead: float | None) -> bool:
    """Whether a plan's cost over the plain step's is within the limit; unknown costs are."""
    if limit is None or overhead is None:
        return True
    if limit == "forward":
        extra = sum(op.cost for op in graph.ops if not op.is_backward)
        return overhead <= 1 + extra / graph.total_cost
    return overhead <= float(limit)


TWO_BATCHES = "tracing and measuring two small batches"


class BatchSearch:
    """The search for the largest batch, on paper first. `tried` has (batch, plan) of each one
    planned."""

    def __init__(
        self, request: PlanRequest, growth: GraphGrowth, overhead_limit: float | str | None = None
    ):
        self._request, self._growth, self._overhead_limit = request, growth, overhead_limit
        device, budget = devices.training_device(), request.options.budget
        self._budget_bytes = auto_budget(device) if budget == "auto" else parse_bytes(budget)
        self._step_bytes = self._budget_bytes - growth.other_bytes
        self._reserve_share = (
            TUNING.first_reserve if devices.allocator_reports(device) else RESERVES.not_simulated
        )
        self.tried: list[tuple[int, str]] = []

    def found(self, specs: Any, largest: int) -> MaxBatch:
        plain, batch = self.on_paper(largest)
        count = self._request.options.micro_batches
        if count != 1:
            batch = self._in_slices(specs, batch, largest)
        elif self._request.options.split.kinds and any(found == BELOW for _, found in self.tried):
            batch = self._in_parts(specs, batch, largest)
        while batch:
            step, smaller = self._planned(specs, batch)
            if step is not None:
                overhead = step.report().predicted_slowdown
                is_most = batch >= largest
                binding = "" if is_most else step.graph.ops[floor(step.graph).op].name
                # Where no plan fits, the plain step, which is one, does not.
                plain, tried = min(plain, batch), tuple(self.tried)
                return MaxBatch(batch, plain, overhead, self._budget_bytes, binding, step, tried)
            batch = min(batch - 1, smaller)
            if count != "auto" and batch < int(count):
                break
        raise self._refusal()

    def on_paper(self, largest: int) -> tuple[int, int]:
        """The largest batches whose plain step, and whose planned step, are predicted to fit, from
        measurements repeated at the batch found."""
        plain = largest_fitting(self._plain_fits, largest)
        batch = largest_fitting(self._fits, largest, known=plain, share=TWENTIETH)
        for _ in range(MOST_ROUNDS):
            with self._request.phase(f"measuring a batch of {batch}"):
                growth = self._growth.remeasured(batch)
            if growth is self._growth:
                break
            self._growth, before = growth, batch
            plain = largest_fitting(self._plain_fits, largest)
            batch = largest_fitting(self._fits, largest, known=plain, guess=before)
            if abs(batch - before) <= max(1, int(before * TWENTIETH)):
                break
        return plain, batch

    def _in_slices(self, specs: Any, whole: int, largest: int) -> int:
        """The largest batch whose slices can be planned, 0 for none; `whole` is that of one
        slice."""
        count = self._request.options.micro_batches
        if count == "auto":
            return self._in_parts(specs, whole, largest)
        times = int(count)
        most = largest // times
        if not whole or not most:
            return 0
        return times * largest_fitting(
            lambda size: self._planned(specs, times * size)[0] is not None,
            most,
            guess=whole,
            share=TENTH,
        )

    def _in_parts(self, specs: Any, whole: int, largest: int) -> int:
        """The largest batch that can be planned for real, from one that is expected to fit."""

        def fits(batch: int) -> bool:
            return self._planned(specs, batch)[0] is not None

        return largest_fitting(fits, largest, known=whole, share=TENTH)

    def _plain_fits(self, batch: int) -> bool:
        graph = self._growth.at(batch)
        plain = self._growth.plain_peak_bytes(graph)
        return plain <= self._target(graph, batch, plain)

    def _target(self, graph: DFGraph, batch: int, plain_peak_bytes: int) -> int:
        """The budget of ops, less next batches and a reserve for the allocator's overhead."""
        one = int(batch * self._growth.example_bytes)
        step_bytes = self._step_bytes - ahead(BATCHES_MADE, one, plain_peak_bytes)
        activations = max(0, step_bytes - graph.fixed_bytes)
        return step_bytes - int(self._reserve_share * activations)

    def _fits(self, batch: int) -> bool:
        with self._request.phase(f"a batch of {batch}, on paper"):
            return self._fits_on_paper(batch)

    def _fits_on_paper(self, batch: int) -> bool:
        graph = self._growth.at(batch)
        target = self._target(graph, batch, self._growth.plain_peak_bytes(graph))
        if floor(graph).bytes > target:
            self.tried.append((batch, BELOW))
            return False
        options = self._request.options
        limit = options.time_limit_s or QUICK * time_limit(None, graph)
        try:
            result = solve(
                graph,
                max(1, target),
                solver=options.solver,
                time_limit_s=limit,
                keep=options.keep,
                recompute=options.recompute,
                on_progress=_any_plan if self._overhead_limit is None else None,
            )
        except (InfeasibleBudgetError, NoPlanFoundError) as error:
            self.tried.append((batch, type(error).__name__))
            return False
        self.tried.append((batch, f"fits, at a cost of {_overhead(result)} or less"))
        return is_allowed(self._overhead_limit, graph, result.overhead)

    def _planned(self, specs: Any, batch: int) -> tuple[PlannedStep | None, int]:
        """The planned step of a batch, or None if it is refused, and the smaller batch to try
        then."""
        request, smaller = self._request, int(batch * (1 - STEP_DOWN))
        options = replace(request.options, budget=self._budget_bytes)
        if options.micro_batches == 1:
            options = replace(options, cost_model=self._growth.cost_model(batch))
        asked = replace(request, options=options, explains=False)
        try:
            with self._request.phase(f"a batch of {batch}"):
                step: PlannedStep = PlannedStep(asked, sized(specs, batch))
        except InfeasibleBudgetError as error:
            found = type(error).__name__
        except NoPlanFoundError as error:
            peak = error.best_peak_bytes
            found = f"took {format_bytes(peak)}" if peak else type(error).__name__
            smaller = min(smaller, self._growth.scaled(batch, peak or 0, self._budget_bytes))
        else:
            overhead = step.report().predicted_slowdown
            if is_allowed(self._overhead_limit, step.graph, overhead):
                return step, batch
            found = f"cost {overhead - 1:+.1%}"
        self.tried.append((batch, f"planned for real: {found}"))
        return None, smaller

    def _refusal(self) -> InfeasibleBudgetError:
        single = self._growth.at(1)
        lowest, limit = floor(single), self._overhead_limit
        at = "" if limit is None else f" at an overhead of at most {limit}"
        name, other = single.ops[lowest.op].name, self._growth.other_bytes
        return InfeasibleBudgetError(
            f"Not even a batch of 1 of {self._request.name!r} can be trained within"
            f" {format_bytes(self._budget_bytes)}{at}: op {name!r} with what must stay in memory"
            f" needs {format_bytes(lowest.bytes)}, of which {format_bytes(single.fixed_bytes)} is"
            f" resident, {format_bytes(other)} is in use by others on the device, and a plan leaves"
            " a reserve. Raise the budget, or make that op smaller.",
            budget_bytes=self._budget_bytes,
            floor_bytes=lowest.bytes,
            op=lowest.op,
            op_name=name,
        )


def _any_plan(search: Search) -> None:
    """Ends a search that asks whether there is a plan."""
    if search.plan is not None:
        search.stop()


def _overhead(result: SolveResult) -> str:
    return "unknown" if result.overhead is None else f"{result.overhead - 1:+.1%}"
