"""A step that is ready to run, and the time that planning took."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from checkmate.core.graph import DFGraph
from checkmate.core.plan import Plan
from checkmate.solvers.result import SolveResult
from checkmate.tf2.graph.trace import TracedStep
from checkmate.tf2.report import Report


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """A step for one set of shapes, ready to run.

    Attributes:
      run: Takes the flattened arguments and returns what the step returns.
      result: The solver's judged answer, or None where the step runs unchanged.
      rise_bytes: The most that a step is predicted to have in use beyond what is in use when it
        begins; 0 where that is not known.
      part: Where the step runs in slices, the plan of a slice, which `graph`, `plan` and `result`
        are of; else None.
    """

    traced: TracedStep
    graph: DFGraph
    plan: Plan
    result: SolveResult | None
    run: Callable[..., Any] = field(repr=False)
    report: Report = field(repr=False)
    rise_bytes: int = 0
    part: Planned | None = None

    @property
    def cost(self) -> float:
        """Predicted seconds of the kernels; for a plan of slices, of one slice."""
        cost = self.result.cost if self.result else None
        return self.graph.total_cost if cost is None else cost

    @property
    def bound(self) -> float:
        """Seconds that no plan takes less than."""
        bound = self.result.bound if self.result else None
        return self.graph.total_cost if bound is None else bound


class Clock:
    """Seconds per phase, and those of all CPU cores; the times of a repeated phase add up."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.cpu_seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Adds the time that the block takes."""
        started, cpu_started = time.perf_counter(), time.process_time()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started
        self.cpu_seconds[name] = self.cpu_seconds.get(name, 0.0) + time.process_time() - cpu_started


def unchanged(traced: TracedStep, specs: tuple[Any, ...]) -> Callable[..., Any]:
    """Returns the step as it was traced, on flattened arguments."""
    return lambda *flat: traced.function(*tf.nest.pack_sequence_as(specs, flat))
