"""Layers read from the names of ops."""

import pytest

from benchmarks.problems import load
from checkmate import DFGraph, Op
from checkmate.core.layer_names import layer_names


def layers(*names):
    """The layers of a chain of ops; those that say so in their name are of the backward pass."""
    backward = ("gradient_tape/", "adam/Assign", "AddN", "d_")
    ops = [
        Op(name, (i - 1,) if i else (), is_backward=name.startswith(backward))
        for i, name in enumerate(names)
    ]
    return list(layer_names(DFGraph(tuple(ops))))


def test_a_number_that_every_scope_has_is_none_of_the_layer_s_own():
    # Keras's layers conv, conv_1 and bn_1, as TensorFlow names them when each scope is entered for
    # the second time.
    names = [
        "net_1/conv_1/BiasAdd",
        "net_1/conv_1_2/BiasAdd",
        "net_1/bn_1_1/batchnorm/mul_1",
        "net_1/bn_1_1/moments/Mean",
    ]
    assert layers(*names) == ["conv", "conv_1", "bn_1", "bn_1"]


def test_a_number_that_tells_layers_apart_stays():
    assert layers("net_1/block_1/MatMul", "net_1/block_2/MatMul", "net_1/block_3/MatMul") == [
        "block_1",
        "block_2",
        "block_3",
    ]
    assert layers("net/conv/MatMul", "net/conv_1/MatMul") == ["conv", "conv_1"]


def test_a_layer_in_a_layer_is_a_path():
    assert layers("net_1/attention_1/softmax_1/Softmax", "net_1/dense_1/Gelu/mul_2") == [
        "attention/softmax",
        "dense",
    ]


def test_gradients_belong_to_the_layer_they_are_of():
    names = [
        "net_1/a_1/MatMul",
        "net_1/b_1/Relu",
        "gradient_tape/net_1/b_1/ReluGrad",
        "gradient_tape/net_1/a_1/mul_1/Sum",
    ]
    assert layers(*names) == ["a", "b", "b", "a"]


def test_a_layer_whose_forward_ops_are_named_after_the_next_one():
    names = ["net_1/a_1/MatMul", "net_1/c_1/Relu", "gradient_tape/net_1/b_1/MatMul/MatMul"]
    assert layers(*names)[2] == "b"


def test_a_sum_of_gradients_belongs_to_the_layer_of_the_last():
    names = [
        *("net_1/a_1/MatMul", "net_1/b_1/Relu", "gradient_tape/net_1/a_1/MatMul", "AddN_7"),
        "AddN_8/add_2",
    ]
    assert layers(*names)[2:] == ["a", "a", "a"]


def test_without_scopes_every_op_is_a_layer():
    assert layers("first", "second", "third") == ["first", "second", "third"]


def test_loss_and_optimizer_are_named_by_their_scope():
    names = [
        *("net_1/a_1/MatMul", "net_1/b_1/Relu", "mse/sub", "adam/truediv_6"),
        "adam/AssignAddVariableOp_3",
    ]
    assert layers(*names)[2:] == ["mse", "adam", "adam"]


def test_a_backward_op_named_after_a_forward_op():
    assert layers("conv", "conv/relu", "d_conv/relu", "d_conv") == ["conv", "conv", "conv", "conv"]


@pytest.mark.parametrize(
    ("graph", "count"),
    [("resnet50", 177), ("resnet50_ops", 177), ("mobilenet_ops", 89), ("transformer12", 16)],
)
def test_layers_of_real_models(graph, count):
    names = layer_names(load(graph))
    assert "" not in names
    assert len(set(names)) == count
    if graph.startswith("resnet50"):
        assert {
            *("conv1_conv", "conv2_block1_1_bn", "conv5_block3_out", "avg_pool", "predictions"),
        } <= set(names)


def test_a_layer_that_is_called_twice():
    names = [
        "net_1/dense_1/MatMul",
        "net_1/norm_1/mul",
        "net_1/dense_1_1/MatMul",
        "net_1/norm_2/mul",
        "net_1/dense_2_1/MatMul",
    ]
    assert layers(*names) == ["dense", "norm", "dense_1", "norm", "dense_2"]
    # Numbers of the user's own.
    own = ["net_1/b_1_1/MatMul", "net_1/b_1_2/MatMul", "net_1/b_2_1/MatMul", "net_1/b_2_2/MatMul"]
    assert layers(*own) == ["b_1_1", "b_1_2", "b_2_1", "b_2_2"]
