"""What a step needs whatever the plan: the proof of a refusal.

An op of the graph may stand for several TensorFlow ops, and holds what any of them reads until all
have run. That is how plans are made, not what the step needs: run apart, each of them holds its own
inputs and outputs alone. So an op of the graph needs no more than the one of them that needs most.
"""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from checkmate.core.graph import DFGraph
from checkmate.core.replay import Floor, op_floors
from checkmate.tf2.graph import in_place
from checkmate.tf2.graph.operations import may_share_memory
from checkmate.tf2.graph.sizes import tensor_bytes
from checkmate.tf2.graph.trace import TracedStep
from checkmate.tf2.ops import rule_of


@dataclass(frozen=True, slots=True)
class Need:
    """What must be in memory together while an op runs, whatever the plan.

    Attributes:
      bytes: All of it, fixed bytes included.
      op: Index of the op in the graph.
      values: (bytes, name) of the op's inputs, its value and its workspace, and of values that may
        not be recomputed and are still needed.
    """

    bytes: int
    op: int
    values: tuple[tuple[int, str], ...]


def needs_apart(traced: TracedStep, graph: DFGraph) -> list[Need]:
    """Returns what each op of a step's graph needs, its TensorFlow ops run apart.

    Args:
      graph: The step's graph with costs.
    """
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
    """(bytes, name) of what one op reads and makes, as far as shapes tell."""
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
