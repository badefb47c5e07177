"""Where variables and results lie while steps run, and who waits for whom so that they may stay
there."""

from __future__ import annotations

import gc

import keras
import keras_models
import numpy as np
import pytest
import tensorflow as tf
from dense import address
from keras_models import cnn
from requests_seen import most_requested_bytes
from training import assert_equal, planned_function, tightest

from checkmate.tf2 import device as devices
from checkmate.tf2.execution.replay import OutputBuffers, Replayed
from checkmate.tf2.graph.graph_writer import reachable
from checkmate.tf2.graph.passes import simplify
from checkmate.tf2.graph.trace import trace
from checkmate.tf2.memory.profiler import observe

pytestmark = pytest.mark.usefixtures("tensorflow")


@pytest.mark.parametrize("name", ["cnn", pytest.param("unet", marks=pytest.mark.slow)])
def test_updates_leave_variables_where_they_are(name):
    """What is moved to the midst of the memory that the step uses keeps the allocator from handing
    it out in one piece."""
    keras.utils.set_random_seed(0)
    case = keras_models.ALL[name]()
    optimizer = keras.optimizers.Adam(1e-3)
    step = tightest(case, optimizer)
    variables = [
        v
        for v in (*case.model.trainable_variables, *optimizer.variables)
        if v.path != "learning_rate"
    ]
    before = [address(v) for v in variables]
    assert len(set(before)) == len(before) > 20
    for _ in range(3):
        step(case.inputs, case.labels)
        assert [address(v) for v in variables] == before


@pytest.mark.parametrize("name", ["cnn", pytest.param("two_inputs", marks=pytest.mark.slow)])
def test_results_lie_where_those_before_the_last_did(name):
    """They would creep through the memory else, and each step would find it cut in another way."""
    keras.utils.set_random_seed(0)
    case = keras_models.ALL[name]()
    step = tightest(case, keras.optimizers.Adam(1e-3))
    assert len(step.plan.recomputed) and all(step.planned.traced.early)
    flat, places, held = step.planned_for(case.inputs, case.labels)[1], [], None
    for _ in range(6):
        held = step.planned.run(*flat)
        places.append(
            [np.asarray(memoryview(value)).ctypes.data for value in tf.nest.flatten(held)]
        )
    assert places[:2] * 2 == places[2:] and not set(places[0]) & set(places[1])


@pytest.mark.parametrize("buffered", [False, True])
def test_results_of_every_kind_are_the_callers_own(buffered):
    """The same value twice, whole numbers, one number, an argument, and what is too large to have
    its memory early.

    Whoever keeps the results of many steps has those of each.
    """

    @tf.function
    def step(x):
        wave = tf.sin(x)
        for _ in range(6):
            wave = tf.sin(wave) * 1.5
        rows = tf.reduce_sum(wave, 1)
        return {
            "twice": (rows, rows),
            "kind": tf.argmax(rows),
            "sum": tf.reduce_sum(rows),
            "given": x,
            "large": wave,
            "sign": wave[0] > 0,
        }

    x = tf.random.stateless_normal((256, 512), (1, 2))
    traced = trace(step, x)
    by_name = dict(
        zip(("given", "kind", "large", "sign", "sum", "twice", "again"), traced.early, strict=True)
    )
    assert by_name == {
        "given": False,
        "kind": True,
        "large": False,
        "sign": True,
        "sum": True,
        "twice": True,
        "again": True,
    }
    run = Replayed(traced, traced.plain_plan(), OutputBuffers(traced) if buffered else None)
    kept = [run(x + number) for number in range(6)]
    for number, results in enumerate(kept):
        assert_equal(results, step(x + number))
    in_graph = tf.function(lambda x: [run(x + number) for number in range(3)])
    for number, results in enumerate(in_graph(x)):
        assert_equal(results, step(x + number))
    for number, results in enumerate(kept):
        assert_equal(results, step(x + number))


def test_a_result_is_written_as_soon_as_it_is_computed_and_its_value_may_go():
    @tf.function
    def step(x):
        wave = prediction = tf.sin(x)
        for _ in range(32):
            wave = tf.cumsum(wave, 1)
        return prediction, tf.reduce_sum(wave)

    x = tf.random.stateless_normal((512, 512), (1, 2))
    traced = trace(step, x)
    i = next(i for i, op in enumerate(traced.graph.ops) if op.kind == "Sin")
    assert traced.early[0] and traced.results[i] == (0,) and i not in traced.graph.outputs
    run = Replayed(traced, traced.plain_plan())
    order = [
        operation.name.rpartition("/")[0] + operation.type
        for operation in reachable(run.function.graph)
    ]
    assert order.index("plannedTensorStridedSliceUpdate") < order.index(
        next(name for name in order if name.endswith("Cumsum"))
    )
    assert_equal(run(x), step(x))
    size = x.shape.num_elements() * x.dtype.size
    assert 3 * size <= most_requested_bytes(observe(lambda: run(x))) < 3.1 * size, (
        "the result, what is read and what is written"
    )


def readers_and_writes(step):
    """(a reader of a variable's content, a write to it that is not behind the reading, whether the
    write waits for the reader)."""
    before = {}  # op -> itself and every op that runs before it
    for operation in reachable(step.planned.run.function.graph):
        befores = {tensor.op for tensor in operation.inputs} | set(operation.control_inputs)
        before[operation] = {operation}.union(*(before[o] for o in befores))
    writes = [
        o
        for o in before
        if o.type in ("AssignSubVariableOp", "AssignAddVariableOp", "ResourceStridedSliceAssign")
    ]
    return [
        (reader.name, write.name, reader in before[write])
        for write in writes
        for read in before
        if read.type == "ReadVariableOp"
        and read.inputs[0] is write.inputs[0]
        and write not in before[read]
        for reader in read.outputs[0].consumers()
    ]


def test_small_updates_wait_for_all_who_read_the_variable():
    """TensorFlow writes to other memory while somebody holds the old content."""
    found = readers_and_writes(tightest(cnn(), keras.optimizers.Adam(1e-3)))
    assert len(found) > len({write for _, write, _ in found}) > 10
    assert [(reader, write) for reader, write, waits in found if not waits] == []


def sines(x):
    """A chain whose gradient wants all of its values."""
    for _ in range(6):
        x = tf.sin(x)
    return x


def test_a_small_update_waits_for_those_that_only_another_small_update_asks_for():
    """As an optimizer's counter does, which is written before the small variables are whose new
    values are made of what it was."""
    counter, small = tf.Variable(0, dtype=tf.int64), tf.Variable(tf.zeros(3))

    def count(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            h = sines(x)
        was = counter.read_value()
        counter.assign(was + 1)
        small.assign(small / tf.cast(was + 2, tf.float32))
        return tape.gradient(h, x)

    x = tf.ones((512, 512))
    step = planned_function(count, x, budget="75%")
    assert step.plan.recomputed
    found = readers_and_writes(step)
    assert len({write for _, write, _ in found}) == 2
    assert [(reader, write) for reader, write, waits in found if not waits] == []


def test_a_large_update_waits_for_small_gradients_that_read_the_variable():
    """As one of a dense layer on top of a large net: the gradient of its kernel is there before
    that of its small input."""
    weight = tf.Variable(tf.eye(512))

    def descend(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            h = sines(x)
            small = tf.reduce_mean(h, axis=0, keepdims=True)
            loss = tf.reduce_sum(tf.square(small @ weight))
        to_weight, to_x = tape.gradient(loss, (weight, x))
        weight.assign_sub(to_weight)
        return to_x

    step = planned_function(descend, tf.ones((512, 512)), budget="75%")
    assert step.plan.recomputed
    found = readers_and_writes(step)
    assert len(found) == 2
    assert [(reader, write) for reader, write, waits in found if not waits] == []


def test_a_tensor_of_one_number_everywhere_lies_in_memory_only_where_it_is_read(tensorflow):
    """TensorFlow folds it into a constant otherwise."""
    size = 2**19

    @tf.function
    def step(x):
        y = tf.tanh(x)
        rest = [
            tf.concat([y, each], 0)
            for each in (
                tf.zeros_like(y),
                tf.ones_like(y),
                tf.fill(y.shape, -0.0),
                tf.ones_like(y) * 3,
            )
        ]
        return [tf.reduce_sum(each * each) for each in rest], tf.add_n([y, tf.zeros_like(y)])

    def current():
        gc.collect()
        return tf.config.experimental.get_memory_info(devices.training_device())["current"]

    x = tf.random.stateless_normal((size,), (1, 2))
    concrete = step.get_concrete_function(x)
    simplified = simplify(concrete)
    before = current()
    found = [np.array(each) for each in tf.nest.flatten(simplified(x))]
    assert current() - before < size
    for a, b in zip(found, tf.nest.flatten(concrete(x)), strict=True):
        np.testing.assert_array_equal(a, np.asarray(b))
