"""max_batch(): the largest batch that trains within a budget, found on paper and confirmed by a
real step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import keras
import tensorflow as tf

from checkmate.core.graph import DFGraph
from checkmate.core.plan import Plan
from checkmate.core.replay import floor, replay
from checkmate.errors import BudgetError, InfeasibleBudgetError, NoPlanFoundError
from checkmate.solvers.result import SolveResult
from checkmate.solvers.search import Solver
from checkmate.solvers.solve import solve
from checkmate.tf2 import device as devices
from checkmate.tf2.compile import PlannedStep, as_spec, training_step
from checkmate.tf2.costs.measured import CostModel, profile, with_costs
from checkmate.tf2.costs.measurement import Measurement
from checkmate.tf2.graph.sizes import rounded_up
from checkmate.tf2.graph.trace import TracedStep, trace
from checkmate.tf2.memory.budget import UNCHECKED_RESERVE, outside_bytes
from checkmate.tf2.planning.budget_loop import FIRST_RESERVE
from checkmate.tf2.planning.plan_search import time_limit
from checkmate.tf2.planning.planner import Planner
from checkmate.units import Bytes, format_bytes, is_share, parse_bytes

SMALL_BATCH = 2
"""The batch that is traced to learn what grows; twice as many examples are traced to learn by how
much."""

STEP_DOWN = 0.03
"""By which share the next batch is smaller when a real step refutes what was found on paper."""


@dataclass(frozen=True, slots=True)
class MaxBatch:
    """What `max_batch` found.

    Attributes:
      batch: The largest batch that trains within the budget; a real step of it was planned and,
        where the allocator reports, run.
      plain_batch: The largest batch whose plain step is predicted to fit, 0 for none.
      overhead: Predicted cost of the plan over that of the plain step at this batch, 1.0 for equal.
      budget_bytes: The budget.
      binding_op: The op that needs most memory around it at this batch: what to make smaller for
        more.
      step: The planned step for `batch`, ready to train.
      tried: (batch, what was found) for each batch planned on the way.
    """

    batch: int
    plain_batch: int
    overhead: float
    budget_bytes: int
    binding_op: str
    step: PlannedStep = field(repr=False)
    tried: tuple[tuple[int, str], ...] = field(repr=False)

    def __str__(self) -> str:
        times = (
            f"{self.batch / self.plain_batch:.1f} times plain's {self.plain_batch}"
            if self.plain_batch
            else "plain fits none"
        )
        return (
            f"batch {self.batch} trains within {format_bytes(self.budget_bytes)} ({times}),"
            f" predicted to cost {self.overhead - 1:+.1%} per example; op {self.binding_op!r} binds"
        )


def max_batch(
    model: keras.Model,
    loss: Any,
    optimizer: Any,
    input_spec: Any,
    label_spec: Any,
    *,
    budget: Bytes = "auto",
    max_overhead: float | str | None = None,
    solver: str | Solver = "auto",
    cost_model: str | CostModel = "profile",
    time_limit_s: float | None = None,
    largest: int = 1 << 16,
    verbose: bool = True,
) -> MaxBatch:
    """Finds the largest batch that a model can be trained on within a budget.

    The step is traced for two small batches; sizes and costs grow in a straight line between them
    and beyond, so that every other batch is planned on paper. The answer is then compiled, which
    plans and checks it for real; if that refuses, a slightly smaller batch is tried.

    Args:
      model: As for `compile`, as are loss and optimizer.
      loss: A loss, a function, or a name.
      optimizer: An optimizer or its name.
      input_spec: As for `compile`; the first dimension of every array is the batch and may be None.
      label_spec: The same.
      budget: As for `compile`, but not a share.
      max_overhead: How much costlier than the plain step the plan may be: 0.2 for a fifth;
        "forward" for one more forward pass, which is the limit that Checkmate's and Chen's papers
        use; None for any.
      solver: As for `compile`.
      cost_model: As for `compile`.
      time_limit_s: Seconds for the plan of each batch. Unless said, two, and more for graphs of
        more than a thousand ops.
      verbose: Show progress on a terminal.
      largest: No batch above this is tried.

    Returns:
      The batch and the planned step for it.

    Raises:
      TraceError: As for `compile`, or an argument without a batch dimension.
      BudgetError: A budget or limit that cannot be read.
      InfeasibleBudgetError: Not even a batch of 1 fits.
    """
    forward = max_overhead == "forward"
    if not (
        max_overhead is None
        or forward
        or (isinstance(max_overhead, (int, float)) and max_overhead >= 0)
    ):
        raise BudgetError(
            f'max_overhead is a number from 0 on, "forward", or None; got {max_overhead!r}.'
        )
    if is_share(budget):
        raise BudgetError(
            "A share of the plain step's peak is no budget for a batch that is not known yet; got"
            f" {budget!r}. Give bytes."
        )
    function, specs = training_step(
        model, loss, optimizer, _sized(input_spec, SMALL_BATCH), _sized(label_spec, SMALL_BATCH)
    )
    growth = _Growth.of(function, specs, model.name, cost_model)
    device = devices.training_device()
    budget_bytes = devices.auto_budget(device) if budget == "auto" else parse_bytes(budget)
    of_step = budget_bytes - growth.outside_bytes
    reserve = FIRST_RESERVE if devices.allocator_reports(device) else UNCHECKED_RESERVE
    tried: list[tuple[int, str]] = []

    def allowed(graph: DFGraph, result: SolveResult) -> bool:
        if max_overhead is None:
            return True
        extra = (
            sum(op.cost for op in graph.ops if not op.is_backward)
            if forward
            else float(max_overhead) * graph.total_cost
        )
        return result.cost <= graph.total_cost + extra

    def fits(batch: int) -> bool:
        graph = growth.at(batch)
        target = of_step - int(reserve * max(0, of_step - graph.fixed_bytes))
        if floor(graph).bytes > target:
            tried.append((batch, "below the floor"))
            return False
        try:
            result = solve(
                graph, max(1, target), solver=solver, time_limit_s=time_limit(time_limit_s, graph)
            )
        except (InfeasibleBudgetError, NoPlanFoundError) as error:
            tried.append((batch, type(error).__name__))
            return False
        tried.append((batch, f"cost {result.overhead - 1:+.1%}"))
        return allowed(graph, result)

    def plain_fits(batch: int) -> bool:
        graph = growth.at(batch)
        return replay(graph, Plan.from_order(graph, growth.plain_order)).peak_bytes <= of_step

    plain = _largest(plain_fits, largest)
    batch = _largest(fits, largest, known=plain)
    while batch:
        planner = Planner(
            function,
            model.name,
            budget_bytes,
            solver,
            growth.cost_model(batch),
            time_limit_s,
            verbose,
            explains=False,
        )
        smaller = int(batch * (1 - STEP_DOWN))
        try:
            step = PlannedStep(planner, _sized(specs, batch))
        except InfeasibleBudgetError as error:
            tried.append((batch, f"planned for real: {type(error).__name__}"))
        except NoPlanFoundError as error:
            took = (
                f"took {format_bytes(error.best_peak_bytes)}"
                if error.best_peak_bytes
                else type(error).__name__
            )
            tried.append((batch, f"planned for real: {took}"))
            smaller = min(smaller, growth.scaled(batch, error.best_peak_bytes or 0, budget_bytes))
        else:
            if step.result is None or allowed(step.graph, step.result):
                overhead = step.result.overhead if step.result else 1.0
                binding = step.graph.ops[floor(step.graph).op].name
                return MaxBatch(batch, plain, overhead, budget_bytes, binding, step, tuple(tried))
            tried.append((batch, f"planned for real: cost {step.result.overhead - 1:+.1%}"))
        batch = min(batch - 1, smaller)
    single = growth.at(1)
    lowest = floor(single)
    raise InfeasibleBudgetError(
        f"Not even a batch of 1 of {model.name!r} can be trained within"
        f" {format_bytes(budget_bytes)}{'' if max_overhead is None else f' at an overhead of at most {max_overhead}'}:"
        f" op {single.ops[lowest.op].name!r} with what must stay in memory needs"
        f" {format_bytes(lowest.bytes)}, of which {format_bytes(single.fixed_bytes)} is resident.",
        budget_bytes=budget_bytes,
        floor_bytes=lowest.bytes,
        op=lowest.op,
        op_name=single.ops[lowest.op].name,
    )


@dataclass(frozen=True, slots=True)
class _Growth:
    """A step's graph at two batches, from which the graph at any other follows, and what else is in
    use on the device."""

    small: DFGraph
    double: DFGraph
    plain_order: tuple[int, ...]
    outside_bytes: int

    @classmethod
    def of(cls, function: Callable, specs: Any, name: str, cost_model: str | CostModel) -> _Growth:
        once = tf.function(function)
        # TensorFlow's optimizer may do with one batch what it does not with the other.
        for as_written in (
            False,
            True,
        ):
            small: TracedStep = trace(once, *specs, name=name, as_written=as_written)
            double = trace(
                once, *_sized(specs, 2 * SMALL_BATCH), name=name, like=small, as_written=as_written
            )
            if [op.deps for op in small.graph.ops] == [op.deps for op in double.graph.ops]:
                break
        else:
            raise BudgetError(
                f"The step of {name!r} has other ops for a batch of {2 * SMALL_BATCH} than for"
                f" {SMALL_BATCH}, so what a batch needs does not follow from another. Compile the"
                " batches you consider one by one."
            )
        return cls(
            with_costs(small, cost_model),
            with_costs(double, cost_model),
            small.plain_order,
            outside_bytes(small),
        )

    def cost_model(self, batch: int) -> CostModel:
        """Costs and workspaces at a batch, in the form that compiling for it takes."""
        ops = self.at(batch).ops

        def of_step(
            traced: TracedStep, on_progress: Callable[[int, int], None]
        ) -> list[Measurement]:
            if [op.deps for op in traced.graph.ops] != [op.deps for op in ops]:
                return profile(traced, on_progress)
            return [Measurement(op.cost, op.workspace_bytes, op.in_place) for op in ops]

        return of_step

    def scaled(self, batch: int, took_bytes: int, budget_bytes: int) -> int:
        """The batch that would take the budget, when `batch` took more and what a step takes grows
        with it in a straight line."""
        empty = self.at(0).fixed_bytes
        return (
            int(batch * max(0, budget_bytes - empty) / max(took_bytes - empty, 1))
            if took_bytes > budget_bytes
            else batch
        )

    def at(self, batch: int) -> DFGraph:
        """The graph for a batch: sizes and costs on the straight line through the two that are
        known."""

        def grown(small: float, double: float) -> float:
            return max(small + (double - small) * (batch - SMALL_BATCH) / SMALL_BATCH, 0)

        sizes = [
            rounded_up(int(grown(a.output_bytes, b.output_bytes)))
            for a, b in zip(self.small.ops, self.double.ops, strict=True)
        ]
        ops = tuple(
            replace(
                a,
                output_bytes=size,
                workspace_bytes=int(grown(a.workspace_bytes, b.workspace_bytes)),
                cost=max(grown(a.cost, b.cost), min(a.cost, b.cost)),
                in_place=tuple(d for d in a.in_place if d in b.in_place and sizes[d] >= size),
            )
            for a, b, size in zip(self.small.ops, self.double.ops, sizes, strict=True)
        )
        return replace(
            self.small,
            ops=ops,
            fixed_bytes=int(grown(self.small.fixed_bytes, self.double.fixed_bytes)),
        )


def _largest(fits: Callable[[int], bool], largest: int, *, known: int = 0) -> int:
    """The largest number up to `largest` that fits, when all below it do; `known` fits or is 0."""
    low, high = known, max(1, 2 * known)
    while high <= largest and fits(high):
        low, high = high, 2 * high
    high = min(high, largest + 1)
    # A hundredth is closer than the real allocator follows the paper.
    while high - low > max(1, low // 100):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _sized(spec: Any, batch: int) -> Any:
    """The specs with another first dimension."""

    def one(leaf: tf.TensorSpec) -> tf.TensorSpec:
        if not leaf.shape.rank:
            raise BudgetError(
                f"max_batch needs arguments whose first dimension is the batch; found {leaf}."
            )
        return tf.TensorSpec([batch, *leaf.shape[1:]], leaf.dtype)

    return tf.nest.map_structure(one, as_spec(spec))
