"""The graphs of functions that ops run: the installed TensorFlow hands them out; and what they tell
about sizes."""

import pytest

pytestmark = pytest.mark.usefixtures("tensorflow")

N = 64


def one(concrete, kind):
    return next(
        o for o in concrete.graph.get_operations() if o.type.removeprefix("Stateless") == kind
    )


def concrete_of(step, *specs):
    import tensorflow as tf

    return tf.function(step).get_concrete_function(*(specs or (tf.TensorSpec((N, N)),)))


def test_the_installed_tensorflow_hands_out_the_bodies_of_a_loop(tensorflow):
    from checkmate.tf2.graph.bodies import bodies_of, body_of, only_reads

    tf = tensorflow
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
    from checkmate.tf2.graph.inline import inline

    inner = tensorflow.function(lambda x: tensorflow.sin(x))
    concrete = concrete_of(lambda x: inner(x) + 1.0)
    assert "Sin" not in {o.type for o in concrete.graph.get_operations()}
    assert "Sin" in {o.type for o in inline(concrete).graph.get_operations()}


def test_a_function_that_tensorflow_does_not_hand_out_is_none(tensorflow):
    from checkmate.tf2.graph.bodies import named

    assert named(tensorflow.Graph(), "missing") is None
    assert named(object(), "of a graph without the private name") is None


def test_sizes_of_what_loops_and_conditions_return(tensorflow):
    """A list has an entry for each of the three iterations; a choice of branches is as large as the
    larger one."""
    from checkmate.tf2.graph.loop_sizes import LoopSizes
    from checkmate.tf2.graph.sizes import tensor_bytes

    tf = tensorflow

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
