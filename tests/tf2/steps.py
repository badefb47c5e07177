"""Steps of every kind that the executor meets: each function returns a step, its arguments and the
variables it writes."""

import collections

import keras
import numpy as np
import tensorflow as tf

N = 64

Point = collections.namedtuple("Point", "x y")


def nests():
    def step(batch, scale):
        a = tf.sin(batch["a"])
        b = tf.cos(batch["b"][0]) @ a
        c = tf.exp(b) + a
        return {
            "deep": [a, (b,)],
            "point": Point(c, tf.shape(c)),
            "argument": scale,
            "twice": [c, c],
            "constant": 3.0,
            "nothing": [None, a],
        }

    return step, ({"a": square(1), "b": [square(2)]}, square(3)), []


def inner_functions():
    @tf.function
    def innermost(x):
        return tf.sin(x) @ x

    @tf.function
    def inner(x):
        return innermost(x) + tf.cos(x)

    def step(x):
        a = inner(x)
        b = tf.sin(a)
        return b, inner(b) * a

    return step, (square(1),), []


def loops():
    def step(x):
        a = tf.tanh(x)
        _, b = tf.while_loop(
            lambda i, _: i < 4, lambda i, value: (i + 1, tf.sin(value) @ a), (0, a)
        )
        return b, tf.exp(b) + a

    return step, (square(1),), []


def recurrent_layers():
    layers = [
        keras.layers.LSTM(16, return_sequences=True, name="lstm"),
        keras.layers.Bidirectional(keras.layers.GRU(16), name="gru"),
    ]
    for layer, shape in zip(layers, [(32, 8, 16), (32, 8, 16)], strict=True):
        layer.build(shape)
    weights = [variable.value for layer in layers for variable in layer.trainable_variables]

    def step(x):
        with tf.GradientTape() as tape:
            y = layers[1](layers[0](x))
            value = tf.reduce_sum(tf.sin(y))
        return tape.gradient(value, weights), y

    return step, (square(1, (32, 8, 16)),), []


def branches():
    def step(x):
        a = tf.tanh(x)
        b = tf.cond(tf.reduce_sum(a) > 0, lambda: a @ a, lambda: -a)
        return (
            b,
            tf.exp(b) * a,
            tf.switch_case(tf.cast(b[0, 0] > 0, tf.int32), [lambda: tf.sin(a), lambda: tf.cos(a)]),
        )

    return step, (square(1),), []


def writes():
    variable, count = tf.Variable(square(5)), tf.Variable(0)

    def step(x):
        c = tf.tanh(x)
        a = tf.sin(variable) @ c
        before = variable + 1.0
        variable.assign_sub(0.1 * tf.cos(a))
        b = tf.exp(variable) + a
        variable.assign_add(b)
        count.assign_add(1)
        return a, before, tf.sin(b) * tf.cos(a) * c, variable.read_value(), count

    return step, (square(1),), [variable, count]


def writes_in_an_inner_function():
    variable = tf.Variable(square(5))

    @tf.function
    def inner(x):
        variable.assign_add(x)
        return tf.sin(variable) @ x

    def step(x):
        a = tf.cos(x)
        b = inner(a)
        return tf.exp(b) * inner(b) * a, b + variable

    return step, (square(1),), [variable]


def captures():
    captured, constant = tf.constant(square(5)), square(6)

    def step(x):
        a = tf.sin(x) + captured
        b = tf.cos(a)
        return (
            b,
            b @ tf.constant(constant) * a,
            captured,
            tf.reshape(b, [-1]),
            tf.zeros((2, 3)),
            tf.transpose(captured),
        )

    return step, (square(1),), []


def gradients_of_an_embedding():
    """Returns tf.IndexedSlices."""
    table = tf.Variable(square(5))

    def step(rows):
        with tf.GradientTape() as tape:
            value = tf.reduce_sum(tf.sin(tf.nn.embedding_lookup(table, rows)) ** 2)
        return tape.gradient(value, table), value

    return step, (np.arange(40, dtype="int32") % N,), [table]


def seeded_dropout():
    dropout = keras.layers.Dropout(0.4, seed=3)
    dropout.build((N, N))

    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            a = dropout(tf.sin(x), training=True)
            b = dropout(tf.cos(a), training=True)
            value = tf.reduce_sum(b @ a)
        return a, tape.gradient(value, x)

    return step, (square(1),), [variable.value for variable in dropout.variables]


def states_drawn_in_the_step():
    generator = tf.random.Generator.from_seed(4)

    def step(x):
        noise = generator.normal((N, N))
        return tf.sin(x + noise) @ tf.cos(noise), noise * generator.uniform((N, N))

    return step, (square(1),), [generator.state]


def convolutions():
    """Bias and activation behind each convolution; the value between some of the convolutions and
    their bias is read once more."""
    kernels = [tf.Variable(0.2 * square(k, (3, 3, 4, 4))) for k in range(4)]
    biases = [tf.Variable(square(k, (4,))) for k in range(4)]

    def step(x):
        with tf.GradientTape() as tape:
            total = 0.0
            for k, (kernel, bias) in enumerate(zip(kernels, biases, strict=True)):
                y = tf.nn.conv2d(x, kernel, 1, "SAME")
                x = tf.nn.relu(tf.nn.bias_add(y, bias))
                total += tf.reduce_mean(tf.sin(y if k % 2 else x))
            total += tf.reduce_mean(x**2)
        gradients = tape.gradient(total, kernels + biases)
        for variable, gradient in zip(kernels + biases, gradients, strict=True):
            variable.assign_sub(0.1 * gradient)
        return total, gradients

    return step, (square(9, (2, 16, 16, 4)),), kernels + biases


def normalized_volumes():
    """The gradient of a squared difference has a constant wait for an op that the one which reads
    it is in a chain with."""
    layers = keras.layers.BatchNormalization(), keras.layers.Conv3D(4, 3)
    for layer in layers:
        layer.build((2, 4, 4, 4, 8))
    weights = [weight.value for layer in layers for weight in layer.trainable_weights]

    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layers[1](layers[0](tf.nn.relu(x), training=True))
            value = tf.reduce_sum(y * y)
        return tape.gradient(value, [x, *weights])

    return (
        step,
        (square(1, (2, 4, 4, 4, 8)),),
        [variable.value for layer in layers for variable in layer.variables],
    )


STEPS = (
    *(nests, inner_functions, loops, branches, writes, writes_in_an_inner_function, captures),
    *(gradients_of_an_embedding, seeded_dropout, states_drawn_in_the_step, convolutions),
    *(recurrent_layers, normalized_volumes),
)


def square(seed, shape=(N, N)):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")
