"""A batch of 10 examples in slices of 4 and a last one of 2: what the whole step gives."""

from dataclasses import replace

import keras
import numpy as np
import programs
import pytest
import tensorflow as tf

from checkmate.errors import TraceError
from checkmate.tf2.axes.batch_axes import batch_axes, check_last_slice
from checkmate.tf2.graph.trace import trace
from checkmate.tf2.memory.scratch import Scratch
from checkmate.tf2.micro_batches.parts import Parts

pytestmark = pytest.mark.usefixtures("tensorflow")


def analysed(step, batch, sizes):
    """The traces of the step on the whole batch and on slices, and the axes of each slice."""
    function, count = tf.function(step), len(tf.nest.flatten(batch)[0])

    def specs(size):
        return tf.nest.map_structure(
            lambda leaf: tf.TensorSpec([size, *leaf.shape[1:]], leaf.dtype), batch
        )

    whole, *parts = (trace(function, *specs(n), as_written=True) for n in (count, *sizes))
    examples = [(count, size) for size in sizes]
    axes = [
        batch_axes(whole, part, examples=each, every=sizes[0])
        for part, each in zip(parts, examples, strict=True)
    ]
    return whole, parts, axes


def network():
    """Dropout, a normalization of each example, an embedding and an LSTM."""
    layers = keras.layers
    tokens = keras.Input((12,), dtype="int32")
    x = layers.Embedding(30, 8, mask_zero=True)(tokens)
    x = layers.Dropout(0.3)(layers.LayerNormalization()(x))
    x = layers.LSTM(6, return_sequences=True)(x)
    return keras.Model(tokens, layers.Dropout(0.2)(layers.Dense(30)(x)))


def training_of(optimizer="sgd", examples=10):
    generator = np.random.default_rng(0)
    batch = [tf.constant(generator.integers(0, 30, (examples, 12)), tf.int32) for _ in range(2)]
    return programs.trained(network(), programs.cross_entropy(), *batch, optimizer=optimizer)


def in_slices(step, batch, sizes):
    """What the step returns and leaves in its variables: of the whole batch, and in slices."""
    whole, slices, axes = analysed(step, batch, sizes)
    check_last_slice(*axes, examples=sizes)
    batch = [tf.convert_to_tensor(leaf) for leaf in tf.nest.flatten(batch)]
    examples, (size, last) = len(batch[0]), sizes
    parts = Parts(whole, axes[0], examples, Scratch())
    before, after = parts.before(), parts.after()
    each = {n: parts.each(part, of, n) for n, part, of in zip(sizes, slices, axes, strict=True)}
    state = [variable.numpy() for variable in whole.variables]

    def results(run):
        for variable, value in zip(whole.variables, state, strict=True):
            variable.assign(value)
        returned = [value.numpy() for value in tf.nest.flatten(run())]
        return returned, [variable.numpy() for variable in whole.variables]

    def run():
        early = before(*batch)
        for first in range(0, examples - last, size):
            each[size](tf.constant(first), *batch, *early)
        each[last](tf.constant(examples - last), *batch, *early)
        return after(*batch, *early)

    return results(lambda: whole.function(*batch)), results(run), results(run)


@pytest.mark.parametrize(
    ("optimizer", "examples", "sizes"),
    [
        ("sgd", 10, (4, 2)),
        pytest.param("adam", 10, (4, 2), marks=pytest.mark.slow),
        pytest.param("sgd", 11, (4, 3), marks=pytest.mark.slow),
        pytest.param("sgd", 7, (5, 2), marks=pytest.mark.slow),
    ],
)
def test_a_shorter_last_slice_gives_the_values_of_the_whole(optimizer, examples, sizes):
    """The masks of dropout are those of the whole batch, to the bit; and a second step begins with
    empty totals."""
    with programs.double():
        step, batch = training_of(optimizer, examples)
        (plain, trained), *found = in_slices(step, batch, sizes)
    for returned, variables in found:
        for wanted, got in zip([*plain, *trained], [*returned, *variables], strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-9)
        if sizes == (4, 2):  # a product of other sizes may add up its terms in another order
            assert all(np.array_equal(a, b) for a, b in zip(plain, returned, strict=True) if a.ndim)


def axes_of(step, sizes, examples=10):
    return analysed(step, [tf.zeros([examples, 64])], sizes)[2]


def test_numbers_that_count_examples_go_on_in_the_last_slice(tensorflow):
    scale = tf.Variable(tf.ones([64]))

    def step(x):
        order = tf.range(x.shape[0])
        with tf.GradientTape() as tape:
            rows = tf.gather(tf.tanh(x * scale), order)
            largest = order * 64 + tf.argmax(rows, 1, output_type=tf.int32)
            loss = tf.reduce_sum(rows)
        scale.assign_sub(0.1 * tape.gradient(loss, scale))
        return loss, rows, largest

    batch = [tf.random.stateless_normal([10, 64], [1, 2])]
    (plain, trained), *found = in_slices(step, batch, (4, 2))
    for returned, variables in found:
        np.testing.assert_array_equal(returned[2] // 64, np.arange(10))
        for wanted, got in zip([*plain, *trained], [*returned, *variables], strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-5)


def test_a_constant_that_is_another_for_each_slice_is_handed_to_it(tensorflow):
    """It has a period of 4 examples, with which the last slice of 2 has nothing to do."""
    weights = np.resize(np.arange(4, dtype="float32"), 10)

    def step(x):
        return tf.reduce_sum(x * weights[: x.shape[0], np.newaxis], 1)

    batch = [tf.random.stateless_normal([10, 64], [1, 2])]
    (plain, _), *found = in_slices(step, batch, (4, 2))
    for returned, _ in found:
        np.testing.assert_allclose(returned[0], plain[0], rtol=1e-5)


def test_a_last_slice_that_runs_otherwise_is_refused(tensorflow):
    def crosses_examples_if_short(x):
        x = tf.tanh(x)
        return x * tf.reduce_sum(x, 0 if x.shape[0] < 3 else 1, keepdims=True)

    with pytest.raises(TraceError, match="'Sum' runs once before the slices"):
        check_last_slice(*axes_of(crosses_examples_if_short, (4, 2)), examples=(4, 2))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"handed_on": ()}, r"'Sum:0' of the whole is summed, and not made\."),
        ({"whole_ops": ()}, "runs once after the slices with one of them only"),
    ],
)
def test_a_last_slice_that_hands_on_something_else_is_refused(tensorflow, change, said):
    slices, last = axes_of(lambda x: tensorflow.reduce_sum(tensorflow.tanh(x)), (4, 2))
    check_last_slice(slices, last, examples=(4, 2))
    with pytest.raises(TraceError, match=f"last slice has 2 of the examples .* {said}"):
        check_last_slice(slices, replace(last, **change), examples=(4, 2))


def test_a_last_slice_of_one_example_is_taken_if_all_its_values_are_like_others(tensorflow):
    (plain, _), *found = in_slices(
        lambda x: tf.reduce_sum(tf.tanh(x)), [tf.random.stateless_normal([9, 64], [1, 2])], (4, 1)
    )
    for returned, _ in found:
        np.testing.assert_allclose(returned[0], plain[0], rtol=1e-5)
    weight = tf.Variable(tf.ones([1, 64]))

    def broadcasts(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.tanh(x * weight))
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        return loss

    with pytest.raises(TraceError):
        check_last_slice(*axes_of(broadcasts, (4, 1), examples=9), examples=(4, 1))
    slices, last = axes_of(lambda x: tf.reduce_sum(tf.tanh(x)), (4, 1), examples=9)
    with pytest.raises(TraceError, match="is batched along axis 0, and not made"):
        check_last_slice(slices, replace(last, relations={}), examples=(4, 1))


PROGRAMS = (
    *("perceptron", "convolutional", "dilated", "recurrent", "transformer", "embedding", "unet"),
    *("subpixels", "weighted", "regularized", "gradient_penalty", "two_batches_at_once"),
    *("experts", "graph_network", "one_generator", "generator", "bidirectional"),
)


@pytest.mark.long
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_step_of_any_kind_runs_with_a_shorter_last_slice(name):
    """Slices of 3, 3 and 2 examples."""
    with programs.double():
        (plain, trained), *found = in_slices(*getattr(programs, name)(), (3, 2))
    for returned, variables in found:
        for wanted, got in zip([*plain, *trained], [*returned, *variables], strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-7)
