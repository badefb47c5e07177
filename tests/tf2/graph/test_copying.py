"""Values of any numbers are copied to memory of their own, and GPUs have the kernels for it."""

import kernels
import numpy as np
import pytest
import tensorflow as tf

from checkmate.tf2.graph.graph_writer import ON_GPUS, GraphWriter, copy_of
from checkmate.tf2.memory.probe import address_of

pytestmark = pytest.mark.usefixtures("tensorflow")

TYPES = (
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
)


def some(dtype, shape=(3, 5)):
    """Values of any bits, a value that is not a number among them."""
    size = tf.as_dtype(dtype).size
    if dtype == "bool":
        return tf.constant(np.arange(np.prod(shape)).reshape(shape) % 3 == 0)
    bits = np.random.default_rng(0).integers(0, 256, (*shape, size), dtype="uint8")
    bits[0, 0] = 255
    return tf.constant(bits.view(tf.as_dtype(dtype).as_numpy_dtype).reshape(shape))


def graph_of(run, *specs):
    return tf.function(run, autograph=False).get_concrete_function(*specs).graph.get_operations()


@pytest.mark.parametrize("dtype", TYPES)
def test_a_copy_is_equal_to_the_bit_and_has_memory_of_its_own(dtype):
    value = some(dtype)
    copy = copy_of(value)
    assert copy.dtype == value.dtype and copy.numpy().tobytes() == value.numpy().tobytes()
    assert address_of(copy) != address_of(value)
    assert copy_of(value[0, 0]).shape == ()


@pytest.mark.parametrize("dtype", TYPES)
def test_what_is_written_copies_and_has_kernels_of_gpus(dtype):
    kernels.needs_a_build_for_gpus()
    value = some(dtype)
    ops = []

    def run(x):
        writer = GraphWriter()
        name = writer.deep_copy("x:0", x, after=(), name="result")
        (copy,) = writer.import_here({"x:0": x}, [name])
        ops.extend(copy.graph.get_operations())
        return copy

    found = tf.function(run, autograph=False)(value)
    assert found.numpy().tobytes() == value.numpy().tobytes()
    made = [operation for operation in ops if operation.inputs]
    assert made and all(kernels.gpu_kernel(operation) for operation in made)
    on_host = [operation for operation in made if kernels.gpu_kernel(operation).host_inputs]
    assert bool(on_host) == (dtype == "int32")


def test_memory_that_is_filled_has_kernels_of_gpus_that_stay_on_the_device():
    kernels.needs_a_build_for_gpus()
    for dtype in ON_GPUS:
        spec = tf.TensorSpec((4, 4), dtype)

        def fill(x, dtype=dtype):
            memory = tf.raw_ops.Empty(shape=[4, 4], dtype=dtype)
            return tf.raw_ops.TensorStridedSliceUpdate(
                input=memory, begin=[0, 0], end=[4, 4], strides=[1, 1], value=x
            )

        for operation in graph_of(fill, spec):
            if operation.type in ("Empty", "TensorStridedSliceUpdate"):
                kernel = kernels.gpu_kernel(operation)
                assert kernel is not None and not kernel.host_outputs
                assert not {0, 4} & set(kernel.host_inputs) or operation.type == "Empty"


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "bool"])
def test_a_number_that_is_not_folded_is_made_on_the_device(dtype):
    kernels.needs_a_build_for_gpus()
    value = tf.cast(tf.constant(-0.0), dtype)

    def run(x):
        writer = GraphWriter()
        name = writer.not_folded("x:0", x.dtype, name="number")
        return writer.import_here({"x:0": x}, [name])[0]

    function = tf.function(run, autograph=False).get_concrete_function(tf.TensorSpec((), dtype))
    assert function(value).numpy().tobytes() == value.numpy().tobytes()
    assert all(kernels.gpu_kernel(operation) for operation in function.graph.get_operations())
