"""Which inputs the value of a group of ops may be written over, and what the group needs besides.

TensorFlow's elementwise kernels, and some others, write their output into an input's buffer
("forward" it) where it has the output's type and number of elements and nobody else holds it. Which
kernels do, the table in `op_rules` says; `costs` finds it out for the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import tensorflow as tf

from checkmate.tf2 import ops as op_rules
from checkmate.tf2.graph.flat_graph import BESIDE, tensor_bytes
from checkmate.tf2.ops import Role

Group = tuple[tf.Operation, ...]


def made_by(tensor: tf.Tensor) -> tf.Operation:
    """Returns the op whose buffer a tensor is, through aliases and views."""
    return buffer_of(tensor).op


def buffer_of(tensor: tf.Tensor) -> tf.Tensor:
    """Returns the tensor whose buffer a tensor is, through aliases and views."""
    tensor = op_rules.source(tensor)
    while op_rules.role(tensor.op) is Role.VIEW:
        tensor = op_rules.source(tensor.op.inputs[0])
    return tensor


def candidates(group: Group, values: Group) -> list[tf.Tensor]:
    """Returns the tensors from outside of a group that its value could be written over, by their
    type, size and maker.

    Only a value that is one tensor is, but for small ones beside it: of several, one alone would
    take over the buffer. A tensor that may share its buffer with another one is never written over.
    """
    value, beside = main_tensor(values)
    if (
        len(values) != 1
        or value is None
        or beside > BESIDE * tensor_bytes(value)
        or not op_rules.can_be_copied(value.dtype)
    ):
        return []
    inside = set(group)
    read = {
        buffer.ref(): buffer
        for operation in group
        for tensor in operation.inputs
        for buffer in (buffer_of(tensor),)
    }
    return [
        tensor
        for tensor in read.values()
        if tensor.op not in inside
        and op_rules.role(tensor.op) is Role.KERNEL
        and not op_rules.may_share_memory(tensor)
        and tensor.dtype == value.dtype
        and tensor.shape.num_elements() == value.shape.num_elements() is not None
    ]


def main_tensor(values: Group) -> tuple[tf.Tensor | None, int]:
    """Returns the largest of the tensors that ops make, and the bytes of the others; None where the
    size of one is not known."""
    tensors = [tensor for operation in values for tensor in operation.outputs]
    sizes = [tensor_bytes(tensor) for tensor in tensors]
    if None in sizes or not any(sizes):
        return None, 0
    return tensors[sizes.index(max(sizes))], sum(sizes) - max(sizes)


def needs(group: Group, values: Group, gone: Sequence[tf.Operation] = ()) -> int:
    """Returns the bytes that a group takes beyond its inputs, its value included, as far as shapes
    and the table tell.

    Args:
      gone: The ops whose values nobody else holds, so that the group may write over them.
    """
    sizes = {
        operation: sum(tensor_bytes(tensor) or 0 for tensor in operation.outputs)
        for operation in (*group, *gone)
    }
    last_reader: dict[tf.Operation, tf.Operation] = {}
    for operation in group:
        for tensor in operation.inputs:
            last_reader[made_by(tensor)] = operation
    live = {operation: sizes[operation] for operation in gone}
    known = most = sum(live.values())  # counted as the inputs that they are
    for operation in group:
        ending = [o for o in live if o not in values and last_reader.get(o) is operation]
        # What an op reads twice, it does not write over.
        reads = Counter(made_by(tensor) for tensor in operation.inputs)
        forwards = operation.type in op_rules.IN_PLACE
        in_place = next(
            (o for o in ending if forwards and reads[o] == 1 and sizes[o] == sizes[operation]), None
        )
        if in_place is not None:
            del live[in_place]
        live[operation] = sizes[operation]
        most = max(most, sum(live.values()))
        for o in ending:
            live.pop(o, None)
    return most - known


def workspace(group: Group, values: Group, gone: Sequence[tf.Operation] = ()) -> int:
    """Returns the bytes that a group takes beyond its inputs and its value, as far as shapes and
    the table tell."""
    return max(
        0,
        needs(group, values, gone)
        - sum(tensor_bytes(tensor) or 0 for o in values for tensor in o.outputs),
    )


def by_table(group: Group, values: Group, workspace_bytes: int = 0) -> list[tf.Tensor]:
    """Returns those of the `candidates` that the table says the value is written over.

    Args:
      workspace_bytes: What the group was measured to take beyond its inputs and its value, where
        that is more than `workspace` says.
    """
    allowed = max(workspace_bytes, workspace(group, values))
    return [
        tensor
        for tensor in candidates(group, values)
        if needs(group, values, (tensor.op,)) <= allowed
    ]
