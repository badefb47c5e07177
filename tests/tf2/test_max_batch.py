"""max_batch(): the answer trains, and twice as much does not."""

from __future__ import annotations

import pytest

import checkmate
from checkmate.errors import BudgetError, InfeasibleBudgetError, NoPlanFoundError, TraceError

MIB = 2**20
pytestmark = pytest.mark.usefixtures("tensorflow")


def search(case, **options):
    import keras
    import tensorflow as tf

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
    import keras
    from keras_models import cnn
    from training import compiled

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
    from keras_models import cnn

    case = cnn(batch=2)
    free, limited, none = (
        search(case, budget=6 * MIB, max_overhead=limit) for limit in ("forward", 0.02, 0)
    )
    assert none.batch <= limited.batch <= free.batch and none.batch < free.batch
    assert none.overhead == 1 and limited.overhead <= 1.02
    assert none.batch >= none.plain_batch


def test_a_budget_that_holds_not_even_one():
    from keras_models import cnn

    with pytest.raises(InfeasibleBudgetError, match="batch of 1"):
        search(cnn(batch=2), budget="100KiB")


@pytest.mark.parametrize(
    "options",
    [
        {"budget": "50%"},
        {"budget": "6MiB", "max_overhead": "some"},
        {"budget": "6MiB", "max_overhead": -1},
    ],
)
def test_what_cannot_be_read(options):
    from keras_models import cnn

    with pytest.raises(BudgetError):
        search(cnn(batch=2), **options)


def test_an_argument_without_a_batch():
    import tensorflow as tf
    from keras_models import cnn

    case = cnn(batch=2)
    with pytest.raises((BudgetError, TraceError)):
        checkmate.tf2.max_batch(
            case.model, case.loss, "adam", case.inputs, tf.TensorSpec([], tf.int32), budget="6MiB"
        )


@pytest.mark.parametrize("most", [0, 1, 2, 7, 99, 100])
@pytest.mark.parametrize("known", [0, 1, 5])
def test_bisection(most, known):
    from checkmate.tf2.max_batch import largest_fitting

    if known <= most:
        assert largest_fitting(lambda batch: batch <= most, 100, known=known) == most
