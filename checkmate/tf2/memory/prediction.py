"""The peak of a plan by the allocator's own count, before the plan is built: the requests of its
ops, served by a simulated allocator."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import tensorflow as tf

from checkmate.core.allocator import Pool, PoolExhausted, rounded_up
from checkmate.core.events import Events, Log, Program
from checkmate.core.footprint import Footprint, Kind, Node, Request
from checkmate.core.graph import DFGraph
from checkmate.core.plan import Plan
from checkmate.errors import CheckmateError
from checkmate.tf2.execution.replay import SCOPE, OutputBuffers, Written, write
from checkmate.tf2.graph import in_place
from checkmate.tf2.graph.operations import is_constant, is_loop, may_share_memory
from checkmate.tf2.graph.sizes import exact_bytes
from checkmate.tf2.graph.trace import TracedStep
from checkmate.tf2.memory.probe import address_of, probe
from checkmate.tf2.memory.profiler import Observation
from checkmate.tf2.ops.rule import Pooling, Role
from checkmate.tf2.ops.table import rule_of

_KINDS = {Role.ALIAS: Kind.VIEW, Role.VIEW: Kind.VIEW, Role.SOURCE: Kind.RESIDENT}


def node_of(definition: Any, like: tf.Operation | Iterable[tf.Tensor] | None) -> Node:
    """The node of an op, without measurements. `like` is the op that it is a copy of, or tensors
    like its outputs."""
    operation: Any = like if isinstance(like, tf.Operation) else None
    outputs: Any = like or () if operation is None else operation.outputs
    rule = rule_of(definition.op)
    kind = _KINDS.get(rule.role, Kind.KERNEL)
    sizes = tuple(exact_bytes(tensor) for tensor in outputs) or ((0,) if kind is Kind.VIEW else ())
    node = Node(
        definition.name,
        definition.name if operation is None else operation.name,
        kind,
        _reads(definition),
        sizes,
        in_place=rule.in_place is not None,
        lists=tuple(k for k, tensor in enumerate(outputs) if tensor.dtype == tf.variant),
    )
    if operation is None:
        return node
    return replace(node, shares=any(map(may_share_memory, outputs)))


def _hand_on_workspaces(nodes: list[Node], types: Sequence[str]) -> None:
    """Has the workspace of a pooling live until its gradient has run, which reads it in oneDNN and
    needs none of its own."""
    pools = {
        node.name: k for k, node in enumerate(nodes) if rule_of(types[k]).pooling is Pooling.FORWARD
    }
    for k, node in enumerate(nodes):
        is_gradient = rule_of(types[k]).pooling is Pooling.GRADIENT
        before = pools.get(node.reads[1][0]) if is_gradient else None
        if before is not None and (
            nodes[before].workspace_bytes or len(nodes[before].output_bytes) > 1
        ):
            pool = nodes[before]
            if pool.workspace_bytes:
                nodes[before] = replace(
                    pool, output_bytes=(*pool.output_bytes, pool.workspace_bytes), workspace_bytes=0
                )
            nodes[k] = replace(node, reads=(*node.reads, (pool.name, 1)), workspace_bytes=0)


def log_of(seen: Observation) -> Log:
    """The requests and releases of ops, for `core.events.requests_by_node`."""
    return [
        (
            event.op.removeprefix(f"{SCOPE}/") if event.is_request else None,
            event.address,
            event.requested_bytes,
            event.region_type == "output",
        )
        for event in seen.events
    ]


def _reads(definition: Any) -> tuple[tuple[str, int], ...]:
    return tuple(_tensor(name) for name in definition.input if name[0] != "^")


def _tensor(name: str) -> tuple[str, int]:
    operation, _, output = name.partition(":")
    return operation, int(output or 0)


def _workspaces(traced: TracedStep, graph: DFGraph) -> dict[str, int]:
    """The measured workspaces of a group's ops, by the name of the op that is expected to request
    it."""
    found = {}
    for op, group, values, taken in zip(
        graph.ops, traced.groups, traced.values, traced.taken, strict=True
    ):
        more = op.workspace_bytes - in_place.workspace(group, values, taken)
        heavy = [operation for operation in group if rule_of(operation.type).scratch]
        if more > 0 and heavy:
            found[heavy[0].name] = more
    return found


log = logging.getLogger("checkmate")

STEPS = 6
"""How many steps are simulated: after a few, the free chunks that batches and results leave
repeat."""

_EMPTY_POOL_BYTES = 1 << 50


class Peak(NamedTuple):
    """The peak of simulated steps by the allocator's count; `rise_bytes` above the bytes in use
    when a step begins."""

    bytes: int
    rise_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class PlanOnPaper:
    """The ops and nodes of a plan before any TensorFlow op is made, the bytes of each constant,
    which TensorFlow allocates once, and the requests of its ops."""

    written: Written
    program: Program
    constants: tuple[int, ...]
    footprints: Mapping[str, Footprint]

    @property
    def events(self) -> Events:
        return self.program.events(self.footprints)


@dataclass(slots=True, eq=False)
class Predictor:
    """Predicts the peaks of the plans of one step.

    Attributes:
      batch: The tensors of a batch that is in memory; empty without one.
      graph: Has the workspaces of ops that were not seen to run yet.
      footprints: The requests of the step's ops, by the names of nodes.
      why_not: Why nothing can be predicted, as a clause; "" where it can.
    """

    traced: TracedStep
    graph: DFGraph
    batch: Sequence[tf.Tensor]
    footprints: Mapping[str, Footprint] = field(default_factory=dict)
    buffers: OutputBuffers | None = None
    why_not: str = ""
    pool: Pool | None = None
    _workspaces: dict[str, int] = field(init=False)
    _in_place: set[str] = field(init=False)
    _nodes: dict[tf.Operation, Node] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._workspaces = _workspaces(self.traced, self.graph)
        self._in_place = {
            values[0].name
            for op, values in zip(self.graph.ops, self.traced.values, strict=True)
            if op.in_place and len(values) == 1
        }

    def refresh(self, step_bytes: int) -> None:
        """Asks the allocator which chunks are free now; a step needs at most `step_bytes` in one
        piece."""
        self.pool = None
        try:
            self.pool = probe(step_bytes)
            self.why_not = ""
        except CheckmateError as error:
            log.info("The allocator's state is not known: %s", error)
            self.why_not = str(error)

    def empty(self) -> None:
        """Predicts for a pool of which nothing is in use, and that has no limit: a peak above the
        budget is known, too."""
        self.pool = _empty_pool()

    def write(self, plan: Plan) -> PlanOnPaper:
        """The plan's ops and nodes, in the order in which they run, which is that in which they
        are written; no TensorFlow op is made yet."""
        return self.on_paper(write(self.traced, plan, self.buffers))

    def on_paper(
        self, written: Written, footprints: Mapping[str, Footprint] | None = None
    ) -> PlanOnPaper:
        """The nodes of a written plan; `footprints` are the requests of nodes that are no copies of
        the step's ops, by their names."""
        definitions, like = written.writer.nodes, written.writer.like
        nodes = [self._node(definition, like.get(definition.name)) for definition in definitions]
        _hand_on_workspaces(nodes, [definition.op for definition in definitions])
        program = Program(tuple(nodes), tuple(map(_tensor, written.outputs)))
        copied = (like.get(definition.name) for definition in definitions)
        constants = (o for o in copied if isinstance(o, tf.Operation) and is_constant(o))
        sizes = tuple(size for o in constants if (size := exact_bytes(o.outputs[0])))
        return PlanOnPaper(written, program, sizes, {**self.footprints, **(footprints or {})})

    def _node(self, definition: Any, like: Any) -> Node:
        """The node of an op; facts about it are found once for all plans."""
        if not isinstance(like, tf.Operation):
            return node_of(definition, like)
        if like not in self._nodes:
            node = node_of(definition, like)
            estimates = self.traced.estimates
            sizes = estimates.get(like.name) if node.kind is Kind.KERNEL else None
            if sizes is None and is_loop(like):  # what only the next turn reads is not made
                read = {tensor.ref() for tensor in self.traced.flat.outputs}
                sizes = tuple(
                    size if tensor.consumers() or tensor.ref() in read else 0
                    for size, tensor in zip(node.output_bytes, like.outputs, strict=True)
                )
            self._nodes[like] = replace(
                node,
                output_bytes=sizes or node.output_bytes,
                workspace_bytes=self._workspaces.get(like.name, 0),
                in_place=node.in_place or like.name in self._in_place,
            )
        return replace(self._nodes[like], name=definition.name, reads=_reads(definition))

    def peak(self, plan: PlanOnPaper) -> Peak | None:
        """The highest peak over some steps on batches at other addresses each time, made before or
        after the one before is released. The first is the batch that is there now. None where
        memory runs out."""
        assert self.pool is not None
        return self._highest(self.pool, plan, self.batch)

    def footprint(self, plan: PlanOnPaper) -> Footprint:
        """The requests of the plan as those of one kernel."""
        requests = [Request(size) for size in plan.constants]
        place: dict[int, int] = {}
        for buffer, size in plan.events.steps:
            if size:
                place[buffer] = len(requests)
                requests.append(Request(size))
            else:
                k = place[buffer]
                requests[k] = replace(requests[k], until=len(requests))
        return Footprint(tuple(requests), in_place=False)

    def plain_peak_bytes(self) -> int:
        """The plain step's peak in a loop that keeps the last step's results, a batch and the
        constants included, in a pool without holes at its beginning."""
        found = self._highest(_empty_pool(), self.write(self.traced.plain_plan()), ())
        assert found is not None  # the pool has no limit
        return found.bytes

    @property
    def predicts(self) -> bool:
        return self.pool is not None

    def _highest(self, pool: Pool, plan: PlanOnPaper, batch: Sequence[tf.Tensor]) -> Peak | None:
        events = plan.events
        try:
            found = [
                each
                for before_next in (False, True)
                for each in self._peaks(pool.copy(), events, plan.constants, batch, before_next)
            ]
        except PoolExhausted:
            return None
        return Peak(max(each.bytes for each in found), max(each.rise_bytes for each in found))

    def _peaks(
        self,
        pool: Pool,
        events: Events,
        constants: Iterable[int],
        first: Sequence[tf.Tensor],
        before_next: bool,
    ) -> list[Peak]:
        """The peaks of some steps, whose loop releases a batch before or after the next is made."""
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
        return peaks


def _empty_pool() -> Pool:
    return Pool.of_free_chunks([(_EMPTY_POOL_BYTES, _EMPTY_POOL_BYTES)])


def _release(pool: Pool, addresses: Iterable[int | None]) -> None:
    for address in addresses:
        pool.release(address)


def add_batch(pool: Pool, batch: Iterable[tf.Tensor]) -> set[int]:
    """Adds the batch in use to a pool, and returns the addresses of its tensors, each once."""
    sizes = {}
    for tensor in batch:
        if (size := exact_bytes(tensor)) >= pool.smallest_bytes:
            # DLPack does not know all types.
            with contextlib.suppress(TypeError, ValueError, RuntimeError, tf.errors.OpError):
                sizes[address_of(tensor)] = rounded_up(size)
    for address, size in sizes.items():
        pool.add_chunk_in_use(address, size)
    return set(sizes)
