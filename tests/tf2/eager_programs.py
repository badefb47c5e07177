"""What the tests of eager dynamic rematerialization share: a deep net, its gradients, and what
memory is in use."""

import contextlib
import gc

import numpy as np
import tensorflow as tf

from checkmate import tf2
from checkmate.tf2.eager import private_api
from checkmate.tf2.eager.budget import EagerOptions
from checkmate.tf2.eager.interception import Interception
from checkmate.tf2.eager.runtime import EagerRuntime

MIB = 2**20


def memory():
    return tf.config.experimental.get_memory_info("CPU:0")


def dtr(*args, **kwargs):
    return tf2.dtr(*args, **kwargs)


def above(count, **options):
    """A context with a budget of so many bytes above what is in use."""
    gc.collect()
    return dtr(memory()["current"] + int(count), **options)


@contextlib.contextmanager
def managed(kind=None, **options):
    """A runtime that catches the ops of the program; `options` are those of `EagerOptions`."""
    tf.config.experimental.reset_memory_stats("CPU:0")  # as `dtr` does
    runtime = (kind or EagerRuntime)("CPU:0", EagerOptions(**options))
    with Interception(runtime):
        yield runtime


def managed_above(count, **options):
    """The same with a budget of so many bytes above what is in use."""
    gc.collect()
    return managed(budget_bytes=memory()["current"] + int(count), **{"strict": True} | options)


def arrays(values):
    return [np.array(tf.convert_to_tensor(value)) for value in values]


def same(one, other):
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert np.array_equal(a, b, equal_nan=True), (
            f"differs by {np.max(np.abs(a - b))} of {np.max(np.abs(a))}"
        )


def normal(*shape, seed=1):
    return tf.random.stateless_normal(shape, (seed, 7))


def weights(*shape, seed=1):
    return tf.Variable(normal(*shape, seed=seed) / shape[0] ** 0.5)


def chain(depth=10, rows=256, width=64):
    """A deep net: (variables, loss)."""
    variables, x = [weights(width, width, seed=k) for k in range(depth)], normal(rows, width)

    def loss():
        h = x
        for w in variables:
            h = tf.tanh(h @ w)
        return tf.reduce_sum(h * h)

    return variables, loss


def gradients(variables, loss):
    with tf.GradientTape() as tape:
        value = loss()
    return [value, *tape.gradient(value, variables)]


def plain_peak(variables, loss):
    gc.collect()
    tf.config.experimental.reset_memory_stats("CPU:0")
    resting = memory()["current"]
    result = arrays(gradients(variables, loss))
    return result, resting, memory()["peak"] - resting


def fenced():
    import importlib

    names = [
        getattr(importlib.import_module(module), name)
        for module, names in private_api.PRIVATE.items()
        for name in names
    ]
    public = [
        tf.GradientTape.__dict__,
        tf.autodiff.ForwardAccumulator.__dict__,
        tf.distribute.Strategy.__dict__,
    ]
    return names + [dict(each) for each in public]
