"""Models for `fit`, under a budget and without one, and what is compared between the two."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from training import assert_equal
from unhurried import UNHURRIED

import checkmate

BATCH, WIDTH = 1024, 32
EXAMPLES = 2 * BATCH + 100  # the last batch is smaller
FAST = {"cost_model": "roofline", "solver": UNHURRIED}


def data(seed=0, size=EXAMPLES):
    chance = np.random.default_rng(seed)
    return chance.normal(size=(size, WIDTH)).astype("float32"), chance.integers(0, 4, size)


def blocks(x, depth=2, **options):
    for _ in range(depth):
        x = layers.Dense(2 * WIDTH, **options)(x)
        x = layers.Dropout(0.2)(layers.Activation("gelu")(layers.BatchNormalization()(x)))
    return x


def margin(labels, logits):
    """A metric of one's own."""
    return keras.ops.max(logits, -1) - keras.ops.mean(logits, -1)


def classifier(depth=2, **options):
    inputs = keras.Input((WIDTH,))
    model = keras.Model(inputs, keras.layers.Dense(4)(blocks(inputs, depth)), name="classifier")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        keras.optimizers.Adam(1e-2, global_clipnorm=1.0),
        loss,
        metrics=["accuracy", margin],
        **options,
    )
    return model


def small(depth=4):
    """Quick to trace, for what does not depend on the model."""
    inputs = x = keras.Input((WIDTH,))
    for _ in range(depth):
        x = keras.layers.Dense(2 * WIDTH, activation="gelu")(x)
    model = keras.Model(inputs, keras.layers.Dense(4)(x), name="small")
    model.compile(
        keras.optimizers.SGD(0.1, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return model


def under_budget(model, budget="85%", **options):
    return checkmate.tf2.rematerialize(model, budget=budget, **{**FAST, **options})


def left_behind(model):
    slots = model.optimizer.variables
    return [
        variable.numpy()
        for variable in (
            *model.variables,
            *(slots() if callable(slots) else slots),  # a method in Keras 2
            *(v for m in model.metrics for v in m.variables),
        )
    ]


def assert_same(make, train, *, budget="85%", **options):
    """`train(make())` gives the same history and leaves the same model behind with a budget as
    without; returns the model that had it."""

    def train_one(planned):
        model = under_budget(make(), budget, **options) if planned else make()
        return model, train(model)

    model = assert_same_training(train_one)
    assert checkmate.tf2.planned(model).plan.recomputed
    return model


def assert_same_training(train):
    """`train(planned)` returns a model that it made and what it found, which are the same whether
    `planned` or not."""
    found = []
    for planned in (False, True):
        keras.utils.set_random_seed(3)
        model, seen = train(planned)
        found.append((seen, left_behind(model)))
    assert_equal(*(tf.nest.map_structure(np.asarray, each) for each in found))
    return model


def history(model, *arguments, **options):
    return model.fit(*arguments, verbose=0, **{"batch_size": BATCH, **options}).history
