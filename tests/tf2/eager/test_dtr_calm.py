"""Eager dynamic rematerialization far from its budget, and what comes near it, or above it, without
an op that was seen to."""

import gc

import numpy as np
import pytest
from eager_programs import (
    MIB,
    above,
    arrays,
    chain,
    dtr,
    gradients,
    managed,
    memory,
    plain_peak,
    same,
    weights,
)

from checkmate import EvictionError

pytestmark = pytest.mark.usefixtures("tensorflow")


def data(count):
    """A tensor of so many bytes that no op makes, copied from an array that lies as TensorFlow's
    own do not."""
    import tensorflow as tf

    return tf.constant(np.ones(count + 1, np.uint8)[1:])


def test_far_below_the_budget_ops_are_tensorflows_own_once_their_needs_are_known():
    import tensorflow as tf

    variables, loss = chain()
    plain, _, peak = plain_peak(variables, loss)
    with dtr(16 * (memory()["current"] + peak)) as context:
        same(arrays(gradients(variables, loss)), plain)
        # New: not sized before.
        assert not isinstance(tf.tanh(variables[0]), type(tf.constant(0.0)))
        before = context.stats.ops
        found = gradients(variables, loss)
        assert all(type(each) is type(tf.constant(0.0)) for each in found)
        assert context.stats.ops >= before + 4 * len(variables)
        same(arrays(found), plain)
    assert not context.stats.rematerializations


@pytest.mark.slow
# What other tests left in memory may go at any time, and with it what is tight here.
@pytest.mark.own_process
def test_once_memory_has_come_near_the_budget_all_of_the_program_can_be_evicted():
    from checkmate.tf2.eager.budget import Tuning

    variables, loss = chain()
    plain, _, peak = plain_peak(variables, loss)
    gc.collect()
    resting = memory()["current"]
    budget = int(resting + 16 * MIB + 0.7 * peak)
    tuning = Tuning(calm_share=(resting + 4 * peak) / budget)
    with managed(budget_bytes=budget, strict=True, tuning=tuning) as runtime:
        for _ in range(2):
            gradients(variables, loss)
        assert runtime.policy.budget.calm
        resident = data(16 * MIB)
        for _ in range(2):
            same(arrays(gradients(variables, loss)), plain)
    policy = runtime.policy
    assert policy.allocator.peak_bytes <= budget and not policy.budget.overshoots
    assert len(resident) == 16 * MIB
    assert policy.rematerializations > 0


def test_a_step_that_was_managed_and_came_near_the_budget_is_managed_again():
    import tensorflow as tf

    variables, loss = chain()
    _, _, peak = plain_peak(variables, loss)
    with above(2 * peak):
        for _ in range(2):
            gradients(variables, loss)
            assert not isinstance(tf.tanh(variables[0]), type(tf.constant(0.0)))


def test_plenty_is_room_for_a_hole_of_twice_the_size():
    import tensorflow as tf

    from checkmate.tf2.eager.op_kinds import Needs
    from checkmate.tf2.eager.budget import EagerOptions
    from checkmate.tf2.eager.runtime import EagerRuntime

    budget = 10 * max(MIB, memory()["current"])
    found = EagerRuntime("CPU:0", EagerOptions(budget_bytes=budget, strict=True)).policy.budget
    small, large = (Needs(1e-6, count, count) for count in (256, int(0.6 * budget)))
    tf.config.experimental.reset_memory_stats("CPU:0")
    assert found.fits_now(small, "MatMul")
    assert not found.fits_now(large, "MatMul")


def made_by(how):
    """Something that is larger than a budget of 6 MiB, in ways that no op's inputs tell
    beforehand."""
    import tensorflow as tf

    x = tf.ones(1024)
    if how == "a function":
        tf.function(
            lambda: tf.reduce_sum(tf.sqrt(tf.random.stateless_normal([64 * MIB // 4], [1, 2])))
        )()
    elif how == "data":
        data(64 * MIB)
        x + x
    elif how == "data, at the end":
        data(64 * MIB)
    else:
        for count in (10, 10, 10, 64 * MIB // 4):
            tf.range(0.0, float(count)) if how == "a range" else tf.fill(
                tf.constant([count], tf.int64), 1.0
            )


@pytest.mark.parametrize(
    "how",
    [
        "a function",
        # Seen as bytes in use alone: memory of other tests, as it goes, could hide it.
        pytest.param("data", marks=pytest.mark.own_process),
        pytest.param("data, at the end", marks=pytest.mark.own_process),
        "a range",
        "a shape of long integers",
    ],
)
def test_nothing_goes_above_the_budget_unseen(how):
    gc.collect()
    budget = memory()["current"] + 6 * MIB
    with (
        pytest.raises(EvictionError, match=r"above the budget|more than the budget") as info,
        dtr(budget),
    ):
        made_by(how)
    assert info.value.needed_bytes > budget == info.value.budget_bytes
    if how.startswith("data"):
        with dtr(budget, strict=False) as context:
            made_by(how)
        assert context.stats.overshoots == 1 and context.stats.peak_bytes > budget


def test_labels_and_seeds_are_no_shapes(monkeypatch):
    """Small inputs that decide about no size are not looked at: each new value would be sized
    anew."""
    import tensorflow as tf

    from checkmate.tf2.eager import private_api

    asked, real = [], private_api.apply_op  # which puts an op into a scratch graph
    monkeypatch.setattr(
        private_api,
        "apply_op",
        lambda name, **inputs: asked.append(name) or real(name, **inputs),
    )
    table = weights(64, 64)
    with dtr(memory()["current"] + 64 * MIB):
        for word in range(5):
            if word == 1:
                asked.clear()
            tf.gather(table, tf.constant(word)) + tf.cast(tf.constant([word]), tf.float32)
            tf.random.stateless_normal([64, 64], [word, 7])
            tf.fill(tf.constant([word + 1]), 1.0)
    assert asked == ["Fill"] * 4
