"""The parts of a training step, each with a fingerprint: they say in what two steps differ."""

from __future__ import annotations

import hashlib
from itertools import chain
from typing import Any

import tensorflow as tf

from checkmate.tf2.graph.sizes import tensor_bytes
from checkmate.tf2.graph.trace import TracedStep
from checkmate.tf2.ops.rule import Shares
from checkmate.tf2.ops.table import rule_of

PARTS = ("forward pass", "backward pass", "optimizer's update")
"""The parts, by name."""


SMALL_SHARE = 0.01
"""Values are small next to the largest of the step up to this share."""


def parts_of(traced: TracedStep) -> dict[str, str]:
    """Returns a fingerprint of each part: of the types of its ops and the shapes of their values,
    in any order. Small values are left out: whether they are planned depends on the whole step. So
    are counters and averages, which the forward pass updates."""
    found: dict[str, list[Any]] = {part: [] for part in PARTS}
    least = SMALL_SHARE * max(map(_bytes, chain.from_iterable(traced.groups)))
    needed = _before_gradients(traced)
    for op, group in zip(traced.graph.ops, traced.groups, strict=True):
        for operation in group:
            counts = not op.is_backward and not operation.outputs
            if counts or (operation.outputs and _bytes(operation) < least):
                continue
            is_gradient = _is_gradient(operation)
            part = PARTS[1 if is_gradient else 2 * (op.is_backward or operation not in needed)]
            shapes = [str(tensor.shape) for tensor in operation.outputs]
            found[part].append((operation.type, shapes))
    return {
        part: hashlib.sha256(repr(sorted(ops)).encode()).hexdigest()[:16]
        for part, ops in found.items()
    }


def _before_gradients(traced: TracedStep) -> set[tf.Operation]:
    """The ops that gradients or results are computed from. An update decays slots of the optimizer
    that no gradient has reached yet."""
    operations = chain.from_iterable(traced.groups)
    gradients = [o for o in operations if _is_gradient(o)]
    pending = [*gradients, *(tensor.op for tensor in traced.flat.outputs)]
    needed = set[tf.Operation]()
    while pending:
        operation = pending.pop()
        if operation not in needed:
            needed.add(operation)
            pending += [tensor.op for tensor in operation.inputs]
    return needed


def _is_gradient(operation: tf.Operation) -> bool:
    """True for an op of the backward pass by its name, which begins with the tape's, or by its type
    for sums of gradients; names of an update's ops begin with the optimizer's."""
    adds = rule_of(operation.type).shares is Shares.IDLE_SUM and "/" not in operation.name
    return operation.name.startswith("gradient_tape/") or adds


def _bytes(operation: tf.Operation) -> int:
    return sum(tensor_bytes(tensor) or 0 for tensor in operation.outputs)
