"""The executor: whatever legal plan it replays, the results are the step's, and the evaluations are the plan's."""

import collections
import itertools
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from plans import random_plan, repeating

from checkmate import Plan, replay, solve

pytestmark = pytest.mark.usefixtures("tensorflow")

N = 64

Point = collections.namedtuple("Point", "x y")


def nests():
    import tensorflow as tf

    def step(batch, scale):
        a = tf.sin(batch["a"])
        b = tf.cos(batch["b"][0]) @ a
        c = tf.exp(b) + a
        return {
            "deep": [a, (b,)],
            "point": Point(c, tf.shape(c)),
            "argument": scale,
            "twice": [c, c],
            "constant": 3.0,
            "nothing": [None, a],
        }

    return step, ({"a": square(1), "b": [square(2)]}, square(3)), []


def inner_functions():
    import tensorflow as tf

    @tf.function
    def innermost(x):
        return tf.sin(x) @ x

    @tf.function
    def inner(x):
        return innermost(x) + tf.cos(x)

    def step(x):
        a = inner(x)
        b = tf.sin(a)
        return b, inner(b) * a

    return step, (square(1),), []


def loops():
    import tensorflow as tf

    def step(x):
        a = tf.tanh(x)
        _, b = tf.while_loop(lambda i, _: i < 4, lambda i, value: (i + 1, tf.sin(value) @ a), (0, a))
        return b, tf.exp(b) + a

    return step, (square(1),), []


def recurrent_layers():
    import keras
    import tensorflow as tf

    layers = [keras.layers.LSTM(16, return_sequences=True, name="lstm"), keras.layers.Bidirectional(keras.layers.GRU(16), name="gru")]
    for layer, shape in zip(layers, [(32, 8, 16), (32, 8, 16)], strict=True):
        layer.build(shape)
    weights = [variable.value for layer in layers for variable in layer.trainable_variables]

    def step(x):
        with tf.GradientTape() as tape:
            y = layers[1](layers[0](x))
            value = tf.reduce_sum(tf.sin(y))
        return tape.gradient(value, weights), y

    return step, (square(1, (32, 8, 16)),), []


def branches():
    import tensorflow as tf

    def step(x):
        a = tf.tanh(x)
        b = tf.cond(tf.reduce_sum(a) > 0, lambda: a @ a, lambda: -a)
        return b, tf.exp(b) * a, tf.switch_case(tf.cast(b[0, 0] > 0, tf.int32), [lambda: tf.sin(a), lambda: tf.cos(a)])

    return step, (square(1),), []


def writes():
    import tensorflow as tf

    variable, count = tf.Variable(square(5)), tf.Variable(0)

    def step(x):
        c = tf.tanh(x)
        a = tf.sin(variable) @ c
        before = variable + 1.0
        variable.assign_sub(0.1 * tf.cos(a))
        b = tf.exp(variable) + a
        variable.assign_add(b)
        count.assign_add(1)
        return a, before, tf.sin(b) * tf.cos(a) * c, variable.read_value(), count

    return step, (square(1),), [variable, count]


def writes_in_an_inner_function():
    import tensorflow as tf

    variable = tf.Variable(square(5))

    @tf.function
    def inner(x):
        variable.assign_add(x)
        return tf.sin(variable) @ x

    def step(x):
        a = tf.cos(x)
        b = inner(a)
        return tf.exp(b) * inner(b) * a, b + variable

    return step, (square(1),), [variable]


def captures():
    import tensorflow as tf

    captured, constant = tf.constant(square(5)), square(6)

    def step(x):
        a = tf.sin(x) + captured
        b = tf.cos(a)
        return b, b @ tf.constant(constant) * a, captured, tf.reshape(b, [-1]), tf.zeros((2, 3)), tf.transpose(captured)

    return step, (square(1),), []


def gradients_of_an_embedding():
    """Returns tf.IndexedSlices."""
    import tensorflow as tf

    table = tf.Variable(square(5))

    def step(rows):
        with tf.GradientTape() as tape:
            value = tf.reduce_sum(tf.sin(tf.nn.embedding_lookup(table, rows)) ** 2)
        return tape.gradient(value, table), value

    return step, (np.arange(40, dtype="int32") % N,), [table]


def seeded_dropout():
    import keras
    import tensorflow as tf

    dropout = keras.layers.Dropout(0.4, seed=3)
    dropout.build((N, N))

    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            a = dropout(tf.sin(x), training=True)
            b = dropout(tf.cos(a), training=True)
            value = tf.reduce_sum(b @ a)
        return a, tape.gradient(value, x)

    return step, (square(1),), [variable.value for variable in dropout.variables]


def states_drawn_in_the_step():
    import tensorflow as tf

    generator = tf.random.Generator.from_seed(4)

    def step(x):
        noise = generator.normal((N, N))
        return tf.sin(x + noise) @ tf.cos(noise), noise * generator.uniform((N, N))

    return step, (square(1),), [generator.state]


def convolutions():
    """Bias and activation behind each convolution; the value between some of the convolutions and their bias is read once more."""
    import tensorflow as tf

    kernels = [tf.Variable(0.2 * square(k, (3, 3, 4, 4))) for k in range(4)]
    biases = [tf.Variable(square(k, (4,))) for k in range(4)]

    def step(x):
        with tf.GradientTape() as tape:
            total = 0.0
            for k, (kernel, bias) in enumerate(zip(kernels, biases, strict=True)):
                y = tf.nn.conv2d(x, kernel, 1, "SAME")
                x = tf.nn.relu(tf.nn.bias_add(y, bias))
                total += tf.reduce_mean(tf.sin(y if k % 2 else x))
            total += tf.reduce_mean(x**2)
        gradients = tape.gradient(total, kernels + biases)
        for variable, gradient in zip(kernels + biases, gradients, strict=True):
            variable.assign_sub(0.1 * gradient)
        return total, gradients

    return step, (square(9, (2, 16, 16, 4)),), kernels + biases


STEPS = (
    nests, inner_functions, loops, branches, writes, writes_in_an_inner_function, captures, gradients_of_an_embedding, seeded_dropout,
    states_drawn_in_the_step, convolutions, recurrent_layers,
)  # fmt: skip


def square(seed, shape=(N, N)):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def traced(step, arguments):
    import tensorflow as tf

    from checkmate.tf2 import trace
    from checkmate.tf2.step import as_spec

    return trace(tf.function(step, autograph=False), *as_spec(arguments))


def run_twice(function, arguments, variables):
    """Results of two runs and what they leave in the variables, which are put back."""
    saved = [variable.numpy() for variable in variables]
    try:
        return [function(*arguments) for _ in range(2)], [variable.numpy() for variable in variables]
    finally:
        for variable, value in zip(variables, saved, strict=True):
            variable.assign(value)


def replayed(found, plan):
    """The function that runs a plan, called with the arguments of the step."""
    import tensorflow as tf

    from checkmate.tf2 import planning

    run = planning.replayed(found, plan)
    return lambda *arguments: run(*map(tf.convert_to_tensor, tf.nest.flatten(arguments)))


PLANS = {
    "keep_all": Plan.keep_all,
    "repeating": repeating,
    **{f"random_{seed}": lambda graph, seed=seed: random_plan(graph, seed) for seed in range(3)},
}


@pytest.mark.parametrize("make", STEPS, ids=lambda make: make.__name__)
def test_every_plan_gives_the_results_of_the_step(make):
    from training import assert_equal

    step, arguments, variables = make()
    found = traced(step, arguments)
    expected = run_twice(found.function, arguments, variables)
    if variables:
        assert any(not np.array_equal(a, b) for a, b in zip(expected[1], [v.numpy() for v in variables], strict=True)) or not any(
            operation.type.startswith("Assign") for operation in found.function.graph.get_operations()
        )
    for name, plan_of in PLANS.items():
        plan = plan_of(found.graph)
        replay(found.graph, plan)
        assert bool(plan.recomputed) >= (name == "repeating"), "nothing here can be repeated"
        assert_equal(run_twice(replayed(found, plan), arguments, variables), expected)


def made_of_constants(operation):
    """TensorFlow evaluates such ops when it builds the function, and never again."""
    from checkmate.tf2 import op_rules

    return bool(operation.inputs) and all(
        tensor.op.type == "Const" or op_rules.role(tensor.op) is op_rules.Role.SHAPE or made_of_constants(tensor.op)
        for tensor in operation.inputs
    )


@pytest.mark.parametrize("make", STEPS, ids=lambda make: make.__name__)
def test_what_runs_is_what_the_plan_says(make):
    from checkmate.tf2 import bodies, op_rules
    from checkmate.tf2.observe import observe

    step, arguments, _ = make()
    found = traced(step, arguments)
    plan = repeating(found.graph)
    run = replayed(found, plan)
    run(*arguments)
    ran_ops = observe(lambda: run(*arguments)).ran
    seen = {(name.split("/", 1)[1], kernel): times for (name, kernel), times in ran_ops.items() if "/evaluation_" in name}
    folded, expected = set(), set()
    for i, times in collections.Counter(plan.computed).items():
        for operation in found.groups[i]:
            names = {f"{operation.name}/evaluation_{k}" for k in range(times)}
            (folded if made_of_constants(operation) else expected).update(names)
            assert times == 1 or not op_rules.is_stateful(operation) or bodies.only_reads(found.function.graph, operation)
    # A call of a function is replaced by the ops inside of it: X/evaluation_k/op.
    ran = {re.match(r"(?:planned/)?(.*?/evaluation_[0-9]+)", name)[1] for name, _ in seen} - folded
    # oneDNN runs a convolution within the kernel of its bias where nobody else reads that evaluation.
    fused = sorted(name for name in expected - ran if name.startswith("Conv2D"))
    assert len(fused) == sum("WithBias" in kernel for _, kernel in seen)
    assert ran | set(fused) == expected
    assert any("/evaluation_1" in name for name in ran)
    assert all(times == 1 for (name, _), times in seen.items() if "/while/" not in name), (
        "an op of the plan ran more than once for one evaluation"
    )


def test_dropout_is_among_what_is_repeated():
    step, arguments, _ = seeded_dropout()
    graph = traced(step, arguments).graph
    assert any("StatelessRandom" in graph.ops[i].kind for i in repeating(graph).recomputed)


def test_a_side_effect_happens_once():
    import tensorflow as tf

    seen = []

    def look(x):
        seen.append(float(x[0, 0]))
        return x

    def step(x):
        a = tf.sin(x)
        b = tf.ensure_shape(tf.numpy_function(look, [a], tf.float32), (N, N))
        return tf.exp(a) @ tf.cos(b) + a, b

    found = traced(step, (square(1),))
    plan = repeating(found.graph)
    assert plan.recomputed
    replayed(found, plan)(square(1))
    assert len(seen) == 1


def test_a_failing_assertion_still_fails():
    import tensorflow as tf

    def step(x):
        tf.debugging.assert_less(x, 100.0)
        return tf.sin(x) @ x

    found = traced(step, (square(1),))
    run = replayed(found, Plan.keep_all(found.graph))
    run(square(1))
    with pytest.raises(tf.errors.InvalidArgumentError):
        run(square(1) + 1000)


@pytest.fixture(scope="module")
def conv_net(tensorflow):
    """Forward and backward of 16 convolutions with activations of 1 MiB, and kernels that weigh next to nothing."""
    tf = tensorflow
    kernels = [tf.Variable(0.1 * square(k, (3, 3, 16, 16))) for k in range(16)]

    def step(x):
        with tf.GradientTape() as tape:
            for kernel in kernels:
                x = tf.nn.tanh(tf.nn.conv2d(x, kernel, 1, "SAME"))
            value = tf.reduce_mean(x**2)
        return value, tape.gradient(value, kernels)

    arguments = (square(1, (4, 64, 64, 16)),)
    return traced(step, arguments), arguments


def test_measured_memory_falls_with_the_budget(conv_net):
    from training import assert_equal

    from checkmate.tf2 import device as devices

    found, arguments = conv_net
    plain = replay(found.graph, Plan.keep_all(found.graph)).peak_bytes
    above = plain - found.graph.fixed_bytes
    expected = found.function(*arguments)
    measured, predicted = [], []
    for share in (1.0, 0.8, 0.6, 0.45):
        result = solve(found.graph, int(found.graph.fixed_bytes + share * above))
        run = replayed(found, result.plan)
        for _ in range(2):
            got, before, peak = devices.peak_above("CPU:0", lambda run=run: run(*arguments))
            assert_equal(got, expected)
            del got
        measured.append(peak - before)
        predicted.append(result.peak_bytes - found.graph.fixed_bytes)
    assert all(later < earlier for earlier, later in itertools.pairwise(measured)), measured
    # The allocator rounds and fragments; what is saved is saved for real.
    assert measured[0] - measured[-1] >= 0.7 * (predicted[0] - predicted[-1])


def test_recomputation_between_convolution_bias_and_their_gradients_closes_no_cycle():
    """With Grappler and oneDNN on, both of which fuse convolution and bias, forward and backward."""
    here = Path(__file__).parent
    script = f"""
import sys
sys.path[:0] = [{str(here)!r}, {str(here.parent)!r}]
import numpy as np, tensorflow as tf
from checkmate import Plan
from plans import random_plan, repeating
from test_execute import convolutions, replayed, run_twice, traced
step, arguments, variables = convolutions()
found = traced(step, arguments)
expected = run_twice(found.function, arguments, variables)
for plan in (Plan.keep_all(found.graph), repeating(found.graph), *(random_plan(found.graph, seed) for seed in range(6))):
    got = run_twice(replayed(found, plan), arguments, variables)
    for a, b in zip(tf.nest.flatten(expected), tf.nest.flatten(got), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
print("the same")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=here.parents[1])
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["the", "same"]
