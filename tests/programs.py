"""Small training steps of every kind: each function returns a step and a batch of 8 examples.

They train in float64, so that rounding does not hide a value that is wrong.
"""

from __future__ import annotations

import contextlib
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from checkmate.tf2.training_step import training_step

L = keras.layers
BATCH = 8


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=(BATCH, *shape))


def whole(*shape: int, below: int, seed: int = 1) -> Any:
    return np.random.default_rng(seed).integers(0, below, (BATCH, *shape)).astype("int32")


@contextlib.contextmanager
def double():
    """Layers made in this block compute in float64."""
    before = keras.config.floatx()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    try:
        keras.utils.set_random_seed(0)
        yield
    finally:
        keras.config.set_floatx(before)
        keras.config.set_dtype_policy(before)


def trained(model: keras.Model, loss: Any, inputs: Any, labels: Any, optimizer: Any = "sgd"):
    step, _ = training_step(model, loss, optimizer, inputs, labels)
    return step, (inputs, labels)


def cross_entropy():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def perceptron():
    inputs = keras.Input((6,))
    x = L.Dense(12, activation="gelu")(inputs)
    x = L.LayerNormalization()(L.Dense(12, activation="tanh")(x))
    return trained(
        keras.Model(inputs, L.Dense(4)(x)), cross_entropy(), normal(6), whole(below=4), "adam"
    )


def convolutional():
    inputs = keras.Input((8, 8, 3))
    x = L.Conv2D(4, 3, padding="same", activation="relu")(inputs)
    x = L.MaxPooling2D()(L.GroupNormalization(2)(x))
    x = L.SeparableConv2D(6, 3, padding="same")(x)
    x = L.GlobalAveragePooling2D()(L.AveragePooling2D(2)(x))
    return trained(keras.Model(inputs, x), "mse", normal(8, 8, 3), normal(6, seed=2))


def dilated():
    """The space becomes blocks before the batch."""
    inputs = keras.Input((8, 8, 2))
    x = L.Conv2D(4, 3, padding="same", dilation_rate=2, activation="relu")(inputs)
    x = L.Conv2DTranspose(3, 3, strides=2, padding="same")(x)
    return trained(keras.Model(inputs, x), "mse", normal(8, 8, 2), normal(16, 16, 3, seed=2))


def recurrent():
    inputs = keras.Input((5, 4))
    model = keras.Model(inputs, L.Dense(3)(L.LSTM(6)(inputs)))
    return trained(model, "mse", normal(5, 4), normal(3, seed=2))


def bidirectional():
    words = keras.Input((5,), dtype="int32")
    x = L.Embedding(9, 4, mask_zero=True)(words)
    x = L.Dense(3)(L.Bidirectional(L.GRU(6, return_sequences=True))(x))
    return trained(keras.Model(words, x), "mse", whole(5, below=9), normal(5, 3, seed=2), "rmsprop")


def transformer():
    """A padding mask, a mask of the future, dropout, and a loss over the words that are there."""
    words = keras.Input((6,), dtype="int32")
    x = L.Embedding(20, 8, mask_zero=True)(words)
    x = x + L.MultiHeadAttention(2, 4, dropout=0.2)(x, x, use_causal_mask=True)
    x = L.Dropout(0.2)(L.LayerNormalization()(x))
    model = keras.Model(words, L.Dense(20)(x))

    def loss(labels, found):
        each = keras.losses.sparse_categorical_crossentropy(labels, found, from_logits=True)
        there = tf.cast(labels != 0, each.dtype)
        return tf.reduce_sum(each * there) / tf.reduce_sum(there)

    return trained(model, loss, whole(6, below=20), whole(6, below=20, seed=3))


def embedding():
    words = keras.Input((5,), dtype="int32")
    x = L.Flatten()(L.Embedding(30, 4)(words))
    return trained(
        keras.Model(words, L.Dense(3)(x)), cross_entropy(), whole(5, below=30), whole(below=3)
    )


def unet():
    inputs = keras.Input((8, 8, 2))
    first = L.Conv2D(4, 3, padding="same", activation="relu")(inputs)
    x = L.Conv2D(6, 3, strides=2, padding="same", activation="relu")(first)
    x = L.UpSampling2D(interpolation="bilinear")(x)
    x = L.Conv2D(3, 3, padding="same")(L.Concatenate()([x, first]))
    return trained(keras.Model(inputs, x), cross_entropy(), normal(8, 8, 2), whole(8, 8, below=3))


def subpixels():
    inputs = keras.Input((4, 4, 2))
    x = L.Conv2D(8, 3, padding="same")(inputs)
    x = L.Lambda(lambda x: tf.nn.depth_to_space(x, 2), output_shape=(8, 8, 2))(x)
    return trained(keras.Model(inputs, x), "mae", normal(4, 4, 2), normal(8, 8, 2, seed=2))


def weighted():
    """Weights of examples, and the mean of those that are not zero."""
    kernel = tf.Variable(normal(3)[:6])

    def step(inputs, labels, weights):
        with tf.GradientTape() as tape:
            each = tf.reduce_sum((tf.tanh(inputs @ kernel) - labels) ** 2, 1)
            loss = tf.reduce_sum(weights * each) / tf.reduce_sum(weights)
            count = tf.math.count_nonzero(weights, dtype=tf.float64)
            loss += tf.reduce_sum(each) / count + tf.reduce_max(weights) * tf.reduce_mean(each)
        kernel.assign_sub(0.1 * tape.gradient(loss, kernel))
        return loss, each

    return step, (normal(6), normal(3, seed=2), np.abs(normal(seed=3)))


def regularized():
    inputs = keras.Input((6,))
    x = L.Dense(8, activation="relu", kernel_regularizer="l2")(inputs)
    x = L.ActivityRegularization(1e-3, 1e-3)(x)
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(global_clipnorm=0.5))
    return trained(
        keras.Model(inputs, L.Dense(3, kernel_constraint="unit_norm")(x)),
        "mse",
        normal(6),
        normal(3, seed=2),
        optimizer,
    )


def gradient_penalty():
    """A gradient within the loss, of which the gradient is taken."""
    kernels = [tf.Variable(normal(8)[:6]), tf.Variable(normal(1, seed=4))]

    def step(inputs):
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                inner.watch(inputs)
                opinion = tf.nn.softplus(inputs @ kernels[0]) @ kernels[1]
            slope = tf.norm(inner.gradient(opinion, inputs), axis=1)
            loss = tf.reduce_mean(opinion) + 10 * tf.reduce_mean((slope - 1) ** 2)
        for kernel, gradient in zip(kernels, tape.gradient(loss, kernels), strict=True):
            kernel.assign_sub(0.01 * gradient)
        return loss

    return step, (normal(6),)


def two_batches_at_once():
    """Real and made examples, one behind the other, as in a GAN's judge."""
    kernel, judge = tf.Variable(normal(4)[:3]), tf.Variable(normal(1)[:4])

    def step(noise, real):
        with tf.GradientTape() as tape:
            both = tf.concat([noise @ kernel, real], 0)
            opinion = tf.tanh(both @ judge)
            made, true = opinion[: noise.shape[0]], opinion[noise.shape[0] :]
            loss = tf.reduce_mean(made**2) + tf.reduce_mean((true - 1) ** 2)
        gradients = tape.gradient(loss, [kernel, judge])
        kernel.assign_sub(0.1 * gradients[0])
        judge.assign_sub(0.1 * gradients[1])
        return loss

    return step, (normal(3), normal(4, seed=5))


def experts():
    """The two best of four per word: the gradient scatters by positions in the batch."""
    kernels = [tf.Variable(normal(4)[:5]), tf.Variable(normal(4, 5, 5, seed=2)[0])]

    def step(inputs, labels):
        with tf.GradientTape() as tape:
            best, which = tf.math.top_k(tf.nn.softmax(inputs @ kernels[0]), 2)
            weights = tf.reduce_sum(tf.one_hot(which, 4, dtype=tf.float64) * best[..., None], 2)
            found = tf.einsum("bld,edh,ble->blh", inputs, kernels[1], weights)
            loss = tf.reduce_mean((found - labels) ** 2)
        for kernel, gradient in zip(kernels, tape.gradient(loss, kernels), strict=True):
            kernel.assign_sub(0.1 * gradient)
        return loss

    return step, (normal(3, 5), normal(3, 5, seed=3))


def graph_network():
    """Messages along edges, summed at the node, with all examples' nodes in one row."""
    kernel = tf.Variable(normal(4)[:4])

    def step(states, source, target):
        nodes = states.shape[1]
        with tf.GradientTape() as tape:
            sent = tf.tanh(tf.gather(states, source, batch_dims=1) @ kernel)
            place = target + tf.range(states.shape[0])[:, None] * nodes
            arrived = tf.math.unsorted_segment_sum(
                tf.reshape(sent, [-1, 4]), tf.reshape(place, [-1]), states.shape[0] * nodes
            )
            arrived = tf.gather(arrived, tf.reshape(place, [-1]))
            loss = tf.reduce_mean(arrived**2)
        kernel.assign_sub(0.1 * tape.gradient(loss, kernel))
        return loss

    return step, (normal(5, 4), whole(7, below=5), whole(7, below=5, seed=4))


def generator():
    """Numbers of a `tf.random.Generator`, whose state an op returns and advances."""
    random = tf.random.Generator.from_seed(4)
    kernel = tf.Variable(normal(10)[:6])

    def step(inputs):
        before = tf.cast(tf.reduce_sum(random.state % 7), tf.float64)
        with tf.GradientTape() as tape:
            x = tf.tanh(inputs @ kernel) + random.normal([inputs.shape[0], 10], dtype=tf.float64)
            x *= before + random.uniform([10], dtype=tf.float64)
            loss = tf.reduce_mean(x**2)
        kernel.assign_sub(0.01 * tape.gradient(loss, kernel))
        return loss

    step.generator = random
    return step, (normal(6),)


def one_generator():
    """Two masks from one generator, whose state is read, written and read again, and numbers of
    which a slice cannot draw a part: they are drawn before the slices."""
    inputs = keras.Input((6,))
    dropout = L.Dropout(0.4, seed=3)
    x = dropout(L.Dense(10, activation="tanh")(inputs))
    x = dropout(L.Dense(10)(x))
    model = keras.Model(inputs, L.Dense(2)(x))

    def loss(labels, found):
        noise = tf.random.stateless_truncated_normal(
            [found.shape[0]], seed=(1, 2), dtype=found.dtype
        )
        return tf.reduce_mean(noise[:, None] * (labels - found) ** 2)

    return trained(model, loss, normal(6), normal(2, seed=2))
