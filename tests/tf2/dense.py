"""A small dense model and steps of it, for the tests of compile()'s contract."""

import functools
from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf
from unhurried import UNHURRIED

import checkmate
from checkmate import InfeasibleBudgetError, NoPlanFoundError
from checkmate.solvers.search import Search
from checkmate.tf2.memory.budget import MemoryBudget
from checkmate.tf2.options import PlanOptions
from checkmate.tf2.planning.planner import Planner
from checkmate.tf2.planning.request import PlanRequest
from checkmate.tf2.training_step import training_step

BATCH = 1024
HUGE = "64GiB"


def dense_model(width=64, depth=6, **options):
    inputs = x = keras.Input((16,))
    for k in range(depth):
        x = keras.layers.Dense(width, activation="tanh", name=f"layer_{k}", **options)(x)
    return keras.Model(inputs, keras.layers.Dense(4, name="head", **options)(x), name="dense_model")


def tf_strings(shape):
    return tf.fill(shape, "word")


def batch_of(size=BATCH):
    chance = np.random.default_rng(size)
    return chance.normal(size=(size, 16)).astype("float32"), chance.normal(size=(size, 4)).astype(
        "float32"
    )


def compiled(model=None, loss=None, optimizer=None, inputs=None, labels=None, **options):
    """A step of the dense model with mean squared error and SGD, but for what is given; costs take
    no time."""
    x, y = batch_of()
    options = {"cost_model": "roofline", "solver": UNHURRIED, "budget": HUGE, **options}
    return checkmate.tf2.compile(
        dense_model() if model is None else model,
        keras.losses.MeanSquaredError() if loss is None else loss,
        keras.optimizers.SGD(0.1) if optimizer is None else optimizer,
        x if inputs is None else inputs,
        y if labels is None else labels,
        **options,
    )


def tight(make, lowest=60):
    """What `make(budget)` makes at the lowest of a few budgets that are feasible; there it
    recomputes."""
    for percent in (*range(lowest, 100, 10), 95):
        try:
            step = make(f"{percent}%")
        except (InfeasibleBudgetError, NoPlanFoundError):
            continue
        assert step.plan.recomputed
        return step
    raise AssertionError("no budget below the plain step's is feasible")


def nothing_else(patch):
    """Has budgets count the step alone, and nothing else that this process holds."""
    of = MemoryBudget.of

    def of_the_step(*arguments, **options):
        memory = of(*arguments, **options)
        counted = memory.counted_bytes
        return replace(memory, resident_bytes=counted, uncounted_bytes=counted - memory.start_bytes)

    patch.setattr(MemoryBudget, "of", of_the_step)


def planner_of(budget=HUGE, *, explains=True, **options):
    """A planner of the dense model's step with SGD, and the specs of its batch."""
    loss, optimizer = keras.losses.MeanSquaredError(), keras.optimizers.SGD(0.1)
    step, specs = training_step(dense_model(), loss, optimizer, *batch_of())
    options = PlanOptions(budget, **{"cost_model": "roofline", "solver": UNHURRIED, **options})
    return Planner(PlanRequest(step, "dense_model", options, explains=explains)), specs


@functools.cache
def planned():
    """A step that recomputes, for tests that leave it as it is; what else its process holds is not
    counted."""
    with pytest.MonkeyPatch.context() as patch:
        nothing_else(patch)
        return tight(lambda budget: compiled(budget=budget), lowest=40)


class ThenEnds:
    """A solver that offers a plan, proves nothing, and then ends as it is told."""

    name = "then ends"

    def __init__(self, end):
        self.end = end

    def run(self, search):
        apart = Search(search.graph, search.budget_bytes, time_limit_s=10)
        UNHURRIED.run(apart)
        if apart.plan is not None:
            search.offer(apart.plan, by="snapshot")
            self.end()


def raising(error):
    def end():
        raise error

    return end


class Idle:
    name = "idle"

    def run(self, search):
        """Finds nothing."""


def address(variable):
    """Where its content lies: what is read shares the variable's memory, and NumPy that of what is
    read."""
    return np.asarray(memoryview(tf.convert_to_tensor(variable.value))).ctypes.data
