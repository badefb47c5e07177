"""On a GPU some ops read numbers in the host's memory. What computes those must not be in the
middle of a step: it would wait for the device, and the device for it."""

import keras
import kernels
import pytest
import tensorflow as tf
from plans import repeating
from tracing import training

import checkmate
from checkmate.tf2.execution.replay import Replayed

DROPOUTS = 8


def dropouts():
    inputs = x = keras.Input((256,))
    for _ in range(DROPOUTS):
        x = keras.layers.Dropout(0.1)(keras.layers.Dense(256, activation="relu")(x))
    return keras.Model(inputs, keras.layers.Dense(4)(x)), (1024, 256), (1024, 4)


def one_generator():
    """All draw from one seed, which each of them moves on."""
    seeds = keras.random.SeedGenerator(1)

    class Drops(keras.layers.Layer):
        def call(self, x):
            return keras.random.dropout(x, 0.1, seed=seeds)

    inputs = x = keras.Input((256,))
    for _ in range(DROPOUTS):
        x = Drops()(keras.layers.Dense(256, activation="relu")(x))
    model = keras.Model(inputs, keras.layers.Dense(4)(x))
    model.seeds = seeds
    return model, (1024, 256), (1024, 4)


@pytest.fixture(scope="module", params=[dropouts, one_generator])
def step(tensorflow, request):
    """A net, as a function whose plan evaluates again what it may."""
    kernels.needs_a_build_for_gpus()
    model, *shapes = request.param()
    run = training(model, keras.losses.MeanSquaredError(), keras.optimizers.Adam())
    traced = checkmate.tf2.trace(run, *map(tensorflow.TensorSpec, shapes))
    plan = repeating(traced.graph)
    assert plan.recomputed
    yield Replayed(traced, plan), run, model


def test_seeds_are_computed_before_the_first_planned_op(step):
    operations = step[0].function.graph.get_operations()
    reading = [o for o in operations if o.type == "StatelessRandomGetKeyCounter"]
    assert len(reading) == DROPOUTS
    assert all(kernels.reads_host(o) for o in reading)
    follow = kernels.after_planned_ops(operations)
    assert not follow & set(reading)


def test_no_op_in_the_middle_of_the_step_reads_what_the_step_computed_on_the_host(step):
    operations = step[0].function.graph.get_operations()
    follow = kernels.after_planned_ops(operations)
    stalls = [
        (o.name, tensor.name)
        for o in follow
        for tensor in kernels.reads_host(o)
        if tensor.op.inputs and not constant(tensor.op)
    ]
    assert not stalls


def test_numbers_drawn_are_those_of_the_plain_step(step, tensorflow):
    replayed, run, _ = step
    variables = replayed.written.traced.variables
    batch = tf.random.stateless_normal((1024, 256), (1, 2)), tf.ones((1024, 4))
    before = [variable.numpy() for variable in variables]
    losses = []
    for each in (replayed, tf.function(run)):
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)
        losses.append([each(*batch).numpy() for _ in range(3)])
    assert len({*losses[0]}) == 3 and losses[0] == losses[1]


def constant(operation):
    """True for what is known before the step runs."""
    if operation.type in ("Shape", "Const"):
        return True
    return operation.inputs and all(constant(tensor.op) for tensor in operation.inputs)
