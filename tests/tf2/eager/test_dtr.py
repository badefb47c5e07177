"""Eager dynamic rematerialization computes the program's own numbers."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from eager_programs import arrays, gradients, managed, normal, same, weights

from benchmarks import eager_models
from checkmate.tf2.eager.runtime import EagerRuntime

pytestmark = pytest.mark.usefixtures("tensorflow")


def layer(make, *shape):
    """A Keras layer or model in training."""

    def build():
        model, x = make(), normal(*shape, seed=2)
        model(x)
        return (
            model.trainable_variables,
            lambda: tf.reduce_mean(model(x, training=True) ** 2),
            model.variables,
        )

    return build


def of(function):
    """A function of a square matrix of weights and one of data."""

    def build():
        w, x = weights(96, 96), normal(96, 96, seed=3)
        return [w], lambda: function(w, x), [w]

    return build


def keras_layers():
    return keras.layers


def convolutional():
    layers = keras.layers
    block = [
        layers.Conv2D(8, 3, padding="same"),
        layers.BatchNormalization(),
        layers.ReLU(),
        layers.Dropout(0.3, seed=1),
    ]
    more = [
        layers.DepthwiseConv2D(3),
        layers.MaxPooling2D(),
        layers.Conv2DTranspose(4, 3),
        layers.GlobalAveragePooling2D(),
    ]
    return keras.Sequential([*block, *more, layers.Dropout(0.3, seed=2), layers.Dense(3)])


def functional():
    layers = keras.layers
    x = inputs = keras.Input((16, 32))
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 16, dropout=0.1, seed=3)(x, x))
    y = layers.Dense(64, activation="gelu")(x)
    x = layers.Concatenate()([x, layers.Dense(32)(y)])
    return keras.Model(inputs, layers.Dense(3, activation="softmax")(x))


def embedding():
    table, ids = weights(50, 64), tf.constant(np.arange(512) % 50)
    return [table], lambda: tf.reduce_sum(tf.tanh(tf.nn.embedding_lookup(table, ids)) ** 2), [table]


def indexing(w, x):
    y = x @ w
    z = tf.gather(y[:40] * y[40:80], [1, 2, 3, 3])
    a, b = tf.unstack(tf.stack([tf.where(z > 0, z, 0.1 * z), z * 2]))
    for row in tf.transpose(a)[:3]:
        b = b + tf.reduce_sum(row)
    return tf.reduce_sum(tf.cond(tf.reduce_sum(a) > 0, lambda: a + b, lambda: a - b)) + float(
        tf.reduce_max(b)
    ) * tf.reduce_sum(b)


def custom(w, x):
    @tf.custom_gradient
    def bell(z):
        y = tf.exp(-z * z)
        return y, lambda upstream: -2 * z * y * upstream

    return tf.reduce_sum(bell(tf.recompute_grad(lambda z: tf.tanh(z @ w))(x)) @ w)


def functions(w, x):
    inner = tf.function(lambda z: tf.tanh(z @ w))
    array, z = tf.TensorArray(tf.float32, 3), tf.nn.relu(x @ w)
    for k in range(3):
        z = inner(z)
        array = array.write(k, z)
    looped = tf.while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, tf.tanh(v @ w)), (0, x))[1]
    return tf.reduce_sum(array.stack() ** 2) + tf.reduce_sum(looped)


def algebra(w, x):
    a, b, c = tf.split(tf.einsum("ij,jk->ik", x, w), [32, 32, 32], axis=1)
    return tf.linalg.logdet(
        tf.matmul(a, b, transpose_a=True) @ tf.transpose(tf.matmul(a, b, transpose_a=True))
        + tf.eye(32)
    ) + tf.norm(c)


def second_order(w, x):
    with tf.GradientTape() as inner:
        inner.watch(x)
        value = tf.reduce_sum(tf.tanh(x @ w) ** 3)
    slope = inner.gradient(value, x)
    return tf.reduce_sum(slope * slope)


def persistent(w, x):
    with tf.GradientTape(persistent=True) as inner:
        inner.watch(x)
        y = tf.tanh(x @ w)
        a, b = tf.reduce_sum(y), tf.reduce_sum(y * y)
    return tf.reduce_sum(inner.gradient(a, x) * inner.gradient(b, x))


def workload(name, **sizes):
    def build():
        return eager_models.workload(name, **sizes)

    return build


PROGRAMS = {
    "convolutions, BatchNormalization, Dropout": layer(convolutional, 8, 16, 16, 3),
    "attention in a Functional model": layer(functional, 16, 16, 32),
    "Conv1D, GroupNormalization": layer(lambda: _sequence(), 16, 32, 8),
    "mlp": workload("mlp", batch=256, width=32, depth=8),
    "lstm": workload("lstm", steps=4, batch=32, width=32),
    "treelstm": workload("treelstm", leaves=2, batch=32, width=32),
    "unrolled": workload("unrolled", steps=3, batch=64, width=32),
    "embedding": embedding,
    "indexing and control flow": of(indexing),
    "custom gradients, recompute_grad": of(custom),
    "functions, loops, TensorArray": of(functions),
    "linear algebra": of(algebra),
    "second order": of(second_order),
    "persistent tape": of(persistent),
}  # fmt: skip
# Gradients of a weight that is used more than four times are added five at a time: the recurrent
# ones here use theirs at most four times.


def _sequence():
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Conv1D(32, 3, padding="causal"),
            layers.GroupNormalization(4),
            layers.ReLU(),
            layers.Dense(3),
        ]
    )


@pytest.mark.parametrize("name", PROGRAMS)
def test_numbers_are_those_of_the_plain_program(name):
    keras.utils.set_random_seed(5)
    variables, loss, state = PROGRAMS[name]()
    start = arrays(state)
    plain = [arrays(gradients(variables, loss)), arrays(state)]
    for variable, value in zip(state, start, strict=True):
        variable.assign(value)
    with managed(smallest_bytes=256) as runtime:
        handles = gradients(variables, loss)
        first = arrays(handles)
        runtime.policy.evict_all()
        again = arrays(handles)
    same(first, plain[0])
    same(again, plain[0])
    same(arrays(state), plain[1])
    assert runtime.policy.rematerializations > 0
    for variable, value in zip(state, start, strict=True):
        variable.assign(value)
    with managed(evicting_always(), smallest_bytes=256):
        same(arrays(gradients(variables, loss)), plain[0])
    same(arrays(state), plain[1])


def evicting_always(every=3):
    """A runtime that evicts everything after every few ops of the program: the most hostile
    budget."""

    class EvictingAlways(EagerRuntime):
        def run(self, asked, tensors):
            result = super().run(asked, tensors)
            if not self.ops % every and not self.references.depth:
                self.policy.evict_all()
            return result

    return EvictingAlways
