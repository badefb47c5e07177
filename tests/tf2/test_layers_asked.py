"""`keep` and `recompute`: layers named by the user, at every door."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from training import assert_equal, plain_step, state

import checkmate
from checkmate import tf2
from checkmate.core.layer_names import layer_names
from checkmate.solvers.layer_rules import ops_of_layers
from checkmate.tf2 import device as devices
from checkmate.tf2.training_step import training_step

pytestmark = pytest.mark.usefixtures("tensorflow")

INPUTS, LABELS = np.ones([1024, 128], np.float32), np.ones([1024, 1], np.float32)


def net():
    keras.utils.set_random_seed(3)
    hidden = [keras.layers.Dense(256, "gelu", name=f"hidden_{k}") for k in range(4)]
    return keras.Sequential([keras.Input([128]), *hidden, keras.layers.Dense(1, name="head")])


def mse(labels, prediction):
    return tf.reduce_mean((labels - prediction) ** 2)


def again(step):
    """The layers of the ops that run again."""
    names = layer_names(step.graph)
    return {names[i] for i in step.plan.recomputed}


def planned(**options):
    optimizer = keras.optimizers.SGD(0.1)
    model = net()
    step = tf2.compile(
        model, mse, optimizer, INPUTS, LABELS, cost_model="roofline", verbose=False, **options
    )
    return step, model, optimizer


def test_recomputed_whatever_the_budget_with_the_model_s_own_numbers():
    step, model, optimizer = planned(budget="1GiB", recompute=["hidden_1", "hidden_2"])
    assert again(step) == {"hidden_1", "hidden_2"}
    report = str(step.report())
    assert "recompute hidden_1, hidden_2" in report and "optimal" in repr(step)
    results = [step(INPUTS, LABELS) for _ in range(2)]
    other, plain = net(), keras.optimizers.SGD(0.1)
    expected = plain_step(other, mse, plain)
    assert_equal(results, [expected(INPUTS, LABELS) for _ in range(2)])
    assert_equal(state(model, optimizer), state(other, plain))


def test_kept_and_the_rest_pays():
    free, *_ = planned(budget="80%")
    (layer, *_) = again(free)
    step, *_ = planned(budget="80%", keep=layer)
    assert layer not in again(step) and again(step)


def test_every_door(tmp_path):
    step, *_ = planned(budget="1GiB", recompute="hidden_2", plan=tmp_path)
    assert again(step) == {"hidden_2"}
    same, *_ = planned(budget="1GiB", recompute="hidden_2", plan=tmp_path)
    assert same.result.rules == "recompute hidden_2" and "is from" in str(same.report())
    other, *_ = planned(budget="1GiB", plan=tmp_path)
    assert not other.plan.recomputed
    step.save(tmp_path / "plan.json")
    with pytest.raises(checkmate.PlanFileError, match=r"recompute hidden_2 asked .* keep hidden_1"):
        planned(budget="1GiB", keep="hidden_1", plan=tmp_path / "plan.json")

    model = net()
    model.compile("sgd", "mse")
    tf2.rematerialize(
        model, budget="1GiB", recompute="hidden_?", cost_model="roofline", verbose=False
    )
    model.fit(INPUTS, LABELS, verbose=0)
    assert again(tf2.planned(model)) == {"hidden_0", "hidden_1", "hidden_2", "hidden_3"}


def test_a_name_of_no_layer():
    with pytest.raises(checkmate.GraphError, match=r"keep='hiden_1' .* such as 'hidden_1'"):
        planned(budget="80%", keep="hiden_1")


def test_a_refusal_says_what_keeping_costs():
    free, *_ = planned(budget="80%")
    with pytest.raises(checkmate.CheckmateError) as refusal:
        planned(budget="80%", keep="hidden_*")
    assert "keep hidden_*: without, a plan fits for +" in str(refusal.value), free


def test_in_slices_the_rules_are_those_of_a_slice():
    step, *_ = planned(budget="1GiB", recompute="hidden_1", micro_batches=2)
    assert again(step) == {"hidden_1"}
    assert "recompute hidden_1" in str(step.report())


def test_a_step_that_fits_is_loaded_with_what_it_keeps(tmp_path):
    step, *_ = planned(budget="1GiB", keep="hidden_1")
    step.save(tmp_path / "plan.json")
    same, *_ = planned(budget="1GiB", keep="hidden_1", plan=tmp_path / "plan.json")
    assert same.result is None
    with pytest.raises(checkmate.PlanFileError, match="nothing asked of layers"):
        planned(budget="1GiB", recompute="hidden_1", plan=tmp_path / "plan.json")


def test_the_largest_batch_holds_to_the_rules():
    budget = devices.bytes_in_use(devices.training_device()) + 24_000_000
    found = tf2.max_batch(
        net(),
        mse,
        "sgd",
        INPUTS,
        LABELS,
        budget=budget,
        keep="hidden_*",
        cost_model="roofline",
        verbose=False,
    )
    assert not {"hidden_0", "hidden_1", "hidden_2", "hidden_3"} & again(found.step)


@pytest.mark.usefixtures("optimizer_on")
def test_a_convolution_that_runs_within_its_activation_has_its_own_name():
    layers = keras.layers
    model = keras.Sequential([keras.Input([16, 16, 3])])
    for k in range(3):
        model.add(layers.Conv2D(8, 3, name=f"conv_{k}"))
        model.add(layers.ReLU(name=f"relu_{k}"))
    model.add(layers.GlobalAveragePooling2D())
    images, labels = tf.TensorSpec([8, 16, 16, 3]), tf.TensorSpec([8, 8])
    step, specs = training_step(model, mse, "sgd", images, labels)
    graph = tf2.trace(step, *specs).graph
    for layer in ("conv_1", "relu_1"):
        (found,) = ops_of_layers(graph, [layer], "keep")
        assert layer_names(graph)[found] == "relu_1"
    assert len(ops_of_layers(graph, ["conv*"], "keep")) == 3
