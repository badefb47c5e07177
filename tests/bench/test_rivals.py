"""`bench rivals`: its rows, and the segments of "remat by hand"."""

import numpy as np
import pytest

from checkmate.bench import rivals
from checkmate.errors import CheckmateError

MIB = 2**20


def found(peak_bytes, losses, **more):
    return {
        "peak_bytes": peak_bytes,
        "losses": losses,
        "plain_s": 1.0,
        "step_s": 1.0,
        "ratio_quartiles": [0.98, 1.0, 1.01],
        "first_call_s": 2.0,
        **more,
    }


@pytest.fixture
def processes(monkeypatch):
    """Answers for each method that is asked for."""
    asked = []

    def fresh_process(module, arguments):
        asked.append(arguments)
        method = arguments[1]
        if method == "plain":
            return found(100 * MIB, [2.0, 1.0])
        if method == "xla":
            raise CheckmateError("ended with status 1:\nsomewhere\nValueError: no XLA here")
        return found(40 * MIB, [2.0, 1.001], step_s=1.5, ratio_quartiles=[1.4, 1.52, 1.7])

    monkeypatch.setattr(rivals, "fresh_process", fresh_process)
    return asked


def test_rows_are_beside_the_plain_step(processes):
    rows = list(rivals.measure("mobilenet", ("xla", "remat by hand"), "50%,40%", 2))
    assert [row["method"] for row in rows] == [
        "plain",
        "xla",
        "remat by hand",
        "ours, 50%",
        "ours, 40%",
    ]
    assert [arguments[1] for arguments in processes] == [
        "plain",
        "xla",
        "remat by hand",
        "50%",
        "40%",
    ]
    assert rivals.cells(rows[0]) == (
        "mobilenet",
        "plain",
        "100",
        "1.00",
        "1.00",
        "1.00",
        "0.98 to 1.01",
        "0e+00",
        "2.0",
    )
    assert rivals.cells(rows[1]) == ("mobilenet", "xla", "no: ValueError: no XLA here")
    assert rivals.cells(rows[2]) == (
        "mobilenet",
        "remat by hand",
        "40",
        "0.40",
        "1.50",
        "1.52",
        "1.40 to 1.70",
        "1e-03",
        "2.0",
    )


@pytest.fixture
def model(tensorflow):
    """Two residual blocks of many elements, a stem before and a head after."""
    import keras

    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((8,))
    x = keras.layers.Dense(16, name="stem")(x)
    for k in range(4):
        y = keras.layers.Dense(32, activation="relu", name=f"wide{k}")(x)
        x = keras.layers.Add(name=f"join{k}")([x, keras.layers.Dense(16, name=f"narrow{k}")(y)])
    return keras.Model(inputs, keras.layers.Dense(3, name="head")(x))


def test_a_model_is_cut_where_one_value_connects_it(model):
    names = [layer.name for layer in rivals.articulation_layers(model)]
    assert [name for name in names if "input" not in name] == [
        "stem",
        "join0",
        "join1",
        "join2",
        "join3",
        "head",
    ]


def test_segments_compute_what_the_model_does(model):
    import tensorflow as tf

    batch = tf.random.stateless_normal((4, 8), seed=(1, 2))
    gradients = []
    for forward in (model, rivals.in_segments(model)):

        @tf.function
        def step(forward=forward):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(forward(batch) ** 2)
            return tape.gradient(loss, model.trainable_variables)

        gradients.append(step())
    assert len(gradients[0]) == len(model.trainable_variables) > 10
    for plain, segmented in zip(*gradients, strict=True):
        np.testing.assert_allclose(plain, segmented, rtol=1e-5, atol=1e-6)


def test_segments_are_several(model):
    import tensorflow as tf

    def evaluations(forward):
        def step(batch):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(forward(batch) ** 2)
            return tape.gradient(loss, model.trainable_variables)

        graph = tf.function(step).get_concrete_function(tf.TensorSpec((4, 8))).graph
        return sum(operation.type == "Relu" for operation in graph.get_operations())

    assert evaluations(model) == 4
    assert 5 <= evaluations(rivals.in_segments(model)) <= 7, "all but the last segment run twice"
