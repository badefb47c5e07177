"""Models of the zoo: their own numbers under a plan that repeats all it may, sizes of what loops
keep, plans made ahead of time."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from plans import repeating
from training import assert_equal

from benchmarks import zoo
from benchmarks.zoo.batches import Task
from checkmate.tf2.compile import training_step
from checkmate.tf2.execution.replay import Replayed
from checkmate.tf2.graph.trace import analyse, trace
from checkmate.tf2.memory.profiler import observe

pytestmark = pytest.mark.usefixtures("tensorflow")

SMALL = {
    "siamese": {"batch": 2, "size": 24},
    "bag_of_words": {"batch": 16},
    "custom_gradients": {},
    "loops": {"batch": 8},
    "codebook": {},
    "dynamic_shapes": {"batch": 32},
    "module": {"batch": 16},
    "gan": {"batch": 2},
}


def zoo_model(name, **sizes):
    """The training step of a model of the zoo, and its arguments."""
    keras.utils.set_random_seed(0)
    work = zoo.models()[name](**sizes)
    if isinstance(work, Task):
        return work.step, work.batch
    return training_step(work.model, work.loss, work.optimizer, work.inputs, work.labels)[0], (
        work.inputs,
        work.labels,
    )


RARER = ("siamese", "codebook", "gan")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in RARER)) for name in SMALL]
)
def test_two_steps_are_bit_equal_with_all_repeated(name):
    """Values that may be had again are evaluated again for every reader."""
    step, batch = zoo_model(name, **SMALL[name])
    plain = tf.function(step)
    traced = analyse(plain.get_concrete_function(*batch), name=name)
    plan = repeating(traced.graph)
    assert plan.recomputed
    run = Replayed(traced, plan)
    variables = traced.function.variables
    start = [variable.numpy() for variable in variables]
    expected = [plain(*batch) for _ in range(2)]
    expected_state = [variable.numpy() for variable in variables]
    for variable, value in zip(variables, start, strict=True):
        variable.assign(value)
    assert_equal([run(*tf.nest.flatten(batch)) for _ in range(2)], expected)
    assert_equal([variable.numpy() for variable in variables], expected_state)


@pytest.mark.parametrize(
    "name, sizes", [("mixed_bfloat16", {}), ("multi_output", {"batch": 2, "size": 24})]
)
def test_gradients_of_biases_are_computed_by_the_kernels_of_the_plain_step(name, sizes):
    """oneDNN has one that sums within the gradient of the filter, and rounds otherwise than the op
    does."""
    step, batch = zoo_model(name, **sizes)
    plain = tf.function(step)
    traced = analyse(plain.get_concrete_function(*batch), name=name)
    run = Replayed(traced, repeating(traced.graph))
    found = []
    for call in (lambda: plain(*batch), lambda: run(*tf.nest.flatten(batch))):
        ran = observe(call).ran
        found.append(
            sorted(
                kernel
                for (_, kernel), times in ran.items()
                if "BackpropFilter" in kernel
                for _ in range(times)
            )
        )
    assert found[0] == found[1] != []


@pytest.mark.parametrize("nested", [False, True])
def test_kernels_with_others_between_them_are_not_run_as_one(optimizer_on, nested):
    """oneDNN fuses a convolution and the sum with a bias also where what makes the bias waits for
    the convolution: for itself then."""
    weight, bias = (
        tf.Variable(tf.random.stateless_normal((3, 3, 4, 4), (1, 2))),
        tf.Variable(tf.ones(4)),
    )

    def layer(x):
        product = tf.nn.conv2d(tf.tanh(x), weight, 1, "SAME")
        return tf.nn.relu(tf.nn.bias_add(product, tf.exp(tf.sin(bias))))

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = (
                tf.while_loop(lambda k, _: k < 3, lambda k, y: (k + 1, layer(y)), (0, x))[1]
                if nested
                else layer(layer(x))
            )
            loss = tf.reduce_sum(y * y)
        return loss, tape.gradient(loss, x)

    x = tf.random.stateless_normal((2, 4, 4, 4), (3, 4))
    traced = trace(step, x)
    assert_equal(Replayed(traced, traced.plain_plan())(x), step(x))


def test_half_precision_is_rounded_as_in_the_plain_step(optimizer_on):
    """Products with bias within one kernel round once less than in two. At first biases are zero,
    and nobody can tell."""
    step, batch = zoo_model("mixed_bfloat16")
    plain = tf.function(step)
    plain(*batch)
    traced = analyse(plain.get_concrete_function(*batch), name="mixed_bfloat16")
    run = Replayed(traced, traced.plain_plan())
    kernels, results = [], []
    variables = traced.function.variables
    start = [variable.numpy() for variable in variables]
    for call in (lambda: plain(*batch), lambda: run(*tf.nest.flatten(batch))):
        seen = observe(call)
        results.append(
            [*tf.nest.flatten(seen.result), *[variable.numpy() for variable in variables]]
        )
        kernels.append(
            sorted(
                kernel
                for (_, kernel), times in seen.ran.items()
                if "Fused" in kernel or "WithBias" in kernel
                for _ in range(times)
            )
        )
        for variable, value in zip(variables, start, strict=True):
            variable.assign(value)
    # A convolution that TensorFlow's optimizer fused is taken apart for the plan, and oneDNN fuses
    # it again, under another name.
    assert (
        [name.replace("FusedConv2D", "Conv2DWithBias") for name in kernels[0]] == kernels[1] != []
    )
    assert_equal(results[1], results[0])


def loop_step(weight, rounds, rows):
    """A recurrent step on `rows` rows of 64 numbers. Its gradient reads two tensors of that size
    for each round, and the weight.

    `rounds` is a number, or a function of the rows that returns one.
    """

    def step(x):
        end = rounds(x) if callable(rounds) else rounds
        with tf.GradientTape() as tape:
            _, state = tf.while_loop(
                lambda k, state: k < end, lambda k, state: (k + 1, tf.sin(state @ weight)), (0, x)
            )
            loss = tf.reduce_sum(state)
        weight.assign_sub(tape.gradient(loss, weight))
        return loss

    return tf.function(step).get_concrete_function(tf.TensorSpec((rows, 64)))


@pytest.mark.parametrize("known_by", ["number", "shape", "constant"])
@pytest.mark.parametrize("rounds", [3, 50])
def test_a_loop_keeps_an_entry_per_round(rounds, known_by):
    entry, weight = 32 * 64 * 4, tf.Variable(tf.eye(64))
    ways = {
        "number": rounds,
        "shape": lambda x: tf.shape(tf.zeros((rounds, 7)) + tf.reduce_sum(x))[0],
        "constant": lambda x: tf.constant([7, rounds, 7])[1],
    }
    concrete = loop_step(weight, ways[known_by], 32)
    loops = [
        op
        for op in analyse(concrete, name="loop").graph.ops
        if "While" in op.kind and not op.is_backward
    ]
    assert len(loops) == 1
    assert 2 * rounds * entry <= loops[0].output_bytes <= (2 * rounds + 2) * entry


def test_batch_normalization_keeps_a_mask():
    """The kernel's last output, whose size no shape tells, counts for less than what it
    normalizes."""
    scale, offset = tf.Variable(tf.ones(4)), tf.Variable(tf.zeros(4))

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.sin(tf.compat.v1.nn.fused_batch_norm(x, scale, offset)[0]))
        scale.assign_sub(tape.gradient(loss, scale))
        return loss

    graph = analyse(
        tf.function(step).get_concrete_function(tf.TensorSpec((8, 32, 32, 4))), name="normalized"
    ).graph
    found = next(op for op in graph.ops if "FusedBatchNormV3" in op.kind)
    size = 8 * 32 * 32 * 4 * 4
    assert size < found.output_bytes < 1.2 * size


def test_convolutions_whose_results_are_added_do_not_close_a_cycle():
    """Their gradients of filter and bias all read one tensor; oneDNN takes any two of them for a
    pair."""
    layers, image = keras.layers, keras.Input((8, 8, 4))
    x = image
    for _ in range(2):
        y = layers.Conv2D(8, 3, padding="same", activation="swish")(x)
        x = layers.Conv2D(8, 3, padding="same")(layers.Activation("swish")(y)) + layers.Conv2D(
            8, 1
        )(x)
    model = keras.Model(image, x)

    def step(images):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(images, training=True) ** 2)
        return tape.gradient(loss, model.trainable_variables)

    images = np.ones((2, 8, 8, 4), "float32")
    plain = tf.function(step).get_concrete_function(images)
    traced = analyse(plain, name="residual")
    for ours, expected in zip(
        Replayed(traced, repeating(traced.graph))(tf.constant(images)),
        plain(tf.constant(images)),
        strict=True,
    ):
        np.testing.assert_array_equal(ours, expected)


def test_a_gradient_of_a_bias_that_runs_again_has_one_gradient_of_a_filter_to_pair_with():
    """Each run of the two waits for another op than the run before, or oneDNN pairs those of
    different runs."""
    step, batch = zoo_model("gan", **SMALL["gan"])
    traced = analyse(tf.function(step).get_concrete_function(*batch), name="gan")
    nodes = Replayed(traced, repeating(traced.graph)).function.graph.as_graph_def().node
    waits = {node.name: {each for each in node.input if each[0] == "^"} for node in nodes}
    filters = [node for node in nodes if node.op == "Conv2DBackpropFilter"]
    biases = [node for node in nodes if node.op == "BiasAddGrad"]
    again = [node for node in biases if not node.name.endswith("evaluation_0")]
    partners = [
        sum(
            each.input[2] == bias.input[0] and waits[each.name] == waits[bias.name]
            for each in filters
        )
        for bias in biases
    ]
    assert again and max(partners) == 1, partners
