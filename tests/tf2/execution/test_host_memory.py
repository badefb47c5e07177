"""On a GPU some ops read numbers in the host's memory. What computes those must not be in the
middle of a step: it would wait for the device, and the device for it."""

import kernels
import pytest
from plans import repeating
from tracing import training

import checkmate
from checkmate.tf2.execution.plan_writer import EVALUATION_MARK
from checkmate.tf2.execution.replay import Replayed

DROPOUTS = 24


@pytest.fixture(scope="module")
def step(tensorflow):
    """A net of many Dropouts, as a function whose plan evaluates again what it may."""
    import keras

    kernels.needs_a_build_for_gpus()
    inputs = x = keras.Input((256,))
    for _ in range(DROPOUTS):
        x = keras.layers.Dropout(0.1)(keras.layers.Dense(256, activation="relu")(x))
    model = keras.Model(inputs, keras.layers.Dense(4)(x))
    run = training(model, keras.losses.MeanSquaredError(), keras.optimizers.Adam())
    specs = tensorflow.TensorSpec((1024, 256)), tensorflow.TensorSpec((1024, 4))
    traced = checkmate.tf2.trace(run, *specs)
    plan = repeating(traced.graph)
    assert plan.recomputed
    yield Replayed(traced, plan).function, model


def test_seeds_are_computed_before_the_first_planned_op(step):
    operations = step[0].graph.get_operations()
    reading = [o for o in operations if o.type == "StatelessRandomGetKeyCounter"]
    assert len(reading) == DROPOUTS
    assert all(kernels.reads_host(o) for o in reading)
    follow = followers_of_planned_ops(operations)
    assert not follow & set(reading)


def test_no_op_in_the_middle_of_the_step_reads_what_the_step_computed_on_the_host(step):
    operations = step[0].graph.get_operations()
    follow = followers_of_planned_ops(operations)
    stalls = [
        (o.name, tensor.name)
        for o in follow
        for tensor in kernels.reads_host(o)
        if tensor.op.inputs and not constant(tensor.op)
    ]
    assert not stalls


def constant(operation):
    """True for what is known before the step runs."""
    if operation.type in ("Shape", "Const"):
        return True
    return operation.inputs and all(constant(tensor.op) for tensor in operation.inputs)


def followers_of_planned_ops(operations):
    """The ops that begin when a planned op has ended, by whatever edges."""
    found = set()
    for operation in operations:
        before = [tensor.op for tensor in operation.inputs] + list(operation.control_inputs)
        if any(each in found or EVALUATION_MARK in each.name for each in before):
            found.add(operation)
    return found
