"""Loops in segments: the same bits, whatever a plan computes again, and less memory.
A loop that cannot be divided is left as it is."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from loops import DIVIDED, EXAMPLES, LEFT, SHAPE, TURNS, UNITS
from plans import random_plan

from checkmate.core.allocator import rounded_up
from checkmate.core.replay import replay
from checkmate.solvers.solve import solve
from checkmate.tf2 import trace
from checkmate.tf2.execution.replay import Replayed
from checkmate.tf2.graph.operations import is_loop
from checkmate.tf2.rewrites.segments import in_segments, pairs_of, segmented

LOOPS = {"While", "StatelessWhile"}
pytestmark = pytest.mark.usefixtures("tensorflow")


QUICK = ("gru", "convolutional")


def batch():
    return tf.random.stateless_normal(SHAPE, (3, 4))


@pytest.fixture
def traced():
    """Traces a step, whose variables live as long as the test."""
    steps = []

    def traced(make):
        keras.utils.set_random_seed(0)
        steps.append(make())
        return trace(steps[-1], tf.TensorSpec(SHAPE))

    return traced


def names(found):
    return [pair.forward.operation.name for pair in pairs_of(found)]


def loops(found):
    return sum(map(is_loop, found.flat.graph.get_operations()))


def numbers(found, plan, *arguments, steps=2):
    """What a plan returns and leaves in variables, in a few steps from the same state."""
    before = [variable.numpy() for variable in found.variables]
    run, results = Replayed(found, plan), []
    for _ in range(steps):
        results += [each.numpy() for each in tf.nest.flatten(run(*arguments))]
    results += [variable.numpy() for variable in found.variables]
    for variable, value in zip(found.variables, before, strict=True):
        variable.assign(value)
    return [each.tobytes() for each in results]


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n not in QUICK)) for n in DIVIDED]
)
def test_every_bit_is_the_same(traced, name):
    found = traced(DIVIDED[name])
    expected = numbers(found, found.plain_plan(), batch())
    for count in (2, 3, 8):
        parts = in_segments(found, dict.fromkeys(names(found), count))
        assert loops(parts) > loops(found)
        assert numbers(parts, parts.plain_plan(), batch()) == expected
    for seed in range(2):
        assert numbers(parts, random_plan(parts.graph, seed), batch()) == expected


@pytest.mark.parametrize("name", LEFT)
def test_others_are_left_as_they_are(traced, name):
    found = traced(LEFT[name])
    assert loops(found) and not pairs_of(found)
    assert segmented(found, 1) is None


def two_lstms():
    keras.utils.set_random_seed(0)
    layers = [keras.layers.LSTM(128, return_sequences=True), keras.layers.LSTM(128)]
    model = keras.Sequential([keras.Input((256, 64)), *layers, keras.layers.Dense(1)])

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        return loss, tape.gradient(loss, model.trainable_variables)

    return step, (tf.random.normal((32, 256, 64)), tf.random.normal((32, 1)))


def risen_bytes(run, *arguments):
    """The least that the allocator's peak rises in a step, after a first one."""
    run(*arguments)
    risen = []
    for _ in range(3):
        tf.config.experimental.reset_memory_stats("CPU:0")
        before = tf.config.experimental.get_memory_info("CPU:0")["current"]
        run(*arguments)
        risen.append(tf.config.experimental.get_memory_info("CPU:0")["peak"] - before)
    return min(risen)


@pytest.mark.own_process
@pytest.mark.parametrize("share", (0.45, 0.3))
def test_the_allocator_sees_less(share):
    step, arguments = two_lstms()
    found = trace(step, *arguments)
    plain = risen_bytes(tf.function(step), *arguments)
    stacks = max(pair.stack_bytes for pair in pairs_of(found))
    parts = segmented(found, -(-stacks // 8))
    assert loops(parts) == 2 * 2 * 8
    budget = int(share * plain)
    plan = solve(parts.graph, budget, time_limit_s=20).plan
    assert risen_bytes(Replayed(parts, plan), *arguments) <= replay(parts.graph, plan).peak_bytes
    assert numbers(parts, plan, *arguments, steps=1) == numbers(
        found, found.plain_plan(), *arguments, steps=1
    )


def test_stacks_are_as_large_as_segments_are_long(traced):
    found = traced(DIVIDED["lstm"])
    first = names(found)[0]
    parts = in_segments(found, {first: 3})
    sizes = [op.output_bytes for op in parts.graph.ops if op.kind == "While" and first in op.name]
    assert len(sizes) == 3 and max(sizes) < 1.5 * min(sizes)
    whole = next(op.output_bytes for op in found.graph.ops if op.name == first)
    assert np.isclose(sum(sizes), whole, rtol=0.2)


def test_segments_of_a_loop_that_keeps_its_state_may_run_again(traced):
    """The state is written to right after the loop, which has read it."""
    parts = in_segments(found := traced(DIVIDED["stateful"]), dict.fromkeys(names(found), 3))
    again = {op.name.rpartition("/")[2] for op in parts.graph.ops if op.recomputable}
    assert {"part_0", "part_1", "part_2"} <= again


def test_a_state_that_is_the_result_counts_with_the_stacks(traced):
    """The list of results and the stack for the gradient have the same entries, and the stack is
    there for longer."""
    found = traced(DIVIDED["rnn"])
    (pair,) = pairs_of(found)
    assert pair.stack_bytes >= TURNS * rounded_up(4 * EXAMPLES * UNITS)


def test_zeros_for_a_list_are_made_right_before_the_loop_that_replaces_them(traced):
    """They take as much memory as the list, and count as the loop's."""
    ops = traced(DIVIDED["bidirectional"]).graph.ops
    zeros = [k for k, op in enumerate(ops) if op.kind == "ZerosLike"]
    assert zeros
    for k in zeros:
        assert ops[k].recomputable, "so it may wait"
        reader = next(j for j, op in enumerate(ops) if k in op.deps)
        assert not [op.name for op in ops[k + 1 : reader] if op.kind in LOOPS]
