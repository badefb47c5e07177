"""in_order.py: the ops of loops and conditions run one after another, and do what they did."""

from __future__ import annotations

import gc
import itertools

import numpy as np
import pytest
import tensorflow as tf

from checkmate.tf2.execution.sequential import InOrder, _all_values
from checkmate.tf2.graph.bodies import body_of
from checkmate.tf2.graph.graph_writer import names_of_inputs, reachable
from checkmate.tf2.graph.operations import role_of
from checkmate.tf2.ops.rule import Role

pytestmark = pytest.mark.usefixtures("tensorflow")


def powers(x, y):
    """A loop with branches that do not wait for each other, and with a condition in it."""

    def body(k, total):
        left, right = tf.matmul(x, total), tf.matmul(total, y)
        more = tf.cond(
            k % 2 == 0, lambda: tf.cos(left) + left * right, lambda: tf.matmul(left, right) / 100.0
        )
        return k + 1, tf.tanh(left) + more

    return tf.while_loop(lambda k, total: k < 5, body, (0, x), parallel_iterations=10)[1]


@pytest.fixture
def traced(tensorflow):
    specs = [tensorflow.TensorSpec((8, 8)), tensorflow.TensorSpec((8, 8))]
    return tensorflow.function(powers, autograph=False).get_concrete_function(*specs)


def copied(concrete, little_bytes=0):
    """(the function written anew by `InOrder`, its loops)."""
    writer, names = InOrder(concrete.graph, little_bytes), names_of_inputs(concrete)
    for operation in reachable(concrete.graph):
        if operation.type != "Placeholder":
            copy = writer.copy(operation, [names[tensor.ref()] for tensor in operation.inputs])
            names.update(
                {tensor.ref(): f"{copy}:{k}" for k, tensor in enumerate(operation.outputs)}
            )
    function = writer.function_like(concrete, [names[tensor.ref()] for tensor in concrete.outputs])
    return function, [
        operation for operation in function.graph.get_operations() if "While" in operation.type
    ]


def waits_for(operation):
    """All ops that one waits for."""
    found, pending = set(), [operation]
    while pending:
        top = pending.pop()
        befores = {*(tensor.op for tensor in top.inputs), *top.control_inputs} - found
        found |= befores
        pending.extend(befores)
    return found


def kernels(body):
    return [operation for operation in body.get_operations() if role_of(operation) is Role.KERNEL]


def in_order(body):
    operations = kernels(body)
    return len(operations) > 2 and all(a in waits_for(b) for a, b in itertools.pairwise(operations))


def body_of_copy(function, loop):
    bodies = {
        body.name.decode(): body.graph
        for made in function.graph.get_collection("bodies in order")
        for body in made.values()
    }
    return bodies[loop.get_attr("body").name]


def test_each_op_of_a_body_waits_for_the_one_before(traced):
    (plain,) = (
        operation for operation in traced.graph.get_operations() if "While" in operation.type
    )
    function, (loop,) = copied(traced)
    body = body_of_copy(function, loop)
    assert in_order(body)
    assert not in_order(body_of(traced.graph, plain, "body"))
    branches = [
        branch.graph for made in body.get_collection("bodies in order") for branch in made.values()
    ]
    assert len(branches) == 2 and any(map(in_order, branches))
    assert (plain.get_attr("parallel_iterations"), loop.get_attr("parallel_iterations")) == (10, 1)


def test_nothing_else_changes(traced, tensorflow):
    function, _ = copied(traced)
    gc.collect()  # the bodies must live as long as the function
    x, y = (
        tensorflow.constant(np.random.default_rng(k).normal(scale=0.3, size=(8, 8)).astype("f"))
        for k in (0, 1)
    )
    assert np.isfinite(traced(x, y)).all()
    np.testing.assert_array_equal(tensorflow.nest.flatten(function(x, y))[0], traced(x, y))


VALUE = 4 * 8 * 8


def cell(k, x):
    """The product and the sine take VALUE bytes each; other values take their place."""
    return k + 1, tf.tanh(x @ x) + tf.sin(x)


def keeps(k, x):
    """The square is read once, by an op that may write over it, and by the next turn."""
    square = x @ x
    return k + 1, square, tf.tanh(square)


def randomly(k, x):
    return k + 1, x + tf.random.normal([8, 8], seed=1)


@pytest.mark.parametrize(
    "body, little, limit, expected",
    [
        (cell, 2 * 2 * VALUE, 10, 2),  # two iterations may run at once
        (cell, 2 * 2 * VALUE, 1, 1),  # but no more than were asked for
        (cell, 2 * 2 * VALUE - 1, 10, 0),
        (randomly, 1 << 30, 10, 0),  # draws come one after another
    ],
)
def test_a_body_of_little_memory_runs_as_its_inputs_come(body, little, limit, expected, tensorflow):
    def step(x):
        return tf.while_loop(lambda k, x: k < 5, body, (0, x), parallel_iterations=limit)[1]

    function = tensorflow.function(step, autograph=False)
    concrete = function.get_concrete_function(tensorflow.TensorSpec((8, 8)))
    made, (loop,) = copied(concrete, little)
    assert in_order(body_of_copy(made, loop)) == (not expected)
    assert loop.get_attr("parallel_iterations") == max(1, expected)
    if body is cell:
        x = tensorflow.random.stateless_normal((8, 8), (1, 2)) / 9
        np.testing.assert_array_equal(tensorflow.nest.flatten(made(x))[0], concrete(x))


def test_what_the_next_turn_reads_is_not_written_over(tensorflow):
    def step(x):
        return tf.while_loop(lambda k, x, y: k < 5, lambda k, x, y: keeps(k, x), (0, x, x))[1:]

    function = tensorflow.function(step, autograph=False)
    concrete = function.get_concrete_function(tensorflow.TensorSpec((8, 8)))
    (loop,) = (each for each in concrete.graph.get_operations() if "While" in each.type)
    assert _all_values(body_of(concrete.graph, loop, "body")) == 2 * VALUE


def test_a_body_with_a_loop_or_an_unknown_shape_runs_in_order(traced, tensorflow):
    def growing(k, x):
        return k + 1, tf.concat([x, tf.tanh(x)], 0)

    def step(x):
        shapes = (tf.TensorShape([]), tf.TensorShape([None, 8]))
        return tf.while_loop(lambda k, x: k < 5, growing, (0, x), shape_invariants=shapes)[1]

    function = tensorflow.function(step, autograph=False)
    of_any_size = function.get_concrete_function(tensorflow.TensorSpec((8, 8)))
    for concrete in (traced, of_any_size):
        made, (loop,) = copied(concrete, 1 << 30)
        assert in_order(body_of_copy(made, loop))
