"""compile(): the model's own numbers, within the budget, for models of many kinds."""

import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("tensorflow")


def plain_step(model, loss, optimizer):
    """The training step as a user would write it."""
    import tensorflow as tf

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


def variables(model, optimizer):
    return [variable.numpy() for variable in (*model.variables, *optimizer.variables)]


def compiled(case, optimizer, share=None, **options):
    """The planned step for a budget of what is resident and `share` of what the plain step needs beyond; None: all it can want."""
    import checkmate

    def make(budget):
        options.setdefault("cost_model", "roofline")
        return checkmate.tf2.compile(case.model, case.loss, optimizer, case.inputs, case.labels, budget=budget, **options)

    plain = make("1000%")
    if share is None:
        return plain
    report = plain.report()
    return make(int(report.fixed_bytes + share * (report.plain_peak_bytes - report.fixed_bytes)))


def tightest(case, optimizer):
    """The planned step at the lowest of a few budgets that are feasible."""
    import checkmate

    for share in (0.4, 0.55, 0.7, 0.85):
        try:
            return compiled(case, optimizer, share)
        except (checkmate.InfeasibleBudgetError, checkmate.NoPlanFoundError):
            continue
    raise AssertionError("no budget below the plain step's is feasible")


@pytest.mark.parametrize("name", ["mlp", "cnn", "unet", "transformer", "lstm", "two_inputs", "subclassed"])
def test_five_steps_are_bit_equal_to_the_plain_step(name):
    import keras
    import keras_models

    def run(make):
        keras.utils.set_random_seed(7)
        case = keras_models.ALL[name]()
        optimizer = keras.optimizers.Adam(1e-2)
        step = make(case, optimizer)
        losses = [step(case.inputs, case.labels) for _ in range(5)]
        return losses, variables(case.model, optimizer), step

    plain, plain_variables, _ = run(lambda case, optimizer: plain_step(case.model, case.loss, optimizer))
    ours, our_variables, step = run(tightest)
    assert step.plan.recomputed
    import tensorflow as tf

    for (prediction, loss), (our_prediction, our_loss) in zip(plain, ours, strict=True):
        assert float(loss) == float(our_loss)
        for a, b in zip(tf.nest.flatten(prediction), tf.nest.flatten(our_prediction), strict=True):
            np.testing.assert_array_equal(a, b)
    assert len(plain_variables) == len(our_variables)
    for a, b in zip(plain_variables, our_variables, strict=True):
        np.testing.assert_array_equal(a, b)
