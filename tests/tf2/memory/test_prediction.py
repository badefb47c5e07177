"""What a plan is said to take before it is built is what training takes."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("tensorflow")

LEARNT_AT, PREDICTED_AT, STEPS = "85%", "65%", 10
CLOSE, BELOW = 0.005, 0.02
"""Shares of the activation budget by which training may exceed what is predicted, and stay below
it. The search's plans differ from run to run. Mostly the two are 256 bytes apart; in some plans
tensors lie in other holes than predicted. A large activation of the transformer is 5 %."""


def case_of(name):
    import keras_models

    return (
        keras_models.cnn(batch=64)
        if name == "cnn"
        else keras_models.transformer(batch=32, length=64, width=64, depth=3)
    )


@pytest.fixture
def searches(monkeypatch):
    """The searches for plans, in order."""
    from checkmate.tf2.planning.plan_search import PlanSearch

    found, run = [], PlanSearch.run

    def noted(self):
        found.append(self)
        return run(self)

    monkeypatch.setattr(PlanSearch, "run", noted)
    return found


def peaks_of_training(step, case, memory):
    """In the budget's terms, of steps on batches that are each made anew, as a loop over arrays
    makes them."""
    import tensorflow as tf

    from checkmate.tf2 import device as devices

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


@pytest.mark.own_process
@pytest.mark.slow
@pytest.mark.parametrize("name", ["cnn", "transformer"])
def test_the_peak_of_a_plan_is_that_of_training_where_footprints_are_those_of_another_plan(
    searches, monkeypatch, name
):
    import gc

    import keras
    from training import compiled

    from checkmate.tf2.memory import known_steps

    keras.utils.set_random_seed(0)
    case, optimizer = case_of(name), keras.optimizers.Adam(1e-3)
    first = compiled(case, optimizer, LEARNT_AT)
    footprints, plan = dict(searches[0].footprints), first.plan
    assert footprints
    searches.clear()
    del first
    gc.collect()
    monkeypatch.setattr(known_steps, "load", lambda traced: known_steps.KnownStep(None, footprints))
    second = compiled(case, optimizer, PREDICTED_AT)
    (search,) = searches
    assert second.plan != plan and second.plan.recomputed
    assert search.footprints == footprints, "nothing was watched again"
    (predicted,) = {
        each.predicted_bytes
        for each in search.candidates
        if each.result and each.result.plan == second.plan
    }
    peaks = peaks_of_training(second, case, search.memory)
    apart = (max(peaks) - predicted) / search.memory.activation_budget_bytes
    assert -BELOW <= apart <= CLOSE, (predicted, peaks)
    assert max(peaks) <= search.memory.limit_bytes


def test_a_step_with_loops_is_not_predicted(tensorflow):
    from training import planned_function

    from checkmate.tf2.memory.prediction import Predictor

    tf = tensorflow

    def looped(x):
        return tf.while_loop(lambda k, h: k < 2, lambda k, h: (k + 1, tf.sin(h)), (0, x))[1]

    def straight(x):
        return tf.sin(x)

    for step, predicts in ((looped, False), (straight, True)):
        planned = planned_function(step, tf.ones((512, 512)), budget="64GiB").planned
        predictor = Predictor(planned.traced, planned.graph, ())
        assert not predictor.predicts, "the allocator was not asked yet"
        predictor.refresh(2**23)
        assert predictor.predicts == predicts == (not predictor.why_not)


def test_the_highest_of_a_few_steps_counts_and_memory_that_runs_out_is_none(tensorflow):
    from training import planned_function

    from checkmate.core.allocator import Pool
    from checkmate.tf2.memory.prediction import Predictor

    def step(x):
        return tensorflow.cumsum(tensorflow.cumsum(x, 1), 1)

    planned = planned_function(step, tensorflow.ones((512, 512)), budget="64GiB").planned
    predictor = Predictor(planned.traced, planned.graph, ())
    paper = predictor.write(planned.traced.plain_plan())
    mib = 2**20
    # Batch, result of the step before, what is read and written.
    for free, peak in (
        (16 * mib, 4 * mib),
        (4 * mib, 4 * mib),
        (3 * mib, None),
    ):
        predictor.pool = Pool.of_free_chunks([(2**30, free)], in_use_bytes=7 * mib, more=False)
        assert predictor.peak_bytes(paper) == (peak and peak + 7 * mib)


def test_a_batch_that_is_there_may_be_held_or_be_the_first_of_a_loop(tensorflow):
    """The simulated allocator can release the tensors that were added to it."""
    from training import planned_function

    from checkmate.core.allocator import Pool
    from checkmate.tf2.memory.prediction import Predictor
    from checkmate.tf2.memory.requests import address_of

    x = tensorflow.random.stateless_normal((512, 512), (1, 2))
    planned = planned_function(
        lambda x: tensorflow.reduce_sum(tensorflow.cumsum(x, 1)), x, budget="64GiB"
    ).planned
    predictor = Predictor(planned.traced, planned.graph, [x])
    paper = predictor.write(planned.traced.plain_plan())
    where, size = address_of(x), 2**20
    predictor.pool = Pool.of_free_chunks([(where + size, 4 * size)], in_use_bytes=size, more=False)
    assert predictor.peak_bytes(paper) - 2 * size < 2**16, "the batch in use, and the sums of it"
    np.testing.assert_array_equal(predictor.pool.in_use_bytes, size)


def test_a_batch_of_one_tensor_twice_and_of_any_type(tensorflow):
    """As an autoencoder has it; types that a step cannot read are left out."""
    from checkmate.core.allocator import Pool
    from checkmate.tf2.memory.prediction import add_batch

    tf = tensorflow
    x = tf.ones((64, 64))
    pool = Pool.of_free_chunks([], in_use_bytes=1 << 20)
    batch = [x, x, tf.constant("text"), tf.zeros((0, 3)), tf.constant([True] * 300)]
    found = add_batch(pool, batch)
    assert {pool.chunk_bytes(address) for address in found} >= {64 * 64 * 4}
    for address in found:
        pool.release(address)
