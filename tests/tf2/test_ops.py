"""The table of op types, against the ops that TensorFlow registers."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from tracing import op_of, traced

from checkmate.tf2.eager.private_api import op_def
from checkmate.tf2.graph.operations import may_run_again, role_of
from checkmate.tf2.graph.sizes import RESERVE_FACTOR, OpSizes, tensor_bytes
from checkmate.tf2.ops import table
from checkmate.tf2.ops.rule import OpRule, Role, State
from checkmate.tf2.ops.table import TABLE, rule_of

pytestmark = pytest.mark.usefixtures("tensorflow")


@pytest.fixture(scope="module")
def registered(tensorflow):
    """The definition of every op that `tf.raw_ops` has, by its type."""
    found = {name: op_def(name) for name in dir(tensorflow.raw_ops)}
    return {name: definition for name, definition in found.items() if definition is not None}


def operation_of(definition):
    """Stands for an op of this definition without outputs and with all boolean attributes off."""
    return SimpleNamespace(
        type=definition.name, op_def=definition, outputs=(), get_attr=lambda name: False
    )


def seeds(definition):
    return {attr.name for attr in definition.attr} & {"seed", "seed2"}


def test_every_row_is_about_an_op_that_tensorflow_registers(registered):
    assert len(registered) > 1000
    assert [name for name in TABLE if op_def(name) is None] == []
    assert all(TABLE[name].from_optimizer for name in TABLE if name.startswith(("_Fused", "_Mkl")))


def test_an_op_without_a_row_is_a_kernel_that_runs_again_only_if_registered_as_stateless(
    registered,
):
    without = {name: each for name, each in registered.items() if name not in TABLE}
    assert len(without) > 1000
    assert {each.is_stateful for each in without.values()} == {True, False}
    for name, definition in without.items():
        operation = operation_of(definition)
        assert rule_of(name) == OpRule()
        assert role_of(operation) is Role.KERNEL
        assert may_run_again(operation) == (not definition.is_stateful), name


def test_a_stateful_op_runs_again_only_if_its_row_says_why(registered):
    again = {
        name
        for name, definition in registered.items()
        if definition.is_stateful and may_run_again(operation_of(definition))
    }
    assert {rule_of(name).state for name in again} == {State.READS, State.CHECKS}
    assert "ReadVariableOp" in again and "AssignVariableOp" not in again


def test_an_op_of_another_library_is_never_recomputed(registered):
    stateless = SimpleNamespace(name="MyLibraryOp", is_stateful=False)
    assert not may_run_again(operation_of(stateless))


def test_every_op_that_draws_from_a_seed_has_a_row_that_says_so(registered):
    """The exceptions draw only for dropout (cuDNN) or when an element leaves a queue, and are
    stateful; or they are stateless and take seeds for other reasons."""
    others = {
        name
        for name, definition in registered.items()
        if seeds(definition) and rule_of(name).state is not State.DRAWS
    }
    stateful = {name for name in others if registered[name].is_stateful}
    assert {
        name for name in stateful if not name.startswith(("CudnnRNN", "RandomShuffleQueue"))
    } == set()
    assert {name for name in others - stateful if not name.startswith("CudnnRNN")} == {
        "ComputeAccidentalHits",
        "SnapshotDataset",
    }


def test_every_op_that_writes_a_summary_is_seen_outside(registered):
    writers = [n for n in registered if n.startswith("Write") and n.endswith("Summary")]
    assert len(writers) >= 5
    assert {rule_of(name).state for name in writers} == {State.VISIBLE}


def test_a_second_row_for_an_op_is_refused():
    with pytest.raises(ValueError, match="two rows for 'Relu'"):
        table.row("Relu", scratch=False)


def test_a_pooling_that_draws_is_not_recomputed(tensorflow):
    """TensorFlow registers it as stateless, yet two runs of it differ."""

    def step(x):
        values = tf.reshape(tf.sin(x), (1, 512, 512, 16))
        pooled = tf.raw_ops.FractionalMaxPool(value=values, pooling_ratio=[1.0, 1.4, 1.4, 1.0])[0]
        return tf.reduce_sum(pooled * tf.cos(pooled))

    found = traced(step)
    assert not op_of(found, "FractionalMaxPool")[1].recomputable
    assert op_of(found, "Sin")[1].recomputable
    x = tf.random.stateless_normal((2048, 2048), (1, 2))
    assert not np.array_equal(found.function(x), found.function(x))


def test_the_reserve_space_of_a_recurrent_kernel_is_guessed_and_the_kernel_is_kept():
    @tf.function
    def lstm(x, h, weights):
        return tf.raw_ops.CudnnRNNV3(
            input=x,
            input_h=h,
            input_c=h,
            params=weights,
            sequence_lengths=tf.fill([32], 64),
            rnn_mode="lstm",
        )

    specs = [tf.TensorSpec(shape) for shape in ((64, 32, 16), (1, 32, 128), (100_000,))]
    graph = lstm.get_concrete_function(*specs).graph
    (kernel,) = (each for each in graph.get_operations() if each.type == "CudnnRNNV3")
    known = sum(tensor_bytes(each) for each in kernel.outputs[:3])
    assert tensor_bytes(kernel.outputs[3]) is None
    output = 64 * 32 * 128 * 4
    assert tensor_bytes(kernel.outputs[0]) == output
    total = OpSizes(graph.get_operations(), graph).total[kernel]
    assert total == known + RESERVE_FACTOR * output + 256
    assert not may_run_again(kernel)
