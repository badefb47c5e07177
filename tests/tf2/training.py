"""Training steps as users write them, the planned steps beside them, and what two trainings must
agree in."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from unhurried import UNHURRIED

import checkmate
from checkmate.tf2.compile import PlannedStep
from checkmate.tf2.options import PlanOptions
from checkmate.tf2.planning.request import PlanRequest


def plain_step(model, loss, optimizer):
    """The training step as a user would write it."""

    @tf.function
    def step(inputs, labels):
        with tf.GradientTape() as tape:
            prediction = model(inputs, training=True)
            value = loss(labels, prediction)
            if model.losses:
                value += tf.add_n(model.losses)
        optimizer.apply(tape.gradient(value, model.trainable_variables), model.trainable_variables)
        return prediction, value

    return step


def compiled(case, optimizer, budget="1000%", **options):
    """The planned step; by default with costs and a solver that take no time, and for a budget that
    holds all the step can want."""
    options = {"cost_model": "roofline", "solver": UNHURRIED, **options}
    return checkmate.tf2.compile(
        case.model, case.loss, optimizer, case.inputs, case.labels, budget=budget, **options
    )


def with_constants(x):
    """A step on 1 MiB with six constants of that size, which TensorFlow folds, and with tensors of
    one number everywhere."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        h = x
        for k in range(6):
            wave = tf.cos(k + tf.reshape(tf.range(512.0 * 512), (512, 512)))
            h = tf.sin(tf.where(h > 0.5, h, tf.ones_like(h)) * wave)
        loss = tf.reduce_sum(h)
    return loss, tape.gradient(loss, x)


def planned_function(step, *batch, budget):
    """A function as a planned step, for the shapes of this batch."""
    options = PlanOptions(budget, cost_model="roofline", time_limit_s=1, verbose=False)
    request = PlanRequest(step, step.__name__, options)
    return PlannedStep(request, tuple(tf.TensorSpec(each.shape, each.dtype) for each in batch))


def tightest(case, optimizer, **options):
    """The planned step at half of what the step itself needs, or at the budget that refusals name:
    the second may name a little more, as it knows what the first try left in memory."""
    plain = compiled(case, optimizer, **options).report()
    budget = (plain.fixed_bytes + plain.outside_bytes + plain.plain_peak_bytes) // 2
    for _ in range(3):
        try:
            return compiled(case, optimizer, budget, **options)
        except (checkmate.InfeasibleBudgetError, checkmate.NoPlanFoundError) as refusal:
            budget = int(1.01 * refusal.smallest_budget_bytes)
    return compiled(case, optimizer, budget, **options)


def state(model, optimizer):
    """Everything that training changes: variables, states of layers (seeds too), slots of the
    optimizer."""
    return [variable.numpy() for variable in (*model.variables, *optimizer.variables)]


def assert_equal(ours, plain):
    """The same structure with the same bits."""
    tf.nest.assert_same_structure(plain, ours, expand_composites=True)
    for a, b in zip(
        tf.nest.flatten(plain, expand_composites=True),
        tf.nest.flatten(ours, expand_composites=True),
        strict=True,
    ):
        assert (a is None) == (b is None)
        if a is not None:
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)
