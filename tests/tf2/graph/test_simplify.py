"""simplify(): what it leaves out, and that no value hangs on it."""

from collections import Counter

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from keras_models import cnn
from training import plain_step

from checkmate.tf2.graph.passes import inline, simplify

NAMES = ("first", "second")
ACTIONS = st.tuples(st.sampled_from(("read", "add", "power")), st.sampled_from(NAMES))


def test_numbers_that_an_optimizer_computes_for_each_variable_are_computed_once(tensorflow):
    """Two decays to the power of the number of steps, whatever the number of variables."""
    case = cnn()
    step = plain_step(case.model, case.loss, keras.optimizers.Adam(1e-3))
    traced = inline(step.get_concrete_function(case.inputs, case.labels))
    before, after = (
        Counter(operation.type for operation in each.graph.get_operations())
        for each in (traced, simplify(traced))
    )
    assert before["Pow"] == 2 * len(case.model.trainable_variables)
    assert after["Pow"] == 2


@settings(max_examples=15, deadline=None)
@given(st.lists(ACTIONS, min_size=1, max_size=12))
def test_numbers_read_before_and_after_a_write_stay_apart(tensorflow, actions):
    variables = {name: tf.Variable(float(k + 2)) for k, name in enumerate(NAMES)}

    @tf.function
    def step(x):
        found = []
        for action, name in actions:
            if action == "add":
                variables[name].assign_add(x)
            else:
                found.append(
                    variables[name] * x if action == "read" else tf.pow(x, variables[name])
                )
        return [*found, *(variable.read_value() for variable in variables.values())]

    def outcome(function):
        for k, variable in enumerate(variables.values()):
            variable.assign(float(k + 2))
        return [float(each) for each in function(tf.constant(1.5))]

    traced = step.get_concrete_function(tf.TensorSpec(()))
    assert outcome(simplify(traced)) == outcome(traced)


def test_a_broadcast_that_meets_a_size_known_only_at_run_time_is_made_in_full(tensorflow):
    """How the two broadcast together is not known before."""

    def step(x):
        rows = tf.boolean_mask(x, x[:, 0] > 0)
        return rows * tf.fill((1, 4), 2.0) + tf.tile(x[:1], (1, 1))

    traced = tf.function(step).get_concrete_function(tf.TensorSpec((8, 4)))
    x = tf.random.stateless_normal((8, 4), (1, 2))
    found = simplify(traced)(x)[0]
    assert 0 < len(found) < 8
    np.testing.assert_array_equal(found, traced(x))


@pytest.mark.parametrize("dimensions", [5, 6])
def test_kernels_broadcast_five_dimensions(tensorflow, dimensions):
    shape, times = [1, 2, 1, 2, 1, 2][:dimensions], [3, 1, 3, 1, 3, 1][:dimensions]

    def step(x):
        return tf.tile(x, times) * tf.tile(x + 1.0, times) + tf.zeros(
            [3, 2, 3, 2, 3, 2][:dimensions]
        )

    traced = tf.function(step).get_concrete_function(tf.TensorSpec(shape))
    x = tf.random.stateless_normal(shape, (1, 2))
    assert (simplify(traced)(x)[0].numpy() == traced(x).numpy()).all()
