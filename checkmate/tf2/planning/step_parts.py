"""The parts of a training step, each with a fingerprint: they say in what two steps differ."""

from __future__ import annotations

import hashlib
from typing import Any

import tensorflow as tf

from checkmate.tf2.graph.trace import TracedStep

PARTS = ("forward pass", "backward pass", "optimizer's update")
"""The parts, by name."""

GRADIENTS = ("gradient_tape/", "AddN")
"""How the names of the backward pass's ops begin; those of an update begin with the optimizer's."""


def parts_of(traced: TracedStep) -> dict[str, str]:
    """Returns a fingerprint of each part: of the types of its ops and the shapes of their values,
    in any order. Single numbers are left out, which are fused with whatever is next to them, and
    so are counters and averages, which the forward pass updates."""
    found: dict[str, list[Any]] = {part: [] for part in PARTS}
    for op, group in zip(traced.graph.ops, traced.groups, strict=True):
        for operation in group:
            counts = not op.is_backward and not operation.outputs
            if counts or (operation.outputs and all(map(_is_number, operation.outputs))):
                continue
            is_gradient = operation.name.startswith(GRADIENTS)
            part = PARTS[1 if is_gradient else 2 * op.is_backward]
            shapes = [str(tensor.shape) for tensor in operation.outputs]
            found[part].append((operation.type, shapes))
    return {
        part: hashlib.sha256(repr(sorted(ops)).encode()).hexdigest()[:16]
        for part, ops in found.items()
    }


def _is_number(tensor: tf.Tensor) -> bool:
    return tensor.shape.num_elements() == 1
