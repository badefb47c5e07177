"""The contract of compile(): what it takes and what it gives."""

import keras
import keras_models
import numpy as np
import pytest
import tensorflow as tf
from dense import (
    BATCH,
    HUGE,
    batch_of,
    compiled,
    dense_model,
    planned,
    tight,
)
from strategies import training_chain
from training import assert_equal, plain_step, state

import checkmate
from checkmate import DFGraph, Plan, replay
from checkmate.tf2.execution.replay import Replayed
from checkmate.tf2.memory import budget as budgets
from checkmate.tf2.planning.plan_search import time_limit
from checkmate.tf2.training_step import training_step

pytestmark = pytest.mark.usefixtures("tensorflow")


def test_specs_in_every_form():
    x, y = batch_of()
    found = {
        repr(training_step(dense_model(), "mse", "sgd", inputs, labels)[1])
        for inputs, labels in (
            (tf.constant(x), tf.constant(y)),
            (x, y),
            (tf.TensorSpec(x.shape), tf.TensorSpec(y.shape, tf.float32)),
            (keras.KerasTensor(x.shape), keras.KerasTensor(y.shape)),
            (tf.TensorSpec(x.shape), y),
        )
    }
    assert len(found) == 1
    prediction, loss = compiled(inputs=tf.TensorSpec(x.shape), labels=y)(x, y)
    assert (prediction.shape, loss.shape) == ((BATCH, 4), ()) and np.isfinite(float(loss))


@pytest.mark.parametrize(
    "name", ["sparse_categorical_crossentropy", "SparseCategoricalCrossentropy"]
)
def test_a_loss_by_its_name_leaves_out_what_a_mask_does(name):
    rng = np.random.default_rng(0)
    words, classes = rng.integers(1, 40, (6, 27)), rng.integers(0, 5, (6, 27))
    words[:, 9:] = 0
    keras.utils.set_random_seed(0)
    layers = keras.layers
    vectors = layers.Embedding(40, 8, keras.initializers.RandomNormal(stddev=1.0), mask_zero=True)
    model = keras.Sequential([vectors, layers.Dense(5, "softmax")])
    step = checkmate.tf2.compile(
        model, name, keras.optimizers.SGD(0.0), words, classes, budget=HUGE, cost_model="unit"
    )
    found = float(step(words, classes)[1])
    model.compile("sgd", name)
    own = model.evaluate(words, classes, batch_size=6, verbose=0)
    assert found == pytest.approx(own, rel=1e-6)
    prediction = model.predict(words, verbose=0)
    without = keras.losses.SparseCategoricalCrossentropy()(classes, prediction)
    assert own != pytest.approx(float(without), rel=0.01)


def test_specs_in_dicts_and_the_batch_in_any_form():
    case = keras_models.two_inputs(64)
    specs = tf.nest.map_structure(
        lambda array: tf.TensorSpec(array.shape, array.dtype), (case.inputs, case.labels)
    )
    step = checkmate.tf2.compile(
        case.model, case.loss, keras.optimizers.SGD(0.0), *specs, budget=HUGE, cost_model="unit"
    )
    losses = {
        float(step(inputs, labels)[1])
        for inputs, labels in (
            (case.inputs, case.labels),
            tf.nest.map_structure(tf.constant, (case.inputs, case.labels)),
            tf.nest.map_structure(
                lambda array: array.astype("float64") if array.dtype == "float32" else array,
                (case.inputs, case.labels),
            ),
        )
    }
    assert len(losses) == 1


@pytest.mark.parametrize(("text", "count"), [(HUGE, 2**36), (np.int64(2**36), 2**36)])
def test_budgets_as_amounts(text, count):
    step = compiled(budget=text)
    assert step.budget_bytes == step.report().budget_bytes == count


def test_a_budget_as_a_share_is_of_the_plain_steps_peak():
    step = compiled(budget="250%")
    report = step.report()
    own = report.plain_peak_bytes - report.outside_bytes
    assert step.budget_bytes == int(2.5 * own) + report.outside_bytes, (
        "what else is in use is there with any plan"
    )
    asked = replay(step.graph, step.plan).peak_bytes
    assert own == pytest.approx(asked, rel=0.2), "the allocator's overhead is added"


@pytest.fixture
def free(monkeypatch):
    """Sets how many bytes the device has free."""
    return lambda count: monkeypatch.setattr(budgets, "free_bytes", lambda device: count)


def test_auto_is_what_the_device_has_free(free):
    there = budgets.free_bytes("CPU:0")
    assert 0.5 * there < compiled(budget="auto").budget_bytes < there * 1.5
    free(10**9)
    step = compiled(budget="auto")
    assert step.budget_bytes == int(10**9 * (1 - budgets.AUTO_RESERVE))


def test_auto_never_stops_what_would_train_without_us(free):
    free(1000)
    step = compiled(budget="auto")
    assert step.result is None
    assert any("No plan fits the 900 B found free" in note for note in step.report().notes)
    assert np.isfinite(float(step(*batch_of())[1]))


def test_what_a_step_shows():
    step = planned()
    assert isinstance(step.plan, Plan) and step.result.stats.solver == "auto"
    assert isinstance(step.graph, DFGraph)
    assert step.result.plan is step.plan
    assert step.plan.recomputed
    assert replay(step.graph, step.plan).peak_bytes == step.result.peak_bytes <= step.budget_bytes
    report = step.report()
    assert report.result is step.result
    assert report.peak_bytes == step.result.peak_bytes < report.plain_peak_bytes
    assert (
        report.fixed_bytes
        == step.graph.fixed_bytes
        < report.predicted_peak_bytes
        <= step.budget_bytes
    )
    assert step.result.budget_bytes < step.budget_bytes, "something is left to the allocator"
    assert report.ops == len(step.graph) < report.tensorflow_ops
    phases = {"tracing", "measuring ops", "splitting", "solving", "predicting", "building"}
    assert phases == set(report.seconds)


@pytest.mark.parametrize("ops", [1, 1000, 1001, 5000])
def test_large_graphs_are_given_more_time(ops):
    graph = training_chain(ops)
    assert time_limit(None, graph) == max(2.0, 0.002 * len(graph))
    assert time_limit(0.5, graph) == 0.5


def test_a_huge_budget_runs_the_step_as_it_is():
    step = compiled()
    assert step.result is None
    assert not step.plan.recomputed
    assert "none needed: the step runs unchanged" in str(step.report())
    assert "proven" not in str(step.report())
    step(*batch_of())
    assert step.report().measured_peak_bytes > step.report().fixed_bytes


def two_epochs(make, sizes):
    """Losses and variables of steps with batches of these sizes."""
    keras.utils.set_random_seed(5)
    model, optimizer = dense_model(), keras.optimizers.Adam(1e-2)
    step = make(model, optimizer)
    results = [step(*batch_of(size)) for size in sizes]
    return results, state(model, optimizer), step


def test_a_smaller_last_batch_runs_under_the_same_plan():
    sizes = (BATCH, 100, BATCH, 100, 1)
    loss = keras.losses.MeanSquaredError()
    plain, plain_state, _ = two_epochs(
        lambda model, optimizer: plain_step(model, loss, optimizer), sizes
    )

    def make(model, optimizer):
        return tight(lambda share: compiled(model, optimizer=optimizer, budget=share), lowest=80)

    ours, our_state, step = two_epochs(make, sizes)
    assert step.plan.recomputed
    smaller = step.planned_for(*batch_of(100))[0]
    assert smaller.plan == step.plan and step.planned.run.buffers and not smaller.run.buffers
    assert not step.planned_for(*batch_of(1))[0].plan.recomputed, "its graph is another"
    assert_equal(ours, plain)
    assert_equal(our_state, plain_state)


def regularized_model():
    """With dropout, whose seed is state, and normalization, whose averages are."""
    inputs = x = keras.Input((16,))
    for _ in range(5):
        x = keras.layers.Dense(64, kernel_regularizer="l2", activity_regularizer="l1")(x)
        x = keras.layers.Dropout(0.2)(keras.layers.BatchNormalization()(x))
    return keras.Model(inputs, keras.layers.Dense(4)(x))


def test_losses_of_the_model_are_added_and_compile_changes_nothing():
    """It runs no step."""
    loss = keras.losses.MeanSquaredError()

    def run(make):
        keras.utils.set_random_seed(3)
        model, optimizer = regularized_model(), keras.optimizers.Adam(1e-2)
        optimizer.build(model.trainable_variables)
        before = state(model, optimizer)
        step = make(model, optimizer)
        assert_equal(state(model, optimizer), before)
        return [step(*batch_of()) for _ in range(2)], state(model, optimizer), before

    plain = run(lambda model, optimizer: plain_step(model, loss, optimizer))
    ours = run(
        lambda model, optimizer: tight(
            lambda budget: compiled(model, loss, optimizer, budget=budget)
        )
    )
    assert_equal(ours, plain)
    results, after, before = ours
    assert sum((a != b).any() for a, b in zip(after, before, strict=True)) > len(after) / 2
    prediction, value = results[0]
    assert float(value) > float(loss(batch_of()[1], prediction)) + 0.01


def test_names_of_losses_and_optimizers():
    losses = []
    for loss in (keras.losses.MeanSquaredError(), "mse", "mean_squared_error", "MeanSquaredError"):
        keras.utils.set_random_seed(3)
        step = compiled(dense_model(), loss, keras.optimizers.SGD() if not losses else "sgd")
        losses.append([float(step(*batch_of())[1]) for _ in range(3)])
    for each in losses[1:]:
        np.testing.assert_allclose(each, losses[0], rtol=1e-5)
    assert losses[1][-1] < losses[1][0]


def test_a_subclassed_model_that_is_not_built():
    keras.utils.set_random_seed(3)
    case = keras_models.subclassed(128)
    assert not case.model.built
    optimizer = keras.optimizers.Adam()
    step = compiled(case.model, case.loss, optimizer, case.inputs, case.labels)
    assert len(case.model.trainable_variables) == 12
    assert optimizer.built
    first = float(step(case.inputs, case.labels)[1])
    assert float(step(case.inputs, case.labels)[1]) < first


@pytest.mark.slow
def test_mixed_precision_with_a_scaled_loss():
    """Costs are measured: on a CPU the kernels of half precision need workspaces that no shape
    tells of."""
    x, y = batch_of(16 * BATCH)
    loss = keras.losses.MeanSquaredError()

    def scaled_step(model, optimizer):
        optimizer.build(model.trainable_variables)

        @tf.function
        def step(inputs, labels):
            with tf.GradientTape() as tape:
                prediction = model(inputs, training=True)
                value = loss(labels, prediction)
                scaled = optimizer.scale_loss(value)
            optimizer.apply(
                tape.gradient(scaled, model.trainable_variables), model.trainable_variables
            )
            return prediction, value

        return step

    def run(make):
        keras.utils.set_random_seed(3)
        model = dense_model(dtype="mixed_float16")
        step = make(
            model,
            keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=128.0),
        )
        return [float(step(x, y)[1]) for _ in range(3)], step

    plain, _ = run(scaled_step)
    ours, step = run(
        lambda model, optimizer: tight(
            lambda budget: compiled(
                model, loss, optimizer, x, y, budget=budget, cost_model="profile"
            )
        )
    )
    assert any(
        operation.outputs and operation.outputs[0].dtype == tf.float16
        for group in step.planned.traced.groups
        for operation in group
    )
    assert ours == plain
    assert plain[-1] < plain[0]


def test_a_log_without_a_terminal_gets_a_line_about_the_plan(capfd):
    step = compiled(verbose=True)
    out, line = capfd.readouterr()
    assert out == ""
    assert line.splitlines()[-1].startswith(f"{step.report().name}: {step.report().in_a_line()} (")
    compiled(verbose=False)
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("optimizer_on")
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("side", [1, 2])
def test_one_example_of_one_pixel(optimizer, side):
    """Where axes have one element, small ops stand between the ops of a group."""
    layers, batch = keras.layers, (tf.ones([1, side, side, 3]), tf.ones([1, 1]))

    def made():
        keras.utils.set_random_seed(0)
        inputs = keras.Input((side, side, 3))
        values = layers.BatchNormalization()(layers.Conv2D(4, 3, padding="same")(inputs))
        model = keras.Model(inputs, layers.Dense(1)(layers.Flatten()(values)))
        own = keras.optimizers.get(optimizer)
        return training_step(model, "mse", own, *batch), (model, own)

    (function, specs), ours = made()
    (plain, _), theirs = made()
    traced = checkmate.tf2.trace(function, *specs)
    step, expected = Replayed(traced, Plan.keep_all(traced.graph)), tf.function(plain)
    for _ in range(2):
        assert_equal(step(*batch), expected(*batch))
    assert_equal(state(*ours), state(*theirs))
