"""Step: a training step and the pieces that it runs in; Rewrite: a way to write it otherwise.

A rewrite says where it applies (`sites`, the largest pieces first, without tracing or running
anything), applies there, and refuses with `TraceError`, which names the op. What was applied is the
step's record, which a plan file keeps: applied to a fresh trace of the same step, it gives the same
pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

import tensorflow as tf

from checkmate.core.graph import DFGraph
from checkmate.core.replay import floor
from checkmate.tf2.graph.sizes import known_bytes
from checkmate.tf2.graph.trace import TracedStep
from checkmate.tf2.graph.variables import variables_of
from checkmate.tf2.rewrites.slices import Slices, examples_of


class Equal(IntEnum):
    """How equal a step's numbers are to those of the step as it was written.

    BITS: all bits. ROUNDING: sums are added up in another order. DRAWS: besides, some random
    numbers are others, of the same distribution. STATISTICS: besides, what is computed across
    examples, such as a norm of the batch, is computed across those of a piece.
    """

    STATISTICS = 0
    DRAWS = 1
    ROUNDING = 2
    BITS = 3


class Applied(NamedTuple):
    """A rewrite, by its name, and the site where it was applied."""

    rewrite: str
    site: int


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """A function that a step runs, and how many times."""

    traced: TracedStep
    times: int


@dataclass(frozen=True, slots=True, eq=False)
class InSlices:
    """How a step runs in slices of its batch: `before(*batch)`, for each slice the function of its
    size, as `each(first, *batch, *early)`, and `after(*batch, *early)`.

    Attributes:
      early: The specs of the results of `before`.
      kept: The variables in which slices leave what is read after them.
    """

    slices: Slices
    before: Callable[..., Any]
    each: Mapping[int, TracedStep]
    after: TracedStep
    early: tuple[tf.TensorSpec, ...]
    kept: tuple[tf.Variable, ...]

    @property
    def kept_bytes(self) -> int:
        return known_bytes(self.kept)

    def specs(self, specs: Any, *, of_slice: bool) -> tuple[tf.TensorSpec, ...]:
        """The specs of the arguments of `each`, or else of `after`, by those of the step."""
        first = [tf.TensorSpec([], tf.int32)] if of_slice else []
        return (*first, *tf.nest.flatten(specs), *self.early)


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """A training step, as it runs.

    Attributes:
      source: The step as it was written, and the nest of specs of its arguments.
      traced: Its trace, for the whole batch.
      pieces: The functions that it runs; what they stand for in the step has no other place.
      record: The rewrites that made them, in order.
      equal: The weakest promise of these.
      in_slices: How it runs in slices of its batch; None where it runs in one.
      notes: Sentences for the report.
    """

    source: Callable[..., Any]
    specs: Any
    traced: TracedStep
    pieces: tuple[Piece, ...]
    record: tuple[Applied, ...] = ()
    equal: Equal = Equal.BITS
    in_slices: InSlices | None = None
    notes: tuple[str, ...] = field(default=())

    @classmethod
    def of(cls, source: Callable[..., Any], specs: Any, traced: TracedStep) -> Step:
        """The step as it was written."""
        return cls(source, specs, traced, (Piece(traced, 1),))

    @property
    def examples(self) -> int:
        return examples_of(self.traced.argument_tensors())

    @property
    def slices(self) -> Slices:
        return self.in_slices.slices if self.in_slices else Slices.of(self.examples, 1)

    @property
    def floor_bytes(self) -> int:
        """Bytes that no plan of its pieces takes less than."""
        return max(floor(each.traced.graph).bytes - each.traced.small_bytes for each in self.pieces)


class Rewrite(Protocol):
    """A way to write a step otherwise.

    Attributes:
      promise: How equal the numbers are at least.
    """

    name: str
    promise: Equal

    def sites(self, step: Step) -> Iterator[int]:
        """Yields where it may apply, the largest pieces first."""
        ...

    def apply(self, step: Step, site: int) -> Step:
        """The step, rewritten there. Raises `TraceError` where that is not possible."""
        ...

    def release(self) -> None:
        """Frees the functions that it keeps for other sites."""
        ...


def not_read_bytes(whole: TracedStep, piece: TracedStep) -> int:
    """Bytes of the step's variables that one of its pieces does not read, such as the slots of the
    optimizer, and which are in memory meanwhile."""
    read = {id(variable) for variable in variables_of(piece.function)}
    return known_bytes(each for each in whole.variables if id(each) not in read)


def with_all_variables(whole: TracedStep, piece: TracedStep, graph: DFGraph) -> DFGraph:
    """The graph of a piece with the bytes of the variables that it does not read."""
    more = not_read_bytes(whole, piece)
    return replace(graph, fixed_bytes=graph.fixed_bytes + more)
