"""trace(): which TensorFlow ops become ops of the graph, and what is said about each."""

import dataclasses
import functools
from itertools import pairwise

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_models import unet
from tracing import VALUE_BYTES, N, kinds, op_of, squared_error, traced, training, types

from checkmate import Plan, TraceError, replay
from checkmate.tf2 import trace
from checkmate.tf2.costs.measured import with_costs
from checkmate.tf2.training_step import training_step

pytestmark = pytest.mark.usefixtures("tensorflow")


@pytest.fixture(scope="module")
def dense(tensorflow):
    """The training step of three wide dense layers and a head, with Adam."""
    inputs = x = keras.Input((64,))
    for k in range(3):
        x = keras.layers.Dense(512, activation="relu", name=f"dense_{k}")(x)
    model = keras.Model(inputs, keras.layers.Dense(512, name="head")(x))
    step = training(model, squared_error, keras.optimizers.Adam(1e-2))
    return traced(step, (1024, 64), (1024, 512)), model, step


def test_a_large_op_that_can_be_written_over_its_input_stays_apart():
    """As one op with the sum, it would need memory for the product whatever the plan."""

    def step(x):
        a, b = tf.sin(x), tf.cos(x)
        return tf.reduce_sum(a * b), a @ b

    _, product = op_of(traced(step), "Mul")
    assert product.output_bytes == VALUE_BYTES and product.in_place == product.deps

    def beside_much_more(x, y):
        return step(x), tf.concat([tf.sin(y) for _ in range(8)], 0) @ y

    assert "Mul+Sum" in kinds(traced(beside_much_more, (N, N), (2 * N, 2 * N)))


def test_ops_that_would_hold_much_more_as_one_stay_apart():
    """As one op the products would hold the inputs of both, though the first two can be freed in
    between."""

    def step(x):
        a, b, c = tf.sin(x), tf.cos(x), tf.tanh(x)
        return (a @ b) @ c, [tf.reduce_sum(each * each) for each in (a, b, c)]

    graph = traced(step).graph
    first, last = (op for op in graph.ops if op.kind.endswith("MatMul"))
    assert first.kind == last.kind == "MatMul"
    assert len(first.deps) == len(last.deps) == 2


def test_kernels_become_ops_with_their_inputs():
    def step(x):
        a = tf.sin(x)
        b = tf.cos(a)
        return b, a * b + b

    graph = traced(step).graph
    assert [(op.kind, op.deps, op.output_bytes) for op in graph.ops] == [
        ("Sin", (), VALUE_BYTES),
        ("Cos", (0,), VALUE_BYTES),
        ("Mul+AddV2", (0, 1), VALUE_BYTES),
    ]
    assert graph.outputs == (1, 2)
    assert [op.recomputable for op in graph.ops] == [True] * 3
    assert not any(op.is_backward for op in graph.ops)


# What is returned shares the buffers of Sin and Cos; shapes need nobody's value.
def test_views_aliases_and_shapes_are_no_ops():
    def step(x):
        a = tf.identity(tf.sin(x))
        b = tf.stop_gradient(tf.expand_dims(tf.reshape(a, (N // 2, -1)), 0))
        c = tf.cos(tf.squeeze(b, 0))
        return a, tf.reshape(c, tf.shape(a)), tf.shape(b), tf.size(b), tf.rank(b)

    found = traced(step)
    assert [(op.kind, op.deps) for op in found.graph.ops] == [("Sin", ()), ("Cos", (0,))]
    assert found.graph.outputs == (0, 1)


def test_small_ops_are_absorbed_into_what_is_resident():
    def step(x, scale):
        for _ in range(10):
            scale = tf.tanh(scale) * 2.0
        return tf.sin(x) * scale[0]

    alone = traced(lambda x: tf.sin(x) * 2.0)
    found = traced(step, (N, N), (8,))
    assert types(found) == {"Sin", "Mul"}
    assert kinds(found) == kinds(alone)
    # The argument, ten times two small values, the slice: 256 bytes each, at least; constants may
    # be shared.
    assert found.graph.fixed_bytes - alone.graph.fixed_bytes >= 22 * 256


def test_small_is_measured_by_the_step():
    """The same scalars in a step without large tensors are its ops."""

    def step(scale):
        for _ in range(3):
            scale = tf.tanh(scale) * 2.0
        return scale

    assert types(traced(step, (8,))) == {"Tanh", "Mul"}


def test_a_small_op_on_a_large_value_is_an_op():
    found = traced(lambda x: (tf.reduce_sum(tf.sin(x)), tf.reduce_sum(tf.cos(x))))
    assert [(op.kind, op.output_bytes) for op in found.graph.ops] == [
        ("Sin+Sum", 256),
        ("Cos+Sum", 256),
    ]


def test_forward_and_backward(dense):
    found, *_ = dense
    for group, op in zip(found.groups, found.graph.ops, strict=True):
        later = any(
            "gradient_tape/" in operation.name or "adam" in operation.name for operation in group
        )
        assert op.is_backward == later, op.name
        assert op.recomputable != op.is_backward, op.name
    assert {op.is_backward for op in found.graph.ops} == {False, True}


def test_updates_come_right_behind_their_gradients(dense):
    found, model, _ = dense
    graph = found.graph
    forward = [i for i, op in enumerate(graph.ops) if "MatMul+BiasAdd" in op.kind]
    updates = {
        layer: [k for k, op in enumerate(graph.ops) if forward[layer] in op.overwrites]
        for layer in range(4)
    }
    assert [len(of_layer) for of_layer in updates.values()] == [2] * 4
    assert len(model.trainable_variables) == 8
    # Of layers 2, 1 and 0.
    gradients = [i for i, op in enumerate(graph.ops) if "ReluGrad" in op.kind]
    for layer in (2, 1):
        assert max(updates[layer]) < gradients[3 - layer], (
            "the gradient of the layer below is made before"
        )
    # In the trace they all come at the end.
    at = {i: k for k, i in enumerate(found.plain_order)}
    assert min(at[k] for of_layer in updates.values() for k in of_layer) > max(
        at[k] for k in gradients
    )


def convolved(x, kernels):
    """Values become smaller from layer to layer, so that a late forward pass alone would save
    nothing."""
    for kernel in kernels:
        x = tf.nn.relu(tf.nn.conv2d(x, kernel, 2, "SAME"))
    return x


def kernels_of(*widths):
    return [tf.Variable(tf.ones((3, 3, *pair))) for pair in pairwise(widths)]


def above_fixed(graph, plan):
    return replay(graph, plan).peak_bytes - graph.fixed_bytes


def test_one_network_ends_before_the_next_begins():
    """A trace has both forward passes first, whose values then are in memory together."""
    networks = [kernels_of(8, 16, 16) for _ in range(2)]

    def step(x):
        with tf.GradientTape(persistent=True) as tape:
            losses = [tf.reduce_sum(convolved(x, each)) for each in networks]
        return [tape.gradient(loss, each) for loss, each in zip(losses, networks, strict=True)]

    found = traced(step, (4, 64, 64, 8))
    assert above_fixed(found.graph, Plan.keep_all(found.graph)) < 0.7 * above_fixed(
        found.graph, found.plain_plan()
    )


def test_gradients_of_two_passes_are_not_in_memory_together():
    """A trace may have them by turns, and they may not be recomputed."""
    kernels = kernels_of(8, 16, 16, 16)

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(convolved(x, kernels) * convolved(-x, kernels))
        return tape.gradient(loss, kernels)

    found = traced(step, (4, 64, 64, 8))
    gradients = [
        dataclasses.replace(op, output_bytes=0 if op.recomputable else op.output_bytes, in_place=())
        for op in found.graph.ops
    ]
    of_gradients = dataclasses.replace(found.graph, ops=tuple(gradients))
    largest = max(op.output_bytes for op in gradients)
    assert above_fixed(of_gradients, Plan.keep_all(of_gradients)) < 1.6 * largest


def test_early_updates_save_the_gradients(dense):
    """In the order of the trace all gradients are in memory together."""
    found, *_ = dense
    early, plain = (
        replay(found.graph, plan) for plan in (Plan.keep_all(found.graph), found.plain_plan())
    )
    assert early.peak_bytes < plain.peak_bytes
    assert early.cost == plain.cost


def test_an_update_comes_after_the_readers_of_its_variable(dense):
    found, *_ = dense
    writers = [(i, op) for i, op in enumerate(found.graph.ops) if "AssignSub" in op.kind]
    forward = [i for i, op in enumerate(found.graph.ops) if "MatMul+BiasAdd" in op.kind]
    for layer, i in enumerate(forward):
        overwriting = [(k, op) for k, op in writers if i in op.overwrites]
        assert len(overwriting) == 2, f"layer {layer}: its kernel and its bias"
        assert all(k > i for k, _ in overwriting)
    # The gradient of a layer's input reads the kernel, too.
    gradients = [
        i
        for i, op in enumerate(found.graph.ops)
        if op.kind.startswith("MatMul") and op.output_bytes == 1024 * 512 * 4 and op.is_backward
    ]
    assert len(gradients) == 3
    for i in gradients:
        assert sum(i in op.overwrites for _, op in writers) == 1


def test_what_reads_a_variable_before_and_is_wanted_after_its_change_is_kept():
    variable = tf.Variable(tf.ones((N, N)))

    def step(x):
        a = tf.sin(variable) * x
        b = tf.cos(x)
        variable.assign(b)
        return tf.maximum(a, variable), tf.exp(b)

    found = traced(step)
    i, read = op_of(found, "Sin")
    _, write = op_of(found, "AssignVariableOp")
    assert i in write.overwrites
    assert read.recomputable, "as long as the old content is there"
    assert not op_of(found, "Mul")[1].recomputable, "it is wanted when the old content is gone"
    assert op_of(found, "Cos")[1].recomputable


def test_convolution_bias_and_activation_are_one_op():
    kernel, bias = tf.Variable(tf.ones((3, 3, 8, 8))), tf.Variable(tf.ones(8))

    def step(x):
        return tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, kernel, 1, "SAME"), bias))

    found = traced(step, (4, 32, 32, 8))
    assert kinds(found) == ["Conv2D+BiasAdd+Relu"]
    assert found.graph.ops[0].output_bytes == 4 * 4 * 32 * 32 * 8
    assert [operation.type for operation in found.values[0]] == ["Relu"]


def test_a_value_with_two_readers_is_not_fused():
    def step(x):
        a = tf.sin(x)
        b = tf.cos(a)
        return b, tf.exp(b) @ a

    assert kinds(traced(step)) == ["Sin", "Cos", "Exp+MatMul"]


def test_a_small_result_that_can_be_kept_instead_is_not_fused():
    """What x @ w makes is smaller than what comes of it: there is a choice what to keep."""
    found = traced(lambda x, w: tf.exp(tf.concat([x @ w] * 8, 1)), (N, N), (N, N // 8))
    assert kinds(found) == ["MatMul", "ConcatV2+Exp"]


def test_the_gradients_of_a_filter_and_its_bias_are_one_op():
    kernel, bias = tf.Variable(tf.ones((3, 3, 8, 8))), tf.Variable(tf.ones(8))

    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, kernel, 1, "SAME"), bias))
            value = tf.reduce_sum(tf.sin(y))
        return tape.gradient(value, [x, bias, kernel])

    found = traced(step, (4, 32, 32, 8))
    _, both = op_of(found, "Conv2DBackpropFilter")
    assert "BiasAddGrad" in both.kind
    assert {"BiasAddGrad", "Conv2DBackpropFilter"} <= {
        operation.type for values in found.values for operation in values
    }


@pytest.mark.usefixtures("optimizer_on")
def test_an_update_follows_a_gradient_of_a_bias_that_was_moved():
    """An update that waits for the end stood where it was, and its gradient came after it."""
    layers, images, labels = keras.layers, tf.TensorSpec((64, 1, 1, 3)), tf.TensorSpec((64, 10))
    hidden = [layers.Conv2D(width, 3, padding="same", activation="relu") for width in (16, 32)]
    ends = [layers.GlobalAveragePooling2D(), layers.Dense(10)]
    model = keras.Sequential([keras.Input((1, 1, 3)), *hidden, *ends])
    step, specs = training_step(model, "mse", "adam", images, labels)
    assert trace(step, *specs).graph  # whose ops refer to ops before them only


def test_an_update_that_would_set_the_peak_waits_for_the_activations_to_go():
    inputs = keras.Input((24, 24, 3))
    x = inputs
    for _ in range(6):
        x = keras.layers.Conv2D(16, 3, padding="same", activation="relu")(x)
    x = keras.layers.Dense(96, name="head")(keras.layers.Flatten()(x))
    found = traced(
        training(
            keras.Model(inputs, keras.layers.Dense(5)(x)), squared_error, keras.optimizers.Adam(0.1)
        ),
        (8, 24, 24, 3),
        (8, 5),
    )
    gradient = max(op.output_bytes for op in found.graph.ops if "MatMul" in op.kind)
    ops = found.graph.ops
    updates = [
        i
        for i, op in enumerate(ops)
        if any(ops[d].output_bytes == gradient and "MatMul" in ops[d].kind for d in op.deps)
    ]
    last_convolution = max(i for i, op in enumerate(ops) if "Conv2DBackpropFilter" in op.kind)
    assert updates
    assert min(updates) > last_convolution


# And the small tensors that are kept.
def test_fixed_bytes_are_variables_slots_batch_and_previous_results(dense):
    found, model, _ = dense
    parameters = sum(
        -(-variable.numpy().nbytes // 256) * 256 for variable in model.trainable_variables
    )
    batch = 4 * 1024 * (64 + 512)
    expected = 3 * parameters + batch  # Adam has two slots per variable
    assert expected <= found.graph.fixed_bytes <= expected + 64 * 1024


def test_fixed_bytes_count_what_is_captured_and_returned():
    captured = tf.ones((N, N))

    def without(x):
        return tf.reduce_sum(tf.sin(x))

    base = traced(without).graph.fixed_bytes
    assert (
        traced(lambda x: tf.reduce_sum(tf.sin(x) * captured)).graph.fixed_bytes
        == base + VALUE_BYTES
    )
    assert traced(lambda x: (tf.sin(x), without(x))).graph.fixed_bytes == base + VALUE_BYTES


def test_a_smaller_batch_plans_the_same_ops(dense):
    from checkmate.tf2 import trace

    found, _, step = dense
    smaller = trace(step, tf.TensorSpec((32, 64)), tf.TensorSpec((32, 512)), like=found)
    assert kinds(smaller) == kinds(found)
    assert [op.deps for op in smaller.graph.ops] == [op.deps for op in found.graph.ops]
    assert smaller.graph.fixed_bytes < found.graph.fixed_bytes


@pytest.mark.parametrize("wrap", ["callable", "tf.function", "method", "partial"])
def test_any_callable_can_be_traced(wrap):
    class Holder:
        def step(self, x):
            return tf.sin(x)

    step = {
        "callable": lambda x: tf.sin(x),
        "tf.function": tf.function(lambda x: tf.sin(x)),
        "method": Holder().step,
        "partial": functools.partial(lambda y, x: tf.sin(x), None),
    }[wrap]
    assert kinds(traced(step)) == ["Sin"]


def test_nests_of_arguments():
    from checkmate.tf2 import trace

    def step(batch, weights):
        return {"sum": tf.sin(batch["a"]) + tf.cos(batch["b"][0]) + weights, "nothing": None}

    batch = {"a": tf.TensorSpec((N, N)), "b": [np.ones((N, N), "float32")]}
    found = trace(step, batch, tf.ones((N, N)))
    assert types(found) == {"Sin", "Cos", "AddV2"}
    assert len(found.argument_tensors()) == 3


def test_a_step_that_cannot_be_traced_names_the_specs_and_the_reason():
    from checkmate.tf2 import trace

    with pytest.raises(TraceError) as caught:
        trace(lambda x, y: x @ y, tf.TensorSpec((2, 3)), tf.TensorSpec((2, 3), tf.float32))
    assert "float32[2, 3]" in str(caught.value)
    assert "Matrix size-incompatible" in str(caught.value) or "must be equal" in str(caught.value)
    assert caught.value.__cause__ is not None


def test_wrong_number_of_specs():
    with pytest.raises(TraceError, match="cannot be traced"):
        traced(lambda x, y: x + y, (N, N))


@pytest.mark.parametrize("step", [lambda x: None, lambda x: x, lambda x: 2.0])
def test_a_step_that_computes_nothing(step):
    with pytest.raises(TraceError, match="nothing to plan"):
        traced(step)


def test_the_last_reader_of_a_gradient_writes_over_it_and_says_so():
    """As in BatchNorm's gradient; it counts only while the gradient's other readers come first."""
    from checkmate.tf2.graph.trace import trace

    case = unet()
    found = trace(
        *(lambda step, specs: (step, *specs))(
            *training_step(case.model, case.loss, keras.optimizers.SGD(), case.inputs, case.labels)
        )
    )
    takers = [i for i, taken in enumerate(found.taken) if taken]
    assert takers
    graph = with_costs(found, "unit")
    roomier = with_costs(dataclasses.replace(found, taken=((),) * len(found.taken)), "unit")
    for i in takers:
        for d in (d for d in graph.ops[i].deps if set(found.values[d]) <= set(found.taken[i])):
            others = {u for u, op in enumerate(graph.ops) if d in op.deps} - {i}
            assert others <= {*graph.ops[i].control_deps, *graph.ops[i].deps}
    assert sum(graph.ops[i].workspace_bytes < roomier.ops[i].workspace_bytes for i in takers) >= 3


def test_constants_of_some_length_in_a_list():
    """An op on a list has as many inputs as the choice by which a recomputation is tied, and its
    result has no axes either."""
    kernel = tf.Variable(tf.ones([64, 64]))

    def step(x):
        with tf.GradientTape() as tape:
            entries = tf.TensorArray(tf.float32, 2, element_shape=[64], clear_after_read=False)
            entries = entries.write(0, tf.range(64.0)).write(1, tf.ones([64]))
            loss = tf.reduce_mean(tf.tanh(x @ kernel) * entries.read(0) * entries.read(1))
        return tape.gradient(loss, kernel)

    assert len(trace(step, tf.TensorSpec([8, 64])).graph)
