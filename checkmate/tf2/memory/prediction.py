"""The peak of a plan by the allocator's own count, before the plan is built: the requests of its
ops, served by a simulated allocator."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import tensorflow as tf

from checkmate.core.allocator import Pool, PoolExhausted, rounded_up
from checkmate.core.events import Events, Program
from checkmate.core.footprint import Footprint
from checkmate.core.graph import DFGraph
from checkmate.core.plan import Plan
from checkmate.errors import CheckmateError
from checkmate.tf2.execution.output_buffers import OutputBuffers
from checkmate.tf2.execution.replay import Written, write
from checkmate.tf2.graph.trace import TracedStep
from checkmate.tf2.memory.probe import probe
from checkmate.tf2.memory.program import Programs, constants_of, exact_bytes
from checkmate.tf2.memory.requests import address_of

log = logging.getLogger("checkmate")

STEPS = 6
"""How many steps are simulated: after a few, the free chunks that batches and results leave
repeat."""

_EMPTY_POOL_BYTES = 1 << 50


class Peak(NamedTuple):
    """The peak of simulated steps, by the allocator's count.

    Attributes:
      bytes: The most bytes in use.
      rise_bytes: The most that a step has in use beyond what is in use when it begins.
    """

    bytes: int
    rise_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class PlanOnPaper:
    """The ops and nodes of a plan, of which no TensorFlow op is made yet.

    Attributes:
      constants: The bytes of each constant of its function.
    """

    written: Written
    program: Program
    constants: tuple[int, ...]


@dataclass(slots=True, eq=False)
class Predictor:
    """Predicts the peaks of the plans of one step.

    Attributes:
      batch: The tensors of a batch that is in memory; empty where there is none.
      footprints: The requests of the step's ops, by the names of nodes; see `Program.events`.
      buffers: Those of the step's results; None where results have none.
      why_not: Why nothing can be predicted, as a clause; "" where it can.
      pool: The allocator's state; None where it is not known.
    """

    traced: TracedStep
    graph: DFGraph
    batch: Sequence[tf.Tensor]
    footprints: Mapping[str, Footprint] = field(default_factory=dict)
    buffers: OutputBuffers | None = None
    why_not: str = ""
    pool: Pool | None = None
    _programs: Programs | None = None

    def refresh(self, step_bytes: int) -> None:
        """Asks the allocator which of its chunks are free now.

        Args:
          step_bytes: What a step may take in one piece.
        """
        self.pool = None
        try:
            self.pool = probe(step_bytes)
            self.why_not = ""
        except CheckmateError as error:
            log.info("The allocator's state is not known: %s", error)
            self.why_not = str(error)

    def write(self, plan: Plan) -> PlanOnPaper:
        """Returns a plan's ops and nodes; no TensorFlow op is made yet."""
        if self._programs is None:
            self._programs = Programs(self.traced, self.graph)
        written = write(self.traced, plan, self.buffers)
        return PlanOnPaper(written, self._programs.of(written), constants_of(written))

    def peak(self, plan: PlanOnPaper) -> Peak | None:
        """Returns the highest peak over some steps on batches that lie elsewhere each time, made
        before or after the one before is given back. The batch that is there now is the first of
        them. None where memory runs out."""
        assert self.pool is not None
        return self._highest(self.pool, plan, self.batch)

    def plain_peak_bytes(self) -> int:
        """Returns the peak of the plain step in a loop that keeps the results of the last step, a
        batch and the constants included, in a pool without holes at its beginning."""
        pool = Pool.of_free_chunks([(_EMPTY_POOL_BYTES, _EMPTY_POOL_BYTES)])
        found = self._highest(pool, self.write(self.traced.plain_plan()), ())
        assert found is not None  # the pool has no limit
        return found.bytes

    @property
    def predicts(self) -> bool:
        """True where the allocator's state is known."""
        return self.pool is not None

    def _highest(self, pool: Pool, plan: PlanOnPaper, batch: Sequence[tf.Tensor]) -> Peak | None:
        events = plan.program.events(self.footprints)
        try:
            found = [
                self._peak(pool.copy(), events, plan.constants, batch, before_next)
                for before_next in (False, True)
            ]
        except PoolExhausted:
            return None
        return Peak(max(each.bytes for each in found), max(each.rise_bytes for each in found))

    def _peak(
        self,
        pool: Pool,
        events: Events,
        constants: Iterable[int],
        first: Sequence[tf.Tensor],
        before_next: bool,
    ) -> Peak:
        """The highest peak of some steps, whose loop releases a batch before the next one is made,
        or after that."""
        sizes = [size for tensor in self.traced.argument_tensors() if (size := exact_bytes(tensor))]
        batch: list[int | None] = list(add_batch(pool, first))
        peaks: list[Peak] = []
        results: list[int | None] = []
        for size in constants:
            pool.request(size)
        for number in range(STEPS):
            if number or not batch:
                old, batch = batch, []
                if before_next:
                    _release(pool, old)
                batch = [pool.request(size) for size in sizes]
                if not before_next:
                    _release(pool, old)
            buffers: dict[Hashable, int | None] = {}
            before = pool.in_use_bytes
            peak = pool.run(events.steps, buffers)
            peaks.append(Peak(peak, peak - before))
            _release(pool, results)
            results = [buffers[buffer] for buffer in events.results]
        return Peak(max(each.bytes for each in peaks), max(each.rise_bytes for each in peaks))


def _release(pool: Pool, addresses: Iterable[int | None]) -> None:
    for address in addresses:
        pool.release(address)


def add_batch(pool: Pool, batch: Iterable[tf.Tensor]) -> set[int]:
    """Adds the batch that is in use to a pool, and returns the addresses of its tensors, each
    once."""
    sizes = {}
    for tensor in batch:
        if (size := exact_bytes(tensor)) >= pool.smallest_bytes:
            # DLPack does not know all types.
            with contextlib.suppress(TypeError, ValueError, RuntimeError, tf.errors.OpError):
                sizes[address_of(tensor)] = rounded_up(size)
    for address, size in sizes.items():
        pool.add_chunk_in_use(address, size)
    return set(sizes)
