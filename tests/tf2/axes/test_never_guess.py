"""Programs whose values depend on the number of examples are split exactly or not at all."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import checkmate

pytestmark = pytest.mark.usefixtures("tensorflow", "alone")

ROWS, WIDTH = 512, 128


def numbers(tf, *shape):
    return tf.Variable(tf.random.stateless_normal(shape, (len(shape), 7)))


def scalings(tf):
    """Name -> a function of (activations, number of examples) of another value for each size."""
    t, table, cycle = numbers(tf, 1024), numbers(tf, 1024, WIDTH), numbers(tf, 5, WIDTH)
    return {
        "t[n]": lambda h, n: h * t[n],
        "t[n - 1]": lambda h, n: h * t[n - 1],
        "t[static n]": lambda h, n: h * t[h.shape[0]],
        "table[n - 4:n]": lambda h, n: h * tf.reduce_sum(table[n - 4 : n], 0),
        "slice": lambda h, n: h * tf.slice(t, [n], [1]),
        "column": lambda h, n: h * h[:, n // 8 : n // 8 + 1],
        "one column": lambda h, n: h * h[:, n // 8, None],
        "cycle": lambda h, n: h * tf.tile(cycle, [n, 1])[:n],
        "end of cycle": lambda h, n: h * tf.tile(cycle, [n, 1])[n : 2 * n],
        "nth": lambda h, n: h * tf.raw_ops.NthElement(input=h, n=n // 8)[:, None],
        "top": lambda h, n: h * tf.math.top_k(h, h.shape[0] // 8).values[:, -1:],
        "buckets": lambda h, n: (
            h
            * tf.cast(
                tf.raw_ops.Bucketize(input=h, boundaries=[0.0, h.shape[0] / 1000]), tf.float32
            )
        ),
        "roll": lambda h, n: h * tf.roll(h, n // 8, 1),
        "divided": lambda h, n: h / tf.cast(n, tf.float32),
        "clipped": lambda h, n: tf.clip_by_value(h, -1.0, tf.cast(n, tf.float32) / 1000),
        "range": lambda h, n: h * tf.cast(tf.range(n), tf.float32)[:, None] / 100,
        "none": lambda h, n: h,
    }


NAMES = ("t[n]", "t[n - 1]", "t[static n]", "table[n - 4:n]", "slice", "column", "one column")
NAMES += ("cycle", "end of cycle", "nth", "top", "buckets", "roll", "divided", "clipped", "range")


@pytest.mark.parametrize("name", [*NAMES, "none"])
def test_a_value_for_each_number_of_examples_is_split_exactly_or_not_at_all(name):
    weights = [numbers(tf, WIDTH, WIDTH) for _ in range(2)]
    start = [weight / 16 for weight in weights]
    scale = scalings(tf)[name]

    def step(x):
        with tf.GradientTape() as tape:
            h = x
            for weight in weights:
                h = tf.tanh(h @ weight)
            loss = tf.reduce_mean(scale(h, tf.shape(h)[0]) ** 2)
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(0.1 * gradient)
        return loss

    x = tf.random.stateless_normal((ROWS, WIDTH), (5, 6))
    losses = []
    for planned in (False, True):
        for weight, value in zip(weights, start, strict=True):
            weight.assign(value)
        run = tf.function(step)
        if planned:
            try:
                run = checkmate.tf2.function(
                    step, budget="1GiB", micro_batches=4, verbose=False, cost_model="roofline"
                )
                run(x)
            except checkmate.CheckmateError as refused:
                assert name != "none", refused
                return
            for weight, value in zip(weights, start, strict=True):
                weight.assign(value)
        losses.append([float(run(x)) for _ in range(2)])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-3)


def test_a_map_over_the_batch_is_split_or_refused():
    weight = numbers(tf, 64, 64)

    def step(x):
        with tf.GradientTape() as tape:
            turned = tf.map_fn(lambda row: tf.tanh(tf.linalg.matvec(weight, row)), x)
            loss = tf.reduce_mean(turned**2)
        weight.assign_sub(tape.gradient(loss, weight))
        return loss

    x = tf.random.stateless_normal((12, 64), (5, 6))
    for micro_batches, budget in ((3, "1GiB"), ("auto", "60%")):
        run = checkmate.tf2.function(
            step, budget=budget, micro_batches=micro_batches, verbose=False, cost_model="roofline"
        )
        try:
            assert np.isfinite(float(run(x)))
        except checkmate.CheckmateError as refused:
            assert "map" in str(refused) or "No plan" in str(refused)
