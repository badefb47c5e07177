"""The step in slices, as `batch_axes` says, against the step on the whole batch: every value. What
binds the examples together, and what is refused."""

import keras
import programs
import pytest
import tensorflow as tf
from slices_oracle import in_slices

from checkmate.errors import TraceError
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
def test_every_value_of_the_whole_follows_from_the_slices(name):
    with programs.double():
        step, batch = getattr(programs, name)()
        found = in_slices(step, batch, 2)
    assert not found.errors
    assert found.compared > 30
    assert found.axes.in_each_slice and found.axes.whole_ops and found.axes.handed_on


@pytest.mark.long
@pytest.mark.parametrize("examples", [1, 4])
@pytest.mark.parametrize("name", [*NAMES[:-1], "bidirectional"])
def test_slices_of_any_size_are_right_or_refused(name, examples):
    """Along an axis of one example an op may broadcast, and sums over it are left out."""
    with programs.double():
        step, batch = getattr(programs, name)()
        try:
            found = in_slices(step, batch, examples)
        except TraceError:
            assert examples == 1
            return
    assert not found.errors or found.axes.binding is not None
    assert found.axes.binding is None or examples == 1


def axes_of(step, *shapes, examples=(8, 2)):
    function = tf.function(step)
    specs = [[tf.TensorSpec([size, *shape]) for shape in shapes] for size in examples]
    function.get_concrete_function(*specs[0])
    return batch_axes(*(trace(function, *each) for each in specs), examples=examples)


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
    assert not found.in_each_slice
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
    assert any(operation.type == "Max" for operation in axes.whole_ops)
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
    assert axes.binding is None and list(axes.averages.values()) == [0.25]
    assert [operation.type for operation in axes.whole_ops][-1] == "AssignVariableOp"


def test_draws_of_one_generator_are_parts_of_those_of_the_whole():
    with programs.double():
        step, batch = programs.one_generator()
        axes = in_slices(step, batch, 2).axes
    assert [2 * draw.counts for draw in axes.random_ops.values()] == [10, 10]
    early = [operation.type for operation in axes.early_ops]
    assert early.count("AssignVariableOp") >= 1
    assert {str(handed.relation) for handed in axes.fed.values()} == {
        "same",
        "batched along axis 0",
    }


@pytest.mark.parametrize("examples", [(8, 9), (8, 8)])
def test_there_are_two_slices_at_least(tensorflow, examples):
    with pytest.raises(TraceError, match=f"8 examples cannot run in slices of {examples[1]}"):
        axes_of(tensorflow.tanh, (64,), examples=examples)


def test_only_the_number_of_examples_may_differ(tensorflow):
    step = tensorflow.function(lambda x: tensorflow.exp(tensorflow.tanh(x)))
    traced = [trace(step, tensorflow.TensorSpec(shape)) for shape in ((8, 64), (2, 32))]
    with pytest.raises(TraceError, match=r"\(8, 64\) for the whole batch and \(2, 32\)"):
        batch_axes(*traced, examples=(8, 2))


def test_another_program_for_a_slice_is_refused(tensorflow):
    def step(x):
        return tensorflow.exp(x) if x.shape[0] > 4 else tensorflow.sin(x)

    with pytest.raises(TraceError, match=r"'Sin' \(Sin\), the other has 'Exp' \(Exp\)"):
        axes_of(step, (64,))
