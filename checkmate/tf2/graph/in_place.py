"""Which inputs a group of ops writes its value over, and how many bytes it needs besides them.

TensorFlow's elementwise kernels, and some others, write their output into an input's buffer (they
forward the buffer) if it has the output's type and number of elements and nothing else holds it.
The table of op types lists the elementwise ones; `costs` measures the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from checkmate.core.op import Op
from checkmate.tf2.graph import bodies
from checkmate.tf2.graph.flat_graph import FlatGraph
from checkmate.tf2.graph.graph_writer import reachable
from checkmate.tf2.graph.operations import (
    can_be_copied,
    is_call,
    is_loop,
    may_share_memory,
    role_of,
    source_of,
)
from checkmate.tf2.graph.sizes import SIDE_OUTPUT_SHARE, known_bytes, tensor_bytes
from checkmate.tf2.ops.rule import Role
from checkmate.tf2.ops.table import rule_of

Group = tuple[tf.Operation, ...]


def made_by(tensor: tf.Tensor) -> tf.Operation:
    return buffer_of(tensor).op


def buffer_of(tensor: tf.Tensor) -> tf.Tensor:
    """The tensor whose buffer a tensor is, through aliases and views."""
    tensor = source_of(tensor)
    while role_of(tensor.op) is Role.VIEW:
        tensor = source_of(tensor.op.inputs[0])
    return tensor


def candidates(group: Group, values: Group) -> list[tf.Tensor]:
    """The tensors that a group's value could be written over, by their type, size and op.

    The value must be one tensor, apart from small ones next to it: of several values, one alone
    would take the buffer. A tensor that may share its memory with another one is no candidate.
    """
    value, others_bytes = main_tensor(values)
    if (
        len(values) != 1
        or value is None
        or others_bytes > SIDE_OUTPUT_SHARE * (tensor_bytes(value) or 0)
        or not can_be_copied(value.dtype)
    ):
        return []
    inside = set(group)
    buffers = (buffer_of(tensor) for operation in group for tensor in operation.inputs)
    return [
        tensor
        for tensor in {buffer.ref(): buffer for buffer in buffers}.values()
        if tensor.op not in inside
        and role_of(tensor.op) is Role.KERNEL
        and not may_share_memory(tensor)
        and tensor.dtype == value.dtype
        and tensor.shape.num_elements() == value.shape.num_elements() is not None
    ]


def main_tensor(values: Group) -> tuple[tf.Tensor | None, int]:
    """The largest of the tensors that ops make, and the bytes of the others; None if a size is not
    known or all are 0."""
    tensors = [tensor for operation in values for tensor in operation.outputs]
    sizes = [size for tensor in tensors if (size := tensor_bytes(tensor)) is not None]
    if len(sizes) < len(tensors) or not any(sizes):
        return None, 0
    return tensors[sizes.index(max(sizes))], sum(sizes) - max(sizes)


def needed_bytes(
    group: Group,
    values: Group,
    taken: Sequence[tf.Operation] = (),
    *,
    within: Mapping[tf.Operation, int] | None = None,
) -> int:
    """Bytes that a group needs besides its inputs, its value included, by shapes and the table.

    Args:
      taken: The ops whose values only the group reads, so that it may write over them.
    """
    sizes = {operation: known_bytes(operation.outputs) for operation in (*group, *taken)}
    last_reader: dict[tf.Operation, tf.Operation] = {}
    for operation in group:
        for tensor in operation.inputs:
            last_reader[made_by(tensor)] = operation
    live = {operation: sizes[operation] for operation in taken}
    inputs = peak = sum(live.values())
    for operation in group:
        ending = [o for o in live if o not in values and last_reader.get(o) is operation]
        forwarded = _forwarded(operation, ending, sizes)
        if forwarded is not None:
            del live[forwarded]
        live[operation] = sizes[operation]
        peak = max(peak, sum(live.values()) + (within or {}).get(operation, 0))
        for o in ending:
            live.pop(o, None)
    return peak - inputs


def body_bytes(graph: tf.Graph, operation: tf.Operation) -> int:
    """The most bytes that one run of a body of a loop or condition has in memory besides its
    inputs, as far as shapes or its plan tell; 0 for another op. `graph` is the step as it was
    traced."""
    return _most_bytes(graph, bodies.bodies_of(graph, operation))


def _most_bytes(graph: tf.Graph, functions: Sequence[Any]) -> int:
    found = 0
    for body in functions:
        if body is None:
            continue
        if taken := body.get_collection(bodies.TAKEN_BYTES):
            found = max(found, *taken)
            continue
        group = tuple(o for o in reachable(body) if role_of(o) is Role.KERNEL)
        inner = {o: bodies.called(o) if is_call(o) else bodies.bodies_of(graph, o) for o in group}
        within = {o: _most_bytes(graph, functions) for o, functions in inner.items()}
        ends = tuple({made_by(tensor) for tensor in body.outputs})
        found = max(found, needed_bytes(group, ends, within=within))
    return found


def workspace(group: Group, values: Group, taken: Sequence[tf.Operation] = ()) -> int:
    made = known_bytes(tensor for operation in values for tensor in operation.outputs)
    return max(0, needed_bytes(group, values, taken) - made)


def by_table(group: Group, values: Group) -> list[tf.Tensor]:
    allowed = workspace(group, values)
    found = candidates(group, values)
    return [each for each in found if needed_bytes(group, values, (each.op,)) <= allowed]


def continued(group: Group) -> set[tf.Operation]:
    """The loops that a loop goes on with, as a segment with what the one before has left: lists
    keep the entries that they have, and what is added up stays as large."""
    loops = [operation for operation in group if is_loop(operation)]
    return {
        tensor.op
        for loop in loops
        for k, tensor in enumerate(loop.inputs)
        if is_loop(tensor.op)
        and tensor.value_index == k
        and tensor.op.get_attr("body").name == loop.get_attr("body").name
    }


def last_readers(
    ops: Sequence[Op], outputs: set[int], plain_order: Sequence[int]
) -> dict[int, int]:
    """For each value that is computed once, and that only ops read which run once, the last of
    these ops, if it is also the last in the order of the trace: every plan may free the value
    there."""
    readers = _readers(ops)
    place = dict(zip(plain_order, range(len(ops)), strict=True))
    once = {i for i, op in enumerate(ops) if not op.recomputable}
    over = (d for d in sorted(once - outputs) if readers[d] and once.issuperset(readers[d]))
    ends = {d: max(readers[d]) for d in over}
    return {d: last for d, last in ends.items() if place[last] == max(place[u] for u in readers[d])}


def take_over(
    flat: FlatGraph,
    ops: list[Op],
    groups: Sequence[Group],
    values: Sequence[Group],
    last_readers: Mapping[int, int],
) -> tuple[Group, ...]:
    """Has each op that is the last reader of a value run after the other readers, if it is sure to
    write over the value: a single value that no small op reads, since those run at any time, and a
    reader without scratch memory. Returns the values that each op writes over."""
    readers = _readers(ops)
    taken: list[Group] = [()] * len(groups)
    for i, last in last_readers.items():
        if (
            len(values[i]) == 1
            and values[i][0] not in flat.read_once
            and not any(rule_of(o.type).scratch for o in groups[last])
        ):
            before = {*readers[i], *ops[last].control_deps} - {last}
            ops[last] = replace(ops[last], control_deps=tuple(sorted(before)))
            taken[last] += values[i]
    return tuple(taken)


def _readers(ops: Sequence[Op]) -> list[list[int]]:
    readers: list[list[int]] = [[] for _ in ops]
    for u, op in enumerate(ops):
        for d in op.deps:
            readers[d].append(u)
    return readers


def _forwarded(
    operation: tf.Operation, ending: list[tf.Operation], sizes: dict[tf.Operation, int]
) -> tf.Operation | None:
    """The op whose buffer an elementwise op forwards: one read here once and not later, of its
    size."""
    if not rule_of(operation.type).is_elementwise:
        return None
    reads = Counter(made_by(tensor) for tensor in operation.inputs)
    fitting = (o for o in ending if reads[o] == 1 and sizes[o] == sizes[operation])
    return next(fitting, None)
