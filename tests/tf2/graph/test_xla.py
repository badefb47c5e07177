"""The installed TensorFlow says what XLA can compile, and compiles what is marked."""

import pytest
import tensorflow as tf

from checkmate.tf2.graph import xla
from checkmate.tf2.graph.graph_writer import GraphWriter

pytestmark = pytest.mark.usefixtures("tensorflow")


def called(body, x):
    """A call of a function of one tensor that must be compiled."""
    spec = tf.TensorSpec(x.shape, x.dtype)
    function = tf.function(body, autograph=False).get_concrete_function(spec)
    writer = GraphWriter()
    made = tuple(function.structured_outputs)
    call = writer.call(function, ["x:0"], made, name="call")

    @tf.function(autograph=False)
    def run(x):
        return writer.import_here({"x:0": x}, [f"{call}:{k}" for k in range(len(made))])

    return run(x)


def test_the_installed_tensorflow_tells_xlas_kernels():
    assert xla.is_there()
    for kind in ("MatMul", "Conv2D", "Softmax", "BiasAddGrad", "FusedBatchNormGradV3"):
        assert xla.has_kernel(kind), kind
    for kind in ("DeepCopy", "_FusedMatMul", "NoSuchOp", "DecodeJpeg"):
        assert not xla.has_kernel(kind), kind


def test_the_installed_tensorflow_compiles_what_is_marked():
    x = tf.constant([1.0, 2.0])
    first, second = called(lambda x: [tf.sin(x), x + 1.0], x)
    assert (second.numpy() == [2.0, 3.0]).all() and abs(first.numpy()[0] - 0.84147) < 1e-5
    with pytest.raises(tf.errors.OpError, match="compile"):
        called(lambda x: [tf.raw_ops.DeepCopy(x=x)], x)
