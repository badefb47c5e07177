"""The executor: whatever legal plan it replays, the results are the step's, and the evaluations are
the plan's."""

import collections
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from plans import random_plan, repeating
from steps import STEPS, N, seeded_dropout, square
from training import assert_equal

from checkmate import Plan, replay
from checkmate.tf2 import trace
from checkmate.tf2.execution.replay import Replayed
from checkmate.tf2.graph import bodies
from checkmate.tf2.graph.operations import is_loop, is_stateful, role_of
from checkmate.tf2.memory.profiler import observe
from checkmate.tf2.ops.rule import Role
from checkmate.tf2.training_step import as_spec

pytestmark = pytest.mark.usefixtures("tensorflow")


def traced(step, arguments):
    return trace(tf.function(step, autograph=False), *as_spec(arguments))


def run_twice(function, arguments, variables):
    """Results of two runs and what they leave in the variables, which are put back."""
    saved = [variable.numpy() for variable in variables]
    try:
        return [function(*arguments) for _ in range(2)], [
            variable.numpy() for variable in variables
        ]
    finally:
        for variable, value in zip(variables, saved, strict=True):
            variable.assign(value)


def replayed(found, plan):
    """The function that runs a plan, called with the arguments of the step."""
    run = Replayed(found, plan)
    return lambda *arguments: run(*map(tf.convert_to_tensor, tf.nest.flatten(arguments)))


PLANS = {
    "keep_all": Plan.keep_all,
    "repeating": repeating,
    **{f"random_{seed}": lambda graph, seed=seed: random_plan(graph, seed) for seed in range(3)},
}


@pytest.mark.parametrize("make", STEPS, ids=lambda make: make.__name__)
def test_every_plan_gives_the_results_of_the_step(make):
    step, arguments, variables = make()
    found = traced(step, arguments)
    expected = run_twice(found.function, arguments, variables)
    if variables:
        assert any(
            not np.array_equal(a, b)
            for a, b in zip(expected[1], [v.numpy() for v in variables], strict=True)
        ) or not any(
            operation.type.startswith("Assign")
            for operation in found.function.graph.get_operations()
        )
    for name, plan_of in PLANS.items():
        plan = plan_of(found.graph)
        replay(found.graph, plan)
        assert bool(plan.recomputed) >= (name == "repeating"), "nothing here can be repeated"
        assert_equal(run_twice(replayed(found, plan), arguments, variables), expected)


def made_of_constants(operation):
    """TensorFlow evaluates such ops when it builds the function, and never again."""
    return bool(operation.inputs) and all(
        tensor.op.type == "Const"
        or role_of(tensor.op) is Role.SHAPE
        or made_of_constants(tensor.op)
        for tensor in operation.inputs
    )


@pytest.mark.parametrize("make", STEPS, ids=lambda make: make.__name__)
def test_what_runs_is_what_the_plan_says(make):
    step, arguments, _ = make()
    found = traced(step, arguments)
    plan = repeating(found.graph)
    run = replayed(found, plan)
    run(*arguments)
    ran_ops = observe(lambda: run(*arguments)).ran
    seen = {
        (name.split("/", 1)[1], kernel): times
        for (name, kernel), times in ran_ops.items()
        if "/evaluation_" in name
    }
    folded, expected = set(), set()
    for i, times in collections.Counter(plan.computed).items():
        for operation in found.groups[i]:
            names = {f"{operation.name}/evaluation_{k}" for k in range(times)}
            (folded if made_of_constants(operation) else expected).update(names)
            assert (
                times == 1
                or not is_stateful(operation)
                or bodies.only_reads(found.function.graph, operation)
            )
    # A call of a function is replaced by the ops inside of it: X/evaluation_k/op.
    ran = {re.match(r"(?:planned/)?(.*?/evaluation_[0-9]+)", name)[1] for name, _ in seen} - folded
    # oneDNN runs a convolution within the kernel of its bias where nobody else reads that
    # evaluation, and the bias' gradient in the filter's.
    fused = sorted(
        name for name in expected - ran if name.startswith("Conv2D") or "BiasAddGrad" in name
    )
    assert len(fused) == sum("WithBias" in kernel for _, kernel in seen)
    assert ran | set(fused) == expected
    assert any("/evaluation_1" in name for name in ran)
    loops = tuple(
        f"{operation.name}/evaluation_"
        for group in found.groups
        for operation in group
        if is_loop(operation)
    )
    more = [
        name
        for (name, _), times in seen.items()
        if times > 1 and not name.removeprefix("planned/").startswith(loops)
    ]
    assert not more, "ops of the plan that ran more than once for one evaluation"


def test_dropout_is_among_what_is_repeated():
    step, arguments, _ = seeded_dropout()
    graph = traced(step, arguments).graph
    assert any("StatelessRandom" in graph.ops[i].kind for i in repeating(graph).recomputed)


def test_a_side_effect_happens_once():
    seen = []

    def look(x):
        seen.append(float(x[0, 0]))
        return x

    def step(x):
        a = tf.sin(x)
        b = tf.ensure_shape(tf.numpy_function(look, [a], tf.float32), (N, N))
        return tf.exp(a) @ tf.cos(b) + a, b

    found = traced(step, (square(1),))
    plan = repeating(found.graph)
    assert plan.recomputed
    replayed(found, plan)(square(1))
    assert len(seen) == 1


def test_a_failing_assertion_still_fails():
    def step(x):
        tf.debugging.assert_less(x, 100.0)
        return tf.sin(x) @ x

    found = traced(step, (square(1),))
    run = replayed(found, Plan.keep_all(found.graph))
    run(square(1))
    with pytest.raises(tf.errors.InvalidArgumentError):
        run(square(1) + 1000)


@pytest.mark.slow
def test_recomputation_between_convolution_bias_and_their_gradients_closes_no_cycle():
    """With Grappler and oneDNN on, both of which fuse convolution and bias, forward and
    backward."""
    here = Path(__file__).parent
    script = f"""
import sys
sys.path[:0] = [{str(here)!r}, {str(here.parent)!r}]
import numpy as np, tensorflow as tf
from checkmate import Plan
from plans import random_plan, repeating
from steps import convolutions
from test_execution import replayed, run_twice, traced
step, arguments, variables = convolutions()
found = traced(step, arguments)
expected = run_twice(found.function, arguments, variables)
graph = found.graph
for plan in (Plan.keep_all(graph), repeating(graph), *(random_plan(graph, k) for k in range(6))):
    got = run_twice(replayed(found, plan), arguments, variables)
    for a, b in zip(tf.nest.flatten(expected), tf.nest.flatten(got), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
print("the same")
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        cwd=here.parents[1],
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["the", "same"]
