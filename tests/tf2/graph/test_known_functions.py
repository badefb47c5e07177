"""What is known of loops, conditions and lists before a step runs, and what is not."""

import numpy as np
import pytest
import tensorflow as tf

from checkmate.tf2.execution.replay import Replayed
from checkmate.tf2.graph import known_functions
from checkmate.tf2.graph.known_functions import Function
from checkmate.tf2.graph.trace import trace

pytestmark = pytest.mark.usefixtures("tensorflow")


@pytest.mark.parametrize("turns", [0, 1])
def test_a_loop_that_takes_no_turn_returns_what_it_began_with(turns):
    """Its body returns another shape."""
    weight = tf.Variable(tf.random.stateless_normal((64, 64), (1, 2)))
    rows = tf.random.stateless_normal((5, 256), (3, 4))

    def step(x, turns):
        with tf.GradientTape() as tape:
            h = tf.tanh(tf.tanh(x @ weight) @ weight)
            start = tf.reshape(tf.reduce_mean(h, 0)[None] * tf.ones((4, 1)), (1, 256))
            found = tf.while_loop(
                lambda k, s: k > 0.0,
                lambda k, s: (k - 1.0, rows + s[:1]),
                (turns, start),
                shape_invariants=(tf.TensorShape(()), tf.TensorShape((None, 256))),
            )[1]
            loss = tf.reduce_mean(found**2) * tf.cast(tf.shape(found)[0], tf.float32)
        weight.assign_sub(tape.gradient(loss, weight))
        return loss, found

    batch = tf.random.stateless_normal((256, 64), (5, 6)), tf.constant(float(turns))
    before = weight.numpy()
    expected = tf.function(step)(*batch)
    trained = weight.numpy()
    weight.assign(before)
    traced = trace(tf.function(step), *(tf.TensorSpec(each.shape, each.dtype) for each in batch))
    found = Replayed(traced, traced.plain_plan())(*batch)
    assert found[1].shape == expected[1].shape
    for one, other in zip((*found, weight), (*expected, trained), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4)


def test_of_functions_that_tensorflow_does_not_give_nothing_is_told(monkeypatch):
    def step(x):
        given = tf.raw_ops.EmptyTensorList(element_shape=[3], max_num_elements=-1, element_dtype=1)
        add = lambda: tf.raw_ops.TensorListPushBack(input_handle=given, tensor=x)  # noqa: E731
        found = tf.cond(x[0] > 0.0, add, add)
        found = tf.raw_ops.TensorListPushBack(input_handle=found, tensor=tf.constant([1.0, 2, 3]))
        values = []
        for _ in range(2):
            found, value = tf.raw_ops.TensorListPopBack(
                input_handle=found, element_shape=[3], element_dtype=1
            )
            values.append(value + 1.0)
        return values

    graph = tf.function(step).get_concrete_function(tf.TensorSpec((3,))).graph
    real = known_functions.graphs_of
    monkeypatch.setattr(
        known_functions, "graphs_of", lambda library, o: [None] * len(real(library, o))
    )
    assert not [each for each in Function(graph, graph).told().values() if each.value is not None]
