"""Updates of single rows: after one, TensorFlow copies the variable at every read."""

import pytest
import tensorflow as tf
from plans import repeating
from tracing import traced

from checkmate.tf2.execution.replay import Replayed
from checkmate.tf2.memory.profiler import observe

pytestmark = pytest.mark.usefixtures("tensorflow")

ROWS, WIDTH = 4096, 256


@pytest.mark.parametrize("kind", ["scatter", "apply"])
def test_reads_after_an_update_of_rows_copy_nothing(kind):
    table = tf.Variable(tf.ones((ROWS, WIDTH)))
    sums = tf.Variable(tf.ones((ROWS, WIDTH)))
    rows = tf.constant([1, 5, 7])

    def step(x):
        slices = tf.IndexedSlices(tf.gather(x, rows), rows, (ROWS, WIDTH))
        if kind == "scatter":
            table.scatter_sub(slices)
        else:
            tf.raw_ops.ResourceSparseApplyAdagrad(
                var=table.handle, accum=sums.handle, lr=0.5, grad=slices.values, indices=rows
            )
        sums.assign_add(tf.tanh(x) * 0.5)
        return tf.reduce_sum(table * x) + tf.reduce_sum(sums * x)

    found = traced(step, (ROWS, WIDTH))
    run = Replayed(found, repeating(found.graph))
    x = tf.ones((ROWS, WIDTH))
    run(x)
    asked = observe(lambda: run(x)).asked
    large = {op for op, size in asked.items() if size >= 4 * ROWS * WIDTH}
    assert large, "the products are seen"
    assert not [op for op in large if "Read" in op or "Assign" in op], large
    copies = observe(lambda: table.read_value()).asked
    assert not [size for size in copies.values() if size >= 4 * ROWS * WIDTH]
