"""Questions about one operation of a graph, or about all that a function runs, answered by the
table of op types in `ops`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import tensorflow as tf

from checkmate.tf2.device import training_device
from checkmate.tf2.ops.rule import ListOp, Role, Runs, Shares, Source, State
from checkmate.tf2.ops.table import rule_of

ON_GPUS = (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int8, tf.uint8, tf.int64, tf.uint64)
"""Types for which GPUs have kernels that allocate memory, write a part of it, and copy it, all on
the device. (32-bit integers are kept in the host's memory, where `DeepCopy` copies them.)"""


def role_of(operation: tf.Operation) -> Role:
    return rule_of(operation.type).role


def is_argument(operation: tf.Operation) -> bool:
    return rule_of(operation.type).source is Source.ARGUMENT


def is_constant(operation: tf.Operation) -> bool:
    return rule_of(operation.type).source is Source.CONSTANT


def reads_variable(operation: tf.Operation) -> bool:
    return rule_of(operation.type).source is Source.VARIABLE


def is_loop(operation: tf.Operation) -> bool:
    return rule_of(operation.type).runs is Runs.LOOP


def is_call(operation: tf.Operation) -> bool:
    return rule_of(operation.type).runs is Runs.CALL


def has_bodies(operation: tf.Operation) -> bool:
    return rule_of(operation.type).runs in (Runs.LOOP, Runs.CONDITION)


def source_of(tensor: tf.Tensor) -> tf.Tensor:
    while role_of(tensor.op) is Role.ALIAS:
        tensor = tensor.op.inputs[tensor.value_index]
    return tensor


def variable_read(tensor: tf.Tensor, without: Collection[tf.Operation] = ()) -> tf.Operation | None:
    """The read of the variable that a tensor is, in any shape or precision and made without some
    ops; None where it is none."""
    operation = source_of(tensor).op
    if operation not in without and (
        role_of(operation) is Role.VIEW or rule_of(operation.type).casts
    ):
        return variable_read(operation.inputs[0], without)
    return operation if reads_variable(operation) else None


def can_be_copied(dtype: tf.DType) -> bool:
    """True for a dtype whose values are plain numbers in the allocator's memory."""
    return dtype.is_numpy_compatible and dtype not in (tf.string, tf.resource, tf.variant)


def can_be_filled(tensor: tf.Tensor) -> bool:
    """True if a value's memory can be allocated first, and TensorFlow has a kernel to copy
    there."""
    kernel = tensor.dtype in ON_GPUS or not training_device().startswith("GPU")
    return kernel and can_be_copied(tensor.dtype) and tensor.shape.is_fully_defined()


def keeps_order(transposition: tf.Operation) -> bool | None:
    """True if the axes of more than one element stay in order, so that no element moves; None if
    that is not known."""
    order = tf.get_static_value(transposition.inputs[1])
    shape = transposition.inputs[0].shape
    if order is None or shape.rank is None:
        return None
    moved = [axis for axis in order if shape[axis] != 1]
    return moved == sorted(moved)


def may_share_memory(tensor: tf.Tensor) -> bool:
    """True if a tensor's memory may be that of another tensor which its op reads or makes: nothing
    may then be written into it."""
    operation = tensor.op
    shares = rule_of(operation.type).shares
    if shares in (None, Shares.PART):
        return shares is Shares.PART
    if shares is Shares.IDLE_ORDER and (ordered := keeps_order(operation)) is not None:
        return ordered
    if shares is Shares.IDLE_SUM and len(operation.inputs) > 1:
        return False
    return any(
        each.shape.num_elements() == tensor.shape.num_elements()
        for each in operation.inputs
        if each.dtype == tensor.dtype
    )


def is_stateful(operation: tf.Operation) -> bool:
    """True if an op may change or depend on something other than its inputs; reads of variables and
    checks of numbers do not count."""
    rule = rule_of(operation.type)
    if rule.state in (State.READS, State.CHECKS):
        return False
    if rule.stateless_if and operation.get_attr(rule.stateless_if):
        return False
    return operation.op_def.is_stateful or rule.state is State.DRAWS


def is_known(operation: tf.Operation) -> bool:
    return hasattr(tf.raw_ops, operation.type) or rule_of(operation.type).from_optimizer


def may_run_again(operation: tf.Operation) -> bool:
    """True if another run on the same inputs gives the same outputs and changes nothing else."""
    calls_out = rule_of(operation.type).state is State.CALLS_OUT
    return is_known(operation) and not is_stateful(operation) and not calls_out


def may_repeat(operation: tf.Operation) -> bool:
    """True if a plan may recompute the op: it may run again, and makes tensors or lists of them."""
    opaque = any(tensor.dtype in (tf.variant, tf.resource) for tensor in operation.outputs)
    rule = rule_of(operation.type)
    makes_list = rule.list_op in (ListOp.EMPTY, ListOp.OF_ROWS) or rule.fills_with is not None
    return may_run_again(operation) and (not opaque or makes_list)


def static_shape(operation: tf.Operation, output: int) -> list[int] | int | None:
    """The value of an output of a SHAPE op, or None if a dimension is not known."""
    of_shape = rule_of(operation.type).of_shape
    return of_shape and of_shape(operation.inputs[output].shape)


def ties_recomputation(operation: tf.Operation) -> bool:
    """True for the op by which `tf.recompute_grad` makes its recomputation depend on the arriving
    gradient: a choice between 0 and a value that is not a number."""
    arity = len(operation.inputs), len(operation.outputs)
    numbers = (*operation.inputs[1:], *operation.outputs)
    if arity != (3, 1) or any(tensor.shape.rank != 0 for tensor in numbers):
        return False
    choices = [tf.get_static_value(tensor) for tensor in operation.inputs[1:]]
    return None not in choices and choices[0] == 0 and bool(choices[1] != choices[1])


def draws(concrete: Any) -> bool:
    graph_def = concrete.graph.as_graph_def()
    functions = (function.node_def for function in graph_def.library.function)
    nodes = (node for each in (graph_def.node, *functions) for node in each)
    return any(rule_of(node.op).state is State.DRAWS for node in nodes)
