"""The names of the models that benchmarks train. TensorFlow is imported when one is made."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

WORKLOADS = (
    "mobilenet",
    "resnet50",
    "resnet50_160",
    "unet",
    "vgg16",
    "transformer",
    "tanh_transformer",
    "decoder",
    "densenet121",
    "efficientnetb0",
    "lstm",
    "mobilenet_ln",
    "encoder",
    "unet_without_norm",
    "large_unet",
    "super_resolution",
    "gpt",
    "vocabulary",
    "two_lstms",
    "two_grus",
)


def workload(name: str, batch: int | None = None) -> Any:
    """Returns a model with a batch of its own size, or of another."""
    from benchmarks.models import MODELS

    make, default = MODELS[name]
    return make(batch=batch or default)


class Measured(NamedTuple):
    """A step: seconds, the allocator's peak, everything resident included, and the loss."""

    seconds: float
    peak_bytes: int
    loss: float


def measured(call: Callable[[], Any]) -> Measured:
    from checkmate.tf2 import device as devices

    started = time.perf_counter()
    loss, _, peak = devices.peak_above(devices.training_device(), lambda: float(call()))
    return Measured(time.perf_counter() - started, peak, loss)
