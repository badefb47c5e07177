"""A number of micro-batches by hand where examples are bound together: each slice is a batch of its
own, and the update is one on the average of their gradients."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from sliced_nets import SIDE, net

import checkmate

pytestmark = pytest.mark.usefixtures("tensorflow", "alone")

EXAMPLES = 14
SIZES = (4, 4, 4, 2)


def normalized():
    """A net with statistics of the batch, and with a layer that reads what it has just written."""
    model = net(norm=keras.layers.BatchNormalization)
    last = keras.layers.SpectralNormalization(keras.layers.Dense(10))
    whole = keras.Sequential([*model.layers, last])
    whole.build((None, SIDE, SIDE, 3))
    return whole


def accumulated(model, optimizer, inputs, labels):
    """(loss, prediction) of a step that accumulates gradients by hand."""
    from sliced_nets import loss

    totals, losses, predictions, first = None, [], [], 0
    for size in SIZES:
        own, wanted = inputs[first : first + size], labels[first : first + size]
        with tf.GradientTape() as tape:
            prediction = model(own, training=True)
            value = loss()(wanted, prediction) + tf.add_n(model.losses)
        gradients = tape.gradient(value, model.trainable_variables)
        weighted = [gradient * (size / EXAMPLES) for gradient in gradients]
        totals = (
            weighted if totals is None else [a + b for a, b in zip(totals, weighted, strict=True)]
        )
        losses.append(float(value) * size / EXAMPLES)
        predictions.append(prediction.numpy())
        first += size
    optimizer.apply(totals, model.trainable_variables)
    return sum(losses), np.concatenate(predictions)


def numbers(model):
    return [each.numpy() for each in model.variables]


def sgd():
    return keras.optimizers.SGD(0.1, momentum=0.9)


def test_compile_averages_over_slices_and_says_so(caplog):
    from sliced_nets import batch, loss

    inputs, labels = batch(EXAMPLES)
    plain, optimizer = normalized(), sgd()
    optimizer.build(plain.trainable_variables)
    expected = [accumulated(plain, optimizer, inputs, labels) for _ in range(2)]
    ours = normalized()
    options = {"cost_model": "roofline", "verbose": False, "micro_batches": 4}
    step = checkmate.tf2.compile(ours, loss(), sgd(), inputs, labels, budget="40MiB", **options)
    for value, prediction in expected:
        found, loss_value = step(inputs, labels)
        np.testing.assert_allclose(float(loss_value), value, rtol=1e-5)
        np.testing.assert_allclose(found.numpy(), prediction, rtol=1e-4, atol=1e-5)
    for one, other in zip(ours.variables, plain.variables, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), atol=2e-5, err_msg=one.path)
    (note,) = (each for each in step.report().notes if "batch of its own" in each)
    assert "batch_normalization" in note and note in caplog.text
    assert step.report().micro_batches.count == 4


@pytest.mark.slow
@pytest.mark.parametrize("scaled", [False, True])
def test_fit_counts_one_update_a_batch(scaled):
    from sliced_nets import images, loss

    model = normalized()
    optimizer = keras.optimizers.LossScaleOptimizer(sgd()) if scaled else sgd()
    model.compile(optimizer, loss(), metrics=["accuracy"], jit_compile=False)
    checkmate.tf2.rematerialize(
        model, budget="60MiB", micro_batches=4, cost_model="roofline", verbose=False
    )
    pictures, labels, _ = images(2 * EXAMPLES)
    before = numbers(model)
    history = model.fit(pictures, labels, batch_size=EXAMPLES, shuffle=False, verbose=0).history
    assert int(optimizer.iterations) == 2
    again = normalized()
    plain = sgd()
    plain.build(again.trainable_variables)
    found = [
        accumulated(again, plain, pictures[k : k + EXAMPLES], labels[k : k + EXAMPLES])
        for k in (0, EXAMPLES)
    ]
    np.testing.assert_allclose(history["loss"], np.mean([loss for loss, _ in found]), rtol=1e-4)
    right = np.concatenate([one for _, one in found]).argmax(-1) == labels
    np.testing.assert_allclose(history["accuracy"], np.mean(right), atol=0.04)
    assert any(not np.array_equal(*each) for each in zip(before, numbers(model), strict=True))
    for one, other in zip(model.variables, again.variables, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), atol=5e-5, err_msg=one.path)


def test_two_updates_are_refused():
    variable, optimizer = tf.Variable(tf.ones((1, 1 << 18))), sgd()

    def step(x):
        for _ in range(2):
            with tf.GradientTape() as tape:
                y = tf.tanh(x * variable)
                value = tf.reduce_mean(y / tf.reduce_max(y))
            optimizer.apply(tape.gradient(value, [variable]), [variable])
        return value

    optimizer.build([variable])
    function = checkmate.tf2.function(step, budget="1GiB", micro_batches=2, verbose=False)
    with pytest.raises(checkmate.TraceError, match="calls its optimizer 2 times"):
        function(tf.ones((4, 1 << 18)))
