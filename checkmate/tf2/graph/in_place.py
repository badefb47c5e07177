"""Which inputs a group of ops writes its value over, and how many bytes it needs besides them.

TensorFlow's elementwise kernels, and some others, write their output into an input's buffer (they
forward the buffer) if it has the output's type and number of elements and nothing else holds it.
The table of op types lists the elementwise ones; `costs` measures the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import tensorflow as tf

from checkmate.core.op import Op
from checkmate.tf2.graph import bodies
from checkmate.tf2.graph.flat_graph import FlatGraph
from checkmate.tf2.graph.graph_writer import reachable
from checkmate.tf2.graph.operations import can_be_copied, may_share_memory, role_of, source_of
from checkmate.tf2.graph.sizes import SIDE_OUTPUT_SHARE, tensor_bytes
from checkmate.tf2.ops.rule import Role
from checkmate.tf2.ops.table import rule_of

Group = tuple[tf.Operation, ...]


def made_by(tensor: tf.Tensor) -> tf.Operation:
    """Returns the op whose buffer a tensor is, through aliases and views."""
    return buffer_of(tensor).op


def buffer_of(tensor: tf.Tensor) -> tf.Tensor:
    """Returns the tensor whose buffer a tensor is, through aliases and views."""
    tensor = source_of(tensor)
    while role_of(tensor.op) is Role.VIEW:
        tensor = source_of(tensor.op.inputs[0])
    return tensor


def candidates(group: Group, values: Group) -> list[tf.Tensor]:
    """Returns the tensors that a group reads and that its value could be written over, by their
    type, size and op.

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
    """Returns the largest of the tensors that ops make and the bytes of the others; None if a size
    is not known or all are 0."""
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
    """Returns the bytes that a group needs besides its inputs, its value included, as far as shapes
    and the table tell.

    Args:
      taken: The ops whose values only the group reads, so that it may write over them.
      within: Bytes that the bodies of ops of the group need while these run.
    """
    sizes = {operation: _known_bytes(operation) for operation in (*group, *taken)}
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
    """Returns the most bytes that one run of a body of a loop or condition has in memory besides
    what goes in, as far as shapes tell; 0 for another op.

    Args:
      graph: The graph of the step as it was traced; its bodies have the inferred shapes.
    """
    found = 0
    for body in bodies.bodies_of(graph, operation):
        if body is None:
            continue
        group = tuple(o for o in reachable(body) if role_of(o) is Role.KERNEL)
        within = {o: body_bytes(graph, o) for o in group}
        ends = tuple({made_by(tensor) for tensor in body.outputs})
        found = max(found, needed_bytes(group, ends, within=within))
    return found


def workspace(group: Group, values: Group, taken: Sequence[tf.Operation] = ()) -> int:
    """Returns the bytes that a group needs besides its inputs and its value, as far as shapes and
    the table tell."""
    return max(0, needed_bytes(group, values, taken) - sum(map(_known_bytes, values)))


def by_table(group: Group, values: Group) -> list[tf.Tensor]:
    """Returns those of the `candidates` that, by the table, the value is written over."""
    allowed = workspace(group, values)
    return [
        tensor
        for tensor in candidates(group, values)
        if needed_bytes(group, values, (tensor.op,)) <= allowed
    ]


def last_readers(
    ops: Sequence[Op], outputs: set[int], plain_order: Sequence[int]
) -> dict[int, int]:
    """For each value that is computed once, and that only ops read which run once, the last of
    these ops: every plan may free the value there.

    The same reader must be the last one in the order of the trace, too.
    """
    readers = _readers(ops)
    place = dict(zip(plain_order, range(len(ops)), strict=True))
    once = {i for i, op in enumerate(ops) if not op.recomputable}
    ends = {
        d: max(readers[d])
        for d in sorted(once - outputs)
        if readers[d] and once.issuperset(readers[d])
    }
    return {d: last for d, last in ends.items() if place[last] == max(place[u] for u in readers[d])}


def take_over(
    flat: FlatGraph,
    ops: list[Op],
    groups: Sequence[Group],
    values: Sequence[Group],
    last_readers: Mapping[int, int],
) -> tuple[Group, ...]:
    """Has each op that is the last reader of a value run after the other readers, if it is sure to
    write over the value; returns the values that each op writes over.

    That is sure only for a single value that no small op reads, since those run at any time, and
    for a last reader without scratch memory.
    """
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
    """The ops that read each op's value."""
    readers: list[list[int]] = [[] for _ in ops]
    for u, op in enumerate(ops):
        for d in op.deps:
            readers[d].append(u)
    return readers


def _forwarded(
    operation: tf.Operation, ending: list[tf.Operation], sizes: dict[tf.Operation, int]
) -> tf.Operation | None:
    """The op whose buffer an elementwise op forwards: one that nothing reads later, that has its
    size and that it reads once."""
    if not rule_of(operation.type).is_elementwise:
        return None
    reads = Counter(made_by(tensor) for tensor in operation.inputs)
    fitting = (o for o in ending if reads[o] == 1 and sizes[o] == sizes[operation])
    return next(fitting, None)


def _known_bytes(operation: tf.Operation) -> int:
    return sum(tensor_bytes(tensor) or 0 for tensor in operation.outputs)
