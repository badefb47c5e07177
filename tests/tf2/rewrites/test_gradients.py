"""Gradients of whole batches and of batches in slices, model by model."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from zoo_steps import step_and_batch

import checkmate
from benchmarks.zoo import models

ZOO = (
    *("encoder", "lstm", "decoder", "seq2seq", "bidirectional_gru", "attention_lstm", "fourier"),
    *("vit", "mixer", "super_resolution", "bag_of_words", "time_distributed", "conv1d", "shapes"),
    *("stacked_cells", "float64", "regularized", "branching"),
)
APPLICATIONS = ("VGG16", "VGG19", "ConvNeXtTiny")
EXAMPLES, SIDE = 8, 64


def gradients_and_batch(name):
    """(The function that returns a model's gradients, a batch)."""
    keras.utils.set_random_seed(0)
    if name in APPLICATIONS:
        model = getattr(keras.applications, name)(
            weights=None, input_shape=(SIDE, SIDE, 3), classes=10
        )
        loss = keras.losses.SparseCategoricalCrossentropy()
        images = np.random.default_rng(0).normal(size=(EXAMPLES, SIDE, SIDE, 3))
        batch = tf.constant(images, tf.float32), tf.range(EXAMPLES) % 10
    else:
        made = models()[name]()
        model, loss = made.model, made.loss
        _, batch = step_and_batch(name, EXAMPLES)

    def gradients(inputs, labels):
        with tf.GradientTape() as tape:
            value = loss(labels, model(inputs, training=True))
            if model.losses:
                value += tf.add_n([tf.cast(each, value.dtype) for each in model.losses])
        found = tape.gradient(value, model.trainable_variables)
        return [tf.convert_to_tensor(each) for each in found if each is not None]

    return gradients, batch


@pytest.mark.long
@pytest.mark.parametrize("name", [*ZOO, *APPLICATIONS])
def test_gradients_of_slices_are_those_of_the_batch(tensorflow, name):
    gradients, batch = gradients_and_batch(name)
    function = tensorflow.function(gradients)
    variables = function.get_concrete_function(*batch).variables  # seeds among them
    before = [each.numpy() for each in variables]
    plain = [each.numpy() for each in function(*batch)]
    for variable, value in zip(variables, before, strict=True):
        variable.assign(value)
    step = checkmate.tf2.function(
        gradients, budget="8GiB", micro_batches=4, cost_model="roofline", verbose=False
    )
    ours = [each.numpy() for each in step(*batch)]
    assert step.report().micro_batches.count == 4
    largest = max(float(np.max(np.abs(each))) for each in plain)
    off = max(float(np.max(np.abs(a - b))) for a, b in zip(plain, ours, strict=True))
    print(f"\n{name}: {off / largest:.1e} of the largest")
    # Sums over many positions: each order of adding up loses other digits.
    in_float32 = 1e-5 if name in ("mixer", "super_resolution", "ConvNeXtTiny") else 1e-6
    assert off <= in_float32 * largest
