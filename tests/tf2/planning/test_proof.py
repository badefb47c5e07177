"""What a refusal takes as proven: no more than the step needs with its TensorFlow ops apart."""

import pytest
import tensorflow as tf
from tracing import VALUE_BYTES, N, traced

from checkmate.core.replay import op_floors
from checkmate.tf2.costs.measured import with_costs
from checkmate.tf2.planning.refusal import needs_apart

pytestmark = pytest.mark.usefixtures("tensorflow")


def test_an_op_of_several_needs_no_more_than_the_one_of_them_that_needs_most():
    """As one op, the product and what reads it hold a, b, c and the product; apart, the product
    does not hold c. They are one op beside another that needs much more."""

    def step(x, y):
        a, b, c = tf.sin(x), tf.cos(x), tf.tanh(x)
        wide = tf.concat([tf.sin(y) for _ in range(8)], 0) @ y
        return tf.reduce_sum((a @ b) * c), [tf.reduce_sum(each) for each in (a, b, c)], wide

    found = traced(step, (N, N), (N, N))
    graph = with_costs(found, "roofline")
    (k,) = [i for i, op in enumerate(graph.ops) if op.kind == "MatMul+Mul+Sum"]
    apart = needs_apart(found, graph)
    as_one = [need.bytes for need in op_floors(graph)]
    assert as_one[k] - graph.fixed_bytes == 4 * VALUE_BYTES + graph.ops[k].output_bytes
    assert apart[k].bytes - graph.fixed_bytes == 3 * VALUE_BYTES
    assert {name for _, name in apart[k].values} == {"Sin", "Cos", "matmul_1"}
    single = [i for i, group in enumerate(found.groups) if len(group) == 1]
    assert [apart[i].bytes for i in single] == [as_one[i] for i in single]
