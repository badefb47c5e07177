"""Steps with more than one pass: what is pure may be recomputed, wherever it stands."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from training import planned_function

from checkmate import floor
from checkmate.tf2 import trace

pytestmark = pytest.mark.usefixtures("tensorflow", "alone")


class Net:
    """Dense layers on 2,048 rows of 128 numbers: 1 MiB for each value."""

    def __init__(self, depth=12):
        self.weights = [
            tf.Variable(tf.random.stateless_normal((128, 128), (k, 1)) / 11) for k in range(depth)
        ]
        self.others = [
            tf.Variable(tf.random.stateless_normal((128, 128), (k, 2)) / 11) for k in range(depth)
        ]

    def forward(self, x, weights):
        for weight in weights:
            x = tf.tanh(x @ weight)
        return tf.reduce_mean(x * x)

    def gradients(self, x, weights):
        with tf.GradientTape() as tape:
            loss = self.forward(x, weights)
        return loss, tape.gradient(loss, weights)

    def move(self, weights, gradients, by):
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.assign_sub(by * gradient)

    def one(self, x):
        loss, gradients = self.gradients(x, self.weights)
        self.move(self.weights, gradients, 0.1)
        return loss

    def two(self, x):
        self.one(x)
        return self.one(x)

    def sam(self, x):
        """Gradients at the worst point near by (Foret et al., 2021)."""
        _, up = self.gradients(x, self.weights)
        self.move(self.weights, up, -0.05)
        loss, gradients = self.gradients(x, self.weights)
        self.move(self.weights, up, 0.05)
        self.move(self.weights, gradients, 0.1)
        return loss

    def two_nets(self, x):
        """As a GAN trains one net and then the other through it."""
        loss, gradients = self.gradients(x, self.others)
        self.move(self.others, gradients, 0.1)
        with tf.GradientTape() as tape:
            h = x
            for weight in self.weights:
                h = tf.tanh(h @ weight)
            through = self.forward(h, self.others)
        self.move(self.weights, tape.gradient(through, self.weights), 0.1)
        return loss + through

    def penalty(self, x):
        """With the norm of the gradients by the input."""
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                inner.watch(x)
                loss = self.forward(x, self.weights)
            loss += tf.reduce_mean(inner.gradient(loss, x) ** 2)
        self.move(self.weights, outer.gradient(loss, self.weights), 0.1)
        return loss

    def maml(self, x):
        """Through a step of descent (Finn et al., 2017)."""
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                loss = self.forward(x, self.weights)
            gradients = inner.gradient(loss, self.weights)
            moved = [w - 0.1 * g for w, g in zip(self.weights, gradients, strict=True)]
            loss = self.forward(x[::-1], moved)
        self.move(self.weights, outer.gradient(loss, self.weights), 0.1)
        return loss


@pytest.mark.parametrize(
    ("name", "budget"),
    [
        ("two", "45%"),
        ("penalty", "50%"),
        *(
            pytest.param(name, budget, marks=pytest.mark.slow)
            for name, budget in (("sam", "45%"), ("two_nets", "50%"), ("maml", "45%"))
        ),
    ],
)
def test_a_step_of_several_passes_trains_in_less_with_the_same_bits(name, budget):
    x = tf.random.stateless_normal((2048, 128), (5, 6))
    plain, ours = Net(), Net()
    run = tf.function(getattr(plain, name))
    step = planned_function(getattr(ours, name), x, budget=budget)
    assert step.plan.recomputed
    for _ in range(2):
        np.testing.assert_array_equal(step(x).numpy(), run(x).numpy())
    for a, b in zip((*plain.weights, *plain.others), (*ours.weights, *ours.others), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_two_passes_need_no_more_than_one_and_gradients_of_one_are_kept():
    spec = tf.TensorSpec((2048, 128))
    one, two = trace(Net().one, spec).graph, trace(Net().two, spec).graph
    assert floor(two).bytes <= 1.05 * floor(one).bytes
    assert sum(op.recomputable and "Tanh" in op.kind for op in two.ops) == 2 * len(Net().weights)
    assert not any(op.recomputable and "gradient_tape" in op.name for op in two.ops)
