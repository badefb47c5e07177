"""Steps with loops that have a gradient, of every kind: those that can be divided into segments,
and those that cannot. Each function returns a step of a batch of shape `SHAPE`."""

import keras
import tensorflow as tf
from keras import layers

EXAMPLES, TURNS, FEATURES, UNITS = 3, 11, 5, 4
SHAPE = (EXAMPLES, TURNS, FEATURES)


def of_layers(*found, **batch):
    """The loss of a model of these layers and its gradients."""
    model = keras.Sequential(
        [keras.Input(SHAPE[1:], **batch), *found, layers.Flatten(), layers.Dense(1)]
    )

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x, training=True) ** 2)
        return loss, tape.gradient(loss, model.trainable_variables)

    return step


def trained():
    """A step that also updates the weights which the loops read."""
    model = keras.Sequential([keras.Input(SHAPE[1:]), layers.GRU(UNITS), layers.Dense(1)])
    optimizer = keras.optimizers.Adam(0.1)
    optimizer.build(model.trainable_variables)

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x, training=True) ** 2)
        weights = model.trainable_variables
        optimizer.apply(tape.gradient(loss, weights), weights)
        return loss

    return step


def of_function(function):
    """The loss of `function(x, weights)` and its gradients."""
    weights = tf.Variable(tf.random.stateless_normal((FEATURES, FEATURES), (1, 2)))

    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            result = function(x, weights)
            loss = tf.reduce_sum(result**2)
        return result, loss, tape.gradient(loss, [x, weights])

    return step


def of_turns(
    turn, condition=lambda i, h: i < 9, start=lambda x: x[:, 0], first=0, step=1, **options
):
    """The last state of `turn(i, state, x, weights)`, in `tf.while_loop`."""

    def function(x, weights):
        def body(i, h):
            return i + step, turn(i, h, x, weights)

        return tf.while_loop(condition, body, (first, start(x)), **options)[1]

    return of_function(function)


def cell(i, h, x, weights):
    return tf.tanh(h @ weights + x[:, i])


def in_time(x):
    return tf.transpose(x, (1, 0, 2))


def scanned(**options):
    return of_function(
        lambda x, weights: tf.scan(lambda h, e: tf.tanh(h @ weights + e), in_time(x), **options)
    )


def scanned_from_a_state():
    return of_function(
        lambda x, weights: tf.scan(
            lambda h, e: tf.tanh(h @ weights + e), in_time(x), initializer=x[:, 0], reverse=True
        )
    )


def autograph():
    def function(x, weights):
        h, made = x[:, 0], tf.TensorArray(tf.float32, size=9)
        for i in tf.range(9):
            h = tf.tanh(h @ weights + x[:, i])
            made = made.write(i, h)
        return made.stack() + made.read(3)

    return of_function(function)


def over_rows():
    def function(x, weights):
        h = x[:, 0]
        for e in in_time(x):
            h = tf.tanh(h @ weights + e)
        return h

    return of_function(function)


def nested():
    def turn(i, h, x, weights):
        inner = lambda j, g: (j + 1, tf.tanh(g @ weights))  # noqa: E731
        return tf.while_loop(lambda j, g: j < 3, inner, (0, h))[1]

    return of_turns(turn)


def stateless_random(i, h, x, weights):
    return tf.tanh(h @ weights) * tf.random.stateless_uniform([], tf.stack([i, 3]))


def time_distributed():
    return of_function(lambda x, weights: tf.map_fn(lambda e: tf.tanh(e @ weights), x))


DIVIDED = {
    "lstm": lambda: of_layers(layers.LSTM(UNITS, return_sequences=True), layers.LSTM(UNITS)),
    "gru": lambda: of_layers(layers.GRU(UNITS, return_sequences=True), layers.GRU(UNITS)),
    "rnn": lambda: of_layers(layers.SimpleRNN(UNITS, return_sequences=True)),
    "stateful": lambda: of_layers(layers.LSTM(UNITS, stateful=True), batch_size=EXAMPLES),
    "dropout": lambda: of_layers(layers.LSTM(UNITS, dropout=0.3, recurrent_dropout=0.3)),
    "bidirectional": lambda: of_layers(
        layers.Bidirectional(layers.LSTM(UNITS, return_sequences=True)),
        layers.Bidirectional(layers.GRU(UNITS)),
    ),
    "masked": lambda: of_layers(
        layers.Masking(), layers.LSTM(UNITS, return_sequences=True), layers.GRU(UNITS)
    ),
    "cells": lambda: of_layers(layers.RNN([layers.LSTMCell(UNITS), layers.GRUCell(UNITS)])),
    "convolutional": lambda: of_layers(
        layers.Reshape((TURNS, 1, FEATURES, 1)), layers.ConvLSTM2D(2, (1, 3))
    ),
    "trained": trained,
    "while": lambda: of_turns(cell),
    "while, steps of two": lambda: of_turns(cell, step=2),
    "while, downwards": lambda: of_turns(cell, lambda i, h: i >= 2, first=9, step=-1),
    "while, bounded": lambda: of_turns(cell, lambda i, h: tf.greater(7, i), maximum_iterations=9),
    "while, random numbers by turn": lambda: of_turns(stateless_random),
    "nested": nested,
    "scan": scanned,
    "scan, reversed": lambda: scanned(reverse=True),
    "scan, from a state": scanned_from_a_state,
    "map": time_distributed,
    "autograph": autograph,
    "autograph, over rows": over_rows,
}


def draws(i, h, x, weights):
    return tf.tanh(h @ weights) * tf.random.uniform([])


def counts_calls():
    count = tf.Variable(0.0)

    def turn(i, h, x, weights):
        count.assign_add(1.0)
        return tf.tanh(h @ weights)

    return of_turns(turn)


def with_two_gradients():
    weights = tf.Variable(tf.random.stateless_normal((FEATURES, FEATURES), (1, 2)))

    def step(x):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            body = lambda i, h: (i + 1, cell(i, h, x, weights))  # noqa: E731
            h = tf.while_loop(lambda i, h: i < 9, body, (0, x[:, 0]))[1]
            first, second = tf.reduce_sum(h**2), tf.reduce_sum(tf.sin(h))
        return tape.gradient(first, x), tape.gradient(second, weights)

    return step


def forward_alone():
    body = lambda i, h: (i + 1, tf.tanh(h))  # noqa: E731
    return lambda x: tf.while_loop(lambda i, h: i < 9, body, (0, x))[1]


LEFT = {
    "turns by the data": lambda: of_turns(
        cell, lambda i, h: tf.reduce_sum(h) > -1e3, maximum_iterations=9
    ),
    "turns unknown": lambda: of_turns(cell, lambda i, h: i < tf.random.uniform([], 5, 6, tf.int32)),
    "no turn": lambda: of_turns(cell, lambda i, h: i < 0),
    "random numbers": lambda: of_turns(draws),
    "writes a variable": counts_calls,
    "two gradients": with_two_gradients,
    "no gradient": forward_alone,
}
