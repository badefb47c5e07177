"""The pass of TensorFlow's graph optimizer that has convolutions of GPUs compute in another order
of axes: it runs before planning, and nothing is left for it to do afterwards. Grappler is told of a
GPU that is not there (`virtual_gpu`)."""

import contextlib

import keras
import keras_models
import pytest
import tensorflow as tf
import virtual_gpu
from tracing import training

import checkmate
from checkmate.tf2.costs.measured import with_costs
from checkmate.tf2.execution.replay import Replayed
from checkmate.tf2.graph import grappler

pytestmark = pytest.mark.usefixtures("optimizer_on")


@pytest.fixture
def gpu(machine):
    machine.patch(grappler, "training_device", virtual_gpu.device)


def plain_convolutions():
    layers = keras.layers
    inputs = x = keras.Input((32, 32, 3))
    for k in range(6):
        x = layers.Conv2D(16, 3, padding="same", activation="relu")(x)
        x = layers.MaxPooling2D()(x) if k == 2 else x
    model = keras.Model(inputs, layers.Dense(10)(layers.Flatten()(x)))
    like = keras_models.cnn(64)
    return keras_models.Case(model, like.loss, like.inputs, like.labels)


@contextlib.contextmanager
def traced_net(name):
    case = keras_models.unet(16, 64) if name == "unet" else plain_convolutions()
    step = training(case.model, case.loss, keras.optimizers.Adam(0.01))
    specs = [tf.TensorSpec(each.shape, each.dtype) for each in (case.inputs, case.labels)]
    yield checkmate.tf2.trace(step, *specs)  # variables live as long as the model does


def planned(traced, share):
    """Its graph with costs, a plan for a share of what the plain step takes, and the function that
    runs the plan."""
    graph = with_costs(traced, "roofline")
    plain = checkmate.replay(graph, traced.plain_plan()).peak_bytes
    plan = checkmate.solve(graph, int(share * plain), time_limit_s=4).plan
    assert plan.recomputed
    return graph, plan, Replayed(traced, plan).function


@pytest.mark.parametrize(
    "name, share", [("convolutions", 0.7), pytest.param("unet", 0.55, marks=pytest.mark.slow)]
)
def test_layout_is_chosen_before_planning_and_stays(name, share, gpu):
    with traced_net(name) as traced:
        graph, plan, function = planned(traced, share)
        before = virtual_gpu.placed(function, traced.variables)
        after = virtual_gpu.optimized(function, traced.variables)
    transpositions = [o for group in traced.groups for o in group if o.type == "Transpose"]
    assert transpositions, "large transpositions are ops of the plan"
    assert virtual_gpu.kinds(after)["Transpose"] == virtual_gpu.kinds(before)["Transpose"]
    assert virtual_gpu.evaluations(after) == virtual_gpu.evaluations(before)
    peak = virtual_gpu.simulated_peak_bytes(before)
    assert virtual_gpu.simulated_peak_bytes(after) == peak
    counted = checkmate.replay(graph, plan).peak_bytes - graph.fixed_bytes
    assert peak == pytest.approx(counted, rel=0.05)


@pytest.mark.slow
def test_a_layout_that_is_chosen_after_planning_undoes_the_plan():
    """Why it is not: this is what planned functions would become."""
    with traced_net("unet") as traced:
        _, _, function = planned(traced, 0.55)
        before = virtual_gpu.placed(function, traced.variables)
        after = virtual_gpu.optimized(function, traced.variables)
    assert not virtual_gpu.kinds(before)["Transpose"]
    assert virtual_gpu.kinds(after)["Transpose"] > 50
    assert virtual_gpu.simulated_peak_bytes(after) > virtual_gpu.simulated_peak_bytes(before)


def test_convolutions_are_measured_as_they_will_run(gpu):
    """An op is measured alone, without the optimizer: the layout of its arguments is that which the
    step has there."""
    with traced_net("convolutions") as traced:
        pass
    convolutions = [
        o for group in traced.groups for o in group if o.type.startswith("Conv2DBackprop")
    ]
    assert convolutions
    assert all(o.get_attr("data_format") == b"NCHW" for o in convolutions)


def test_in_bfloat16_the_layout_stays(gpu):
    """Kernels for GPUs compute in the order that models are written in, and there is nothing to
    transpose."""
    before = keras.mixed_precision.dtype_policy()
    keras.mixed_precision.set_dtype_policy("mixed_bfloat16")
    try:
        with traced_net("convolutions") as traced:
            pass
    finally:
        keras.mixed_precision.set_dtype_policy(before)
    assert not [o for group in traced.groups for o in group if o.type == "Transpose"]
