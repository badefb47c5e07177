"""Loops that train: their bodies run under plans of their own, with the same bits, in less memory,
and lose no batch. Other loops are left as they are."""

import gc
from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf

from checkmate import InfeasibleBudgetError, NoPlanFoundError, PlanFileError
from checkmate.tf2 import function, trace
from checkmate.tf2.graph.operations import has_bodies
from checkmate.tf2.rewrites.training_loops import training_bodies

pytestmark = pytest.mark.usefixtures("tensorflow")

BATCH, WIDTH, DEPTH, TURNS = 2048, 256, 6, 3


class Agent:
    """A net with dropout, its optimizer, and a step of them on a batch."""

    def __init__(self):
        keras.utils.set_random_seed(0)
        layers = [keras.Input((WIDTH,))]
        for _ in range(DEPTH):
            layers += [keras.layers.Dense(WIDTH, activation="gelu"), keras.layers.Dropout(0.1)]
        self.model = keras.Sequential([*layers, keras.layers.Dense(4)])
        self.optimizer = keras.optimizers.Adam()
        self.optimizer.build(self.model.trainable_variables)

    def update(self, x, y):
        weights = self.model.trainable_variables
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.model(x, training=True) - y) ** 2)
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    def state(self):
        return [v.numpy().tobytes() for v in (*self.model.variables, *self.optimizer.variables)]


def batch():
    return tf.random.stateless_normal((BATCH, WIDTH), (1, 2)), tf.ones((BATCH, 4))


def batches():
    """An iterator over batches that all differ."""
    x, y = batch()
    numbers = tf.data.Dataset.range(99).map(lambda k: tf.cast(k, tf.float32))
    return iter(numbers.map(lambda k: (x + k, y * k)))


def epochs(agent):
    update = tf.function(agent.update)

    def step(x, y):
        loss = 0.0
        for _ in tf.range(TURNS):
            loss = update(x, y)
        return loss

    return step, batch()


def as_many_as_told(agent):
    def step(x, y, turns):
        losses = tf.TensorArray(tf.float32, size=turns)
        for k in tf.range(turns):
            losses = losses.write(k, agent.update(x, y))
        return losses.stack()

    return step, (*batch(), tf.constant(TURNS))


def next_of_an_iterator(agent):
    iterator = batches()

    def step():
        loss = 0.0
        for _ in tf.range(TURNS):
            loss = agent.update(*next(iterator))
        return loss

    return step, ()


def over_an_iterator(agent):
    iterator = batches()

    def step():
        count, loss = 0, 0.0
        for x, y in iterator:
            loss = agent.update(x, y)
            count = count + 1
            if count >= TURNS:
                break
        return loss

    return step, ()


def parts_of_a_batch(agent):
    size = BATCH // 2

    def step(x, y):
        loss = 0.0
        for _ in tf.range(2):
            for k in tf.range(2):
                first = k * size
                part = tf.slice(x, [first, 0], [size, WIDTH])
                loss += agent.update(part, tf.slice(y, [first, 0], [size, 4]))
        return loss

    return step, batch()


MAKERS = (epochs, as_many_as_told, next_of_an_iterator, over_an_iterator, parts_of_a_batch)


@pytest.mark.parametrize(
    "make",
    [
        epochs,
        *(pytest.param(each, marks=pytest.mark.slow) for each in MAKERS[1:]),
    ],
)
@pytest.mark.own_process
def test_a_loop_trains_within_the_budget_with_the_same_bits(make):
    expected, plain_peak, state = trained(make, tf.function)
    planned = partial(function, budget="65%", verbose=False)
    found, peak, planned_state = trained(make, planned)
    assert found == expected and planned_state == state
    assert peak < 0.8 * plain_peak


def trained(make, function):
    """What a few steps return, their largest peak, and the state after them."""
    agent = Agent()
    step, arguments = make(agent)
    step, found, peaks = function(step), [], []
    for _ in range(3):
        tf.config.experimental.reset_memory_stats("CPU:0")
        found.append(step(*arguments).numpy().tobytes())
        peaks.append(tf.config.experimental.get_memory_info("CPU:0")["peak"])
    if hasattr(step, "report"):
        report = step.report()
        assert max(peaks) <= step.budget_bytes and report.planned_bodies, str(report)
        assert "its body is planned" in str(report) and report.predicted_slowdown > 1
        with pytest.raises(PlanFileError, match="no file holds plans of bodies"):
            step.save("unused.json")
    state = agent.state()
    del agent, step
    gc.collect()
    return found, max(peaks), state


def bodies(step, *specs):
    traced = trace(step, *specs)
    return [body for o in traced.order if has_bodies(o) for body in training_bodies(traced, o)]


def test_loops_that_only_compute_or_have_a_gradient_are_left():
    weight = tf.Variable(tf.ones((8, 8)))

    def adapted(x):  # as MAML does: a gradient is taken through the turns
        with tf.GradientTape() as outer:
            fast = tf.identity(weight)
            for _ in tf.range(3):
                with tf.GradientTape() as tape:
                    tape.watch(fast)
                    loss = tf.reduce_sum(tf.tanh(x @ fast))
                fast -= 0.1 * tape.gradient(loss, fast)
            loss = tf.reduce_sum(tf.tanh(x @ fast))
        weight.assign_sub(outer.gradient(loss, weight))
        return loss

    def computed(x):
        for _ in tf.range(3):
            x = tf.tanh(x @ weight)
        return x

    def recurrent(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(computed(x))
        weight.assign_sub(tape.gradient(loss, weight))
        return loss

    for step in (adapted, computed, recurrent):
        assert not bodies(step, tf.TensorSpec((8, 8)))


def test_a_body_with_a_shape_that_is_not_known_is_left():
    weight = tf.Variable(tf.ones((8, 8)))

    def step(x):
        for _ in tf.range(3):
            known = tf.boolean_mask(x, x[:, 0] > 0)
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.tanh(known @ weight))
            weight.assign_sub(tape.gradient(loss, weight))
        return x

    assert not bodies(step, tf.TensorSpec((8, 8)))


@pytest.mark.own_process
def test_planning_runs_no_body():
    agent, iterator = Agent(), batches()

    @function(verbose=False, budget="44MiB", cost_model="roofline")
    def step():
        for _ in tf.range(TURNS):
            agent.update(*next(iterator))
        return tf.constant(0.0)

    state = agent.state()
    step.plan_for()
    assert step.report().planned_bodies and agent.state() == state
    np.testing.assert_array_equal(next(iterator)[0], batch()[0])


@pytest.mark.slow
@pytest.mark.own_process
def test_a_refusal_says_what_would_fit():
    step, arguments = epochs(Agent())
    options = {"verbose": False, "cost_model": "roofline", "rewrites": ()}
    options["time_limit_s"] = 3  # so that other work of the machine changes no plan
    with pytest.raises((InfeasibleBudgetError, NoPlanFoundError)) as refusal:
        function(step, *arguments, budget="20MiB", **options)
    budget = int(1.05 * refusal.value.smallest_budget_bytes)  # values lie elsewhere each time
    report = function(step, *arguments, budget=budget, **options).report()
    assert report.planned_bodies and budget < 0.6 * report.plain_peak_bytes
