"""Which kernels TensorFlow has registered for GPUs, asked where there is none: this alone uses
`tensorflow.python.framework.kernels`, which is private. A build without CUDA has none at all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, NamedTuple

import pytest
import tensorflow as tf
from tensorflow.python.framework import kernels

from checkmate.tf2.execution.replay import EVALUATION_MARK
from checkmate.tf2.graph.operations import has_bodies, is_argument

WITHOUT_KERNELS = ("NoOp", "Placeholder")
"""They run on any device, or never."""


class Kernel(NamedTuple):
    """The kernel that a GPU has for an op.

    Attributes:
      host_inputs: Indices of the inputs that it reads from the host's memory.
      host_outputs: Indices of the outputs that it leaves there.
    """

    host_inputs: tuple[int, ...]
    host_outputs: tuple[int, ...]


def needs_a_build_for_gpus() -> None:
    """Skips the test where this TensorFlow has no kernels for GPUs."""
    if not tf.test.is_built_with_gpu_support():
        pytest.skip("This TensorFlow is not built for GPUs.")


def gpu_kernel(operation: tf.Operation) -> Kernel | None:
    """The kernel of a GPU for an op; None if it has none, and the op runs on the host."""
    if operation.type in WITHOUT_KERNELS or is_argument(operation):
        return Kernel((), ())
    for kernel in _registered(operation.type):
        label = operation.node_def.attr["_kernel"].s.decode()
        if kernel.label != label or kernel.device_type not in ("GPU", "DEFAULT"):
            continue
        if all(_fits(operation, each) for each in kernel.constraint):
            definition, on_host = operation.op_def, set(kernel.host_memory_arg)
            return Kernel(
                tuple(_indices(operation, definition.input_arg, on_host)),
                tuple(_indices(operation, definition.output_arg, on_host)),
            )
    return None


def types_of(operation: tf.Operation) -> tuple[str, ...]:
    """The dtypes of an op's inputs and outputs, to name it by."""
    return tuple(tensor.dtype.name for tensor in (*operation.inputs, *operation.outputs))


def reads_host(operation: tf.Operation) -> list[tf.Tensor]:
    """The inputs that an op reads from the host's memory on a machine with a GPU. Loops and
    conditions choose by what they read there."""
    kernel = gpu_kernel(operation)
    if kernel is None:
        return list(operation.inputs)
    if has_bodies(operation):
        return [operation.inputs[0]]
    return [operation.inputs[k] for k in kernel.host_inputs]


def fetched(operation: tf.Operation) -> list[tf.Tensor]:
    """The inputs that an op reads from the host's memory and that are made in the GPU's: the host
    waits for all that the GPU was given before. Arguments, which are there anyway, do not count."""
    found = []
    for tensor in reads_host(operation):
        if is_argument(tensor.op) or tensor.dtype in (tf.resource, tf.variant):
            continue
        maker = gpu_kernel(tensor.op)
        if maker is not None and tensor.value_index not in maker.host_outputs:
            found.append(tensor)
    return found


def after_planned_ops(operations: Iterable[tf.Operation]) -> set[tf.Operation]:
    """The ops of a planned step that begin when a planned op has ended, by whatever edges.

    Args:
      operations: All ops of the step, inputs first.
    """
    found: set[tf.Operation] = set()
    for operation in operations:
        before = [tensor.op for tensor in operation.inputs] + list(operation.control_inputs)
        if any(each in found or EVALUATION_MARK in each.name for each in before):
            found.add(operation)
    return found


@cache
def _registered(op_type: str) -> tuple[Any, ...]:
    found = kernels.get_registered_kernels_for_op(op_type).kernel
    # TensorFlow prefers a kernel for GPUs to one for any device.
    return tuple(sorted(found, key=lambda kernel: (kernel.device_type != "GPU", -kernel.priority)))


def _fits(operation: tf.Operation, constraint: Any) -> bool:
    """Whether an op's attribute is among those that a kernel is registered for."""
    value = operation.node_def.attr[constraint.name]
    allowed = constraint.allowed_values.list
    if allowed.s:
        return value.s in allowed.s
    types = list(value.list.type) if value.HasField("list") else [value.type]
    return set(types) <= {*allowed.type}


def _indices(operation: tf.Operation, arguments: Any, names: set[str]) -> Iterator[int]:
    """The indices of the tensors of some arguments of an op, some of which are lists."""
    at = 0
    for argument in arguments:
        attributes = operation.node_def.attr
        count = 1
        if argument.number_attr:
            count = attributes[argument.number_attr].i
        elif argument.type_list_attr:
            count = len(attributes[argument.type_list_attr].list.type)
        if argument.name in names:
            yield from range(at, at + count)
        at += count
