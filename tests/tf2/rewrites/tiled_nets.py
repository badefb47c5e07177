"""Steps with ops on values that are large next to the rest: `STEPS` maps a name to a maker of a
step and its batch, in the floats that layers compute in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from checkmate.tf2.training_step import training_step

L = keras.layers
STEPS: dict[str, Callable[[], tuple[Any, tuple[Any, ...]]]] = {}


def program(make: Callable[[], Any]) -> Callable[[], Any]:
    STEPS[make.__name__] = make
    return make


def normal(*shape: int, seed: int = 0) -> Any:
    return tf.cast(np.random.default_rng(seed).normal(size=shape), keras.config.floatx())


def below(most: int, *shape: int) -> Any:
    return tf.constant(np.random.default_rng(1).integers(0, most, shape), tf.int32)


def weights(*shape: int) -> Any:
    return tf.Variable(normal(*shape, seed=2) / shape[0] ** 0.5)


def trained(model: keras.Model, x: Any, y: Any, loss: Any = None) -> Any:
    loss = loss or keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return training_step(model, loss, keras.optimizers.SGD(0.1), x, y)[0], (x, y)


def descends(loss: Any, *trained: Any) -> Any:
    def step(*batch):
        with tf.GradientTape() as tape:
            found = loss(*batch)
        for variable, gradient in zip(trained, tape.gradient(found, trained), strict=True):
            variable.assign_sub(0.1 * tf.convert_to_tensor(gradient))
        return found

    return step


@program
def attention():
    """With masks and dropout, of several examples."""
    inputs = keras.Input((32, 24))
    attended = L.MultiHeadAttention(4, 6, dropout=0.3, flash_attention=False)
    x = L.LayerNormalization()(attended(inputs, inputs, use_causal_mask=True))
    x = L.Dropout(0.4)(L.Dense(24, activation="gelu")(x))
    return trained(keras.Model(inputs, L.Dense(5)(x)), normal(3, 32, 24), below(5, 3, 32))


@program
def grouped_queries():
    """Repeats heads by way of ten axes."""
    inputs = keras.Input((32, 24))
    x = L.GroupQueryAttention(8, 4, 2, dropout=0.1, flash_attention=False)(inputs, inputs)
    return trained(keras.Model(inputs, L.Dense(5)(x)), normal(2, 32, 24), below(5, 2, 32))


@program
def large_vocabulary():
    table = weights(300, 16)

    def loss(x, y):
        logits = tf.einsum("bsd,vd->bsv", tf.nn.gelu(tf.gather(table, x)), table)
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))

    return descends(loss, table), (below(300, 2, 20), below(300, 2, 20))


@program
def normalized_images():
    inputs = x = keras.Input((16, 16, 3))
    for width in (8, 16):
        x = L.ReLU()(L.BatchNormalization()(L.Conv2D(width, 3, padding="same")(x)))
    x = L.MaxPooling2D()(L.DepthwiseConv2D(3, padding="same")(x))
    model = keras.Model(inputs, L.Dense(5)(L.GlobalAveragePooling2D()(x)))
    return trained(model, normal(4, 16, 16, 3), below(5, 4))


@program
def unet():
    """On CPUs the gradients of a bias and of its filter are one kernel's."""
    inputs = keras.Input((16, 16, 3))
    a = L.Conv2D(8, 3, padding="same", activation="relu")(inputs)
    b = L.Conv2D(12, 3, padding="same", activation="relu")(L.MaxPooling2D()(a))
    up = L.UpSampling2D(interpolation="bilinear")(b), L.Conv2DTranspose(8, 2, strides=2)(b)
    model = keras.Model(inputs, L.Conv2D(2, 1)(L.Concatenate()([*up, a])))
    return trained(model, normal(2, 16, 16, 3), normal(2, 16, 16, 2), "mse")


@program
def wide_images():
    """The same, along channels."""
    inputs = x = keras.Input((64, 64, 16))
    for strides in (1, 2):
        x = L.Conv2D(32, 3, strides, padding="same", activation="relu")(x)
    model = keras.Model(inputs, L.Dense(3)(L.GlobalAveragePooling2D()(x)))
    return trained(model, normal(4, 64, 64, 16), below(3, 4))


@program
def penalized_gradient():
    first, second = weights(32, 32), weights(32, 1)

    def loss(x, y):
        with tf.GradientTape() as inner:
            inner.watch(x)
            score = tf.tanh(x @ first) @ second
        slope = tf.norm(inner.gradient(score, x), axis=1)
        return tf.reduce_mean(score * y) + tf.reduce_mean((slope - 1) ** 2)

    return descends(loss, first, second), (normal(48, 32), normal(48, 1))


@program
def triplets():
    weight = weights(8, 6)

    def loss(x, y):
        h = x @ weight
        apart = tf.reduce_sum((h[:, None] - h[None]) ** 2, -1)
        alike = y[:, None] == y[None]
        each = tf.nn.relu(apart[:, :, None] - apart[:, None] + 1)
        return tf.reduce_mean(tf.where(alike[:, :, None] & ~alike[:, None], each, 0))

    return descends(loss, weight), (normal(24, 8), below(3, 24))


@program
def products_with_itself():
    """A label meets itself, along the other axis."""
    weight = weights(8, 6)

    def loss(x, y):
        h = tf.tanh(x @ weight)
        near = h @ tf.transpose(h)
        return tf.reduce_mean(tf.nn.softmax(near) @ y) + tf.reduce_mean(tf.linalg.diag_part(near))

    return descends(loss, weight), (normal(48, 8), normal(48, 3))


@program
def second_derivatives():
    first, second = weights(2, 24), weights(24, 1)

    def loss(x, y):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                value = tf.tanh(x @ first) @ second
            slope = inner.gradient(value, x)
        curved = outer.batch_jacobian(slope, x)
        return tf.reduce_mean((curved[:, 0, 0] + curved[:, 1, 1] - y) ** 2)

    return descends(loss, first, second), (normal(64, 2), normal(64))


@program
def spectra():
    weight = weights(16, 64)

    def loss(x, y):
        waves = tf.signal.rfft(tf.tanh(x @ weight)) * (1.5 + 0.2j)
        return tf.reduce_mean(tf.abs(waves)) + tf.reduce_mean(tf.signal.irfft(waves) * y)

    return descends(loss, weight), (normal(48, 16), normal(48, 64))


@program
def drawn_in_several_places():
    """Numbers of which a tile draws some in each of several places, within a count."""
    weight = weights(16, 60)

    def loss(x, y):
        h = tf.reshape(tf.tanh(x @ weight), [3, 5, 6, 10])
        h = tf.nn.experimental.stateless_dropout(h, 0.3, [1, 2])
        h *= tf.random.stateless_normal(h.shape, [3, 4], dtype=h.dtype)
        return tf.reduce_mean((h - tf.reshape(y, h.shape)) ** 2)

    return descends(loss, weight), (normal(15, 16), normal(15, 60))


@program
def sizes_by_chance():
    """Ops of which no shape is known are in no region."""
    weight = weights(16, 32)

    def loss(x, y):
        h = tf.tanh(x @ weight)
        some = tf.boolean_mask(h, y > 0)
        near = tf.nn.softmax(some @ tf.transpose(some))
        return tf.reduce_mean(near @ some) + tf.reduce_mean(h[: tf.reduce_sum(below(3, 9))])

    return descends(loss, weight), (normal(64, 16), normal(64))


@program
def lengths_that_nothing_divides():
    weight = weights(13, 67)

    def loss(x, y):
        return tf.reduce_mean((tf.nn.softmax(tf.tanh(x @ weight)) - y) ** 2)

    return descends(loss, weight), (normal(37, 13), normal(37, 67))


@program
def loops():
    weight = weights(16, 16)

    def loss(x, y):
        h = tf.while_loop(lambda k, _: k < 3, lambda k, h: (k + 1, tf.tanh(h @ weight)), (0, x))[1]
        h = tf.scan(lambda a, b: 0.5 * a + b, h)
        return tf.reduce_mean(tf.nn.softmax(h @ tf.transpose(h)) @ y)

    return descends(loss, weight), (normal(48, 16), normal(48, 4))


@program
def effects():
    """Checks, states and draws, each once and in its turn."""
    weight, count = weights(16, 16), tf.Variable(0)
    generator = tf.random.Generator.from_seed(3)

    def loss(x, y):
        h = tf.tanh(x @ weight)
        count.assign_add(1)
        checked = tf.debugging.assert_less(tf.reduce_max(h), tf.cast(2, h.dtype))
        with tf.control_dependencies([checked]):
            near = tf.debugging.check_numerics(tf.nn.softmax(h @ tf.transpose(h)), "not a number")
        with tf.control_dependencies([tf.reduce_sum(near)]):
            near *= tf.cast(count.read_value(), h.dtype)
        count.assign(3 * count)
        return tf.reduce_mean(near @ y) + tf.reduce_mean(
            near * generator.normal([48, 48], dtype=h.dtype)
        )

    return descends(loss, weight), (normal(48, 16), normal(48, 4))


def mixed_precision():
    policy = keras.mixed_precision.Policy("mixed_bfloat16")
    inputs = keras.Input((16, 24))
    x = L.MultiHeadAttention(2, 8, dropout=0.1, flash_attention=False, dtype=policy)(inputs, inputs)
    x = L.Dense(48, activation="gelu", dtype=policy)(L.LayerNormalization(dtype=policy)(x))
    return trained(
        keras.Model(inputs, L.Dense(5, dtype="float32")(x)), normal(3, 16, 24), below(5, 3, 16)
    )


def two_layers(shape: tuple[int, int] = (512, 64)):
    """Attention whose scores are large next to all else."""
    inputs = x = keras.Input(shape)
    for _ in range(2):
        x += L.MultiHeadAttention(4, 16, dropout=0.1, flash_attention=False)(x, x)
    return keras.Model(inputs, L.Dense(4)(x)), normal(1, *shape), below(4, 1, shape[0])
