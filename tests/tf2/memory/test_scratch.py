"""Scratch memory: shared by steps that run one after another, and gone with the last of them."""

import gc

import pytest
import tensorflow as tf

from checkmate.tf2 import device as devices
from checkmate.tf2.memory.scratch import Scratch

pytestmark = pytest.mark.usefixtures("tensorflow")


def test_variables_are_shared_between_steps_and_not_within_one():
    scratch = Scratch()
    row, table = tf.TensorSpec([4]), tf.TensorSpec([8, 4])
    first = scratch.variables([row, row, table])
    assert len({id(each) for each in first}) == 3
    second = scratch.variables([table, row, tf.TensorSpec([4], tf.int32)])
    assert second[0] is first[2] and second[1] is first[0]
    assert second[2].dtype == tf.int32


@pytest.mark.slow
@pytest.mark.own_process
def test_memory_that_no_step_refers_to_is_free():
    scratch, spec = Scratch(), tf.TensorSpec([2**20])
    before = devices.bytes_in_use("CPU:0")
    kept = scratch.variables([spec])
    assert devices.bytes_in_use("CPU:0") - before >= 2**22
    del kept
    gc.collect()
    assert devices.bytes_in_use("CPU:0") - before < 2**20
    assert float(tf.reduce_sum(scratch.variables([spec])[0])) == 0


def test_each_is_a_variable_of_one_device_in_the_scope_of_a_strategy_too():
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        (inside,) = Scratch().variables([tf.TensorSpec([4])], "/device:CPU:0")
        assert not hasattr(inside, "values")
    (outside,) = Scratch().variables([tf.TensorSpec([4])])
    assert type(inside) is type(outside) and inside.device == outside.device
