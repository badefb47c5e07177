"""Variables of which a step names the handle alone."""

import numpy as np
import pytest
import tensorflow as tf
from unhurried import UNHURRIED

import checkmate
from checkmate.tf2.graph.variables import variables_of

pytestmark = pytest.mark.usefixtures("tensorflow")


def adam():
    """A step with TensorFlow's fused Adam, and its variables."""
    weights = tf.Variable(tf.random.stateless_normal((256, 256), (1, 2)), name="weights")
    slots = [tf.Variable(tf.zeros_like(weights), name=name) for name in ("m", "v")]
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)

    def step(x):
        with tf.GradientTape() as tape:
            for _ in range(6):
                x = tf.tanh(x @ weights)
            loss = tf.reduce_mean(x**2)
        tf.raw_ops.ResourceApplyAdam(
            var=weights.handle,
            m=slots[0].handle,
            v=slots[1].handle,
            beta1_power=0.9,
            beta2_power=0.999,
            lr=1e-2,
            beta1=0.9,
            beta2=0.999,
            epsilon=1e-7,
            grad=tape.gradient(loss, weights),
        )
        return loss + table.lookup(tf.constant(0, tf.int64))

    return step, weights, slots


def test_they_are_found_with_their_shapes():
    """Also asserts that this TensorFlow has what the fence uses."""
    step, weights, slots = adam()
    concrete = tf.function(step).get_concrete_function(tf.TensorSpec((512, 256)))
    assert not {id(each.handle) for each in slots} & {id(v.handle) for v in concrete.variables}
    found = {id(each.handle): each for each in variables_of(concrete)}
    assert set(found) == {id(each.handle) for each in (weights, *slots)}
    for slot in slots:
        again = found[id(slot.handle)]
        assert (again.shape, again.dtype) == (slot.shape, slot.dtype)
        again.assign(tf.ones_like(slot))
        np.testing.assert_array_equal(slot.numpy(), 1)


def test_measuring_leaves_them_as_they_were():
    x = tf.random.stateless_normal((4096, 256), (3, 4))
    found = []
    for planned in (False, True):
        step, weights, slots = adam()
        options = {"budget": "85%", "cost_model": "roofline", "solver": UNHURRIED}
        run = checkmate.tf2.function(step, **options) if planned else tf.function(step)
        losses = [run(x).numpy() for _ in range(2)]
        found.append([losses, *(each.numpy() for each in (weights, *slots))])
    for ours, plain in zip(*found, strict=True):
        np.testing.assert_array_equal(ours, plain)
