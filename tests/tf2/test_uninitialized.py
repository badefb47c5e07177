"""Variables without values: the step traced with them is the ordinary one, op for op."""

import logging
import sys
from contextlib import nullcontext
from functools import partial

import keras
import numpy as np
import pytest
from tensorflow.python.ops import resource_variable_ops
from tracing_on_paper import definitions, traced

from checkmate.errors import TraceError
from checkmate.tf2 import models as module
from checkmate.tf2.costs.measured import with_costs
from checkmate.tf2.uninitialized import (
    WITH_VALUE_BYTES,
    NoValueError,
    _kind,
    uninitialized_variables,
)

pytestmark = pytest.mark.usefixtures("tensorflow")

MODELS = '''
import keras
from keras import layers


def decoder():
    """Embeddings that also make the output, frozen weights, and low-rank updates of two layers."""
    tokens = keras.Input((16,), dtype="int32")
    embedding = keras.layers.ReversibleEmbedding(64, 32, tie_weights=True)
    x = embedding(tokens)
    for k in range(1):
        y = layers.LayerNormalization()(x)
        query = layers.EinsumDense("bsd,dhk->bshk", output_shape=(None, 4, 8), name=f"query_{k}")
        x = x + layers.MultiHeadAttention(4, 8)(y, y, use_causal_mask=True)
        x = x + layers.Dense(32)(layers.Reshape((16, 32))(query(y)))
        wide = layers.Dense(128, activation="gelu")
        x = x + layers.Dropout(0.1)(layers.Dense(32)(wide(layers.LayerNormalization()(x))))
        wide.enable_lora(16)
        query.enable_lora(16)
    model = keras.Model(tokens, embedding(x, reverse=True), name="decoder")
    return model, keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def images():
    convolution = layers.Conv2D(8, 3, kernel_regularizer="l2", kernel_initializer="orthogonal")
    stack = [keras.Input((12, 12, 3)), convolution, layers.BatchNormalization(), layers.ReLU()]
    return keras.Sequential([*stack, layers.Flatten(), layers.Dense(10)], name="images"), "mse"


def recurrent():
    stack = [keras.Input((8, 16)), layers.LSTM(32), layers.Dense(4)]
    return keras.Sequential(stack, name="recurrent"), "mse"


class Subclassed(keras.Model):
    """Has no variables until it is called."""

    def __init__(self):
        super().__init__(name="subclassed")
        self.wide, self.last = layers.Dense(256, activation="tanh"), layers.Dense(4)

    def call(self, inputs):
        return self.last(self.wide(inputs))


def subclassed():
    return Subclassed(), "mse", keras.ops.zeros((8, 64)), keras.ops.zeros((8, 4))


def called():
    """A model that is built by a call, which reads its weights."""
    model, *more = subclassed()
    model(more[1])
    return model, *more


def enormous():
    """Weights of 4 TB, which no machine has for a test."""
    side = 1_000_000
    return keras.Sequential([keras.Input((side,)), layers.Dense(side, use_bias=False)]), "mse"
'''


@pytest.fixture
def models(tmp_path, monkeypatch):
    """The module of the models, to be named as a user names it."""
    (tmp_path / "paper_models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    yield "paper_models"
    sys.modules.pop("paper_models", None)


@pytest.fixture
def made(monkeypatch):
    """The variables of the steps that are traced in a test, each as (name, bytes, has a value)."""
    from checkmate.tf2 import models, training_step

    found = []

    def recording(*arguments):
        step, specs = training_step.training_step(*arguments)
        model, optimizer = arguments[0], arguments[2]
        for variable in (*model.variables, *optimizer.variables):
            value = variable.value
            size = value.shape.num_elements() * value.dtype.size
            found.append((variable.path, size, bool(value.is_initialized())))
        return step, specs

    monkeypatch.setattr(models, "training_step", recording)
    return found


@pytest.mark.parametrize(
    ("model", "optimizer"),
    [("decoder", "adam"), ("images", "sgd"), ("recurrent", "lion"), ("subclassed", "adam")],
)
def test_the_step_is_the_ordinary_one(models, optimizer_on, monkeypatch, model, optimizer):
    found = traced(f"{models}:{model}", optimizer)
    monkeypatch.setattr(module, "uninitialized_variables", nullcontext)
    expected = traced(f"{models}:{model}", optimizer)
    assert found.graph == expected.graph
    assert definitions(found) == definitions(expected)


def test_no_weight_and_no_slot_of_the_optimizer_has_a_value(models, made):
    traced(f"{models}:decoder", keras.optimizers.Adam())
    wrong = [each for each in made if each[2] != (each[1] <= WITH_VALUE_BYTES)]
    assert not wrong
    kinds = ("embeddings", "kernel", "lora", "momentum", "velocity")
    empty = [path for path, _, has_value in made if not has_value]
    assert all(any(kind in path for path in empty) for kind in kinds)


def test_a_model_is_planned_whose_weights_fit_no_machine(models):
    step = traced(f"{models}:enormous")
    graph = with_costs(step, "roofline")
    assert graph.fixed_bytes > 3 * 4e12  # the weights and Adam's two slots
    assert graph.total_cost > 0


def test_a_model_that_reads_its_weights_gets_them(models, made, caplog):
    traced(f"{models}:called", keras.optimizers.Adam())
    assert "reads its variables" in caplog.text
    assert made and all(has_value for _, _, has_value in made)


def test_another_error_is_told_as_it_is(models):
    with pytest.raises(TraceError, match="nothing_of_this_name"):
        traced(f"{models}:nothing_of_this_name")


def test_what_has_a_value_keeps_it(tensorflow):
    """Tensors are in memory already; small values Keras reads while it builds models."""
    values = np.arange(5000.0, dtype="float32")
    with uninitialized_variables():
        constant = tensorflow.Variable(values)
        small = tensorflow.Variable(lambda: tensorflow.fill((3,), 7.0))
        large = tensorflow.Variable(lambda: tensorflow.fill((3000,), 7.0))
        draw = keras.random.normal((4,), seed=keras.random.SeedGenerator(1))
    np.testing.assert_array_equal(constant, values)
    np.testing.assert_array_equal(small, [7.0] * 3)
    assert draw.shape == (4,) and not large.is_initialized()
    for read in (large.numpy, lambda: large + 1.0, lambda: tensorflow.gather(large, [0])):
        with pytest.raises(NoValueError):
            read()
    large.assign(values[:3000])
    np.testing.assert_array_equal(large, values[:3000])
    assert tensorflow.Variable(lambda: tensorflow.fill((3000,), 7.0)).is_initialized()


def test_initializers_of_layers_are_not_called():
    calls = []

    def initializer(shape, dtype):
        calls.append(shape)
        return keras.ops.zeros(shape, dtype)

    with uninitialized_variables():
        layer = keras.layers.Dense(100, kernel_initializer=initializer)
        layer.build((None, 100))
    assert layer.kernel.shape == (100, 100)
    assert not calls


@pytest.mark.parametrize("kind", ["partial", "object"])
def test_an_initial_value_may_be_any_function(tensorflow, kind):
    class Sevens:
        def __call__(self):
            return tensorflow.fill((3000, 2), 7.0)

    value = Sevens() if kind == "object" else partial(tensorflow.fill, (3000, 2), 7.0)
    with uninitialized_variables():
        variable = tensorflow.Variable(value)
    assert variable.shape == (3000, 2) and variable.dtype == tensorflow.float32
    assert not variable.is_initialized()


def test_the_installed_tensorflow_has_variables_without_values():
    assert _kind() is not None


@pytest.mark.parametrize("broken", ["gone", "initialized"])
def test_a_tensorflow_without_them_makes_values(tensorflow, monkeypatch, caplog, broken):
    name = "UninitializedVariable"
    if broken == "gone":
        monkeypatch.delattr(resource_variable_ops, name)
    else:
        kind = getattr(resource_variable_ops, name)
        monkeypatch.setattr(kind, "is_initialized", lambda self: True)
    with caplog.at_level(logging.WARNING), uninitialized_variables():
        large = tensorflow.Variable(lambda: tensorflow.fill((3000,), 7.0))
    assert large.is_initialized()
    assert "no variables without values" in caplog.text
