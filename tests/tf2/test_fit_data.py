"""rematerialize(): what `fit` is given, and how a model is compiled, each bit for bit as without a
budget."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from fitting import BATCH, assert_same, data, history, small, under_budget
from training import assert_equal

pytestmark = pytest.mark.usefixtures("tensorflow", "alone")


def batches(x, y, *more):
    return tf.data.Dataset.from_tensor_slices((x, y, *more)).batch(BATCH)


def prefetched(model):
    return history(model, batches(*data()).prefetch(2), batch_size=None, epochs=2)


def repeated(model):
    return history(model, batches(*data()).repeat(), batch_size=None, steps_per_epoch=4, epochs=2)


def from_a_generator(model):
    def examples():
        for k in range(4):
            yield data(k, BATCH)

    return history(model, examples(), batch_size=None, steps_per_epoch=2, epochs=2)


def from_a_py_dataset(model):
    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return 2

        def __getitem__(self, k):
            return (*data(k, BATCH), np.linspace(0, 1, BATCH))

    return history(model, Batches(), batch_size=None, epochs=2, shuffle=False)


def weighted(model):
    x, y = data()
    weight = np.linspace(0.5, 1.5, len(y)).astype("float32")
    return history(model, batches(x, y, weight), batch_size=None), history(
        model, x, y, sample_weight=weight, validation_split=0.1
    )


def batch_by_batch(model):
    x, y = data()
    first, last, weight = (x[:BATCH], y[:BATCH]), (x[2 * BATCH :], y[2 * BATCH :]), np.ones(BATCH)
    return [
        *(model.train_on_batch(*batch, return_dict=True) for batch in (first, last)),
        model.train_on_batch(*first, sample_weight=weight / 2, return_dict=True),
        model.train_on_batch(*first, class_weight={0: 1.0, 1: 2.0, 2: 3.0, 3: 0.5}),
    ]


def shuffled(model):
    return history(model, *data(), shuffle=True, epochs=2)


RARER = (prefetched, repeated, from_a_py_dataset, weighted, shuffled)
WAYS = (
    *(from_a_generator, batch_by_batch),
    *(pytest.param(train, marks=pytest.mark.slow) for train in RARER),
)


@pytest.mark.parametrize("train", WAYS, ids=lambda train: train.__name__)
def test_what_fit_is_given(train):
    assert_same(small, train)


@pytest.mark.slow
def test_an_optimizer_that_scales_the_loss():
    def make():
        model = small()
        model.compile(keras.optimizers.Adam(1e-2, loss_scale_factor=128.0), "mse")
        return model

    x, _ = data()
    assert_same(make, lambda model: history(model, x, x[:, :4], epochs=2))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"jit_compile": "auto"},
        {"steps_per_execution": 2},
        {"steps_per_execution": 5},
        {"auto_scale_loss": False},
    ],
    ids=lambda options: "-".join(map(str, next(iter(options.items())))),
)
def test_how_a_model_is_compiled(options):
    def make():
        model = small()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", loss, metrics=["accuracy"], weighted_metrics=["accuracy"], **options)
        return model

    seen = []

    def train(model):
        callback = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: seen.append((batch, dict(logs)))
        )
        found = history(model, *data(), epochs=2, callbacks=[callback])
        batches, seen[:] = list(seen), []
        return found, batches

    assert_same(make, train)


def test_data_of_unknown_length():
    """The end is found by asking for a batch. Plain Keras asks in the training function, where
    the optimizer's step is counted all the same; here no step begins."""
    found = batches(*data()).filter(lambda x, y: tf.size(y) > 0)
    seen = []
    for planned in (False, True):
        keras.utils.set_random_seed(3)
        model = under_budget(small()) if planned else small()
        losses = history(model, found, batch_size=None, epochs=2)
        seen.append((losses, model.get_weights()))
    assert_equal(*(tf.nest.map_structure(np.asarray, each) for each in seen))
    assert int(model.optimizer.iterations) == 6
