"""rematerialize(): what it refuses, and what it warns of."""

import warnings

import keras
import pytest
import tensorflow as tf
from fitting import classifier, data, small, under_budget

import checkmate
from checkmate import BudgetError, SolverUnavailableError, TraceError

pytestmark = pytest.mark.usefixtures("tensorflow", "alone")


def test_xla_is_told_in_one_sentence_with_what_it_costs_and_how_to_silence_it():
    model = small()
    # As Keras has it where "auto" means yes; not every machine's Keras lets a CPU's model be
    # compiled for XLA.
    model._jit_compile = True
    with pytest.warns(UserWarning, match=r"without XLA") as told:
        under_budget(model)
    (message,) = (str(each.message) for each in told)
    for part in ("may take longer", "jit_compile=False"):
        assert part in message
    assert ". " not in message and message.endswith(".")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        under_budget(classifier(jit_compile=False))


def test_bad_input():
    model = keras.Sequential([keras.layers.Dense(1)])
    with pytest.raises(TraceError, match="not compiled"):
        under_budget(model)
    model.compile("sgd", "mse", run_eagerly=True)
    with pytest.raises(TraceError, match="run_eagerly"):
        under_budget(model)
    model.compile("sgd", "mse")
    for options, error in (
        ({"budget": "a lot"}, BudgetError),
        ({"solver": "gurobi"}, SolverUnavailableError),
        ({"batch_size": 0}, TraceError),
    ):
        with pytest.raises(error):
            under_budget(model, **options)
        with pytest.raises(error):
            checkmate.tf2.Rematerialize(**options)
    with pytest.raises(TraceError, match="not under a budget"):
        checkmate.tf2.release(model)
    with pytest.raises(TraceError, match="model of Keras 3"):
        under_budget(lambda x: x)
    under_budget(model)
    with pytest.raises(TraceError, match="already"):
        under_budget(model)
    callback = checkmate.tf2.Rematerialize(budget="1GiB")
    callback.set_model(model)
    callback.on_train_begin()  # as after a fit that was broken off
    callback.on_train_end()
    assert "make_train_function" not in vars(model)

    class Own(keras.Sequential):
        def make_train_function(self, force=False):
            return None

    own = Own([keras.layers.Dense(1)])
    own.compile("sgd", "mse")
    with pytest.raises(TraceError, match="itself"):
        under_budget(own)


def test_batches_that_have_no_exact_size():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    under_budget(model)
    labels = [[1.0], [2.0]]
    for batch, kind in (
        (tf.ragged.constant([[1.0], [1.0, 2.0]]), "RaggedTensor.*to_tensor"),
        (tf.sparse.from_dense([[1.0, 0.0], [0.0, 1.0]]), "SparseTensor.*to_dense"),
        (tf.constant([["a"], ["b"]]), "those of text"),
    ):
        with pytest.raises(TraceError, match=kind):
            model.fit(tf.data.Dataset.from_tensors((batch, labels)), verbose=0)


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
