"""The error where no plan fits: the op that binds, the missing bytes, and what would fit."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass

import keras
import tensorflow as tf

from checkmate.core.graph import DFGraph
from checkmate.core.replay import Floor, floor, op_floors
from checkmate.errors import CheckmateError, InfeasibleBudgetError, NoPlanFoundError
from checkmate.solvers.layer_rules import LayerRules
from checkmate.solvers.solve import solve
from checkmate.tf2 import device as devices
from checkmate.tf2.graph import in_place
from checkmate.tf2.graph.bodies import function_names, planned_footprints
from checkmate.tf2.graph.operations import may_share_memory
from checkmate.tf2.graph.sizes import tensor_bytes
from checkmate.tf2.graph.trace import TracedStep, trace
from checkmate.tf2.ops import flops
from checkmate.tf2.ops.rule import Runs
from checkmate.tf2.ops.table import rule_of
from checkmate.tf2.planning.budget_loop import TUNING
from checkmate.tf2.planning.plan_search import PlanSearch
from checkmate.units import format_bytes, shown_bytes

# An op of the graph may stand for several TensorFlow ops, and holds what any of them reads until
# all have run. That is how plans are made, not what the step needs: run apart, each of them holds
# its own inputs and outputs alone. So an op of the graph needs no more than the one of them that
# needs most.


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes that must be in memory together while an op runs, whatever the plan, fixed bytes
    included. `values` are (bytes, name) of its inputs, value and workspace, and of values that may
    not be recomputed and are still needed."""

    bytes: int
    op: int
    values: tuple[tuple[int, str], ...]


def needs_apart(traced: TracedStep, graph: DFGraph) -> list[Need]:
    """The need of each op of a step's graph with costs, its TensorFlow ops run apart."""
    planned = traced.numbers()
    return [_need(traced, graph, planned, floor) for floor in op_floors(graph)]


def _need(
    traced: TracedStep, graph: DFGraph, planned: dict[tf.Operation, int], floor: Floor
) -> Need:
    v, ops = floor.op, graph.ops
    own = {*graph.deps[v], v}
    others = [(ops[i].output_bytes, ops[i].name) for i in floor.live if i not in own]
    together = [(ops[i].output_bytes, ops[i].name) for i in floor.live if i in own]
    together.append((ops[v].workspace_bytes, "workspace"))
    group = traced.groups[v]
    apart = max((_held(each, planned, bool(ops[v].in_place)) for each in group), key=_total)
    held = together if len(group) == 1 or _total(together) <= _total(apart) else apart
    return Need(graph.fixed_bytes + _total(others) + _total(held), v, (*others, *held))


def _held(
    operation: tf.Operation, planned: dict[tf.Operation, int], seen_in_place: bool
) -> list[tuple[int, str]]:
    """(bytes, name) of the inputs and outputs of one TensorFlow op, as far as shapes tell."""
    buffers = {buffer.ref(): buffer for buffer in map(in_place.buffer_of, operation.inputs)}
    read = [
        (tensor_bytes(buffer) or 0, buffer.op.name)
        for buffer in buffers.values()
        if buffer.op in planned
    ]
    made = sum(tensor_bytes(tensor) or 0 for tensor in operation.outputs)
    may_be_in_place = (
        seen_in_place
        or rule_of(operation.type).in_place is not None
        or any(map(may_share_memory, operation.outputs))
    )
    if may_be_in_place and any(size >= made for size, _ in read):
        return read
    return [*read, (made, operation.name)]


def _total(values: list[tuple[int, str]]) -> int:
    return sum(size for size, _ in values)


def _is_summed(operation: tf.Operation) -> bool:
    """Whether it makes a matrix for each example, of which only the sum is used."""
    return rule_of(operation.type).flops is flops.batch_product and any(
        made.shape.rank and made.shape.rank > 2 and output.shape == made.shape[-2:]
        for made in operation.outputs
        for reader in made.consumers()
        for output in reader.outputs
    )


NAMED = 3

WORTH_SAYING = 0.95
"""Sums in another order are advised where what must be in memory together falls to this share."""

DENSE_SUMS = (3, 15)
"""The version of Keras whose Dense layers have gradients of kernels without a batch axis."""


@dataclass(slots=True, eq=False)
class Refusal:
    """Why a search found no plan within the budget.

    A refusal is proven where the bytes that must be in memory together are above the budget, in
    whatever order ops run. A solver's proof for one order, small values, batches that a pipeline
    may make, and the expected overhead of the allocator prove nothing. `lowest_bytes` is the lowest
    expected peak of a plan, `smallest_bytes` a budget expected to be accepted, if they were found;
    `rounded_bytes` is what an op needs at least where sums are split, too, if that was looked at.
    """

    search: PlanSearch
    rounded_bytes: int | None = None
    lowest_bytes: int | None = None
    smallest_bytes: int | None = None

    def __post_init__(self) -> None:
        search = self.search
        lowest = search.lowest() if search.task.request.explains else None
        if lowest is not None and lowest.expected_bytes is not None:
            self.lowest_bytes = lowest.expected_bytes
            memory = search.memory
            # As much as its shown figure says.
            self.smallest_bytes = shown_bytes(memory.smallest_limit_bytes(self.lowest_bytes))

    def error(self) -> InfeasibleBudgetError | NoPlanFoundError:
        """The refusal in the user's terms, with what would work: the smallest budget, the largest
        batch."""
        search, memory = self.search, self.search.memory
        budget, needs = memory.limit_bytes, needs_apart(search.task.traced, search.graph)
        lowest = max(needs, key=lambda need: need.bytes)
        counted = floor(search.graph).bytes + memory.other_bytes
        proven = lowest.bytes + memory.other_bytes
        proven -= search.task.traced.small_bytes + memory.next_batch_bytes
        needed = max(counted, self.smallest_bytes or 0)
        binds = self._binds(lowest) + self._of_loops() + self._of_rules()
        advice = self._advice(needed) + self._of_sums(counted)
        asked = f"{format_bytes(budget)} for {search.task.request.name!r}"
        if proven > budget and not self._has_planned_bodies:
            return InfeasibleBudgetError(
                f"No plan fits {asked}: at least {format_bytes(proven)} are needed,"
                f" {format_bytes(proven - budget)} more. {binds} {advice}",
                budget_bytes=budget,
                floor_bytes=proven,
                op=lowest.op,
                op_name=search.graph.ops[lowest.op].name,
                smallest_budget_bytes=self.smallest_bytes,
            )
        best = self.lowest_bytes or getattr(search.solver.refusal, "best_peak_bytes", None)
        return NoPlanFoundError(
            f"No plan within {asked}: {self._found(counted)} {binds} {advice}",
            best_peak_bytes=best,
            smallest_budget_bytes=self.smallest_bytes,
        )

    def _found(self, counted: int) -> str:
        search, error = self.search, self.search.solver.refusal
        budget = search.memory.limit_bytes
        if counted > budget:
            return (
                "with small values and the next batch one is expected to take"
                f" {format_bytes(counted)} at least, {format_bytes(counted - budget)} too much."
            )
        if self.lowest_bytes is not None:
            over, end = self.lowest_bytes - budget, "which leaves less than the reserve."
            if over > 0:
                end = f"{format_bytes(over)} too much."
            lowest = format_bytes(self.lowest_bytes)
            return f"the lowest that was found is expected to take {lowest}, {end}"
        if isinstance(error, InfeasibleBudgetError):
            least = format_bytes(error.floor_bytes + search.memory.other_bytes)
            return (
                f"one in this order of ops asks for {least} at least, and what is left is expected"
                " to be lost by the allocator, which is no proof."
            )
        calls = search.solver
        return (
            f"solver {calls.name!r} found none in {calls.time_limit_s:g} s, which proves nothing."
        )

    def _binds(self, lowest: Need) -> str:
        graph, memory = self.search.graph, self.search.memory
        small = self.search.task.traced.small_bytes
        others = memory.other_bytes - memory.next_batch_bytes
        in_use = f"; {format_bytes(others)} more is in use on the device" if others else ""
        aside = memory.next_batch_bytes + small + memory.reserve_bytes
        return (
            f"Op {lowest.op} {graph.ops[lowest.op].name!r} needs"
            f" {format_bytes(lowest.bytes - small)} whatever the plan: resident"
            f" {format_bytes(graph.fixed_bytes - small)}{self._values(lowest)}{in_use}. A plan"
            f" leaves {format_bytes(aside)} besides, for the next batch, small values and a"
            f" reserve.{self._of_algorithms(lowest)}{self._of_dense(lowest)}"
        )

    @property
    def _has_planned_bodies(self) -> bool:
        """Whether a loop runs a body under a plan of its own: another one may need less."""
        traced = self.search.task.traced
        return any(planned_footprints(traced.function.graph, each) for each in traced.order)

    def _of_loops(self) -> str:
        """The loop that runs more ops than the rest of the step, if there is one: no plan changes
        it."""
        graph_def = self.search.task.traced.function.graph.as_graph_def()
        sizes = {each.signature.name: len(each.node_def) for each in graph_def.library.function}
        most, name = 0, ""
        for node in graph_def.node:
            inner = sum(sizes.get(each, 0) for each in function_names(node))
            if inner > most and rule_of(node.op).runs not in (Runs.CALL, Runs.CONDITION):
                most, name = inner, f"{node.name!r} ({node.op})"
        if most <= len(graph_def.node) or self._has_planned_bodies:
            return ""
        return (
            f" Most of the step runs within op {name}, a loop that a plan takes as one op: have one"
            " iteration be the step, and loop over calls of it in Python."
        )

    def _of_rules(self) -> str:
        """The rules for layers, and whether a plan is found without it."""
        search, options = self.search, self.search.task.request.options
        rules = LayerRules.of(search.graph, options.keep, options.recompute).text
        if not rules:
            return ""
        budget_bytes = search.limit_bytes - search.memory.other_bytes
        limit_s, found = TUNING.lowest_plan_s, None
        with (
            search.task.clock.phase("solving", limit_s=limit_s),
            contextlib.suppress(CheckmateError),
        ):
            found = solve(search.graph, max(1, budget_bytes), time_limit_s=limit_s)
        if found is None or found.overhead is None:
            return f" This is with {rules}; no plan was found without, either."
        return f" This is with {rules}: without, a plan fits for {found.overhead - 1:+.2%} time."

    def _of_sums(self, counted: int) -> str:
        """The bytes that would be saved by sums that are added up in another order."""
        if self.rounded_bytes is None or self.rounded_bytes > WORTH_SAYING * counted:
            return ""
        least, now = format_bytes(self.rounded_bytes), format_bytes(counted)
        return (
            " Or allow sums to be added up in another order, so that more ops run in parts:"
            f" rounding=True. What must be in memory together is then {least} instead of {now}."
        )

    def _of_algorithms(self, lowest: Need) -> str:
        """The limit of convolutions' workspaces on a GPU, where one binds."""
        types = [operation.type for operation in self.search.task.traced.groups[lowest.op]]
        if not devices.training_device().startswith("GPU") or not any(
            rule_of(each).tries_algorithms for each in types
        ):
            return ""
        return (
            f" {format_bytes(self.search.graph.ops[lowest.op].workspace_bytes)} of it are the"
            " workspace of the algorithm that cuDNN chose: TF_CUDNN_WORKSPACE_LIMIT_IN_MB, set"
            " before TensorFlow is imported, has it choose one that takes no more."
        )

    def _of_dense(self, lowest: Need) -> str:
        """The newer Keras whose Dense layers have no such gradient, where one binds."""
        group = self.search.task.traced.groups[lowest.op]
        version = tuple(int(part) for part in keras.__version__.split(".")[:2])
        if version >= DENSE_SUMS or not any(map(_is_summed, group)):
            return ""
        return (
            " It is a product for each example, of which only the sum is used. For Dense layers on"
            f" inputs of rank 3 or more, Keras 3.15 makes the sum alone; this is Keras"
            f" {keras.__version__}."
        )

    def _values(self, lowest: Need) -> str:
        sized = sorted((each for each in lowest.values if each[0]), reverse=True)
        named = [f"{name} {format_bytes(size)}" for size, name in sized[:NAMED]]
        if others := sized[NAMED:]:
            named.append(f"{len(others)} more {format_bytes(_total(others))}")
        return "".join(f", {each}" for each in named)

    def _advice(self, needed_bytes: int) -> str:
        if self.search.task.paper_bytes:
            if self.smallest_bytes is None:
                return ""
            smallest = format_bytes(self.smallest_bytes)
            return f"The smallest budget that a plan was found for is {smallest}."
        smaller = self._smaller_batch(needed_bytes)
        if self.smallest_bytes is None or self.smallest_bytes <= self.search.memory.limit_bytes:
            return f"Raise the budget{smaller}"
        return (
            f"The smallest budget that a plan was found for is {format_bytes(self.smallest_bytes)}."
            f" Raise the budget to that{smaller}"
        )

    def _smaller_batch(self, needed_bytes: int) -> str:
        """The end of the sentence that begins with "Raise the budget"."""
        request, memory = self.search.task.request, self.search.memory
        budget, resident = memory.limit_bytes, memory.resident_bytes - memory.batch_bytes
        if resident >= budget:
            return f", as {format_bytes(resident)} are resident whatever the batch."
        if self.search.task.examples == 1:
            return "."
        batch = self._batch_that_fits(needed_bytes)
        if batch == 0:
            return f", as not even a batch of 1 would fit {format_bytes(budget)}."
        smaller = ", or use a smaller batch."
        if batch is not None:
            smaller = f", or use a batch of at most {batch} within {format_bytes(budget)}."
        if request.explains and request.options.micro_batches == 1:
            smaller += ' Or have the batch run in slices: micro_batches="auto".'
        return smaller

    def _batch_that_fits(self, needed_bytes: int) -> int | None:
        """The largest batch within the budget, extrapolated linearly from the floor of one example;
        None where that is unknown."""
        batch = self.search.task.examples
        if batch is None or not self.search.task.request.explains:
            return None
        single = tf.nest.map_structure(
            lambda spec: (
                tf.TensorSpec([1, *spec.shape[1:]], spec.dtype) if spec.shape.rank else spec
            ),
            self.search.task.specs,
        )
        request, memory = self.search.task.request, self.search.memory
        try:
            single_graph = trace(request.step, *single, name=request.name).graph
        except CheckmateError:
            return None
        least = floor(single_graph).bytes + memory.other_bytes
        least -= memory.next_batch_bytes - memory.next_batch_bytes // batch
        per_example = max(TUNING.batch_margin * (needed_bytes - least) / (batch - 1), 1)
        return max(0, min(batch - 1, 1 + int((self.search.limit_bytes - least) // per_example)))


def needed_bytes(refusal: InfeasibleBudgetError | NoPlanFoundError) -> float:
    """The budget that would do, as far as a refusal tells."""
    known = (
        refusal.smallest_budget_bytes,
        getattr(refusal, "floor_bytes", None),
        getattr(refusal, "best_peak_bytes", None),
    )
    return next((each for each in known if each), math.inf)
