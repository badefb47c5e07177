"""What of a step XLA compiles: all of it where it fits, else the parts of a plan that pay and
fit."""

import logging
from dataclasses import replace
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from fitting import BATCH, classifier, data, under_budget
from unhurried import UNHURRIED

import checkmate
from checkmate.core.footprint import Footprint, Request
from checkmate.errors import TraceError
from checkmate.tf2 import device as devices
from checkmate.tf2.costs.cache import Measurement
from checkmate.tf2.execution.replay import write
from checkmate.tf2.graph import xla
from checkmate.tf2.planning import clustering
from checkmate.tf2.planning.request import Reason

pytestmark = pytest.mark.usefixtures("tensorflow")


LARGE = 128
"""Examples of a batch that is large enough for a peak to hold still."""


@pytest.fixture
def every_cluster_pays(monkeypatch):
    monkeypatch.setattr(clustering, "PAYS", 1e9)
    monkeypatch.setattr(clustering, "AT_ONCE", 1000)


def transformer(dropout):
    x = inputs = keras.Input((64, 64))
    for _ in range(2):
        y = keras.layers.LayerNormalization()(x)
        y = keras.layers.MultiHeadAttention(4, 16, dropout=dropout)(y, y)
        x = keras.layers.Add()([x, keras.layers.Dropout(dropout)(y) if dropout else y])
        y = keras.layers.Dense(256, activation="gelu")(keras.layers.LayerNormalization()(x))
        x = keras.layers.Add()([x, keras.layers.Dense(64)(y)])
    outputs = keras.layers.Dense(10)(keras.layers.GlobalAveragePooling1D()(x))
    return keras.Model(inputs, outputs)


def batch(size=32):
    chance = np.random.default_rng(0)
    images = chance.normal(size=(size, 64, 64)).astype("float32")
    return tf.constant(images), tf.constant(chance.integers(0, 10, size))


def losses(budget, steps=2, size=32, dropout=0.0, **options):
    keras.utils.set_random_seed(0)
    x, y = batch(size)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.Adam(1e-3)
    options = {"solver": UNHURRIED, "verbose": False, **options}
    step = checkmate.tf2.compile(
        transformer(dropout), loss, optimizer, x, y, budget=budget, **options
    )
    return step, [float(step(x, y)[1]) for _ in range(steps)]


def test_clusters_keep_the_budget_and_the_numbers(every_cluster_pays):
    options = {"size": LARGE, "dropout": 0.1}
    step, ours = losses("55%", **options, jit_compile=True)
    _, plain = losses("55%", **options)
    np.testing.assert_allclose(ours, plain, rtol=1e-3)
    report = step.report()
    assert report.clusters.calls > report.clusters.functions > 1
    assert f"{report.clusters.calls} of the plan's parts" in str(report)
    found = checkmate.tf2.verify(step, batch(LARGE))
    assert all(each.is_rounding for each in found.differences), str(found)
    assert found.measured_peak_bytes - found.lost_bytes <= report.budget_bytes
    # What is outside of calls runs in turn, also the random numbers of dropout.
    assert report.measured_peak_bytes <= 1.01 * report.predicted_peak_bytes


def test_results_too_small_for_the_pool_are_no_reason_against_a_call(monkeypatch):
    """oneDNN's allocator does not count less than 256 KiB."""
    nothing = Measurement(1.0, 0, (), (Footprint(()),))

    def is_seen(size, found=nothing):
        made = SimpleNamespace(like=((), (tf.zeros(size, tf.int8),)))
        return clustering._is_seen(made, found)

    assert not is_seen(2**17)
    monkeypatch.setattr(devices, "counts_everything", lambda device: False)
    assert is_seen(2**17) and not is_seen(2**18)
    assert not is_seen(2**17, replace(nothing, footprints=()))  # the profiler saw no request


def test_a_step_that_fits_is_compiled_as_a_whole():
    step, ours = losses("1000%", jit_compile=True)
    _, plain = losses("1000%")
    np.testing.assert_allclose(ours, plain, rtol=1e-3)
    assert step.result is None and step.report().clusters.calls is None
    assert "all of it" in str(step.report())
    assert checkmate.tf2.verify(step, batch()).ok
    smaller, _ = step.planned_for(*batch(16))
    assert isinstance(smaller.run, clustering.Whole)


def test_a_batch_that_may_run_in_slices_is_compiled_where_it_does_not():
    step, _ = losses("1000%", 1, jit_compile=True, micro_batches="auto")
    assert "all of it" in str(step.report())


def test_without_the_flag_xla_compiles_nothing():
    assert losses("55%", 1)[0].report().clusters is None


def test_what_does_not_pay_stays_as_it_is(monkeypatch):
    monkeypatch.setattr(clustering, "PAYS", 0.0)
    step, ours = losses("55%", jit_compile=True)
    assert step.report().clusters.calls == 0 and "no part of the plan" in str(step.report())
    assert ours == losses("55%")[1]


def test_the_search_ends_where_nothing_pays(monkeypatch):
    tried = []
    measured = clustering.Clustering._measured

    def counted(self, own):
        tried.extend(own)
        return measured(self, own)

    monkeypatch.setattr(clustering.Clustering, "_measured", counted)
    monkeypatch.setattr(clustering, "PAYS", 0.0)
    losses("55%", 1, jit_compile=True)
    assert len(tried) == clustering.AT_ONCE


@pytest.mark.slow
def test_calls_that_do_not_fit_are_not_made(every_cluster_pays, monkeypatch):
    """As if XLA took a hundred times what it asked for."""
    measured = clustering.Clustering._measured

    def larger(self, own):
        found = measured(self, own)
        for key, each in found.items():
            more = tuple(
                replace(footprint, requests=(*footprint.requests, Request(10**9)))
                for footprint in each.measurement.footprints
            )
            measurement = replace(each.measurement, footprints=more)
            found[key] = replace(each, measurement=measurement)
        return found

    monkeypatch.setattr(clustering.Clustering, "_measured", larger)
    step, _ = losses("55%", 1, jit_compile=True)
    assert step.report().clusters.calls == 0


@pytest.mark.slow
def test_what_xla_refuses_runs_as_it_is_and_is_told(every_cluster_pays, monkeypatch):
    """One cluster is not compiled; the others are."""
    measure, refused = clustering.measured_ops, []

    def some(wanted, on_progress):
        found = measure(wanted, on_progress)
        if not refused:
            refused.extend(wanted)
            found[refused[-1]] = None
        return found

    monkeypatch.setattr(clustering, "measured_ops", some)
    step, ours = losses("55%", jit_compile=True)
    np.testing.assert_allclose(ours, losses("55%")[1], rtol=1e-3)
    clusters = step.report().clusters
    assert clusters.calls and clusters.refused
    assert f"XLA refused what begins with {', '.join(clusters.refused)}" in str(step.report())


def test_a_whole_step_that_xla_refuses_runs_as_it_is(caplog):
    weight = tf.Variable(tf.ones((8, 8)))

    def step(x):
        y = tf.ensure_shape(tf.numpy_function(lambda a: a + 1, [x @ weight], tf.float32), (4, 8))
        weight.assign_add(tf.transpose(y) @ y)
        return tf.reduce_sum(y)

    planned = checkmate.tf2.function(step, budget="1GiB", jit_compile=True, verbose=False)
    x = tf.ones((4, 8))
    with caplog.at_level(logging.WARNING, logger="checkmate"):
        found = [float(planned(x)), float(planned(x))]
    assert found[0] == 4 * 8 * 9.0 and found[1] > found[0]
    assert sum("runs without XLA" in each.message for each in caplog.records) == 1
    assert "The op is created" not in caplog.text
    assert "nothing: XLA refused it. " in str(planned.report())
    assert checkmate.tf2.verify(planned, (x,)).ok


def test_an_error_of_a_compiled_step_is_not_taken_for_a_refusal():
    calls = []

    def run(x):
        calls.append(1)
        return x + 1

    whole = clustering.Whole(run, "step")
    assert float(whole(tf.constant(1.0))) == 2.0
    whole._compiled = failing = lambda *flat: (_ for _ in ()).throw(
        tf.errors.InvalidArgumentError(None, None, "wrong")
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="wrong"):
        whole(tf.constant(1.0))
    assert whole._compiled is failing


def test_a_device_without_xla(monkeypatch):
    monkeypatch.setattr(xla, "is_there", lambda: False)
    step, _ = losses("55%", 1, jit_compile=True)
    assert step.report().clusters.calls == 0
    assert "no XLA for this device" in str(step.report())


@pytest.mark.parametrize(
    ("why", "options"),
    [
        ("a batch in slices", {"micro_batches": 2}),
        ("must be measured", {"cost_model": "roofline"}),
    ],
)
def test_the_report_says_why_xla_compiles_nothing(why, options):
    step, _ = losses("70%", 1, jit_compile=True, **options)
    assert why in step.report().clusters.why_not


@pytest.mark.slow
def test_a_plan_of_a_file_has_clusters_again(every_cluster_pays, tmp_path):
    path = tmp_path / "plan.json"
    step, ours = losses("80%", jit_compile=True)
    step.save(path)
    del step
    again, theirs = losses("80%", jit_compile=True, plan=path)
    assert again.report().clusters.calls
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)


def test_fit_is_compiled_as_the_model_is(every_cluster_pays):
    x, y = data(size=2 * BATCH)
    for flag in (True, False):
        model = classifier(jit_compile=False)
        model._jit_compile = flag  # Keras compiles none where ops are deterministic, as here
        model = under_budget(model, "1000%")
        model.fit(x, y, batch_size=BATCH, verbose=0)
        clusters = checkmate.tf2.planned(model).report().clusters
        assert (clusters is not None) is flag


@pytest.mark.slow
def test_deterministic_ops_are_compiled_too(every_cluster_pays):
    """As they are in all these tests: XLA has fewer kernels then."""
    step, ours = losses("55%", jit_compile=True)
    assert step.report().clusters.calls
    np.testing.assert_allclose(ours, losses("55%")[1], rtol=1e-3)


def test_ops_that_a_plan_adds_cost_nothing():
    """A large constant is filled where it is read."""
    weight = tf.Variable(tf.ones((256, 256)))

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.tanh(x @ weight) * tf.ones((256, 256)))
        weight.assign_sub(tape.gradient(loss, weight))
        return loss

    found = checkmate.tf2.trace(step, tf.TensorSpec((256, 256)))
    written = write(found, found.plain_plan())
    assert any(isinstance(each, tuple) for each in written.writer.like.values())
    assert sum(clustering._costs(written, found.graph)) > 0


@pytest.mark.parametrize(
    ("budget", "why", "is_planned"), [("1000%", "all of it", False), ("55%", "of the plan", True)]
)
def test_a_step_that_takes_more_by_xla_is_planned_anew(every_cluster_pays, budget, why, is_planned):
    """What XLA took more says nothing of TensorFlow's own kernels."""
    step, _ = losses(budget, 1, jit_compile=True)
    assert why in str(step.report())
    taken = "It took more.", "more", 1.5
    planned, specs = step.planned, step._specs
    again = step._planner.anew(planned, specs, (), Reason(*taken))
    assert again.result is not None and step._planner.request.correction == 1
    if is_planned:
        assert "took more than the budget" in again.report.clusters.why_not
        assert step._planner.anew(again, specs, (), Reason(*taken)).report.clusters is None
        assert step._planner.request.correction == 1.5
    else:
        assert again.report.clusters.calls


@pytest.mark.parametrize("flag", ["yes", 1, None])
def test_a_flag_that_is_none_is_refused(flag):
    with pytest.raises(TraceError, match="jit_compile says"):
        checkmate.tf2.PlanOptions("1GiB", jit_compile=flag)


def test_a_step_is_called_first_while_a_function_is_traced():
    step, _ = losses("55%", 0)
    x, y = batch()
    traced = tf.function(lambda x, y: step(x, y)[1])
    ours = [float(traced(x, y)) for _ in range(2)]
    assert ours == losses("55%", 2)[1]
