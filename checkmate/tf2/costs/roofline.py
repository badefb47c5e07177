"""Cost models that run nothing: the roofline, from FLOPs and bytes, and unit costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from checkmate.tf2 import device as devices
from checkmate.tf2 import gpus
from checkmate.tf2.costs.cache import Measurement
from checkmate.tf2.graph import in_place
from checkmate.tf2.graph.bodies import body_of
from checkmate.tf2.graph.operations import is_loop
from checkmate.tf2.graph.sizes import LoopSizes, tensor_bytes
from checkmate.tf2.graph.trace import TracedStep
from checkmate.tf2.ops.table import rule_of


class Rates(NamedTuple):
    """Peak rates of a device. Plans depend on the ratio of the two only; the seconds are rough."""

    flops_per_s: float
    bytes_per_s: float


CPU = Rates(5e10, 8e9)
GPUS = {
    (7, 0): (Rates(15.7e12, 0.9e12),) * 2,  # V100 SXM2
    (7, 5): (Rates(8.1e12, 0.32e12),) * 2,  # T4
    (8, 0): (Rates(156e12, 1.555e12), Rates(19.5e12, 1.555e12)),  # A100 40GB
    (9, 0): (Rates(494e12, 3.35e12), Rates(67e12, 3.35e12)),  # H100 SXM, without sparsity
}
"""By compute capability what NVIDIA's data sheets say of the product of float32 matrices, in TF32,
which is TensorFlow's default from 8.0 on, and without."""

OTHER = (8, 0)
"""Stands for a GPU whose figures are not here: in TF32, 100 FLOP per byte of bandwidth. Of the GPUs
above, those without TF32 have 17 and 25, the newest has 147."""

LAUNCH_S = 5e-6
"""Seconds to start an op."""


def rates_of(device: str) -> Rates:
    if not device.startswith("GPU"):
        return CPU
    capability = tuple(gpus.details(device).get("compute_capability", OTHER))
    with_tf32, without = GPUS.get(capability, GPUS[OTHER])
    return with_tf32 if tf.config.experimental.tensor_float_32_execution_enabled() else without


def unit(traced: TracedStep, on_progress: Callable[[int, int], None]) -> list[Measurement]:
    """Counts every TensorFlow op as 1, the paper's unit cost."""
    return _per_op(traced, lambda operation: 1.0)


def roofline(traced: TracedStep, on_progress: Callable[[int, int], None]) -> list[Measurement]:
    """`roofline_s` of each TensorFlow op. A loop costs as much as the ops of its body, times the
    number of iterations if that is known."""
    rates = rates_of(devices.training_device())
    graph = traced.function.graph
    loops = LoopSizes(graph, tensor_bytes)

    def seconds(operation: tf.Operation) -> float:
        body = body_of(graph, operation, "body") if is_loop(operation) else None
        if body is None:
            return roofline_s(operation, rates)
        inner = (each for each in body.get_operations() if not rule_of(each.type).is_free)
        return (loops.iterations(operation) or 1) * sum(map(seconds, inner))

    return _per_op(traced, seconds)


def roofline_s(operation: tf.Operation, rates: Rates) -> float:
    """Estimated seconds: a launch, and the larger of FLOPs / FLOP rate and bytes read and written /
    memory bandwidth."""
    touched = sum(tensor_bytes(tensor) or 0 for tensor in (*operation.inputs, *operation.outputs))
    return LAUNCH_S + max(_flops(operation) / rates.flops_per_s, touched / rates.bytes_per_s)


def _flops(operation: tf.Operation) -> float:
    count = rule_of(operation.type).flops
    if count is None:
        return 0.0
    try:
        return count(operation)
    except (ValueError, IndexError):  # a shape is not known: bytes decide
        return 0.0


def _per_op(traced: TracedStep, cost: Callable[[tf.Operation], float]) -> list[Measurement]:
    parts = zip(traced.groups, traced.values, traced.taken, strict=True)
    return [
        Measurement(sum(map(cost, group)), in_place.workspace(group, values, taken))
        for group, values, taken in parts
    ]
