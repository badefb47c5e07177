"""Nets of which each example can be computed alone, and one of which not, with batches for them."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

EXAMPLES, SIDE = 16, 64


def images(examples=EXAMPLES):
    """A batch of images, labels of ten classes, and weights."""
    random = np.random.default_rng(0)
    return (
        random.normal(size=(examples, SIDE, SIDE, 3)).astype("float32"),
        random.integers(0, 10, examples),
        random.random(examples).astype("float32"),
    )


def net(norm=keras.layers.LayerNormalization, dtype="float32"):
    """A convolutional net with dropout and a regularizer; its activations take 1 MiB an example."""
    keras.utils.set_random_seed(0)
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input((SIDE, SIDE, 3)),
            layers.Conv2D(16, 3, padding="same", dtype=dtype),
            norm(dtype=dtype),
            layers.ReLU(dtype=dtype),
            layers.Dropout(0.3, dtype=dtype),
            layers.Conv2D(16, 3, padding="same", activation="relu", dtype=dtype),
            layers.Conv2D(16, 3, padding="same", activation="relu", dtype=dtype),
            layers.GlobalAveragePooling2D(dtype=dtype),
            layers.Dense(10, kernel_regularizer="l2", dtype="float32"),
        ],
        name="net",
    )


def loss():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def batch(examples=EXAMPLES):
    """Images and labels in TensorFlow's memory. `tf.constant` alone would leave them in NumPy's
    where that happens to be aligned, so that the allocator would begin each run of a test with
    other free chunks; those of this net are as large as its tensors."""
    pictures, labels, _ = images(examples)
    return tf.constant(pictures) + 0, tf.constant(labels) + 0
