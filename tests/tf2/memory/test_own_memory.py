"""Variables that begin with one buffer get one each, and keep their values to the bit."""

import gc

import keras
import numpy as np
import pytest

import checkmate
from checkmate.tf2 import device
from checkmate.tf2 import device as devices
from checkmate.tf2.costs.roofline import roofline
from checkmate.tf2.memory.scratch import give_own_memory

pytestmark = pytest.mark.usefixtures("tensorflow")

MIB = 2**20


def in_use():
    gc.collect()  # what other tests left in cycles goes now, and not between two looks
    return devices.bytes_in_use("CPU:0")


def sharing(tensorflow, value, count=4):
    """Variables that share the buffer of one value."""
    tensor = tensorflow.convert_to_tensor(value)
    return [tensorflow.Variable(tensor) for _ in range(count)]


OTHERS = ("float16", "bfloat16", "int32", "int64", "bool")


@pytest.mark.own_process  # a chunk that others left may be larger than what is asked for
@pytest.mark.parametrize(
    "dtype", ["float32", *(pytest.param(each, marks=pytest.mark.slow) for each in OTHERS)]
)
def test_variables_that_share_get_a_buffer_each_and_others_keep_theirs(tensorflow, dtype):
    size = tensorflow.as_dtype(dtype).size
    value = (
        np.random.default_rng(0)
        .integers(0, 2, (8 * MIB // size, 1))
        .astype(tensorflow.as_dtype(dtype).as_numpy_dtype)
    )
    # In one piece, from which the allocator cuts what is asked.
    device.fetch_region("CPU:0", 512 * MIB)
    variables = sharing(tensorflow, tensorflow.raw_ops.DeepCopy(x=value))
    before = in_use()
    give_own_memory(variables)
    assert 24 * MIB <= in_use() - before <= 24.1 * MIB, "four variables had one buffer"
    give_own_memory(variables)
    assert in_use() - before <= 24.1 * MIB
    for variable in variables:
        assert variable.numpy().tobytes() == value.tobytes()
    variables[0].assign_add(tensorflow.ones_like(value)) if dtype != "bool" else variables[
        0
    ].assign(~value)
    assert variables[1].numpy().tobytes() == value.tobytes()


def test_values_that_arithmetic_would_change(tensorflow):
    value = np.array([-0.0, np.nan, -np.inf, 1e-42], "float32")
    value.view("uint32")[1] |= 0x1234  # a NaN that says more
    variables = [
        *sharing(tensorflow, value),
        *sharing(tensorflow, np.float32(-0.0)),
        *sharing(tensorflow, np.zeros((3, 0), "float32")),
    ]
    before = [variable.numpy().tobytes() for variable in variables]
    give_own_memory(variables)
    assert [variable.numpy().tobytes() for variable in variables] == before


@pytest.mark.parametrize("options", [{}, {"use_ema": True}, {"gradient_accumulation_steps": 2}])
def test_a_planned_step_keeps_no_buffer_that_its_first_run_would_double(tensorflow, options):
    """What is in use when ops are measured has all that the optimizer keeps."""
    inputs = keras.Input((512,))
    model = keras.Model(inputs, keras.layers.Dense(512)(keras.layers.Dense(512)(inputs)))
    optimizer = keras.optimizers.Adam(**options)

    @tensorflow.function
    def step(x):
        with tensorflow.GradientTape() as tape:
            loss = tensorflow.reduce_mean(model(x) ** 2)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    seen = []

    def watched(*arguments):
        seen.append(in_use())
        return roofline(*arguments)

    before = in_use()
    checkmate.tf2.function(
        step, tensorflow.TensorSpec((8, 512)), budget="1GiB", cost_model=watched, verbose=False
    )
    kept = sum(variable.shape.num_elements() * 4 for variable in optimizer.variables)
    assert kept > 4 * MIB
    assert seen[0] - before >= kept
