"""Cost models that run nothing: the roofline, from FLOPs and bytes, and unit costs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import tensorflow as tf

from checkmate.tf2 import device as devices
from checkmate.tf2.costs.cache import Measurement
from checkmate.tf2.graph import in_place
from checkmate.tf2.graph.bodies import body_of
from checkmate.tf2.graph.operations import is_loop
from checkmate.tf2.graph.sizes import LoopSizes, known_bytes, tensor_bytes
from checkmate.tf2.graph.trace import TracedStep
from checkmate.tf2.ops.table import rule_of


class Rates(NamedTuple):
    """Peak rates of a device. Plans depend on the ratio of the two only; the seconds are rough."""

    flops_per_s: float
    bytes_per_s: float


CPU = Rates(5e10, 8e9)


class GPU(NamedTuple):
    """A GPU by NVIDIA's data sheet: its memory, and its rates for the product of float32 matrices,
    without sparsity: in TF32, which is TensorFlow's default from 8.0 on, and without."""

    memory_gb: int
    with_tf32: Rates
    without_tf32: Rates


def _gpu(memory_gb: int, bandwidth_gb_s: float, float32: float, tf32: float = 0) -> GPU:
    of = partial(Rates, bytes_per_s=bandwidth_gb_s * 1e9)
    return GPU(memory_gb, of(1e12 * (tf32 or float32)), of(1e12 * float32))


NAMED = {
    "P100": _gpu(16, 732, 9.3),
    "V100": _gpu(16, 900, 15.7),
    "V100-32GB": _gpu(32, 900, 15.7),
    "T4": _gpu(16, 320, 8.1),
    "A100": _gpu(40, 1555, 19.5, 156),
    "A100-80GB": _gpu(80, 2039, 19.5, 156),
    "A10": _gpu(24, 600, 31.2, 62.5),
    "RTX3090": _gpu(24, 936, 35.6, 35.6),
    "RTX4090": _gpu(24, 1008, 82.6, 82.6),
    "L4": _gpu(24, 300, 30.3, 60),
    "H100": _gpu(80, 3350, 67, 494),
    "H200": _gpu(141, 4800, 67, 494),
}

GPUS = {
    capability: NAMED[name][1:]
    for capability, name in {
        (6, 0): "P100",
        (7, 0): "V100",
        (7, 5): "T4",
        (8, 0): "A100",
        (8, 6): "A10",
        (8, 9): "L4",
        (9, 0): "H100",
    }.items()
}
"""Rates by compute capability."""

OTHER = "A100"
"""Stands for a GPU whose figures are not here: in TF32, 100 FLOP per byte of bandwidth, of the
GPUs above 13 to 200."""

LAUNCH_S = 5e-6
"""Seconds to start an op."""


def rates_of(device: str) -> Rates:
    if not device.startswith("GPU"):
        return CPU
    capability = tuple(devices.gpu_details(device).get("compute_capability", ()))
    with_tf32, without = GPUS.get(capability, NAMED[OTHER][1:])
    return with_tf32 if tf.config.experimental.tensor_float_32_execution_enabled() else without


def unit(traced: TracedStep, on_progress: Callable[[int, int], None]) -> list[Measurement]:
    """Counts every TensorFlow op as 1, the paper's unit cost."""
    return _per_op(traced, lambda operation: 1.0)


def roofline(
    traced: TracedStep, on_progress: Callable[[int, int], None], rates: Rates | None = None
) -> list[Measurement]:
    """`roofline_s` of each TensorFlow op, on the device that trains where no rates are given. A
    loop costs as much as the ops of its body, times the number of iterations if that is known."""
    rates = rates or rates_of(devices.training_device())
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
    touched = known_bytes((*operation.inputs, *operation.outputs))
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
