"""Functions that a step calls: planned op by op, with the numbers and the order of effects that
they have as calls."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from training import assert_equal
from unhurried import UNHURRIED

import checkmate
from checkmate.core.layer_names import layer_names
from checkmate.tf2 import device as devices

pytestmark = pytest.mark.usefixtures("tensorflow", "alone")

BATCH, WIDTH, DEPTH = 1024, 32, 5
FAST = {"cost_model": "roofline", "solver": UNHURRIED}


def variables(seed=0):
    chance = np.random.default_rng(seed)
    return [
        tf.Variable(chance.normal(size=(WIDTH, WIDTH)).astype("float32") / 6) for _ in range(DEPTH)
    ]


def batch(size=BATCH):
    return np.random.default_rng(9).normal(size=(size, WIDTH)).astype("float32")


def descend(layers, weights):
    """A step of gradient descent through layers that are called one after the other."""

    def step(x):
        with tf.GradientTape() as tape:
            for layer, weight in zip(layers, weights, strict=True):
                x = layer(x, weight)
            loss = tf.reduce_sum(x)
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(1e-3 * gradient)
        return loss

    return step


def trained(make, *, budget="80%", steps=3):
    """(results, variables) without and with a budget, which must be equal; returns the planned
    step."""
    found = []
    for wrap in (tf.function, lambda step: checkmate.tf2.function(step, budget=budget, **FAST)):
        tf.random.set_seed(5)
        step, held = make()
        step = wrap(step)
        found.append(
            tf.nest.map_structure(np.asarray, ([step(batch()) for _ in range(steps)], held))
        )
    assert_equal(found[1], found[0])
    return step


def test_layers_that_are_functions_are_recomputed_within():
    """One function called five times, which counts its calls in a variable and is given what it
    counted."""

    def make():
        weights, count = variables(), tf.Variable(0.0)

        @tf.function
        def layer(x, weight):
            count.assign_add(1.0)
            return tf.sin(tf.tanh(x @ weight) * 3.0) + count

        return descend([layer] * DEPTH, weights), [*weights, count]

    step = trained(make)
    assert step.plan.recomputed
    assert not any("Call" in op.kind for op in step.graph.ops)
    tanh = [op for op in step.graph.ops if "TanhGrad" in op.kind]
    assert len(tanh) == DEPTH
    assert all(op.is_backward for op in tanh)
    small = step(batch(100))
    assert np.isfinite(small)


@pytest.mark.slow
@pytest.mark.own_process
def test_functions_in_functions_with_loops_and_what_tensorflow_draws():
    def make():
        weights = variables()

        @tf.function
        def noisy(x):
            return x + tf.random.normal(x.shape, stddev=1e-3)

        @tf.function
        def layer(x, weight):
            return tf.sin(noisy(tf.tanh(x @ weight)) * 3.0)

        @tf.function
        def looped(x, weight):
            for _ in tf.range(2):
                x = layer(x, weight)
            return x

        return descend([layer] * (DEPTH - 1) + [looped], weights), weights

    step = trained(make, budget="90%")  # of which a step with loops leaves more to spare
    assert step.plan.recomputed


def test_what_is_written_in_a_function_is_read_after_it():
    """And what it reads is read before it is written outside."""

    def make():
        weights, scale = variables(), tf.Variable(1.0)

        @tf.function
        def write(value):
            scale.assign(value)

        @tf.function
        def read(x):
            return x * scale

        def step(x):
            with tf.GradientTape() as tape:
                for weight in weights:
                    x = tf.sin(tf.tanh(x @ weight) * 3.0)
                loss = read(tf.reduce_sum(x))
                write(scale * 0.5)
                loss += read(loss)
                scale.assign_add(0.125)
                loss += read(loss)
            gradients = tape.gradient(loss, weights)
            write(0.75)
            return loss, gradients, scale + 0.0

        return step, [scale]

    assert trained(make).plan.recomputed


def test_functions_that_stay_calls():
    """One for XLA, whose insides are XLA's business, and one that says so."""

    def make():
        weights = variables()

        @tf.function(jit_compile=True)
        def compiled(x):
            return x * 2.0

        @tf.function(experimental_attributes={"_noinline": True})
        def kept(x):
            return tf.sin(x)

        def layer(x, weight):
            return kept(compiled(tf.tanh(x @ weight)))

        return descend([layer] * DEPTH, weights), weights

    step = trained(make, budget="1000%", steps=1)
    calls = [op for op in step.graph.ops if "Call" in op.kind and not op.is_backward]
    assert len(calls) >= DEPTH


@pytest.mark.parametrize("made_for", ["here", "elsewhere"])
def test_functions_of_which_there_is_one_for_each_kind_of_device(made_for):
    """As those of the LSTM and GRU of Keras 2: TensorFlow runs the one that is made for the
    device."""
    kinds = ["CPU", "GPU"] if devices.training_device().startswith("CPU") else ["GPU", "CPU"]
    attributes = {"api_implements": "wave", "api_preferred_device": kinds[made_for == "elsewhere"]}

    def make():
        weights = variables()
        wave = tf.function(lambda x: tf.sin(tf.tanh(x)), experimental_attributes=attributes)
        return descend([lambda x, weight: wave(x @ weight)] * DEPTH, weights), weights

    step = trained(make, budget="1000%", steps=1)
    calls = [op for op in step.graph.ops if "Call" in op.kind and not op.is_backward]
    assert len(calls) == (DEPTH if made_for == "elsewhere" else 0)


def test_a_print_in_a_function_is_not_run_before_training():
    lines = []

    def make():
        weights = variables()

        @tf.function
        def tell(x):
            tf.py_function(lambda value: lines.append(float(value)), [tf.reduce_sum(x)], [])
            return x

        return descend([lambda x, weight: tell(tf.tanh(x @ weight))] * DEPTH, weights), weights

    trained(make, budget="1000%", steps=1)
    assert len(lines) == 2 * DEPTH


def test_layer_names_in_a_function():
    """Reports name the layers of a Keras model that is called in a function."""
    inputs = x = keras.Input((WIDTH,))
    for k in range(3):
        x = keras.layers.Dense(WIDTH, activation="tanh", name=f"layer_{k}")(x)
    model = keras.Model(inputs, x, name="net")
    call = tf.function(lambda x: model(x, training=True))

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(call(x))
        return tape.gradient(loss, model.trainable_variables)

    graph = checkmate.tf2.trace(step, tf.TensorSpec([BATCH, WIDTH])).graph
    assert {"layer_0", "layer_1", "layer_2"} <= set(layer_names(graph))
