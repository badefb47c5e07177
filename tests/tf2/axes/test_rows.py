"""Gradients of an embedding's rows: they are kept for the whole batch where an update writes them
by index, and added up where the update reads their sum. Nothing else is kept by that rule."""

import keras
import programs
import pytest
import tensorflow as tf
from slices_oracle import in_slices

pytestmark = pytest.mark.usefixtures("tensorflow")

TOKENS, WORDS, WIDTH = 20, 11, 24  # the rows of a batch have more bytes than the variables


def optimizers():
    of = keras.optimizers
    return {
        "sgd": of.SGD(0.1),
        "clipnorm": of.SGD(0.1, clipnorm=0.01),
        "clipvalue": of.SGD(0.1, clipvalue=0.01),
        "global_clipnorm": of.SGD(0.1, global_clipnorm=0.01),
        "momentum": of.SGD(0.1, momentum=0.9),
        "adam": of.Adam(0.1),
        "adam_clipnorm": of.Adam(0.1, clipnorm=0.01),
        "adagrad": of.Adagrad(0.1),
        "rmsprop": of.RMSprop(0.1),
    }


def language_step(optimizer, middle=None, tokens=TOKENS):
    embedding = keras.layers.Embedding(WORDS, WIDTH)
    inputs = keras.Input((tokens,), dtype="int32")
    x = embedding(inputs)
    if middle is not None:
        x = middle(x)
    outputs = keras.layers.Dense(WORDS)(keras.layers.Dense(WIDTH, activation="gelu")(x))
    return programs.trained(
        keras.Model(inputs, outputs),
        programs.cross_entropy(),
        programs.whole(tokens, below=WORDS),
        programs.whole(tokens, below=WORDS, seed=2),
        optimizer,
    )


def kept(axes):
    """The shapes of kept values that are no results, which have the size of the vocabulary."""
    shapes = [
        tuple(handed.whole.shape)
        for handed in axes.handed_on
        if handed.relation.kind.value != "summed"
    ]
    return sorted(shape for shape in shapes if shape[-1] != WORDS)


ROWS, INDICES = (8 * TOKENS, WIDTH), (8 * TOKENS,)
KEPT = {
    "sgd": [INDICES, ROWS],
    "clipnorm": [INDICES, ROWS],
    "clipvalue": [INDICES, ROWS],
    "global_clipnorm": [],
    "momentum": [],
    "adam": [],
    "adam_clipnorm": [INDICES, ROWS],
    "adagrad": [INDICES, ROWS, ROWS],
    "rmsprop": [INDICES, ROWS],
}
FAST = ("sgd", "momentum", "clipnorm")


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in KEPT]
)
def test_rows_are_kept_for_updates_by_index_only(name):
    """Sums are handed on where an optimizer reads the gradient in the shape of the variable."""
    with programs.double():
        found = in_slices(*language_step(optimizers()[name]), 2)
    assert not found.errors and found.axes.binding is None
    assert kept(found.axes) == KEPT[name]


def test_the_gradient_of_a_tied_embedding_is_summed():
    class Tied(keras.Model):
        def __init__(self):
            super().__init__()
            self.embedding = keras.layers.Embedding(WORDS, WIDTH)
            self.dense = keras.layers.Dense(WIDTH, activation="gelu")

        def call(self, tokens):
            x = self.dense(self.embedding(tokens))
            return tf.matmul(x, self.embedding.embeddings, transpose_b=True)

    tokens = [programs.whole(TOKENS, below=WORDS, seed=seed) for seed in (1, 2)]
    with programs.double():
        step = programs.trained(Tied(), programs.cross_entropy(), *tokens)
        found = in_slices(*step, 2)
    assert not found.errors and kept(found.axes) == []


@pytest.mark.slow
def test_rows_of_two_texts_share_an_embedding():
    """Their gradients are joined, in parts of unequal length."""
    with programs.double():
        embedding = keras.layers.Embedding(WORDS, WIDTH)
        texts = [keras.Input((length,), dtype="int32") for length in (TOKENS, 12)]
        pooled = [
            keras.layers.GlobalAveragePooling1D()(
                keras.layers.Dense(WIDTH, activation="tanh")(embedding(text))
            )
            for text in texts
        ]
        model = keras.Model(texts, keras.layers.Dense(WORDS)(keras.layers.concatenate(pooled)))
        batch = [programs.whole(length, below=WORDS) for length in (TOKENS, 12)]
        step = programs.trained(
            model, programs.cross_entropy(), batch, programs.whole(below=WORDS), "sgd"
        )
        found = in_slices(*step, 2)
    assert not found.errors and found.axes.binding is None


def binding_of(programs, middle):
    with programs.double():
        return in_slices(*language_step("sgd", middle), 2).axes.binding


def test_a_normalization_over_the_batch_still_binds():
    """What it reads has the size of the embedding's rows, and leads to their update."""

    def middle(x):
        return keras.layers.Activation("tanh")(keras.layers.BatchNormalization(name="norm")(x))

    assert binding_of(programs, middle).layer == "norm"


def test_an_activation_that_scales_a_late_gradient_binds():
    """Between a gradient that is made of all examples and the update there are more values of the
    rows' size than the rows themselves: to keep them all is to keep activations."""

    @tf.custom_gradient
    def clipped(x):
        return tf.identity(x), lambda dy: dy / (1 + tf.norm(dy))

    class Gated(keras.layers.Layer):
        def call(self, x):
            return clipped(tf.tanh(x) * tf.sigmoid(x) * tf.cos(x))

        def compute_output_shape(self, shape):
            return shape

    assert binding_of(programs, Gated()) is not None
