"""What a plan is said to take before it is built is what training takes."""

from __future__ import annotations

import keras
import keras_models
import numpy as np
import pytest
import tensorflow as tf
from training import compiled, planned_function

from checkmate.core.allocator import Pool
from checkmate.tf2 import device as devices
from checkmate.tf2.memory.prediction import Predictor, add_batch
from checkmate.tf2.memory.probe import address_of

pytestmark = pytest.mark.usefixtures("tensorflow")

PREDICTED_AT, STEPS = "65%", 10
CLOSE, BELOW = 0.005, 0.03
"""Shares of the activation budget by which training may exceed what is predicted, and stay below
it. The search's plans differ from run to run. Mostly the two are 256 bytes apart; in some plans
tensors lie in other holes than predicted. A large activation of the transformer is 5 %."""


def case_of(name):
    return (
        keras_models.cnn(batch=64)
        if name == "cnn"
        else keras_models.transformer(batch=32, length=64, width=64, depth=3)
    )


def peaks_of_training(step, case, memory):
    """In the budget's terms, of steps on batches that are each made anew, as a loop over arrays
    makes them."""
    peaks, inputs, labels = [], None, None
    for _ in range(STEPS):
        inputs, labels = tf.constant(case.inputs), tf.constant(case.labels)
        planned, flat = step.planned_for(inputs, labels)
        peaks.append(
            memory.peak(
                devices.peak_above(
                    devices.training_device(), lambda run=planned.run, flat=flat: run(*flat)
                )[2]
            )
        )
    return peaks


# The default allocator: with all small tensors in the pool, too, which holes are used hangs
# on where a batch happens to lie.
@pytest.mark.own_process(TF_CPU_ALLOCATOR_USE_BFC="false")
@pytest.mark.slow
@pytest.mark.parametrize("name", ["cnn", "transformer"])
def test_the_peak_of_a_plan_is_that_of_training(name):
    keras.utils.set_random_seed(0)
    case, optimizer = case_of(name), keras.optimizers.Adam(1e-3)
    step = compiled(case, optimizer, PREDICTED_AT, cost_model="profile")
    report = step.report()
    assert step.plan.recomputed and not report.steps
    memory, predicted = report.memory, report.predicted_peak_bytes
    peaks = peaks_of_training(step, case, memory)
    apart = (max(peaks) - predicted) / memory.activation_budget_bytes
    assert -BELOW <= apart <= CLOSE, (predicted, peaks)
    assert max(peaks) <= memory.limit_bytes


def test_the_lists_and_the_body_of_a_loop_are_predicted(tensorflow):
    """The gradient of a loop reads what each iteration left, and a body has values of its own."""
    weight = tf.Variable(tf.random.stateless_normal((512, 512), (1, 2)) / 22)

    def step(x):
        with tf.GradientTape() as tape:
            turn = lambda k, h: (k + 1, tf.tanh(h @ weight))  # noqa: E731
            # One turn at a time: TensorFlow runs several side by side, in some processes.
            options = {"maximum_iterations": 12, "parallel_iterations": 1}
            h = tf.while_loop(lambda k, h: k < 12, turn, (0, x), **options)[1]
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
