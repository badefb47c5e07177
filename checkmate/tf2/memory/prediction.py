"""The peak of a plan by the allocator's own count, before the plan is built: the requests of its
ops, served by a simulated allocator."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

import tensorflow as tf

from checkmate.core.allocator import Pool, PoolExhausted, rounded_up
from checkmate.core.events import Events, Log, Program, bursts, learn
from checkmate.core.footprint import Footprint
from checkmate.core.graph import DFGraph
from checkmate.core.plan import Plan
from checkmate.errors import CheckmateError
from checkmate.tf2.execution.output_buffers import OutputBuffers
from checkmate.tf2.execution.replay import Written, write
from checkmate.tf2.graph.trace import TracedStep
from checkmate.tf2.memory.probe import probe
from checkmate.tf2.memory.program import Programs, exact_bytes
from checkmate.tf2.memory.requests import address_of

log = logging.getLogger("checkmate")

STEPS = 6
"""How many steps are simulated: after a few, the free chunks that batches and results leave
repeat."""


@dataclass(slots=True, eq=False)
class Predictor:
    """Predicts the peaks of the plans of one step.

    Attributes:
      batch: The tensors of a batch that is in memory; empty where there is none.
      buffers: Those of the step's results; None where results have none.
      footprints: What the step's ops were seen to ask for, by the names of nodes; see
        `core.events.learn`.
      why_not: Why nothing can be predicted, as a clause; "" where it can.
      pool: The allocator's state; None where it is not known.
    """

    traced: TracedStep
    graph: DFGraph
    batch: Sequence[tf.Tensor]
    buffers: OutputBuffers | None = None
    footprints: dict[str, Footprint] = field(default_factory=dict)
    why_not: str = ""
    pool: Pool | None = None
    _programs: Programs | None = None

    def refresh(self, step_bytes: int) -> None:
        """Asks the allocator which of its chunks are free now.

        Args:
          step_bytes: What a step may take in one piece.
        """
        self.pool = None
        if self.traced.has_loops:
            self.why_not = (
                "the step has loops, within which TensorFlow gives memory back at any time"
            )
            return
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
        return PlanOnPaper(written, self._programs.of(written))

    def peak_bytes(self, plan: PlanOnPaper) -> int | None:
        """Returns the highest bytes in use by the allocator's count over some steps on batches that
        lie elsewhere each time, made before or after the one before is given back. The batch that
        is there now is the first of them. None where memory runs out.
        """
        assert self.pool is not None
        events = plan.program.events(self.footprints)
        try:
            return max(
                self._peak(self.pool.copy(), events, before_next) for before_next in (False, True)
            )
        except PoolExhausted:
            return None

    def learn(self, plan: PlanOnPaper, requests: Log) -> None:
        """Learns the footprints of a plan's ops from the requests that were seen."""
        self.footprints |= learn(plan.program, bursts(requests))

    @property
    def predicts(self) -> bool:
        """True where the allocator's state is known."""
        return self.pool is not None

    def _peak(self, pool: Pool, events: Events, before_next: bool) -> int:
        """The highest peak of some steps, whose loop releases a batch before the next one is made,
        or after that."""
        sizes = [size for tensor in self.traced.argument_tensors() if (size := exact_bytes(tensor))]
        batch: list[int | None] = list(add_batch(pool, self.batch))
        peaks: list[int] = []
        results: list[int | None] = []
        for number in range(STEPS):
            if number or not batch:
                old, batch = batch, []
                if before_next:
                    self._release(pool, old)
                batch = [pool.request(size) for size in sizes]
                if not before_next:
                    self._release(pool, old)
            buffers: dict[Hashable, int | None] = {}
            peaks.append(pool.run(events.steps, buffers))
            self._release(pool, results)
            results = [buffers[buffer] for buffer in events.results]
        return max(peaks)

    @staticmethod
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


@dataclass(frozen=True, slots=True, eq=False)
class PlanOnPaper:
    """A plan's ops and nodes, of which no TensorFlow op is made yet."""

    written: Written
    program: Program
