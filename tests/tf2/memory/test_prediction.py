"""What a plan is said to take before it is built is what training takes."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from training import planned_function

from checkmate.core.allocator import Pool
from checkmate.tf2 import device as devices
from checkmate.tf2.memory.prediction import Predictor, add_batch
from checkmate.tf2.memory.probe import address_of

pytestmark = pytest.mark.usefixtures("tensorflow")


def test_the_lists_and_the_body_of_a_loop_are_predicted(tensorflow):
    """The gradient of a loop reads what each iteration left, and a body has values of its own."""
    weight = tf.Variable(tf.random.stateless_normal((512, 512), (1, 2)) / 22)

    def step(x):
        with tf.GradientTape() as tape:
            turn = lambda k, h: (k + 1, tf.tanh(h @ weight))  # noqa: E731
            h = tf.while_loop(lambda k, h: k < 12, turn, (0, x), maximum_iterations=12)[1]
            loss = tf.reduce_mean(h * h)
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        return loss

    x = tf.random.stateless_normal((2048, 512), (3, 4))
    traced = planned_function(step, x, budget="64GiB").planned.traced
    predictor = Predictor(traced, traced.graph, ())
    predicted = predictor.plain_peak_bytes()
    run = tf.function(step)
    run(x)
    before, peak = devices.peak_above("CPU:0", lambda: run(x))[1:]
    # TensorFlow runs iterations side by side, in some processes and not in others.
    # Two lists of the loop hold the same values, an iteration apart, and are counted as two.
    assert 0.7 <= (predicted - x.shape.num_elements() * 4) / (peak - before) <= 1.35
    predictor.refresh(2**23)
    assert predictor.predicts and not predictor.why_not


def test_the_highest_of_a_few_steps_counts_and_memory_that_runs_out_is_none(tensorflow):
    def step(x):
        return tensorflow.cumsum(tensorflow.cumsum(x, 1), 1)

    planned = planned_function(step, tensorflow.ones((512, 512)), budget="64GiB").planned
    predictor = Predictor(planned.traced, planned.graph, ())
    paper = predictor.write(planned.traced.plain_plan())
    mib = 2**20
    # Batch, result of the step before, what is read and written.
    for free, peak in ((16 * mib, 4 * mib), (4 * mib + 2**13, 4 * mib), (3 * mib, None)):
        predictor.pool = Pool.of_free_chunks([(2**30, free)], in_use_bytes=7 * mib, more=False)
        found = predictor.peak(paper)
        assert (found is None) == (peak is None)
        if found is not None:  # with a constant
            assert 0 < found.bytes - peak - 7 * mib <= 2**13


def test_a_batch_that_is_there_may_be_held_or_be_the_first_of_a_loop(tensorflow):
    """The simulated allocator can release the tensors that were added to it."""
    x = tensorflow.random.stateless_normal((512, 512), (1, 2))
    planned = planned_function(
        lambda x: tensorflow.reduce_sum(tensorflow.cumsum(x, 1)), x, budget="64GiB"
    ).planned
    predictor = Predictor(planned.traced, planned.graph, [x])
    paper = predictor.write(planned.traced.plain_plan())
    where, size = address_of(x), 2**20
    predictor.pool = Pool.of_free_chunks([(where + size, 4 * size)], in_use_bytes=size, more=False)
    assert predictor.peak(paper).bytes - 2 * size < 2**16, "the batch in use, and the sums of it"
    np.testing.assert_array_equal(predictor.pool.in_use_bytes, size)


def test_a_batch_of_one_tensor_twice_and_of_any_type(tensorflow):
    """As an autoencoder has it; types that a step cannot read are left out."""
    x = tf.ones((64, 64))
    pool = Pool.of_free_chunks([], in_use_bytes=1 << 20)
    batch = [x, x, tf.constant("text"), tf.zeros((0, 3)), tf.constant([True] * 300)]
    found = add_batch(pool, batch)
    assert {pool.chunk_bytes(address) for address in found} >= {64 * 64 * 4}
    for address in found:
        pool.release(address)
