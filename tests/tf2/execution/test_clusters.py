"""Clusters: a plan computes the same with calls of them, equal blocks are one function, and what
XLA must not have stays outside."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from plans import random_plan, repeating
from random_models import BATCH, models

from checkmate.tf2 import trace
from checkmate.tf2.execution.clusters import call_name, clusters, with_calls
from checkmate.tf2.execution.replay import Replayed, write

pytestmark = pytest.mark.usefixtures("tensorflow")

L = keras.layers
SHAPE = (BATCH, 16)


def blocks(count, dropout=0.0):
    x = inputs = keras.Input(SHAPE[1:])
    for _ in range(count):
        y = L.Dense(32, activation="gelu")(L.LayerNormalization()(x))
        y = L.Dropout(dropout)(y) if dropout else y
        x = L.Add()([x, L.Dense(16)(y)])
    return keras.Model(inputs, L.Dense(4)(x))


def training(model, optimizer=None):
    optimizer = optimizer or keras.optimizers.Adam(1e-3)
    optimizer.build(model.trainable_variables)

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x, training=True) ** 2)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    return step


def runs(found, plan, **options):
    """(Replayed without calls, the same with a call of each cluster, the clusters)."""
    written = write(found, plan)
    cut = clusters(written, **options)
    functions = {each.key: each.function() for each in cut}
    calls = [(each, functions[each.key]) for each in cut]
    return Replayed(found, plan), Replayed(found, plan, None, with_calls(written, calls)), cut


def after(found, run, x, steps=2):
    """The results of some steps and the variables after them; puts the variables back."""
    before = [tf.identity(each) for each in found.variables]
    results = [np.asarray(run(x)) for _ in range(steps)]
    values = [each.numpy() for each in found.variables]
    for variable, value in zip(found.variables, before, strict=True):
        variable.assign(value)
    return results + values


def assert_rounded(a, b):
    for one, other in zip(a, b, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("most_ops", [pytest.param(3, marks=pytest.mark.slow), 20, 10_000])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_plan_with_clusters_trains_as_without(most_ops, dropout):
    """Also with dropout: the masks are those of the step without XLA."""
    keras.utils.set_random_seed(0)
    step = training(blocks(3, dropout))
    found = trace(step, tf.TensorSpec(SHAPE))
    x = tf.random.stateless_normal(SHAPE, (1, 2))
    plain, with_them, cut = runs(found, repeating(found.graph), most_ops=most_ops)
    assert cut and max(len(each.inside) for each in cut) <= most_ops
    assert_rounded(after(found, plain, x), after(found, with_them, x))
    types = {node.op for each in cut for node in each.nodes}
    assert "MatMul" in types and not any("Random" in each or "Variable" in each for each in types)


@pytest.mark.slow
@settings(max_examples=6)
@given(models(), st.integers(0, 9), st.sampled_from([5, 40, 10_000]))
def test_random_plans_of_random_models_train_as_without(model_and_optimizer, seed, most_ops):
    model, optimizer = model_and_optimizer
    shape = (BATCH, *model.input_shape[1:])
    step = training(model, optimizer)
    found = trace(step, tf.TensorSpec(shape))
    x = tf.random.stateless_normal(shape, (1, seed))
    plain, with_them, _ = runs(found, random_plan(found.graph, seed), most_ops=most_ops)
    assert_rounded(after(found, plain, x, 1), after(found, with_them, x, 1))


def test_equal_blocks_are_one_function():
    found = trace(training(blocks(10)), tf.TensorSpec(SHAPE))
    cut = clusters(write(found, found.plain_plan()))
    large = [each for each in cut if len(each.inside) >= 10]
    assert len(large) >= 10
    assert len({each.key for each in large}) <= len(large) / 2


def test_what_a_call_stands_for_is_no_more_a_node():
    found = trace(training(blocks(3)), tf.TensorSpec(SHAPE))
    written = write(found, found.plain_plan())
    cut = clusters(written)
    calls = with_calls(written, [(each, each.function()) for each in cut])
    names = [node.name for node in calls.writer.nodes]
    assert len(set(names)) == len(names)
    assert {call_name(k) for k in range(len(cut))} <= set(names)
    inside = {written.writer.nodes[k].name for each in cut for k in each.inside}
    assert inside.isdisjoint(names)
    for each in cut:
        assert len(each.reads) == len(each.like[0]) and len(each.makes) == len(each.like[1])


def test_what_xla_cannot_have_stays_outside():
    """A loop, Python and views of what it makes, strings, a shape that is known only when the step
    runs, and a print."""
    weight = tf.Variable(tf.ones((16, 16)))

    def step(x):
        with tf.GradientTape() as tape:
            h = tf.tanh(x @ weight)
            h = tf.while_loop(lambda i, _: i < 2, lambda i, h: (i + 1, tf.sin(h)), (0, h))[1]
            h = tf.ensure_shape(tf.numpy_function(lambda a: a + 1, [h], tf.float32), SHAPE)
            some = tf.boolean_mask(x, x[:, 0] > 0)
            tf.debugging.assert_all_finite(h, "finite")
            name = tf.strings.length(tf.strings.as_string(x[0, 0]))
            h = tf.tanh(tf.tanh(x @ weight) * 2.0) * tf.sigmoid(x @ weight)
            view = tf.reshape(tf.numpy_function(lambda a: a + 1, [x], tf.float32), SHAPE)
            h += tf.tanh(view * 2.0)
            loss = tf.reduce_sum(h) + tf.reduce_sum(some) + tf.cast(name, tf.float32) * 0.0
        weight.assign_sub(1e-3 * tape.gradient(loss, weight))
        return loss

    found = trace(step, tf.TensorSpec(SHAPE))
    x = tf.random.stateless_normal(SHAPE, (3, 4))
    plain, with_them, cut = runs(found, found.plain_plan())
    assert cut
    assert_rounded(after(found, plain, x), after(found, with_them, x))
