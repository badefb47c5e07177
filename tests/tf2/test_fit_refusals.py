"""rematerialize(): what it refuses, and what it warns of."""

import keras
import pytest
from fitting import data, small, under_budget

import checkmate
from checkmate import TraceError

pytestmark = pytest.mark.usefixtures("tensorflow", "alone")


def test_what_python_does_in_a_step_is_told_to_be_lost():
    """As it is without a budget, so that it is a warning."""

    class Counting(keras.Sequential):
        steps = 0

        def train_step(self, batch):
            self.steps += 1
            return super().train_step(batch)

    keras.utils.set_random_seed(0)
    model = Counting([keras.layers.Dense(1)])
    model.steps = 0
    model.compile("sgd", "mse")
    under_budget(model, "1GiB")
    x, y = data(size=8)
    with pytest.warns(UserWarning, match=r"changed self\.steps.*tf\.Variable"):
        model.fit(x, y, batch_size=4, verbose=0)


def test_devices_that_only_keras_knows():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    mesh = keras.distribution.DeviceMesh((1,), ["batch"], ["cpu:0"])
    keras.distribution.set_distribution(keras.distribution.DataParallel(device_mesh=mesh))
    try:
        with pytest.raises(TraceError, match="MirroredStrategy"):
            under_budget(model)
    finally:
        keras.distribution.set_distribution(None)


def test_a_callback_that_was_broken_off_leaves_the_model_as_it_was():
    model = small()
    callback = checkmate.tf2.Rematerialize(budget="1GiB")
    callback.set_model(model)
    callback.on_train_begin()
    callback.on_train_end()
    assert "make_train_function" not in vars(model)
