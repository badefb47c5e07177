"""Models of many kinds, small, untrained, on made-up batches: one function each."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

from checkmate.errors import CheckmateError

APPLICATIONS = (
    "MobileNet",
    "MobileNetV2",
    "MobileNetV3Small",
    "MobileNetV3Large",
    "ResNet50",
    "ResNet50V2",
    "DenseNet121",
    "EfficientNetB0",
    "EfficientNetV2B0",
    "InceptionV3",
    "Xception",
    "VGG16",
    "VGG19",
    "ConvNeXtTiny",
    "NASNetMobile",
)
"""Classes of keras.applications."""

FILES = ("sequences", "images", "structures", "layer_kinds", "programs", "own_steps")


def models() -> dict[str, Callable[..., Any]]:
    """Returns for each name the function that makes the `Workload` or `Task`, large models last."""
    from benchmarks.models import lstm
    from checkmate.demo.models import application, transformer, unet

    found: dict[str, Callable[..., Any]] = {
        "unet": partial(unet, batch=2, size=96),
        "encoder": partial(transformer, batch=8, length=64, depth=4),
        "lstm": partial(lstm, batch=16, length=32, depth=2),
    }
    for module in FILES:
        definitions = importlib.import_module(f"benchmarks.zoo.{module}")
        found |= {make.__name__: make for make in definitions.MODELS}
    for name in APPLICATIONS:
        batch = 8 if name.startswith("MobileNet") else 4
        size = 128 if batch == 8 or name == "InceptionV3" else 96
        found[name.lower()] = partial(application, name, size=size, batch=batch, classes=100)
    return found


def training(name: str) -> tuple[Callable, tuple[Any, ...]]:
    """Returns the training step of a model, and its arguments."""
    import keras

    from checkmate.tf2.training_step import training_step

    keras.utils.set_random_seed(0)
    known = models()
    if name not in known:
        raise CheckmateError(
            f"There is no model {name!r} in the zoo. There are {', '.join(known)}."
        )
    work = known[name]()
    if not hasattr(work, "model"):  # a `Task`
        return work.step, work.batch
    step, _ = training_step(work.model, work.loss, work.optimizer, work.inputs, work.labels)
    return step, (work.inputs, work.labels)
