"""`checkmate.tf2.function` does what `tf.function` does: methods, signatures, side effects."""

from __future__ import annotations

import copy
import gc
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

import checkmate
from checkmate import TraceError

pytestmark = pytest.mark.usefixtures("tensorflow")


def learned(x, weight):
    with tf.GradientTape() as tape:
        h = x
        for _ in range(6):
            h = tf.tanh(h @ weight)
        loss = tf.reduce_mean(h * h)
    weight.assign_sub(0.1 * tape.gradient(loss, weight))
    return loss


@pytest.mark.parametrize("base", ["object", "tf.Module", "keras.Model"])
def test_a_method_is_bound_to_its_instance(base):
    kinds = {"object": object, "tf.Module": tf.Module, "keras.Model": keras.Model}

    class Agent(kinds[base]):
        def __init__(self, scale):
            super().__init__()
            self.weight = tf.Variable(scale * tf.ones((64, 64)) / 64)

        @checkmate.tf2.function(budget="100MiB", verbose=False)
        def learn(self, x):
            return learned(x, self.weight)

    x = tf.random.stateless_normal((256, 64), (1, 2))
    one, two = Agent(1.0), Agent(0.5)
    plain = tf.Variable(tf.ones((64, 64)) / 64)
    expected = [float(learned(x, plain)) for _ in range(2)]
    np.testing.assert_allclose([float(one.learn(x)) for _ in range(2)], expected, rtol=1e-5)
    before = one.weight.numpy()
    assert float(two.learn(x)) != expected[0] and one.learn is one.learn is not two.learn
    np.testing.assert_array_equal(one.weight.numpy(), before)
    if base == "object":
        other = copy.copy(one)
        assert other.learn is not one.learn
        gone = weakref.ref(two)
        del two
        gc.collect()
        assert gone() is None, "plans go with their instance"
    assert isinstance(Agent.learn, checkmate.tf2.PlannedFunction)


def test_arguments_are_converted_to_the_signature_of_a_tf_function():
    weight = tf.Variable(tf.ones((64, 64)) / 64)
    spec = tf.TensorSpec((None, 64), tf.float32)
    step = tf.function(lambda x: learned(x, weight), input_signature=[spec])
    planned = checkmate.tf2.function(step, budget="100MiB", verbose=False)
    x = np.random.default_rng(0).random((128, 64))
    assert np.isfinite(float(planned(x))) and np.isfinite(float(planned(x=x.tolist())))
    assert planned.kinds == 1
    with pytest.raises(TraceError, match="asks for"):
        planned(tf.constant(x))
    with pytest.raises(TraceError, match=r"float32\[128, 63\]"):
        planned(x[:, 1:])
    with pytest.raises(TraceError, match="other arguments"):
        planned(x, x)
    with pytest.raises(TypeError, match=r"Put tf\.function"):
        checkmate.tf2.function(step, budget="100MiB", input_signature=[spec])


def test_a_planned_function_in_a_tf_function_is_refused_before_it_is_traced():
    weight = tf.Variable(tf.ones((64, 64)) / 64)
    planned = checkmate.tf2.function(lambda x: learned(x, weight), budget="100MiB", verbose=False)
    # AutoGraph makes an error of its own of it.
    with pytest.raises(Exception, match=r"TraceError: .* is called in a tf\.function"):
        tf.function(planned)(tf.ones((128, 64)))


def counter(tf, path):
    calls = []

    def effect(x):
        tf.numpy_function(lambda: calls.append(1) or np.float32(0), [], tf.float32)
        return x

    return effect, lambda: len(calls)


def iterator(tf, path):
    data = iter(tf.data.Dataset.range(100))
    return lambda x: x + tf.cast(next(data), tf.float32), lambda: int(next(data))


def table(tf, path):
    found = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, 0)
    key = tf.constant([7], tf.int64)

    def effect(x):
        found.insert(key, found.lookup(key) + 1)
        return x

    return effect, lambda: int(found.lookup(key)[0])


def queue(tf, path):
    found = tf.queue.FIFOQueue(100, tf.float32, shapes=[()])
    found.enqueue_many([tf.range(50.0)])
    return lambda x: x + found.dequeue(), lambda: int(found.size())


def generator(tf, path):
    drawn = []

    def numbers():
        for k in range(100):
            drawn.append(k)
            yield float(k)

    data = iter(tf.data.Dataset.from_generator(numbers, output_signature=tf.TensorSpec(())))
    return lambda x: x + next(data), lambda: float(next(data))


def file(tf, path):
    count = tf.Variable(0, dtype=tf.int64)

    def effect(x):
        name = tf.strings.join([str(path), "/", tf.strings.as_string(count.assign_add(1))])
        tf.io.write_file(name, "written")
        return x

    return effect, lambda: len(list(path.iterdir()))


@pytest.mark.parametrize(
    "make",
    [
        *(counter, iterator, table),
        *(pytest.param(make, marks=pytest.mark.slow) for make in (queue, generator, file)),
    ],
)
def test_what_a_step_does_besides_happens_once_per_call(make, tmp_path):
    found = []
    for planned in (False, True):
        folder = tmp_path / str(planned)
        folder.mkdir()
        effect, seen = make(tf, folder)
        weight = tf.Variable(tf.eye(64) / 2)
        run = lambda x, effect=effect, weight=weight: learned(effect(x), weight)  # noqa: E731
        if planned:
            run = checkmate.tf2.function(run, budget="85%", verbose=False)
        else:
            run = tf.function(run)
        x = tf.random.stateless_normal((4096, 64), (1, 2))
        losses = [float(run(x)) for _ in range(3)]
        found.append((losses, seen()))
    np.testing.assert_allclose(found[1][0], found[0][0], rtol=1e-4)
    assert found[1][1] == found[0][1]
