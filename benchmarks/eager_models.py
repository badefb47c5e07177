"""Eager workloads for `python -m benchmarks dtr-eager`: Python decides as it runs what each
step does.

Each is a function without arguments that returns (the variables, a function that computes the loss,
the variables with all state).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from checkmate.errors import CheckmateError

Workload = tuple[list[Any], Callable[[], Any], list[Any]]


def mlp(batch: int = 4096, width: int = 128, depth: int = 16) -> Workload:
    """Dense layers of one width."""
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Input((width,)),
            *(layers.Dense(width, activation="relu") for _ in range(depth)),
            layers.Dense(10),
        ]
    )
    return _classifier(model, tf.random.stateless_normal((batch, width), (1, 2)))


def cnn(batch: int = 32, size: int = 48, blocks: int = 4, channels: int = 32) -> Workload:
    """Convolutions with BatchNormalization and Dropout, a pooling after every second."""
    layers = keras.layers
    x = inputs = keras.Input((size, size, 3))
    for k in range(blocks):
        x = layers.ReLU()(
            layers.BatchNormalization()(
                layers.Conv2D(channels, 3, padding="same", use_bias=False)(x)
            )
        )
        x = layers.Dropout(0.2, seed=k)(x)
        x = layers.MaxPooling2D()(x) if k % 2 else x
    model = keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))
    return _classifier(model, tf.random.stateless_normal((batch, size, size, 3), (1, 2)))


def attention(
    batch: int = 16, length: int = 64, width: int = 128, heads: int = 4, depth: int = 3
) -> Workload:
    """A Keras Functional model: pre-norm transformer encoder with dropout."""
    layers = keras.layers
    x = inputs = keras.Input((length, width))
    for k in range(depth):
        y = layers.LayerNormalization()(x)
        x = layers.Add()(
            [x, layers.MultiHeadAttention(heads, width // heads, dropout=0.1, seed=k)(y, y)]
        )
        y = layers.Dense(4 * width, activation="gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dropout(0.1, seed=k)(layers.Dense(width)(y))])
    model = keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling1D()(x)))
    return _classifier(model, tf.random.stateless_normal((batch, length, width), (1, 2)))


def lstm(steps: int = 48, batch: int = 256, width: int = 256) -> Workload:
    """An LSTM as a Python loop over time."""
    gates, head = _dense(2 * width, 4 * width), _dense(width, 1)
    inputs = [tf.random.stateless_normal((batch, width), (1, t)) for t in range(steps)]
    target = tf.random.stateless_normal((batch, 1), (2, 0))

    def loss():
        h = c = tf.zeros((batch, width))
        outputs = []
        for x in inputs:
            i, j, f, o = tf.split(gates(tf.concat([x, h], 1)), 4, axis=1)
            c = tf.sigmoid(f + 1.0) * c + tf.sigmoid(i) * tf.tanh(j)
            h = tf.sigmoid(o) * tf.tanh(c)
            outputs.append(h)
        return tf.reduce_mean((head(tf.add_n(outputs) / steps) - target) ** 2)

    variables = gates.trainable_variables + head.trainable_variables
    return variables, loss, variables


def tree_lstm(leaves: int = 48, batch: int = 128, width: int = 256, seed: int = 0) -> Workload:
    """A binary TreeLSTM (Tai et al., 2015) on a random tree of `leaves` leaves, that is 2 *
    `leaves` - 1 nodes."""
    draw = random.Random(seed)

    def grown(count: int) -> Any:
        cut = draw.randint(1, count - 1) if count > 1 else 0
        return (grown(cut), grown(count - cut)) if cut else None

    tree = grown(leaves)
    leaf, inner, head = _dense(width, 3 * width), _dense(2 * width, 5 * width), _dense(width, 1)
    data = [tf.random.stateless_normal((batch, width), (1, k)) for k in range(leaves)]
    target = tf.random.stateless_normal((batch, 1), (2, 0))

    def loss():
        words = iter(data)

        def node(tree):
            if tree is None:
                i, o, u = tf.split(leaf(next(words)), 3, axis=1)
                c = tf.sigmoid(i) * tf.tanh(u)
                return tf.sigmoid(o) * tf.tanh(c), c
            (h_left, c_left), (h_right, c_right) = node(tree[0]), node(tree[1])
            i, left, right, o, u = tf.split(inner(tf.concat([h_left, h_right], 1)), 5, axis=1)
            c = tf.sigmoid(i) * tf.tanh(u) + tf.sigmoid(left) * c_left + tf.sigmoid(right) * c_right
            return tf.sigmoid(o) * tf.tanh(c), c

        return tf.reduce_mean((head(node(tree)[0]) - target) ** 2)

    variables = leaf.trainable_variables + inner.trainable_variables + head.trainable_variables
    return variables, loss, variables


def unrolled(steps: int = 8, batch: int = 512, width: int = 256) -> Workload:
    """The loss after steps of gradient descent, differentiated with respect to where they start and
    how long they are."""
    first = tf.Variable(tf.random.stateless_normal((width, width), (1, 0)) / width**0.5)
    second = tf.Variable(tf.random.stateless_normal((width, width), (1, 1)) / width**0.5)
    rate = tf.Variable(0.05)
    x = tf.random.stateless_normal((batch, width), (2, 0))
    y = tf.random.stateless_normal((batch, width), (2, 1))

    def inner(a, b):
        return tf.reduce_mean((tf.tanh(tf.matmul(x, a)) @ b - y) ** 2)

    def loss():
        a, b = tf.identity(first), tf.identity(second)
        for _ in range(steps):
            with tf.GradientTape() as tape:
                tape.watch([a, b])
                value = inner(a, b)
            slope_a, slope_b = tape.gradient(value, [a, b])
            a, b = a - rate * slope_a, b - rate * slope_b
        return inner(a, b)

    return [first, second, rate], loss, [first, second, rate]


def _dense(inputs: int, units: int) -> keras.layers.Layer:
    layer = keras.layers.Dense(units)
    layer.build((None, inputs))
    return layer


def _classifier(model: keras.Model, inputs: tf.Tensor) -> Workload:
    labels = tf.range(inputs.shape[0]) % 10
    error = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return (
        model.trainable_variables,
        lambda: error(labels, model(inputs, training=True)),
        model.variables,
    )


WORKLOADS: dict[str, Callable[..., Workload]] = {
    "mlp": mlp,
    "mlp32": partial(mlp, depth=32),
    "cnn": cnn,
    "lstm": lstm,
    "treelstm": tree_lstm,
    "unrolled": unrolled,
    "attention": attention,
}


def workload(name: str, **sizes: int) -> Workload:
    """Builds a workload by its name, with the same weights every time."""
    if name not in WORKLOADS:
        raise CheckmateError(f"There is no eager workload {name!r}. Known: {', '.join(WORKLOADS)}.")
    keras.utils.set_random_seed(1)
    return WORKLOADS[name](**sizes)
