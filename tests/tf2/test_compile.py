"""compile(): the model's own numbers, within the budget, for models of many kinds."""

import functools
import re

import keras
import keras_models
import pytest
import tensorflow as tf
from training import assert_equal, compiled, plain_step, state, tightest

from checkmate import PlanFileError, replay, tf2
from checkmate.tf2.training_step import training_step

pytestmark = pytest.mark.usefixtures("tensorflow")

MODELS = ("cnn", "unet", "transformer", "lstm", "two_inputs", "subclassed")
LARGER = ("unet", "transformer", "lstm", "subclassed")


def three_steps(name, make):
    """(results of three steps, what they leave behind, the step) from the same start."""
    keras.utils.set_random_seed(7)
    case = keras_models.ALL[name]()
    optimizer = keras.optimizers.Adam(1e-2)
    step = make(case, optimizer)
    results = [step(case.inputs, case.labels) for _ in range(3)]
    return results, state(case.model, optimizer), step


@functools.cache
def plain(name):
    return three_steps(name, lambda case, optimizer: plain_step(case.model, case.loss, optimizer))


@functools.cache
def tight(name):
    def planned(case, optimizer):
        step = tightest(case, optimizer)
        assert step.report().predicted_peak_bytes <= step.budget_bytes
        return step

    return three_steps(name, planned)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LARGER)) for name in MODELS]
)
def test_three_steps_are_bit_equal_to_the_plain_step(name):
    expected, expected_state, _ = plain(name)
    results, ours, step = tight(name)
    assert step.plan.recomputed
    assert replay(step.graph, step.plan).peak_bytes <= step.budget_bytes
    assert_equal(results, expected)
    assert_equal(ours, expected_state)
    losses = [float(loss) for _, loss in results]
    assert len(set(losses)) == 3, "nothing is trained"


def test_loops_of_the_forward_pass_may_run_again():
    case = keras_models.lstm()
    step, specs = training_step(case.model, case.loss, "adam", case.inputs, case.labels)
    loops = [op for op in tf2.trace(step, *specs).graph.ops if "While" in op.kind]
    assert len(loops) == 4  # two layers, forward and backward
    assert [op.recomputable for op in loops] == [not op.is_backward for op in loops]


def test_a_plan_above_its_budget_is_told_with_what_others_take(tmp_path):
    case, path = keras_models.ALL["mlp"](), tmp_path / "plan.json"
    compiled(case, keras.optimizers.Adam(), "1GiB").save(path)
    others = tf.zeros([2**26])
    with pytest.raises(PlanFileError) as refusal:
        compiled(case, keras.optimizers.Adam(), "200MiB", plan=path)
    del others
    said = str(refusal.value)
    assert "more than the budget of 200.00 MiB" in said and "-" not in said.split(" takes ")[1]
    assert float(re.search(r"with the ([\d.]+) MiB for", said)[1]) >= 256


def test_with_measured_costs_and_the_default_solver():
    expected, expected_state, _ = plain("mlp")
    results, ours, step = three_steps(
        "mlp",
        lambda case, optimizer: tightest(case, optimizer, cost_model="profile", solver="auto"),
    )
    assert step.plan.recomputed
    assert step.result.stats.solver == "auto"
    assert_equal(results, expected)
    assert_equal(ours, expected_state)
