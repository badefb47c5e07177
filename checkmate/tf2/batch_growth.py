"""GraphGrowth: the graph of a training step at any batch, from its graphs at two small batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
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
      double: The graph at twice as many examples.
      plain_order: The order of the ops in the trace.
      other_bytes: What is in use on the device and not counted by the graph.
    """

    small: DFGraph
    double: DFGraph
    plain_order: tuple[int, ...]
    other_bytes: int

    @classmethod
    def of(
        cls, function: Callable, specs: Any, name: str, cost_model: str | CostModel
    ) -> GraphGrowth:
        """Traces a function for two small batches and measures both."""
        once = tf.function(function)
        # TensorFlow's graph optimizer may treat the two batches differently.
        for as_written in (False, True):
            small: TracedStep = trace(once, *specs, name=name, as_written=as_written)
            double = trace(
                once, *sized(specs, 2 * SMALL_BATCH), name=name, like=small, as_written=as_written
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
            other_bytes_in_use(small),
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


def sized(spec: Any, batch: int) -> Any:
    """Returns the specs with another first dimension."""

    def one(leaf: tf.TensorSpec) -> tf.TensorSpec:
        if not leaf.shape.rank:
            raise BudgetError(
                f"max_batch needs arguments whose first dimension is the batch; found {leaf}."
            )
        return tf.TensorSpec([batch, *leaf.shape[1:]], leaf.dtype)

    return tf.nest.map_structure(one, as_spec(spec))
