"""StepOnPaper: a training step that is planned and not run, whole and in slices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import keras

from checkmate.core.graph import DFGraph
from checkmate.core.replay import floor
from checkmate.errors import TraceError
from checkmate.tf2.graph.trace import AlreadyTraced, TracedStep, trace
from checkmate.tf2.micro_batches.sliced_step import SlicedStep, not_read_bytes
from checkmate.tf2.micro_batches.slices import Slices, examples_of, sliced_specs
from checkmate.units import format_bytes


class StepOnPaper:
    """A traced step, and the function that runs for a slice of its batch. With a model, the
    largest size of the dimensions that it leaves open can be found."""

    def __init__(
        self, step: Callable[..., Any], specs: Any, name: str, model: keras.Model | None = None
    ):
        self.step, self.specs, self.name, self.model = step, specs, name, model
        self.traced = trace(step, *specs, name=name)
        self.examples = examples_of(specs)
        self._sliced: SlicedStep | None = None
        self._single: DFGraph | None = None

    def slice(self, slices: Slices) -> TracedStep:
        """Traces the function of a slice. Raises `TraceError`, which names the op, where the
        examples of the batch are bound together."""
        sliced = self._sliced = self._sliced or SlicedStep(self.traced)
        if binding := sliced.binding:
            raise TraceError(f"{self.name!r} is not split: {binding.sentence}")
        functions = sliced.functions(slices)
        specs = functions.arguments(self.specs, of_slice=True)
        step = AlreadyTraced(functions.each[slices.size], specs)
        return trace(step, *specs, name=f"{self.name} in {slices.count} micro-batches")

    def smaller_batch(self, budget_bytes: int) -> str:
        """A sentence on whether a smaller batch may fit, "" for a batch of one."""
        if self.examples == 1:
            return ""
        if self._single is None:
            self._single = trace(self.step, *sliced_specs(self.specs, 1), name=self.name).graph
        least, budget = floor(self._single).bytes, format_bytes(budget_bytes)
        if least > budget_bytes:
            return f"Not even a batch of 1 fits {budget}: it needs {format_bytes(least)}."
        return f"A smaller batch may fit {budget}: one of 1 needs {format_bytes(least)} at least."

    def with_all_variables(self, part: TracedStep, graph: DFGraph) -> DFGraph:
        """The graph of a slice with the bytes of the variables that only the optimizer's update
        reads."""
        more = not_read_bytes(self.traced, part.function)
        return replace(graph, fixed_bytes=graph.fixed_bytes + more)
