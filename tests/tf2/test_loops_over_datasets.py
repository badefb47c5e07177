"""A loop over a dataset stays within the budget: batches that the pipeline makes and those that the
program keeps count as well."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from checkmate.tf2 import compile, function

pytestmark = [
    pytest.mark.usefixtures("tensorflow"),
    pytest.mark.own_process,
    pytest.mark.slow,  # test_fit_loop asks for as much
]

BATCH, LENGTH = 16, 72


def images():
    """A dataset of images and labels in batches of 1 MiB, of which it makes four ahead."""
    generator = np.random.default_rng(0)
    values = generator.random((8 * BATCH, LENGTH, LENGTH, 3), np.float32)
    labels = generator.integers(0, 10, 8 * BATCH)
    options = tf.data.Options()
    options.autotune.enabled = False  # it would make ever more ahead
    dataset = tf.data.Dataset.from_tensor_slices((values, labels)).shuffle(99).batch(BATCH)
    return dataset.repeat(2).prefetch(4).with_options(options)


def compiled(model, loss, dataset):
    kept = next(iter(dataset))  # as a notebook keeps it
    return compile(model, loss, "adam", *kept, budget="60%", verbose=False), kept


def decorated(model, loss, dataset):
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)

    @function(budget="60%", verbose=False)
    def step(values, labels):
        with tf.GradientTape() as tape:
            result = loss(labels, model(values, training=True))
        gradients = tape.gradient(result, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return result

    return step, None


@pytest.mark.parametrize("make", [compiled, decorated])
def test_a_loop_over_a_dataset_stays_within_the_budget(make):
    keras.utils.set_random_seed(0)
    values = inputs = keras.Input((LENGTH, LENGTH, 3))
    for _ in range(4):
        values = keras.layers.Conv2D(16, 3, padding="same", activation="relu")(values)
        values = keras.layers.LayerNormalization()(values)
    outputs = keras.layers.Dense(10)(keras.layers.GlobalAveragePooling2D()(values))
    model = keras.Model(inputs, outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    dataset = images()
    step, kept = make(model, loss, dataset)
    for k, batch in enumerate(dataset):
        step(*batch)
        if k == 3:  # the batches ahead are made
            tf.config.experimental.reset_memory_stats("CPU:0")
    assert sum(step.plan.recomputed.values()) > 0
    peak_bytes = tf.config.experimental.get_memory_info("CPU:0")["peak"]
    assert peak_bytes <= step.budget_bytes, str(step.report())
    del kept
