"""trace(): random ops, control flow and functions: what runs once, and in what order."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from tracing import N, op_of, squared_error, traced, training, types

from checkmate import replay

pytestmark = pytest.mark.usefixtures("tensorflow")


def test_random_ops_with_state_run_once():
    tf.random.set_seed(1)
    found = traced(lambda x: tf.sin(x) * tf.random.uniform((N, N)))
    assert not op_of(found, "RandomUniform")[1].recomputable
    assert op_of(found, "Sin")[1].recomputable


def test_dropout_of_keras_can_be_repeated():
    dropout = keras.layers.Dropout(0.5, seed=3)
    found = traced(lambda x: tf.sin(dropout(tf.cos(x), training=True)))
    random = next(op for op in found.graph.ops if "Random" in op.kind)
    assert "Stateless" in random.kind
    assert random.recomputable
    assert all(op.recomputable for op in found.graph.ops)
    # The next seed is drawn once, by ops too small to be planned.
    assert any(
        operation.type == "AssignVariableOp" for operation in found.function.graph.get_operations()
    )
    assert "AssignVariableOp" not in types(found)


def test_ops_that_call_back_into_python_run_once():
    def step(x):
        y = tf.numpy_function(np.sin, [tf.cos(x)], tf.float32, stateful=False)
        return tf.exp(tf.ensure_shape(y, (N, N)))

    found = traced(step)
    python = next(op for op in found.graph.ops if "PyFunc" in op.kind)
    assert not python.recomputable
    assert any("estimated" in note and "PyFunc" in note for note in found.notes)


@pytest.mark.parametrize(
    ("make", "types_"),
    [("while_loop", {"StatelessWhile", "While"}), ("cond", {"StatelessIf", "If"})],
)
def test_control_flow_is_one_op(make, types_):
    @tf.function
    def inner(x):
        return tf.sin(x) @ tf.cos(x)

    def step(x):
        a = tf.exp(x)
        if make == "while_loop":
            b = tf.while_loop(lambda i, _: i < 3, lambda i, value: (i + 1, inner(value)), (0, a))[1]
        else:
            b = tf.cond(tf.reduce_sum(x) > 0, lambda: inner(a), lambda: a)
        return a, tf.exp(b) @ a

    found = traced(step)
    (i,) = [
        i
        for i, group in enumerate(found.groups)
        if types_ & {operation.type for operation in group}
    ]
    assert found.graph.ops[i].recomputable
    assert not types(found) & {"Sin", "Cos"}
    assert op_of(found, "Exp")[0] in found.graph.ops[i].deps


def test_what_follows_a_loop_is_forward():
    """Taking the gradient of an LSTM gives its forward loop lists of the backward pass as inputs;
    what reads the loop is forward all the same."""
    inputs = keras.Input((12, 16))
    x = keras.layers.Dense(64, "tanh", name="after")(keras.layers.LSTM(24)(inputs))
    found = traced(
        training(
            keras.Model(inputs, keras.layers.Dense(5)(x)), squared_error, keras.optimizers.SGD(0.1)
        ),
        (64, 12, 16),
        (64, 5),
    )
    after = next(op for op in found.graph.ops if op.kind.endswith("Tanh") and "/after" in op.name)
    assert not after.is_backward
    assert after.recomputable


def test_a_loop_comes_after_inputs_that_are_made_later():
    """Taking the gradient of an LSTM gives its loop more inputs, made by ops that come later in the
    trace."""
    inputs = keras.Input((12, 16))
    model = keras.Model(inputs, keras.layers.Dense(5)(keras.layers.LSTM(24)(inputs)))
    found = traced(training(model, squared_error, keras.optimizers.SGD(0.1)), (64, 12, 16), (64, 5))
    operations = found.function.graph.get_operations()
    created = {operation.name: k for k, operation in enumerate(operations)}
    loops = [operation for operation in operations if "While" in operation.type]
    assert any(
        created[tensor.op.name] > created[loop.name] for loop in loops for tensor in loop.inputs
    )
    assert (
        sum("While" in operation.type for group in found.groups for operation in group)
        == len(loops)
        == 2
    )
    assert replay(found.graph, found.plain_plan()).peak_bytes > found.graph.fixed_bytes


@pytest.mark.parametrize("inside", ["reads", "writes", "draws"])
def test_a_loop_may_run_again_if_nothing_happens_in_it(inside):
    variable = tf.Variable(tf.ones((N, N)))

    def body(i, x):
        if inside == "writes":
            variable.assign_add(x)
        noise = tf.random.uniform((N, N)) if inside == "draws" else 1.0
        return i + 1, tf.sin(x) @ variable + noise

    def step(x):
        a = tf.cos(x)
        b = tf.while_loop(lambda i, _: i < 3, body, (0, a))[1]
        return tf.exp(b) @ a

    _, loop = op_of(traced(step), "While")
    assert loop.recomputable == (inside == "reads")


def test_a_loop_is_not_run_again_after_its_variable_changed():
    variable = tf.Variable(tf.ones((N, N)))

    def step(x):
        b = tf.while_loop(lambda i, _: i < 3, lambda i, x: (i + 1, tf.sin(x) @ variable), (0, x))[1]
        variable.assign_add(tf.exp(b) @ x)
        return b

    found = traced(step)
    i, _ = op_of(found, "While")
    assert any(i in op.overwrites for op in found.graph.ops)


def test_a_loop_may_run_again_although_a_small_variable_changes():
    """A recurrent layer's bias is small. Its update is an op of the plan all the same, so that what
    comes after it can be told."""
    variable, small = tf.Variable(tf.ones((N, N))), tf.Variable(tf.ones(N))

    def step(x):
        b = tf.while_loop(
            lambda i, _: i < 3, lambda i, x: (i + 1, tf.sin(x) @ variable + small), (0, x)
        )[1]
        small.assign_add(tf.reduce_mean(tf.exp(b) @ x, 0) + 1.0)
        return b

    found = traced(step)
    i, loop = op_of(found, "While")
    assert loop.recomputable
    _, update = op_of(found, "AssignAddVariableOp")
    assert i in update.overwrites


def test_lists_of_one_tensor_are_counted_once():
    """An LSTM's loop hands on its outputs twice: for the next layer, and for its gradient. Its
    inputs are a list's that it was given."""
    rounds, rows, width = 12, 64, 24
    inputs = keras.Input((rounds, 16))
    model = keras.Model(inputs, keras.layers.LSTM(width, return_sequences=True)(inputs))
    found = traced(
        training(model, squared_error, keras.optimizers.SGD(0.1)),
        (rows, rounds, 16),
        (rows, rounds, width),
    )
    _, loop = op_of(found, "While")
    entry = rounds * -(-4 * rows * width // 256) * 256
    lists = 7  # four gates, the new state of the cell, its tanh, the output
    assert lists * entry <= loop.output_bytes <= 1.1 * lists * entry
