"""Micro-batches on replicas: each splits its own share of a batch, and all update once."""

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from processes import found, found_by_workers, started

import checkmate

PROGRAM = Path(__file__).with_name("replicas.py")
NORM = "LayerNormalization"  # binds no examples together


def check(result, updates):
    """What training in slices leaves behind is that of plain training, to rounding."""
    plain, planned = result["plain"], result["planned"]
    assert len(set(plain["losses"])) > 1, "nothing is trained"
    np.testing.assert_allclose(planned["losses"], plain["losses"], rtol=1e-5)
    np.testing.assert_allclose(planned["weights"], plain["weights"], rtol=1e-4, atol=1e-5)
    assert planned["updates"] == plain["updates"] == updates
    above = [note for note in result["notes"] if "A whole step" in note]
    assert not above, "a whole step is within the budget"
    measured, _, budget = result["peaks"]
    assert measured <= budget


@pytest.mark.long
def test_fit_on_two_devices_with_a_smaller_last_batch():
    """The share of each replica of the last batch is 1400 of 2800 examples."""
    result = found(started(PROGRAM, "fit", 4096, 2 * 4096 + 2800, "55%", 3, NORM))
    check(result, updates=2 * 3)
    assert result["slices"] == [[3, 683], [3, 467]], "the last of each is shorter"
    assert result["shared"] >= len(result["plain"]["weights"]), "sums lie in the same memory"


@pytest.mark.long
def test_the_number_is_chosen_within_the_budget():
    result = found(started(PROGRAM, "fit", 4096, 2 * 4096, "50%", "auto", NORM))
    check(result, updates=2 * 2)
    ((count, size),) = result["slices"]
    assert count > 1 and count * size == 2048


@pytest.mark.slow
def test_a_whole_step_takes_no_more_than_the_budget():
    """With one replica the allocator counts its memory alone: slices run one after another, under
    a plan that recomputes. The loop is in the scope of the strategy."""
    result = found(started(PROGRAM, "alone", 4096, 2 * 4096, "35%", 2, NORM))
    check(result, updates=2 * 2 + 1)
    planned, plain = result["whole_steps"]
    assert result["recomputed"]
    assert planned <= result["peaks"][-1] < plain / 2


@pytest.mark.long
def test_a_loop_of_two_replicas_in_the_scope_of_their_strategy():
    result = found(started(PROGRAM, "loop", 4096, 2 * 4096, "35%", 4, NORM))
    check(result, updates=2 * 2 + 1)
    assert result["slices"] == [[4, 1024]]
    assert result["kept_on"] == [["CPU:0"], ["CPU:1"]]


@pytest.mark.parametrize(
    "micro", [pytest.param(2, marks=pytest.mark.long), pytest.param("auto", marks=pytest.mark.slow)]
)
def test_two_workers(micro):
    """The second is told by the chief how many examples a slice has."""
    results = found_by_workers(PROGRAM, "workers", 4096, 2 * 4096, "45%", micro, NORM)
    for result in results:
        check(result, updates=2 * 2)
        ((count, size),) = result["slices"]
        assert count * size == 2048 and (count == micro or (count > 1 and micro == "auto"))
    assert results[0]["slices"] == results[1]["slices"]
    assert results[0]["planned"]["losses"] == pytest.approx(
        results[1]["planned"]["losses"], rel=1e-6
    )
    assert results[0]["steps"] == results[1]["steps"], "the workers run one plan"


@pytest.mark.long
def test_examples_that_are_bound_together_are_refused():
    result = found(started(PROGRAM, "loop", 4096, 4096, "55%", 2, "BatchNormalization"))
    assert "cannot run in slices" in result["refused"]
    assert "'batch_normalization'" in result["refused"]
    assert "exactly or not at all" in result["refused"]


def one_device():
    """A strategy of a single replica, which needs no process of its own."""
    return tf.distribute.MirroredStrategy(["CPU:0"])


def dense(strategy):
    """(a step of one replica, its variables, its optimizer)"""
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(256, "gelu"),
                                  keras.layers.Dense(4)])  # fmt: skip
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)

    def step(x, factor):
        with tf.GradientTape() as tape:
            loss = factor * tf.reduce_mean(model(x, training=True) ** 2)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    return step, model, optimizer


@pytest.mark.usefixtures("tensorflow")
@pytest.mark.parametrize("micro", [1, 2])
def test_python_numbers_of_a_call_are_its_own(micro):
    """The graphs of two calls have equal sizes and other constants."""
    found = []
    for planned in (False, True):
        strategy = one_device()
        step, model, optimizer = dense(strategy)
        options = {"cost_model": "roofline", "micro_batches": micro}
        run = (
            checkmate.tf2.function(
                step, budget="1GiB", strategy=strategy, optimizer=optimizer, **options
            )
            if planned
            else lambda *args, strategy=strategy, step=step: strategy.run(step, args=args)
        )
        batch = tf.random.stateless_normal([2048, 64], [0, 1])
        losses = [float(run(batch, factor)) for factor in (1.0, 3.0)]
        found.append([*losses, *(np.abs(each).sum() for each in model.get_weights())])
        assert int(optimizer.iterations.numpy()) == 2
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)


@pytest.mark.usefixtures("tensorflow", "alone")
def test_a_smaller_batch_has_the_budget_of_the_first_and_slices_of_no_more_examples():
    strategy = one_device()
    step, _, optimizer = dense(strategy)
    options = {"cost_model": "roofline", "micro_batches": 8, "strategy": strategy}
    run = checkmate.tf2.function(step, budget="80%", optimizer=optimizer, **options)
    for examples in (2048, 600, 5, 4096):
        run(tf.zeros([examples, 64]), 1.0)
    found = [each.report().micro_batches for each in run.steps]
    assert [micro and (micro.count, micro.size) for micro in found] == [
        (8, 256),
        (3, 200),
        None,
        (8, 512),
    ]
    first, *smaller, larger = [each.budget_bytes for each in run.steps]
    assert smaller == [first, first] and larger > first
