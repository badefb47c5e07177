"""Whole programs under eager dynamic rematerialization: Keras's fit, and op logs of what ran."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from eager_programs import (
    MIB,
    above,
    arrays,
    chain,
    dtr,
    gradients,
    managed,
    normal,
    plain_peak,
    same,
)

from checkmate import simulate, tf2

pytestmark = pytest.mark.usefixtures("tensorflow")


@pytest.mark.parametrize("eagerly", [True, False])
def test_fit_trains_the_same(eagerly):
    """A `tf.function` that is first traced within the context has a tape of its own."""

    def trained(context):
        keras.utils.set_random_seed(3)
        layers = keras.layers
        model = keras.Sequential(
            [
                layers.Input((32,)),
                layers.Dense(256, "relu"),
                layers.BatchNormalization(),
                layers.Dropout(0.3),
                layers.Dense(256, "relu"),
                layers.Dense(4),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"], run_eagerly=eagerly)
        x = np.random.RandomState(0).randn(512, 32).astype("float32")
        with context() as entered:
            history = model.fit(
                x, np.arange(512) % 4, batch_size=256, epochs=2, verbose=0, shuffle=False
            ).history
        return history, model.get_weights(), entered

    plain = trained(contextlib.nullcontext)
    found = trained(lambda: above((2.9 if eagerly else 64) * MIB))
    assert found[0] == plain[0]
    same(found[1], plain[1])
    stats = found[2].stats
    assert bool(stats.rematerializations) == eagerly and stats.peak_bytes <= stats.budget_bytes, (
        str(stats)
    )


def test_a_recorded_log_is_a_program():
    variables, loss = chain(depth=6)
    gradients(variables, loss)
    with dtr():
        gradients(variables, loss)
    _, _, peak = plain_peak(variables, loss)
    with tf2.dtr.record("chain") as recording:
        gradients(variables, loss)
    log = recording.log
    calls = [each for each in log.instructions if type(each).__name__ == "Call"]
    assert [call.op for call in calls if call.op in ("MatMul", "Tanh", "TanhGrad")].count(
        "Tanh"
    ) == 6
    plain = simulate(log, "100%")
    assert plain.status.value == "ok" and plain.overhead < 1.01
    fixed = sum(each.bytes for each in log.instructions if type(each).__name__ == "Constant")
    assert plain.plain_peak_bytes - fixed == pytest.approx(peak, rel=0.2)
    tight = simulate(log, fixed + int(0.9 * (plain.plain_peak_bytes - fixed)))
    assert tight.rematerializations > 0


def test_a_list_that_the_program_changes_later():
    images, size, pooled = normal(1, 16, 16, 4), [1, 3, 3, 1], []
    with managed(smallest_bytes=0) as runtime:
        for width in (3, 5):
            size[1] = size[2] = width
            pooled.append(tf.nn.max_pool2d(images, size, 1, "SAME"))
        runtime.policy.evict_all()
        found = arrays(pooled)
    assert runtime.policy.rematerializations
    same(found, arrays([tf.nn.max_pool2d(images, width, 1, "SAME") for width in (3, 5)]))


@pytest.mark.parametrize("pool", ["FractionalMaxPool", "FractionalAvgPool"])
def test_ops_that_draw_run_once_though_tensorflow_does_not_say_that_they_do(pool):
    with managed(smallest_bytes=0) as runtime:
        pooled, *_ = getattr(tf.raw_ops, pool)(
            value=normal(1, 32, 32, 4), pooling_ratio=(1.0, 1.44, 1.5, 1.0)
        )
        before = arrays([pooled])
        runtime.policy.evict_all()
        same(arrays([pooled]), before)


def test_shapes_are_never_evicted():
    """TensorFlow's gradient of it asks for the shape in the middle of a function that knows its own
    tensors only."""
    x = normal(16, 16)
    with dtr(smallest_bytes=0), tf.GradientTape() as tape:
        tape.watch(x)
        total = tf.reduce_sum(tf.broadcast_to(x, tf.concat([[3], tf.shape(x)], 0)))
        (found,) = arrays([tape.gradient(total, x)])
    assert np.all(found == 3)


def test_tensorflow_asks_handles_for_their_graph_in_many_places():
    plain = tf.tanh(normal(8, 8))
    with dtr(smallest_bytes=0):
        x = tf.tanh(normal(8, 8))
        variable = tf.Variable(x)
        in_a_function = tf.function(
            lambda a: tf.reduce_all(tf.cond(a[0, 0] > 5, lambda: -x, lambda: x) == x)
        )(x)
        found = arrays([variable, x == x, tf.size(x), tf.stack([x, x]), in_a_function])
    same(found, arrays([plain, plain == plain, tf.size(plain), tf.stack([plain, plain]), True]))
