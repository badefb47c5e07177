"""Tracing small steps, and finding ops in what was traced."""

import tensorflow as tf

from checkmate.tf2 import trace

N = 2048
VALUE_BYTES = 4 * N * N  # of a float32 tensor of shape (N, N), which is what most ops here make


def traced(step, *shapes):
    return trace(step, *(tf.TensorSpec(shape) for shape in shapes or ((N, N),)))


def kinds(found):
    return [op.kind for op in found.graph.ops]


def op_of(found, kind, number=0):
    """(index, op) of the `number`-th op of the graph in which a TensorFlow op of this type is."""
    at = [i for i, op in enumerate(found.graph.ops) if kind in op.kind.split("+")]
    return at[number], found.graph.ops[at[number]]


def types(found):
    """Every TensorFlow op type that is planned."""
    return {operation.type for group in found.groups for operation in group}


def training(model, loss, optimizer):
    optimizer.build(model.trainable_variables)

    def step(inputs, labels):
        with tf.GradientTape() as tape:
            value = loss(labels, model(inputs, training=True))
        optimizer.apply(tape.gradient(value, model.trainable_variables), model.trainable_variables)
        return value

    return step


def squared_error(labels, prediction):
    return tf.reduce_mean((labels - prediction) ** 2)
