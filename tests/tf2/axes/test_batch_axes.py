"""The step in slices, as `batch_axes` says, against the step on the whole batch: all that it
returns and writes. What binds the examples together, and what is refused."""

import keras
import numpy as np
import programs
import pytest
import tensorflow as tf
from slices_oracle import in_slices

from checkmate.tf2.axes.batch_axes import batch_axes
from checkmate.tf2.graph.trace import trace
from checkmate.tf2.training_step import training_step

pytestmark = pytest.mark.usefixtures("tensorflow")


NAMES = (
    *("perceptron", "convolutional", "dilated", "recurrent", "transformer", "embedding", "unet"),
    *("subpixels", "weighted", "regularized", "gradient_penalty", "two_batches_at_once"),
    *("experts", "graph_network", "one_generator", "generator"),
    pytest.param("bidirectional", marks=pytest.mark.slow),
)


@pytest.mark.parametrize("name", NAMES)
def test_the_step_in_slices_is_the_step_on_the_whole_batch(name):
    """Slices of two, of three and a last one of two, and of one example."""
    with programs.double():
        for size in (2, 3, 1):
            step, batch = getattr(programs, name)()
            found = in_slices(step, batch, size)
            assert not found.errors
            assert found.axes.nodes and found.axes.late_ops and found.axes.handed_on


def axes_of(step, *shapes, examples=8):
    specs = [tf.TensorSpec([examples, *shape]) for shape in shapes]
    return batch_axes(trace(tf.function(step), *specs), examples)


def gradient_step(loss_of, shape=(16, 64)):
    """The axes of a step of gradient descent."""
    kernel = tf.Variable(0.1 * tf.ones([shape[-1], 64]))

    def step(inputs):
        with tf.GradientTape() as tape:
            loss = loss_of(tf.tanh(inputs @ kernel))
        kernel.assign_sub(0.1 * tape.gradient(loss, kernel))
        return loss

    return axes_of(step, shape)


def test_batch_normalization_binds(tensorflow):
    def axes(trainable):
        inputs = keras.Input((16, 64))
        x = keras.layers.Dense(64, activation="tanh")(inputs)
        norm = keras.layers.BatchNormalization(name="norm", trainable=trainable)
        model = keras.Model(inputs, norm(x), name="model")
        spec = tensorflow.TensorSpec([8, 16, 64])
        return axes_of(training_step(model, "mse", "sgd", spec, spec)[0], (16, 64), (16, 64))

    found = axes(True)
    assert found.binding.layer == "norm"
    assert "made of all examples" in found.binding.reason
    assert not found.nodes
    assert axes(False).binding is None


def test_examples_compared_with_each_other_bind(tensorflow):
    axes = gradient_step(lambda x: tensorflow.reduce_mean(x @ tensorflow.transpose(x)), shape=(64,))
    assert axes.binding.operation.type == "MatMul"
    assert "computes across the examples" in axes.binding.reason


def test_a_divisor_made_of_activations_binds(tensorflow):
    axes = gradient_step(lambda x: tensorflow.reduce_sum(x**2) / tensorflow.reduce_sum(x))
    assert axes.binding.reason.count("'") >= 4


def test_the_largest_of_all_examples_binds(tensorflow):
    assert gradient_step(tensorflow.reduce_max).binding is not None


def test_the_largest_loss_is_found_after_the_slices(tensorflow):
    """The loss of each example is kept for the whole batch."""

    def loss(x):
        each = tensorflow.reduce_mean(x**2, [1, 2])
        tensorflow.print(tensorflow.reduce_max(each))
        return tensorflow.reduce_sum(each)

    axes = gradient_step(loss)
    assert axes.binding is None
    assert any(operation.type == "Max" for operation in axes.late_ops)
    assert any(str(handed.relation) == "batched along axis 0" for handed in axes.handed_on)


def test_a_python_function_binds(tensorflow):
    axes = gradient_step(
        lambda x: tensorflow.reduce_sum(
            x * tensorflow.ensure_shape(tensorflow.numpy_function(abs, [x], x.dtype), x.shape)
        )
    )
    assert axes.binding is not None


def test_a_weight_read_after_its_update_binds(tensorflow):
    kernel = tensorflow.Variable(0.1 * tensorflow.ones([64, 64]))

    def step(inputs):
        kernel.assign_sub(tensorflow.reduce_sum(tensorflow.tanh(inputs @ kernel)) * kernel)
        return tensorflow.tanh(inputs @ kernel)

    assert axes_of(step, (64,)).binding is not None


def test_a_moving_average_is_written_after_the_slices(tensorflow):
    average = tensorflow.Variable(tensorflow.zeros([64]))

    def step(inputs):
        x = tensorflow.tanh(inputs)
        average.assign(0.9 * average + 0.1 * tensorflow.reduce_mean(x, 0))
        return x

    axes = axes_of(step, (64,))
    assert axes.binding is None
    assert [node.operation.type for node in axes.nodes if node.answer.average] == ["Mean"]
    assert [operation.type for operation in axes.late_ops][-1] == "AssignVariableOp"


def test_draws_of_one_generator_are_parts_of_those_of_the_whole():
    with programs.double():
        step, batch = programs.one_generator()
        axes = in_slices(step, batch, 2).axes
    draws = [node.draw for node in axes.nodes if node.draw]
    assert [(draw.numbers, draw.group) for draw in draws] == [(10, 2), (10, 2)]
    early = [operation.type for operation in axes.early_ops]
    assert early.count("AssignVariableOp") >= 1
    assert not axes.other_draws


def test_a_draw_that_a_slice_begins_within_a_count(tensorflow):
    """Three numbers for each example, of which four have one count."""
    kernel = tf.Variable(tf.ones([3, 3]))

    def step(inputs):
        seed = tf.cast([tf.reduce_sum(tf.shape(inputs)), 2], tf.int32)
        noise = tf.random.stateless_uniform(tf.shape(inputs), seed, dtype=inputs.dtype)
        kept = tf.where(noise > 0.4, inputs @ kernel, 0.0)
        kernel.assign_add(tf.matmul(noise, kept, transpose_a=True))
        return kept

    for size in (2, 3, 5):
        batch = (np.arange(24, dtype="float32").reshape(8, 3),)
        found = in_slices(step, batch, size, tolerance=1e-6)
        assert found.binding is None and not found.errors


def test_numbers_of_a_generator_in_the_kernel_are_drawn_in_slices_or_once(tensorflow):
    def step(inputs, returned):
        noise = tf.random.normal(tf.shape(inputs))
        loss = tf.reduce_sum(tf.tanh(inputs) * noise)
        return (loss, noise) if returned else loss

    assert axes_of(lambda x: step(x, False), (64,)).other_draws
    axes = axes_of(lambda x: step(x, True), (64,))
    assert not axes.other_draws
    assert "RandomStandardNormal" in [operation.type for operation in axes.early_ops]


def test_indices_of_other_examples_are_found_when_the_step_runs(tensorflow):
    def step(inputs, which):
        rows = tf.reshape(inputs, [-1, 2])
        return tf.reduce_sum(tf.tanh(tf.gather(rows, tf.range(8) * 3 + which)))

    inputs = np.random.default_rng(0).normal(size=(8, 3, 2))
    own = np.arange(8) % 3
    others = np.where(np.arange(8) == 1, 3, own)  # that of the third example
    assert not in_slices(step, (inputs, own.astype("int32")), 2).errors
    with pytest.raises(tf.errors.InvalidArgumentError, match="entries of other examples"):
        in_slices(step, (inputs, others.astype("int32")), 2)


@pytest.mark.parametrize("is_set", [True, False])
def test_a_loop_that_adds_to_a_sum_or_sets_it_to_a_number(tensorflow, is_set):
    """A carried number that begins with 0 is a sum over the examples, or one number for all."""
    kernel = tf.Variable(np.ones([16, 16]))

    def body(k, found, x):
        x = tf.tanh(x @ kernel)
        return k + 1, tf.constant(1.0, tf.float64) if is_set else found + tf.reduce_sum(x), x

    def step(inputs):
        zero = tf.zeros([], tf.float64)
        _, found, x = tf.while_loop(lambda k, *_: k < 3, body, [0, zero, inputs])
        return found * tf.reduce_sum(x)

    batch = np.random.default_rng(0).normal(size=(8, 16))
    found = in_slices(step, (batch,), 3)
    assert found.binding is None and not found.errors


def test_a_list_whose_entries_are_numbers_in_a_loop_within_a_loop(tensorflow):
    kernel = tf.Variable(np.ones([16, 16]) / 16)

    def step(inputs):
        def outer(k, x):
            def inner(j, y):
                return j + 1, tf.tanh(y @ kernel)

            return k + 1, tf.while_loop(lambda j, _: j < 2, inner, [0, x])[1]

        with tf.GradientTape() as tape:
            x = tf.while_loop(lambda k, _: k < 3, outer, [0, inputs])[1]
            loss = tf.reduce_mean(x**2)
        kernel.assign_sub(tape.gradient(loss, kernel))
        return loss

    batch = np.random.default_rng(0).normal(size=(8, 16))
    found = in_slices(step, (batch,), 3)
    assert found.binding is not None or not found.errors


LINEAR_ALGEBRA = {
    "a padding is added once": lambda h, n: tf.linalg.diag(tf.reduce_sum(h, 0), padding_value=3.0),
    "and beside a diagonal": lambda h, n: tf.linalg.diag_part(
        tf.transpose(h) @ h, k=(-1, 1), padding_value=3.0
    ),
    "a band of as many diagonals as examples": lambda h, n: tf.linalg.diag(
        tf.reshape(tf.tile(h, [1, 3]), [n, 3, 16]), k=(-1, 1)
    ),
    "matrices that are broadcast": lambda h, n: tf.linalg.triangular_solve(
        tf.eye(16, dtype=h.dtype) + h[:, None], tf.ones([n, n, 16, 3], h.dtype)
    ),
    "a text made of the batch's size": lambda h, n: (
        h * tf.cast(tf.strings.length(tf.strings.as_string(n)), h.dtype)
    ),
    "a shape that a mask makes": lambda h, n: tf.boolean_mask(h, h[0] > 0, axis=1),
    "half a sum of squares": lambda h, n: tf.nn.l2_loss(h),
}


@pytest.mark.parametrize("name", LINEAR_ALGEBRA)
@pytest.mark.parametrize("examples", [2, 3, 6])
def test_what_a_rule_once_took_for_another_axis(tensorflow, name, examples):
    kernel = tf.Variable(np.random.default_rng(1).normal(size=(16, 16)))

    def step(inputs):
        h = tf.tanh(inputs @ kernel)
        return tf.reduce_mean(LINEAR_ALGEBRA[name](h, tf.shape(h)[0])), h

    batch = np.random.default_rng(0).normal(size=(examples, 16))
    for size in (1, 2):
        if size < examples:
            found = in_slices(tf.function(step, autograph=False), (batch,), size)
            assert found.binding is not None or not found.errors
