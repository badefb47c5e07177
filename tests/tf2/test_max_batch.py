"""max_batch(): the answer trains, and twice as much does not."""

from __future__ import annotations

from dataclasses import replace

import keras
import pytest
import tensorflow as tf
from keras_models import cnn, mlp
from training import compiled

import checkmate
from checkmate.errors import InfeasibleBudgetError, NoPlanFoundError
from checkmate.tf2.costs.roofline import roofline
from checkmate.tf2.max_batch import GraphGrowth, largest_fitting

MIB = 2**20
pytestmark = pytest.mark.usefixtures("tensorflow")


def search(case, **options):
    options = {"cost_model": "roofline", "time_limit_s": 1, **options}
    specs = [
        tf.TensorSpec([None, *array.shape[1:]], array.dtype) for array in (case.inputs, case.labels)
    ]
    return checkmate.tf2.max_batch(
        case.model, case.loss, keras.optimizers.Adam(), *specs, **options
    )


@pytest.mark.slow
@pytest.mark.own_process
def test_the_largest_batch_trains_within_the_budget_and_a_larger_one_does_not():
    case = cnn(batch=256)
    found = search(case, budget=6 * MIB)
    assert found.plain_batch < found.batch < 256
    inputs, labels = case.inputs[: found.batch], case.labels[: found.batch]
    result = checkmate.tf2.verify(found.step, (inputs, labels))
    assert result.ok and result.measured_peak_bytes <= 6 * MIB == found.budget_bytes
    assert str(found.batch) in str(found) and found.binding_op in str(found)
    larger = cnn(batch=int(1.5 * found.batch))
    with pytest.raises((InfeasibleBudgetError, NoPlanFoundError)):
        compiled(larger, keras.optimizers.Adam(), 6 * MIB)


@pytest.mark.own_process
@pytest.mark.slow
def test_a_limit_on_the_overhead_lowers_the_batch():
    case = cnn(batch=2)
    free, limited, none = (
        search(case, budget=6 * MIB, overhead_limit=limit) for limit in ("forward", 1.02, 1)
    )
    assert none.batch <= limited.batch <= free.batch and none.batch < free.batch
    assert none.overhead == 1 and limited.overhead <= 1.02
    assert none.batch >= none.plain_batch


WORKSPACE_BYTES = 2 * MIB


def of_algorithms(met):
    """A cost model as of a GPU: other algorithms from a batch of 8 on, with workspaces that smaller
    batches do not show; `met` is told each batch."""

    def model(traced, on_progress):
        batch = traced.argument_tensors()[0].shape[0]
        met.append(batch)
        found = roofline(traced, on_progress)
        return [
            replace(each, workspace_bytes=each.workspace_bytes + WORKSPACE_BYTES * (batch >= 8))
            for each in found
        ]

    return model


@pytest.mark.slow
@pytest.mark.own_process
def test_the_batch_that_is_found_is_measured_and_corrected():
    met = []
    on_whole = {"cost_model": of_algorithms(met), "rewrites": ()}  # ops in parts hold far more
    found = search(cnn(batch=2), budget=12 * MIB, **on_whole)
    assert met[:2] == [2, 4] and 3 <= len(met) <= 2 + 3
    assert found.batch < met[2], "the growth from 2 to 4 promised more"
    # A real step of so small a net may take a tenth more than was predicted.
    refused = [batch for batch, text in found.tried if "planned for real" in text]
    on_paper = (refused or [found.batch])[0]
    assert abs(on_paper - met[-1]) <= max(1, met[-1] // 20), "what was measured last"
    assert len(refused) <= 2


def test_growth_goes_through_the_batch_that_was_measured(tensorflow):
    def step(x):
        return tf.reduce_sum(tf.tanh(tf.sin(x) @ x[:, :16, :]))

    met = []
    specs = [tf.TensorSpec((2, 16, 16))]
    growth = GraphGrowth.of(step, specs, "products", of_algorithms(met))
    assert all(op.workspace_bytes < WORKSPACE_BYTES for op in growth.at(64).ops)
    again = growth.remeasured(64)
    assert met == [2, 4, 64]
    assert again.at(64) == again.large == again.made(64) and again.at(2) == growth.at(2)
    middle = again.at(33).ops  # half way from 2 to 64
    assert all(op.workspace_bytes >= WORKSPACE_BYTES // 2 for op in middle)
    for nothing_to_learn in (again.remeasured(64), again.remeasured(4)):
        assert nothing_to_learn is again


def test_a_budget_that_holds_not_even_one():
    with pytest.raises(InfeasibleBudgetError, match="batch of 1"):
        search(mlp(batch=2), budget="100KiB")


@pytest.mark.parametrize("most", [0, 1, 2, 7, 98, 99, 100])
@pytest.mark.parametrize("guess", [1, 2, 7, 70, 100])
@pytest.mark.parametrize("known", [0, 1])
def test_bisection_from_a_guess(most, guess, known):
    asked = []

    def fits(batch):
        asked.append(batch)
        return batch <= most

    if known <= most and known <= guess:
        assert largest_fitting(fits, 100, known=known, guess=guess) == most
        assert len(asked) <= 15 and max(asked) <= 100
    if guess == most == 7:
        assert asked == [7, 8]


@pytest.mark.parametrize("most", [0, 1, 2, 7, 99, 100])
@pytest.mark.parametrize("known", [0, 1, 5])
def test_bisection(most, known):
    if known <= most:
        assert largest_fitting(lambda batch: batch <= most, 100, known=known) == most
