"""Models that do more than stack layers: branches, loops, custom gradients, variables written in
the forward pass."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers as L

from benchmarks.zoo.batches import (
    CROSS_ENTROPY,
    convolutions,
    normal,
    on_images,
    on_vectors,
    whole,
)
from checkmate.tf2.models import Workload


class Branching(keras.Model):
    """Subclassed, with loops, branches and None in Python."""

    def __init__(self) -> None:
        super().__init__(name="branching")
        self.blocks = [L.Dense(128, activation="relu" if k % 2 else None) for k in range(6)]
        self.head = L.Dense(10)
        self.drop = L.Dropout(0.2)

    def call(self, x: Any, training: bool = False, skip: Any = None) -> Any:
        for k, block in enumerate(self.blocks):
            y = block(x)
            if training and k % 3 == 0:
                y = self.drop(y, training=training)
            x = y if skip is None else skip + y
            if y.shape[-1] == 128:
                skip = y
        return self.head(x)


def branching(batch: int = 1024) -> Workload:
    """The model above."""
    return Workload(Branching(), CROSS_ENTROPY, normal(batch, 64), whole(batch, below=10))


class Recomputed(L.Layer):
    """Two dense layers under tf.recompute_grad, and one whose gradient is reversed by
    tf.custom_gradient."""

    def build(self, shape: Any) -> None:
        self.up, self.down, self.side = (
            L.Dense(256, activation="gelu"),
            L.Dense(shape[-1]),
            L.Dense(shape[-1]),
        )
        self.up.build(shape)
        self.down.build((*shape[:-1], 256))
        self.side.build(shape)

    def call(self, x: Any) -> Any:
        @tf.custom_gradient
        def reversed_gradient(x: Any) -> Any:
            return tf.identity(x), lambda upstream: -0.1 * tf.clip_by_norm(upstream, 1.0)

        @tf.custom_gradient
        def swish(x: Any) -> Any:
            def gradient(upstream: Any) -> Any:
                sigmoid = tf.sigmoid(x)
                return upstream * sigmoid * (1 + x * (1 - sigmoid))

            return x * tf.sigmoid(x), gradient

        return (
            x
            + tf.recompute_grad(lambda x: self.down(self.up(x)))(x)
            + self.side(swish(reversed_gradient(x)))
        )


def custom_gradients() -> Workload:
    """Custom gradients."""
    return on_vectors(
        [
            L.Dense(96),
            Recomputed(),
            Recomputed(),
            L.Lambda(lambda x: x + tf.stop_gradient(tf.round(x) - x)),
        ],
        name="custom_gradients",
    )


class Loops(L.Layer):
    """tf.cond, tf.while_loop, tf.map_fn and tf.scan."""

    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight(shape=(shape[-1], shape[-1]), initializer="orthogonal")

    def call(self, x: Any) -> Any:
        x = tf.cond(
            tf.reduce_mean(x) > 0.1, lambda: tf.sin(x @ self.kernel), lambda: x @ self.kernel + 1.0
        )
        _, x = tf.while_loop(
            lambda k, _: k < 3, lambda k, x: (k + 1, tf.tanh(x @ self.kernel)), (0, x)
        )
        mapped = tf.map_fn(lambda row: tf.cumsum(row), x)
        scanned = tf.scan(
            lambda total, row: 0.9 * total + row, x, initializer=tf.zeros(x.shape[-1])
        )
        return x + 0.1 * mapped + scanned


def loops(batch: int = 128) -> Workload:
    """TensorFlow's control flow between dense layers."""
    return on_vectors(
        [L.Dense(128, activation="gelu"), L.Dense(128, activation="gelu"), L.Dense(64), Loops()],
        name="loops",
        batch=batch,
    )


class Codebook(L.Layer):
    """Vectors replaced by the nearest of a codebook, updated by a moving average (van den Oord
    et al., 2017)."""

    def build(self, shape: Any) -> None:
        self.codes = self.add_weight(shape=(32, shape[-1]), initializer="normal", trainable=False)

    def call(self, x: Any) -> Any:
        flat = tf.reshape(x, [-1, x.shape[-1]])
        distances = (
            tf.reduce_sum(flat**2, 1, keepdims=True)
            - 2 * flat @ tf.transpose(self.codes)
            + tf.reduce_sum(self.codes**2, 1)
        )
        nearest = tf.one_hot(tf.argmin(distances, 1), 32)
        quantized = tf.reshape(nearest @ self.codes, tf.shape(x))
        self.add_loss(tf.reduce_mean((tf.stop_gradient(quantized) - x) ** 2))
        means = tf.math.divide_no_nan(
            tf.transpose(nearest) @ flat, tf.reduce_sum(nearest, 0)[:, None]
        )
        self.codes.assign(0.9 * self.codes + 0.1 * tf.stop_gradient(means))
        return x + tf.stop_gradient(quantized - x)


def codebook() -> Workload:
    """Variables that the forward pass reads and writes."""
    return on_images(
        [L.Conv2D(32, 3, padding="same", activation="relu"), Codebook(), *convolutions()],
        name="codebook",
        batch=4,
    )


def linear_algebra(batch: int = 256) -> Workload:
    """Cholesky factors, solves, determinants, sorting and segments in the loss: a Gaussian with
    full covariance per example."""
    vectors = keras.Input((32,))
    x = L.Dense(256, activation="tanh")(L.Dense(256, activation="tanh")(vectors))
    model = keras.Model(vectors, [L.Dense(8)(x), L.Dense(64)(x)], name="linear_algebra")

    def loss(labels: Any, found: Any) -> Any:
        mean, square = found[0], tf.reshape(found[1], [-1, 8, 8])
        covariance = square @ tf.transpose(square, [0, 2, 1]) + 2.0 * tf.eye(8)
        factor = tf.linalg.cholesky(covariance)
        scaled = tf.linalg.triangular_solve(factor, (labels - mean)[..., None])
        each = 0.5 * tf.reduce_sum(scaled**2, [1, 2]) + tf.reduce_sum(
            tf.math.log(tf.linalg.diag_part(factor)), 1
        )
        return tf.reduce_mean(tf.sort(each)[: batch - 8]) + 1e-3 * tf.reduce_mean(
            tf.linalg.slogdet(covariance)[1]
        )

    return Workload(model, loss, normal(batch, 32), normal(batch, 8, seed=5))


def dynamic_shapes(batch: int = 256) -> Workload:
    """Sizes known only when the step runs: boolean_mask, where, unique."""
    vectors = keras.Input((64,))
    x = L.Dense(256, activation="gelu")(L.Dense(256, activation="gelu")(vectors))
    model = keras.Model(vectors, L.Dense(64)(x), name="dynamic_shapes")

    def loss(labels: Any, found: Any) -> Any:
        positive = tf.boolean_mask(found, labels > 0)
        hard = tf.gather_nd(found, tf.where(found > 0.5))
        return tf.reduce_mean(tf.square(positive - 1.0)) + 0.1 * tf.reduce_sum(hard) / tf.cast(
            tf.size(hard) + 1, tf.float32
        )

    return Workload(model, loss, normal(batch, 64), normal(batch, 64, seed=5))


def python_calls(batch: int = 1024) -> Workload:
    """A layer that calls NumPy."""

    def table(x: Any) -> Any:
        return np.sign(x).astype("float32")

    layer = L.Lambda(
        lambda x: (
            x
            * tf.stop_gradient(tf.ensure_shape(tf.numpy_function(table, [x], tf.float32), x.shape))
        )
    )
    return on_vectors(
        [L.Dense(128, activation="relu"), layer, L.Dense(128, activation="relu")],
        name="python_calls",
        batch=batch,
    )


MODELS = (
    branching,
    custom_gradients,
    loops,
    codebook,
    linear_algebra,
    dynamic_shapes,
    python_calls,
)
