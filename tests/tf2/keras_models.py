"""Small models of every kind that training has to get right, with a batch each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

L = keras.layers


@dataclass
class Case:
    model: keras.Model
    loss: Any
    inputs: Any
    labels: Any


def mlp(batch: int = 2048) -> Case:
    inputs = keras.Input((64,))
    x = inputs
    for _ in range(6):
        x = L.Dense(128, activation="relu")(x)
    return Case(
        keras.Model(inputs, L.Dense(10)(x)),
        _categorical(True),
        _normal(batch, 64),
        _classes(10, batch),
    )


def cnn(batch: int = 8) -> Case:
    inputs = keras.Input((32, 32, 3))
    x = inputs
    for width in (16, 32, 32):
        x = L.Conv2D(width, 3, padding="same")(x)
        x = L.Dropout(0.3)(L.ReLU()(L.BatchNormalization()(x)))
    x = L.GlobalAveragePooling2D()(x)
    return Case(
        keras.Model(inputs, L.Dense(10, kernel_regularizer="l2")(x)),
        _categorical(True),
        _normal(batch, 32, 32, 3),
        _classes(10, batch),
    )


def unet(batch: int = 16, size: int = 32) -> Case:
    def block(x, width):
        for _ in range(2):
            x = L.ReLU()(
                L.BatchNormalization()(L.Conv2D(width, 3, padding="same", use_bias=False)(x))
            )
        return x

    inputs = keras.Input((size, size, 3))
    x, skips = inputs, []
    for width in (8, 16):
        x = block(x, width)
        skips.append(x)
        x = L.MaxPooling2D()(x)
    x = block(x, 32)
    for width, skip in zip((16, 8), reversed(skips), strict=True):
        x = block(L.Concatenate()([L.Conv2DTranspose(width, 2, strides=2)(x), skip]), width)
    outputs = L.Conv2D(5, 1, activation="softmax")(x)
    return Case(
        keras.Model(inputs, outputs),
        _categorical(False),
        _normal(batch, size, size, 3),
        _classes(5, batch, size, size),
    )


def transformer(batch: int = 8, length: int = 32, width: int = 32, depth: int = 2) -> Case:
    tokens = keras.Input((length,), dtype="int32")
    x = L.Embedding(50, width)(tokens)
    for _ in range(depth):
        y = L.LayerNormalization()(x)
        x = L.Add()([x, L.Dropout(0.1)(L.MultiHeadAttention(4, width // 4, dropout=0.1)(y, y))])
        y = L.LayerNormalization()(x)
        x = L.Add()([x, L.Dropout(0.1)(L.Dense(width)(L.Dense(4 * width, activation="gelu")(y)))])
    return Case(
        keras.Model(tokens, L.Dense(50)(x)),
        _categorical(True),
        _classes(50, batch, length),
        _classes(50, batch, length),
    )


def lstm(batch: int = 64, length: int = 12) -> Case:
    """Two loops between dense layers, which make what there is to recompute."""
    inputs = keras.Input((length, 16))
    x = inputs
    for _ in range(4):
        x = L.Dense(256, activation="tanh")(x)
    x = L.Dense(64, activation="tanh")(L.LSTM(16, return_sequences=True)(x))
    return Case(
        keras.Model(inputs, L.Dense(5)(L.GRU(8)(x))),
        _categorical(True),
        _normal(batch, length, 16),
        _classes(5, batch),
    )


def two_inputs(batch: int = 1024) -> Case:
    """A dict of inputs, a list of outputs, a custom loss over both."""
    left, right = keras.Input((32,), name="left"), keras.Input((32,), name="right")
    x = L.Concatenate()(
        [L.Dense(128, activation="gelu")(left), L.Dense(128, activation="swish")(right)]
    )
    for _ in range(3):
        x = L.Dense(128, activation="tanh")(x)
    model = keras.Model({"left": left, "right": right}, [L.Dense(1)(x), L.Dense(4)(x)])

    def loss(labels, prediction):
        return keras.ops.mean((labels["value"] - prediction[0]) ** 2) + keras.ops.mean(
            keras.losses.sparse_categorical_crossentropy(
                labels["kind"], prediction[1], from_logits=True
            )
        )

    inputs = {"left": _normal(batch, 32), "right": _normal(batch, 32)}
    return Case(model, loss, inputs, {"value": _normal(batch, 1), "kind": _classes(4, batch)})


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.blocks = [L.Dense(128) for _ in range(5)]
        self.head = L.Dense(3)

    def call(self, x, training=False):
        for block in self.blocks:
            x = keras.ops.sin(block(x)) + 0.1
            self.add_loss(1e-3 * keras.ops.mean(x**2))
        return self.head(x)


def subclassed(batch: int = 1024) -> Case:
    return Case(Subclassed(), _categorical(True), _normal(batch, 32), _classes(3, batch))


ALL = {case.__name__: case for case in (mlp, cnn, unet, transformer, lstm, two_inputs, subclassed)}


def _normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype("float32")


def _classes(count: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, count, shape).astype("int32")


def _categorical(from_logits: bool) -> keras.losses.Loss:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=from_logits)
