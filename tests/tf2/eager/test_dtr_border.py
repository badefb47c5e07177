"""Leaving the context restores TensorFlow, whatever happened; what would silently be wrong is
refused."""

import contextlib
import threading

import numpy as np
import pytest
import tensorflow as tf
from eager_programs import (
    above,
    arrays,
    chain,
    dtr,
    fenced,
    gradients,
    managed,
    normal,
    same,
    weights,
)

from checkmate import CheckmateError, EvictionError, UnsupportedError
from checkmate.tf2.eager import private_api, selftest
from checkmate.tf2.eager.storage import EagerCall

pytestmark = pytest.mark.usefixtures("tensorflow")


def fails(*_):
    raise ValueError("it broke")


@pytest.fixture
def broken(monkeypatch):
    """Replaces something for a block."""

    @contextlib.contextmanager
    def of(where, name, instead):
        with monkeypatch.context() as patch:
            patch.setattr(where, name, instead)
            yield

    return of


@pytest.mark.parametrize(
    "how",
    [
        *("at the end", "an exception", "out of memory", "an op fails", "a gradient fails"),
        *("making zeros fails", "adding up fails"),
    ],
)
def test_leaving_restores_tensorflow(how, broken):
    raising = pytest.raises(ValueError, match="it broke")
    variables, loss = chain(depth=3)
    plain, before = arrays(gradients(variables, loss)), fenced()
    if how == "at the end":
        with dtr():
            gradients(variables, loss)
    elif how == "an exception":
        with pytest.raises(ZeroDivisionError), dtr():
            gradients(variables, lambda: loss() / (1 // 0))
    elif how == "out of memory":
        with pytest.raises(EvictionError), above(100_000):
            gradients(variables, loss)
    elif how == "an op fails":
        with pytest.raises(tf.errors.InvalidArgumentError), dtr():
            gradients(variables, lambda: tf.matmul(loss()[None, None], normal(2, 2)))
    elif how == "a gradient fails":
        with raising, dtr(), broken(private_api, "gradient_function", fails):
            gradients(variables, loss)
    elif how == "making zeros fails":
        vspace = private_api.default_vspace._replace(zeros_like_fn=fails, zeros_fn=fails)
        with raising, dtr(smallest_bytes=0), broken(private_api, "default_vspace", vspace):
            gradients(variables[:1], lambda: tf.reduce_sum(tf.split(tf.tanh(variables[0]), 2)[0]))
    else:
        w, vspace = variables[0], private_api.default_vspace._replace(aggregate_fn=fails)
        with raising, dtr(), broken(private_api, "default_vspace", vspace):
            gradients([w], lambda: tf.reduce_sum(tf.tanh(w) + w * w))
    after = fenced()
    assert len(before) == len(after) and all(
        a is b or a == b for a, b in zip(before, after, strict=True)
    )
    assert not private_api.tape_is_stopped()
    same(arrays(gradients(variables, loss)), plain)
    with dtr():
        same(arrays(gradients(variables, loss)), plain)


def test_an_op_that_raises_while_it_runs_again(broken):
    with managed(smallest_bytes=0) as runtime:
        x = tf.tanh(tf.exp(normal(8, 8)))
        value = x.numpy()
        y = x + 1.0
        runtime.policy.evict_all()
        with broken(EagerCall, "run_again", fails), pytest.raises(ValueError, match="it broke"):
            y.numpy()
        assert not any(storage.locks for storage in runtime.policy.live)
        assert not runtime.references.depth
        assert np.array_equal(y.numpy(), value + 1)


def test_handles_outlive_the_context():
    variables, loss = chain(depth=3)
    plain = arrays(gradients(variables, loss))
    with managed(smallest_bytes=0) as runtime:
        found = gradients(variables, loss)
        runtime.policy.evict_all()
    same(arrays(found), plain)
    assert np.array_equal((found[1] * 2.0).numpy(), plain[1] * 2)
    assert np.array_equal(tf.concat([found[1], found[2]], 0).numpy(), np.concatenate(plain[1:3]))
    assert np.array_equal(tf.function(lambda a: a + 1.0)(found[1]).numpy(), plain[1] + 1)
    before = variables[0].numpy()
    variables[0].assign_sub(found[1])
    assert np.array_equal(variables[0].numpy(), before - plain[1])
    with dtr():
        assert np.array_equal((found[2] + found[3]).numpy(), plain[2] + plain[3])


def test_a_tape_may_reach_across_the_border():
    w, x = weights(32, 32), normal(32, 32)

    def both(context):
        with tf.GradientTape() as tape:
            with context:
                y = tf.tanh(x @ w)
            loss = tf.reduce_sum(y * y)
        return arrays([tape.gradient(loss, w)])

    same(both(dtr(smallest_bytes=0)), both(contextlib.nullcontext()))


def forward_mode(w):
    with tf.autodiff.ForwardAccumulator(w, tf.ones_like(w)) as accumulator:
        y = tf.tanh(w)
    return accumulator.jvp(y)


def jacobian(w):
    with tf.GradientTape() as tape:
        y = tf.tanh(w)
    return tape.jacobian(y, w)


def gradient_in_a_graph(w):
    with tf.GradientTape() as tape:
        y = tf.reduce_sum(tf.tanh(w))
    return tf.function(lambda: tape.gradient(y, w))()


def nested(w):
    with dtr():
        pass


def strategy(w):
    return tf.distribute.OneDeviceStrategy("/cpu:0").run(lambda: w + 1.0)


def second_thread(w):
    errors = []

    def train():
        try:
            with tf.GradientTape() as tape:
                y = tf.tanh(w)
            tape.gradient(y, w)
        except CheckmateError as error:
            errors.append(error)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    raise errors[0]


def handle_in_a_second_thread(w):
    handle, errors = tf.tanh(w), []

    def use():
        try:
            tf.tanh(handle)
        except CheckmateError as error:
            errors.append(error)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    raise errors[0]


def writing_in_place(w):
    tf.raw_ops.InplaceUpdate(x=tf.tanh(w), i=[0], v=tf.zeros((1, 32)))


def python_in_a_kernel(w):
    tf.py_function(tf.tanh, [w], tf.float32)


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (forward_mode, "ForwardAccumulator"),
        (jacobian, "jacobian"),
        (gradient_in_a_graph, "graph"),
        (nested, "another dtr"),
        (writing_in_place, "InplaceUpdate does not work"),
        (python_in_a_kernel, "Call the function directly"),
        (strategy, "OneDeviceStrategy"),
        (second_thread, "another thread"),
        (handle_in_a_second_thread, "another thread"),
    ],
)
def test_refused(act, says):
    w, before = weights(32, 32), fenced()
    with pytest.raises(UnsupportedError, match=says), dtr(smallest_bytes=0):
        act(w)
    assert all(a is b or a == b for a, b in zip(before, fenced(), strict=True))


def test_refused_on_entry():
    @tf.function
    def traced():
        with dtr():
            return tf.constant(1)

    with pytest.raises(UnsupportedError, match="traced"):
        traced()
    with (
        tf.distribute.OneDeviceStrategy("/cpu:0").scope(),
        pytest.raises(UnsupportedError, match="OneDeviceStrategy"),
    ):
        dtr().__enter__()
    x = tf.ones((2,))
    with (
        tf.autodiff.ForwardAccumulator(x, x),
        pytest.raises(UnsupportedError, match="ForwardAccumulator"),
    ):
        dtr().__enter__()


def test_other_threads_may_run_what_is_not_managed():
    with dtr(smallest_bytes=0):
        data = tf.data.Dataset.from_generator(lambda: iter(range(3)), output_types=tf.int32).map(
            lambda k: tf.py_function(lambda v: v + 1, [k], tf.int32)
        )
        assert [int(each) for each in data] == [1, 2, 3]


def test_a_tensorflow_with_other_insides_is_refused(monkeypatch):
    monkeypatch.setitem(private_api.PRIVATE, "tensorflow.python.pywrap_tfe", ("TFE_Py_OfTomorrow",))
    assert private_api.missing() == ["tensorflow.python.pywrap_tfe.TFE_Py_OfTomorrow"]
    selftest.check("CPU:0", again=True)
    monkeypatch.setattr(private_api, "tape_record", lambda *args: None)
    with pytest.raises(UnsupportedError, match=r"TensorFlow [\d.]+ a small gradient"):
        selftest.check("CPU:0", again=True)


def test_functions_may_hold_handles():
    """In a condition, and in a pipeline."""
    x = normal(32, 32)
    with dtr(smallest_bytes=0):
        h = tf.tanh(x)
        chosen = tf.function(
            lambda a: tf.cond(tf.reduce_sum(a) > 1e6, lambda: a + h, lambda: a - h)
        )(x)
        (first, _) = tf.data.Dataset.range(2).map(lambda i: tf.cond(i > 0, lambda: h, lambda: -h))
    same(arrays([chosen, first]), arrays([x - tf.tanh(x), -tf.tanh(x)]))
