"""Training steps that are not a Keras 3 model's."""

from __future__ import annotations

import importlib
import itertools
from typing import Any

import keras
import tensorflow as tf
from keras import layers as L

from benchmarks.zoo.batches import Task, normal, whole
from checkmate.errors import CheckmateError


class Network(tf.Module):
    """A perceptron of plain `tf.Variable`s, with batch statistics and random noise."""

    def __init__(self, widths: tuple[int, ...] = (64, 256, 256, 256, 10)):
        super().__init__()
        self.weights = [
            tf.Variable(0.1 * normal(a, b, seed=a + b)) for a, b in itertools.pairwise(widths)
        ]
        self.mean = tf.Variable(tf.zeros(widths[1]), trainable=False)

    @tf.Module.with_name_scope
    def __call__(self, x: Any) -> Any:
        for k, weight in enumerate(self.weights):
            x = x @ weight
            if k == 0:
                self.mean.assign(0.9 * self.mean + 0.1 * tf.reduce_mean(x, 0))
                x = tf.nn.relu(x - self.mean) + 0.1 * tf.random.stateless_normal(
                    tf.shape(x), seed=(1, 2)
                )
            elif k + 1 < len(self.weights):
                x = tf.nn.gelu(x)
        return x


def module(batch: int = 1024) -> Task:
    """A `tf.Module` and gradient descent by hand."""
    network = Network()

    def step(inputs: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(labels, network(inputs))
            )
        for variable, gradient in zip(
            network.weights, tape.gradient(loss, network.weights), strict=True
        ):
            variable.assign_sub(0.1 * gradient)
        return loss

    return Task(step, (normal(batch, 64), whole(batch, below=10)))


def gan(batch: int = 256) -> Task:
    """Two networks, two optimizers, and a penalty on gradients of gradients (Gulrajani et al.,
    2017)."""
    relu = {"padding": "same", "activation": "relu"}
    maker = keras.Sequential(
        [
            keras.Input((16,)),
            L.Dense(7 * 7 * 32),
            L.Reshape((7, 7, 32)),
            L.Conv2DTranspose(32, 3, 2, **relu),
            L.Conv2DTranspose(1, 3, 2, padding="same"),
        ]
    )
    judge = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            L.Conv2D(32, 3, 2, **relu),
            L.Conv2D(32, 3, 2, **relu),
            L.Flatten(),
            L.Dense(1),
        ]
    )
    optimizers = [keras.optimizers.Adam(1e-4, beta_1=0.5), keras.optimizers.Adam(1e-4, beta_1=0.5)]
    for optimizer, network in zip(optimizers, (maker, judge), strict=True):
        optimizer.build(network.trainable_variables)

    def step(images: Any, noise: Any) -> Any:
        with tf.GradientTape() as tape:
            made = maker(noise, training=True)
            mixed = 0.5 * (images + made)
            with tf.GradientTape() as inner:
                inner.watch(mixed)
                opinion = judge(mixed, training=True)
            slope = tf.sqrt(tf.reduce_sum(inner.gradient(opinion, mixed) ** 2, [1, 2, 3]) + 1e-6)
            judged = (
                tf.reduce_mean(judge(made, training=True))
                - tf.reduce_mean(judge(images, training=True))
                + 10 * tf.reduce_mean((slope - 1) ** 2)
            )
        optimizers[1].apply(
            tape.gradient(judged, judge.trainable_variables), judge.trainable_variables
        )
        with tf.GradientTape() as tape:
            fooled = -tf.reduce_mean(judge(maker(noise, training=True), training=True))
        optimizers[0].apply(
            tape.gradient(fooled, maker.trainable_variables), maker.trainable_variables
        )
        return {"judge": judged, "maker": fooled}

    return Task(step, (normal(batch, 28, 28, 1), normal(batch, 16, seed=5)))


def _keras2() -> Any:
    try:
        tf_keras = importlib.import_module("tf_keras")  # nothing that we require
    except ImportError as error:
        raise CheckmateError(
            "The package tf_keras, which has Keras 2, is not installed. Install it to train its"
            " models."
        ) from error
    tf_keras.utils.set_random_seed(0)
    return tf_keras


def _keras2_task(layers: list[Any], inputs: Any, labels: Any) -> Task:
    """The usual step of a model of Keras 2."""
    keras2 = _keras2()
    model, optimizer = keras2.Sequential(layers), keras2.optimizers.Adam()
    optimizer.build(model.trainable_variables)

    def step(inputs: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            found = model(inputs, training=True)
            loss = tf.reduce_mean(
                keras2.losses.sparse_categorical_crossentropy(labels, found, from_logits=True)
            )
        optimizer.apply_gradients(
            zip(
                tape.gradient(loss, model.trainable_variables),
                model.trainable_variables,
                strict=True,
            )
        )
        return found, loss

    return Task(step, (inputs, labels))


def keras2_images(batch: int = 8) -> Task:
    """Convolutions, BatchNormalization and Dropout of Keras 2 (the package tf_keras)."""
    layers = _keras2().layers
    blocks = [
        [
            layers.Conv2D(w, 3, padding="same", use_bias=False),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Dropout(0.1),
        ]
        for w in (16, 16, 16, 16)
    ]
    top = [layers.GlobalAveragePooling2D(), layers.Dense(10)]
    return _keras2_task(
        [layers.Input((48, 48, 3)), *itertools.chain.from_iterable(blocks), *top],
        normal(batch, 48, 48, 3),
        whole(batch, below=10),
    )


def keras2_lstm(batch: int = 32) -> Task:
    """An LSTM and a bidirectional GRU of Keras 2 between dense layers."""
    layers = _keras2().layers
    stack = [
        layers.Input((32, 16)),
        layers.Dense(256, activation="tanh"),
        layers.LSTM(32, return_sequences=True),
        layers.Dense(256, activation="tanh"),
        layers.Bidirectional(layers.GRU(32)),
        layers.Dense(10),
    ]
    return _keras2_task(stack, normal(batch, 32, 16), whole(batch, below=10))


MODELS = (
    module,
    gan,
    keras2_images,
    keras2_lstm,
)
