"""The graphs of functions that ops run: the installed TensorFlow hands them out; and what they tell
about sizes."""

import numpy as np
import pytest
import tensorflow as tf

from checkmate.tf2 import trace
from checkmate.tf2.execution.replay import Replayed
from checkmate.tf2.graph.bodies import (
    bodies_of,
    body_of,
    called,
    is_pure,
    named,
    only_reads,
    share_functions,
)
from checkmate.tf2.graph.passes import inline
from checkmate.tf2.graph.sizes import LoopSizes, tensor_bytes

pytestmark = pytest.mark.usefixtures("tensorflow")

N = 64


def one(concrete, kind):
    return next(
        o for o in concrete.graph.get_operations() if o.type.removeprefix("Stateless") == kind
    )


def concrete_of(step, *specs):
    return tf.function(step).get_concrete_function(*(specs or (tf.TensorSpec((N, N)),)))


def test_the_installed_tensorflow_hands_out_the_bodies_of_a_loop(tensorflow):
    weight, count = tf.Variable(tf.ones((N, N))), tf.Variable(0.0)

    def step(x, counted):
        def body(i, x):
            if counted:
                count.assign_add(1.0)
            return i + 1, tf.sin(x @ weight)

        return tf.while_loop(lambda i, _: i < 3, body, (0, x))[1]

    for counted in (False, True):
        concrete = concrete_of(lambda x, counted=counted: step(x, counted))
        loop = one(concrete, "While")
        types = {o.type for o in body_of(concrete.graph, loop, "body").get_operations()}
        assert {"Sin", "MatMul"} <= types
        assert len(bodies_of(concrete.graph, loop)) == 2
        assert only_reads(concrete.graph, loop) is not counted
        other = concrete.graph.get_operations()[0]
        assert bodies_of(concrete.graph, other) == [] and not only_reads(concrete.graph, other)


def test_the_installed_tensorflow_makes_graphs_of_definitions(tensorflow):
    inner = tensorflow.function(lambda x: tensorflow.sin(x))
    concrete = concrete_of(lambda x: inner(x) + 1.0)
    assert "Sin" not in {o.type for o in concrete.graph.get_operations()}
    assert "Sin" in {o.type for o in inline(concrete).graph.get_operations()}


def test_the_installed_tensorflow_shares_functions(tensorflow):
    concrete = concrete_of(lambda x: tf.while_loop(lambda x: x[0, 0] < 3, lambda x: (x + 1,), (x,)))
    name = one(concrete, "While").get_attr("body").name
    other = tensorflow.Graph()
    assert named(other, name) is None
    share_functions(concrete.graph, other)
    assert {o.type for o in named(other, name).get_operations()} >= {"AddV2"}


def test_a_function_that_tensorflow_does_not_hand_out_is_none(tensorflow):
    assert named(tensorflow.Graph(), "missing") is None
    assert named(object(), "of a graph without the private name") is None


def test_sizes_of_what_loops_and_conditions_return(tensorflow):
    """A list has an entry for each of the three iterations; a choice of branches is as large as the
    larger one."""

    def step(x, k):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loop = tf.while_loop(lambda i, _: i < 3, lambda i, x: (i + 1, tf.sin(x)), (0, x))[1]
        small, large = (lambda: x[0]), (lambda: tf.reshape(tf.concat([x, x], 0), (-1,)))
        return tape.gradient(loop, x), tf.switch_case(k, {0: small, 1: large})

    concrete = concrete_of(step, tf.TensorSpec((N, N)), tf.TensorSpec((), tf.int32))
    sizes = LoopSizes(concrete.graph, tensor_bytes)
    loop, case = one(concrete, "While"), one(concrete, "Case")
    assert sizes.iterations(loop) == 3
    lists = [k for k, t in enumerate(loop.outputs) if t.dtype == tf.variant and t.consumers()]
    assert sum(sizes.bytes_of(loop, k) for k in lists) == 3 * 4 * N * N
    assert sizes.bytes_of(case, 0) == 2 * 4 * N * N


def _looped(body):
    return lambda x: tf.while_loop(lambda i, _: i < 3, lambda i, x: (i + 1, body(x)), (0, x))[1]


def _drawn(x):
    return x + tf.random.uniform([N])


def _printed(x):
    tf.print(x)
    return x


def _with_state(make, use):
    """A step that uses what was made before it."""
    made = make()
    return lambda x: use(made, x)


def _steps(tf):
    """(type of an op, step with it, whether it is pure)."""
    raw = tf.raw_ops
    table = tf.lookup.experimental.MutableHashTable
    ratio = [1.0, 1.5, 1.5, 1.0]
    yield "MatMul", lambda x: x @ x, True
    yield "Cast", lambda x: tf.cast(x, tf.bool), True
    yield "RandomUniformV2", lambda x: tf.random.stateless_uniform([N], [1, 2]), True
    yield "CheckNumerics", lambda x: tf.debugging.check_numerics(x, ""), True
    yield "While", _looped(tf.sin), False  # it may not end on other data
    yield "If", lambda x: tf.cond(x[0] > 0, lambda: tf.sin(x), lambda: x), False
    yield "PartitionedCall", tf.function(tf.sin, jit_compile=True), True
    yield "PartitionedCall", tf.function(_looped(tf.sin), jit_compile=True), False
    yield "RandomUniform", _drawn, False
    yield "RandomShuffle", tf.random.shuffle, False
    pool = raw.FractionalMaxPool
    yield "FractionalMaxPool", lambda x: pool(value=x[None, ..., None], pooling_ratio=ratio), False
    yield "PrintV2", _printed, False
    yield "If", lambda x: (tf.debugging.assert_positive(x), x)[1], False
    yield "PyFunc", lambda x: tf.numpy_function(abs, [x], x.dtype), False
    yield "PyFuncStateless", lambda x: tf.numpy_function(abs, [x], x.dtype, stateful=False), False
    yield "EagerPyFunc", lambda x: tf.py_function(abs, [x], x.dtype), False
    yield "ReadVariableOp", _with_state(lambda: tf.Variable(1.0), lambda v, x: x + v), False
    yield (
        "LookupTableFindV2",
        _with_state(lambda: table(tf.int64, tf.int64, 0), lambda t, x: t[tf.cast(x, tf.int64)]),
        False,
    )
    yield (
        "IteratorGetNext",
        _with_state(lambda: iter(tf.data.Dataset.range(9)), lambda i, x: next(i)),
        False,
    )
    yield "AsString", tf.strings.as_string, False
    make_list = raw.TensorListFromTensor
    yield "TensorListFromTensor", lambda x: make_list(tensor=x, element_shape=[N]), False
    yield "While", _looped(_drawn), False
    yield "While", _looped(_printed), False
    yield "While", _looped(_looped(_drawn)), False


def test_ops_that_may_run_on_any_data_at_any_time(tensorflow):
    """A step's ops run alone to be measured: they must neither print nor draw nor take a batch."""
    tensorflow.random.set_seed(1)  # or ops do not draw where they are deterministic
    for kind, step, pure in _steps(tensorflow):
        concrete = concrete_of(step)
        assert is_pure(one(concrete, kind)) is pure, kind


def test_a_loop_s_gradient_that_has_a_gradient_itself(tensorflow):
    """The second gradient gives the graph of the first one's function more inputs."""
    weight = tf.Variable(tf.random.stateless_normal((8, 8), (0, 1)) / 5)
    batch = tf.random.stateless_normal((5, 4, 8), (0, 2))

    def step(x):
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = tf.scan(lambda h, each: tf.tanh(h @ weight + each), x, tf.zeros((4, 8)))
                loss = tf.reduce_sum(y**2)
            loss += tf.reduce_mean(inner.gradient(loss, x) ** 2)
        return outer.gradient(loss, weight)

    traced = trace(step, batch)
    found = Replayed(traced, traced.plain_plan())(batch)
    np.testing.assert_allclose(found, tf.function(step)(batch), rtol=1e-5)


def test_functions_are_found_in_the_process_where_a_graph_was_imported(tensorflow):
    """An imported graph names functions and does not have them in Python."""
    inner = tf.function(lambda x: tf.sin(x) + 1.0, jit_compile=True)
    concrete = concrete_of(inner)
    call = one(concrete, "PartitionedCall")
    definition = concrete.graph.as_graph_def()
    definition.ClearField("library")

    def body(x):
        made = {concrete.inputs[0].name: x}
        return tf.graph_util.import_graph_def(definition, made, [call.outputs[0].name])

    copy = one(tf.compat.v1.wrap_function(body, [tf.TensorSpec([N])]), "PartitionedCall")
    assert copy.graph._get_function(copy.get_attr("f").name) is None
    (found,) = called(copy)
    assert [o.type for o in found.get_operations() if o.type in ("Sin", "AddV2")] == [
        "Sin",
        "AddV2",
    ]
    assert is_pure(copy)
