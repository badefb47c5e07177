"""What a group of ops needs while it runs."""

import pytest

pytestmark = pytest.mark.usefixtures("tensorflow")


def test_the_op_at_which_a_group_needs_most():
    import tensorflow as tf

    from checkmate.tf2.graph.in_place import needed_bytes, widest

    with tf.Graph().as_default() as graph:
        x = tf.raw_ops.Placeholder(dtype=tf.float32, shape=(64, 64), name="x")
        wide = tf.concat([x] * 8, 0, name="wide")
        padded = tf.pad(tf.tanh(wide, name="tanh"), [[0, 64], [0, 0]], name="padded")
        tf.reduce_sum(padded, 0, name="small")
    group = tuple(graph.get_operation_by_name(name) for name in ("wide", "tanh", "padded", "small"))
    assert widest(group, group[-1:]).name == "padded"
    assert needed_bytes(group, group[-1:]) == 4 * 64 * 64 * (8 + 9)
