"""What a plan will take by the allocator's own count, said before it is built: the requests of its
ops, served by the allocator's twin."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

import tensorflow as tf

from checkmate.core.allocator import Pool, PoolExhausted
from checkmate.core.events import Events, Log, Program, bursts, learn
from checkmate.core.footprint import Footprint
from checkmate.core.graph import DFGraph
from checkmate.core.plan import Plan
from checkmate.errors import CheckmateError
from checkmate.tf2.execution.output_buffers import OutputBuffers
from checkmate.tf2.execution.replay import Written, write
from checkmate.tf2.graph.sizes import rounded_up
from checkmate.tf2.graph.trace import TracedStep
from checkmate.tf2.memory.probe import address_of, probe
from checkmate.tf2.memory.program import Programs, exact_bytes

log = logging.getLogger("checkmate")

STEPS = 6
"""How many steps are simulated. What batches and results leave free between them comes to repeat by
turns within a few."""


@dataclass(slots=True, eq=False)
class Predictor:
    """Says what plans of one step take.

    Attributes:
      batch: The tensors of a batch that is in memory; empty where there is none.
      footprints: What the step's ops were seen to ask for, by the names of nodes; see
        `core.events.learn`.
      why_not: Why nothing can be predicted, as a clause; "" where it can.
    """

    traced: TracedStep
    graph: DFGraph
    batch: Sequence[tf.Tensor]
    buffers: OutputBuffers | None = None
    footprints: dict[str, Footprint] = field(default_factory=dict)
    why_not: str = ""
    _pool: Pool | None = None
    _programs: Programs | None = None

    def look(self, room_bytes: int) -> None:
        """Asks the allocator which of its chunks are free now.

        Args:
          room_bytes: What a step may take in addition.
        """
        self._pool = None
        if self.traced.has_loops:
            self.why_not = (
                "the step has loops, within which TensorFlow gives memory back at any time"
            )
            return
        try:
            self._pool = probe(room_bytes)
            self.why_not = ""
        except CheckmateError as error:
            log.info("The allocator's state is not known: %s", error)
            self.why_not = str(error)

    def write(self, plan: Plan) -> PlanOnPaper:
        """Returns a plan's ops and nodes, not made yet."""
        if self._programs is None:
            self._programs = Programs(self.traced, self.graph)
        written = write(self.traced, plan, self.buffers)
        return PlanOnPaper(written, self._programs.of(written))

    def peak_bytes(self, plan: PlanOnPaper) -> int | None:
        """Returns the highest bytes in use by the allocator's count over some steps on batches that
        lie elsewhere each time, made before or after the one before is given back. The batch that
        is there now is the first of them. None where memory runs out.
        """
        assert self._pool is not None
        events = plan.program.events(self.footprints)
        try:
            return max(
                self._peak(self._pool.copy(), events, before_next) for before_next in (False, True)
            )
        except PoolExhausted:
            return None

    def learn(self, plan: PlanOnPaper, requests: Log) -> None:
        """Takes what a plan's ops were seen to ask for as their footprints."""
        self.footprints |= learn(plan.program, bursts(requests))

    @property
    def predicts(self) -> bool:
        """True where the allocator's state is known."""
        return self._pool is not None

    def _peak(self, pool: Pool, events: Events, before_next: bool) -> int:
        """The highest peak of some steps, whose loop lets go of a batch before the next one is
        made, or after that."""
        sizes = [size for tensor in self.traced.argument_tensors() if (size := exact_bytes(tensor))]
        batch: list[int | None] = list(self._add_batch(pool))
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

    def _add_batch(self, pool: Pool) -> set[int]:
        """Tells a pool of the batch that is in use, and returns where its tensors lie, one that
        comes twice once."""
        sizes = {}
        for tensor in self.batch:
            if (size := exact_bytes(tensor)) >= pool.smallest_bytes:
                # Types that DLPack does not know.
                with contextlib.suppress(TypeError, ValueError, RuntimeError, tf.errors.OpError):
                    sizes[address_of(tensor)] = rounded_up(size)
        for address, size in sizes.items():
            pool.add_chunk_in_use(address, size)
        return set(sizes)

    @staticmethod
    def _release(pool: Pool, addresses: Iterable[int | None]) -> None:
        for address in addresses:
            pool.release(address)


@dataclass(frozen=True, slots=True, eq=False)
class PlanOnPaper:
    """A plan's ops and nodes, not made yet."""

    written: Written
    program: Program
