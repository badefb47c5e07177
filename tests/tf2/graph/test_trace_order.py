"""The order of the trace, where TensorFlow's graph optimizer keeps one of several equal ops."""

import pytest
import tensorflow as tf
from tracing import N, op_of, traced

from checkmate.tf2.graph.flat_graph import in_order_of_trace

pytestmark = pytest.mark.usefixtures("tensorflow")


def test_weight_decay_comes_after_the_readers_of_the_weight(optimizer_on):
    """It reads no gradient, and the optimizer gives the first product's constant the name and the
    place of the decay's."""
    weight = tf.Variable(tf.ones((N, N)))

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.tanh((x * 0.125) @ weight))
        gradient = tape.gradient(loss, weight)
        weight.assign_sub(weight * 0.125)
        weight.assign_sub(gradient)
        return loss

    found = traced(step)
    product, _ = op_of(found, "MatMul")
    decay, op = op_of(found, "AssignSubVariableOp")
    assert product < decay
    assert product in op.overwrites


def test_an_op_comes_no_later_than_its_first_reader():
    with tf.Graph().as_default() as graph:
        late = tf.constant(1.0, name="late")
        between = tf.constant(2.0, name="between")
        tf.negative(late, name="first")
        tf.negative(between, name="second")
        made = tf.negative(late, name="made")
        tf.negative(made, name="third")
    place = {"first": 0, "between": 1, "second": 2, "third": 3, "late": 4}
    found = in_order_of_trace(graph.get_operations(), place)
    assert [each.name for each in found] == ["late", "first", "made", "between", "second", "third"]
