"""GraphGrowth: the graph of a training step at any batch, from its graphs at two small batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import tensorflow as tf

from checkmate.core.allocator import rounded_up
from checkmate.core.graph import DFGraph
from checkmate.errors import BudgetError
from checkmate.tf2.costs.measured import CostModel, Measurement, profile, with_costs
from checkmate.tf2.graph.trace import TracedStep, trace
from checkmate.tf2.memory.budget import other_bytes_in_use
from checkmate.tf2.training_step import as_spec

SMALL_BATCH = 2
"""The batch that is traced to learn what grows; twice as many examples are traced to learn by how
much."""


@dataclass(frozen=True, slots=True)
class GraphGrowth:
    """A step's graph at two batches, from which the graph at any other batch follows.

    Attributes:
      small: The graph at `SMALL_BATCH`.
      large: The graph at a larger batch.
      large_batch: That batch.
      plain_order: The order of the ops in the trace.
      other_bytes: What is in use on the device and not counted by the graph.
      made: Returns the graph at a batch, traced and measured.
    """

    small: DFGraph
    large: DFGraph
    large_batch: int
    plain_order: tuple[int, ...]
    other_bytes: int
    made: Callable[[int], DFGraph]

    @classmethod
    def of(
        cls, function: Callable, specs: Any, name: str, cost_model: str | CostModel
    ) -> GraphGrowth:
        """Traces a function for two small batches and measures both."""
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
            other_bytes_in_use(small),
            lambda batch: with_costs(at_batch(once, *sized(specs, batch)), cost_model),
        )

    def remeasured(self, batch: int) -> GraphGrowth:
        """Returns the growth through the graph at this batch, traced and measured: times that
        starting an op takes, and workspaces, do not grow in proportion. The same growth where
        nothing is to be learnt: the batch is no larger than those that were measured, or has other
        ops."""
        if batch <= 2 * SMALL_BATCH or batch == self.large_batch:
            return self
        large = self.made(batch)
        if not _same_ops(large, self.small):
            return self
        return replace(self, large=large, large_batch=batch)

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
        return replace(
            self.small,
            ops=ops,
            fixed_bytes=int(grown(self.small.fixed_bytes, self.large.fixed_bytes)),
        )


def _same_ops(one: DFGraph, other: DFGraph) -> bool:
    return [op.deps for op in one.ops] == [op.deps for op in other.ops]


def sized(spec: Any, batch: int) -> Any:
    """Returns the specs with another first dimension."""

    def one(leaf: tf.TensorSpec) -> tf.TensorSpec:
        if not leaf.shape.rank:
            raise BudgetError(
                f"max_batch needs arguments whose first dimension is the batch; found {leaf}."
            )
        return tf.TensorSpec([batch, *leaf.shape[1:]], leaf.dtype)

    return tf.nest.map_structure(one, as_spec(spec))
