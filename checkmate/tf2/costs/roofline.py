"""Cost models that run nothing: the roofline, from FLOPs and bytes, and unit costs."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from checkmate.tf2 import device as devices
from checkmate.tf2.costs.measurement import Measurement
from checkmate.tf2.graph import in_place
from checkmate.tf2.graph.bodies import body_of
from checkmate.tf2.graph.loop_sizes import LoopSizes
from checkmate.tf2.graph.operations import is_loop
from checkmate.tf2.graph.sizes import tensor_bytes
from checkmate.tf2.graph.trace import TracedStep
from checkmate.tf2.ops import rule_of

# Plans depend on the ratio of the two rates only. The seconds themselves are rough.
_RATES = {"CPU": (5e10, 8e9), "GPU": (1e13, 7e11)}  # FLOP/s, bytes/s
_LAUNCH_S = 5e-6


def unit(traced: TracedStep, on_progress: Callable[[int, int], None]) -> list[Measurement]:
    """Counts every TensorFlow op as 1, which the paper calls unit cost."""
    return _per_op(traced, lambda operation: 1.0)


def roofline(traced: TracedStep, on_progress: Callable[[int, int], None]) -> list[Measurement]:
    """Estimates seconds by `roofline_s` for each TensorFlow op.

    A loop costs what the ops of its body cost, times the number of iterations if that is known.
    """
    kind = devices.training_device().split(":")[0]
    graph = traced.function.graph
    loops = LoopSizes(graph, tensor_bytes)

    def seconds(operation: tf.Operation) -> float:
        body = body_of(graph, operation, "body") if is_loop(operation) else None
        if body is None:
            return roofline_s(operation, kind)
        inner = (each for each in body.get_operations() if not rule_of(each.type).is_free)
        return (loops.iterations(operation) or 1) * sum(map(seconds, inner))

    return _per_op(traced, seconds)


def roofline_s(operation: tf.Operation, kind: str) -> float:
    """Returns the estimated seconds of an op on a device of this kind ("CPU" or "GPU"): a launch,
    and the larger of FLOPs / FLOP rate and bytes read and written / memory bandwidth."""
    flop_rate, bandwidth = _RATES[kind]
    touched = sum(tensor_bytes(tensor) or 0 for tensor in (*operation.inputs, *operation.outputs))
    return _LAUNCH_S + max(_flops(operation) / flop_rate, touched / bandwidth)


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
