"""Made-up batches, layers and steps that several models of the zoo share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf
from keras import layers as L

from checkmate.tf2.models import Workload

CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@dataclass(frozen=True, slots=True)
class Task:
    """A training step that is no Keras model's, and the arguments of a call."""

    step: Callable[..., Any]
    batch: tuple[Any, ...]


def normal(*shape: int, seed: int = 1) -> tf.Tensor:
    """Standard normal numbers, the same in every run."""
    return tf.random.stateless_normal(shape, seed=(seed, 2))


def whole(*shape: int, below: int, seed: int = 3, dtype: tf.DType = tf.int32) -> tf.Tensor:
    """Whole numbers from 0 on, the same in every run."""
    return tf.random.stateless_uniform(shape, seed=(seed, 4), maxval=below, dtype=dtype)


class Positions(L.Layer):
    """Token embeddings with a learned embedding of each position added."""

    def __init__(self, length: int, words: int, width: int, **options):
        super().__init__(**options)
        self.length = length
        self.tokens, self.places = L.Embedding(words, width), L.Embedding(length, width)

    def call(self, tokens):
        return self.tokens(tokens) + self.places(keras.ops.arange(self.length))


def on_images(
    layers: list[Any], *, name: str, batch: int = 8, size: int = 48, optimizer: Any = "adam"
) -> Workload:
    """Layers on images, pooled into a class."""
    model = keras.Sequential(
        [keras.Input((size, size, 3)), *layers, L.GlobalAveragePooling2D(), L.Dense(10)], name=name
    )
    return Workload(
        model, CROSS_ENTROPY, normal(batch, size, size, 3), whole(batch, below=10), optimizer
    )


def on_vectors(
    layers: list[Any], *, name: str, batch: int = 1024, optimizer: Any = "adam"
) -> Workload:
    """Layers on vectors, and a class."""
    model = keras.Sequential([keras.Input((64,)), *layers, L.Dense(10)], name=name)
    return Workload(model, CROSS_ENTROPY, normal(batch, 64), whole(batch, below=10), optimizer)


def convolutions() -> list[Any]:
    """Three convolutions with BatchNormalization."""
    return [
        layer
        for width in (16, 32, 32)
        for layer in (L.Conv2D(width, 3, padding="same"), L.BatchNormalization(), L.ReLU())
    ]
