"""Steps in slices: the numbers of the whole batch, within the budget."""

import re
import time
from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf
from sliced_nets import batch
from unhurried import UNHURRIED

import checkmate
from checkmate.tf2.memory.prediction import Predictor

pytestmark = pytest.mark.usefixtures("tensorflow", "alone")


def compiled(budget, micro_batches, examples=16, optimizer="sgd", **more):
    from sliced_nets import batch, loss, net

    made = {
        "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
        "adam": lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.5, use_ema=True),
    }
    model = net(**more.pop("net", {}))
    inputs, labels = batch(examples)
    options = {"cost_model": "roofline", "solver": UNHURRIED, "verbose": False, **more}
    step = checkmate.tf2.compile(
        model,
        loss(),
        made[optimizer](),
        inputs,
        labels,
        budget=budget,
        micro_batches=micro_batches,
        **options,
    )
    return model, step


def trained(step, steps=3, examples=16):
    inputs, labels = batch(examples)
    found = [step(inputs, labels) for _ in range(steps)]
    return np.array([float(loss) for _, loss in found]), found[0][0].numpy()


def assert_close(ours, plain, tolerance=2e-6):
    """Equal but for rounding, in terms of the largest weight."""
    most = max(float(np.max(np.abs(each.numpy()))) for each in plain.trainable_variables)
    for one, other in zip(ours.variables, plain.variables, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=0, atol=tolerance * most)


@pytest.mark.parametrize(
    ("optimizer", "examples"), [("sgd", 14), pytest.param("adam", 16, marks=pytest.mark.slow)]
)
def test_a_step_in_slices_computes_what_the_whole_one_does(optimizer, examples):
    """A shorter last slice counts for its examples."""
    plain, whole = compiled("2GiB", 1, examples=examples, optimizer=optimizer)
    ours, step = compiled("30MiB", 4, examples=examples, optimizer=optimizer)
    micro = step.report().micro_batches
    assert (micro.count, micro.size, micro.examples) == (4, 4, examples)
    losses, prediction = trained(step, examples=examples)
    expected, expected_prediction = trained(whole, examples=examples)
    np.testing.assert_allclose(losses, expected, rtol=1e-6)
    np.testing.assert_allclose(prediction, expected_prediction, rtol=1e-5, atol=1e-6)
    assert_close(ours, plain, 1e-5 if optimizer == "sgd" else 2e-5)


@pytest.mark.own_process
def test_slices_and_recomputation_stay_within_the_budget_together():
    """A slice of eight takes 20 MiB unless it recomputes, and 13 MiB at least."""
    _, step = compiled("18MiB", 4, examples=32)
    report = step.report()
    assert step.plan.recomputed and report.micro_batches.count == 4
    assert report.predicted_peak_bytes <= step.budget_bytes
    assert "in 4 micro-batches of 8 and with" in report.sentence()
    assert "4 slices of 8 examples, of 32" in str(report)
    assert "what Python makes of the batch's size is the whole's" in str(report)
    found = checkmate.tf2.verify(step, batch(32))
    assert found.ok, found
    assert found.planned_evaluations > len(step.graph)


@pytest.mark.slow
def test_verify_notices_a_slice_that_is_left_out():
    _, step = compiled("40MiB", 4)
    written = step.planned.run.in_slices
    written = replace(written, slices=list(written.slices)[:-1])
    run = replace(step.planned.run, in_slices=written)
    step._main.planned = replace(step.planned, run=run)
    assert not checkmate.tf2.verify(step, batch()).ok


def test_auto_takes_the_cheapest_number_of_slices_and_bounds_all(monkeypatch, capfd):
    """Also within what is free, where the step that is not split would run unchanged, whatever it
    takes."""
    monkeypatch.setattr("checkmate.tf2.planning.request.auto_budget", lambda device: 14 << 20)
    started = time.perf_counter()
    _, step = compiled("auto", "auto", verbose=True)
    elapsed, report = time.perf_counter() - started, step.report()
    assert report.micro_batches.count > 1
    assert 0.6 * elapsed < sum(report.seconds.values()) < elapsed
    last = capfd.readouterr().err.splitlines()[-1]
    name, line, seconds = re.fullmatch(r"(\w+): (.*) \(([\d.]+) s\)", last).groups()
    assert (name, line) == (report.name, report.in_a_line())
    assert float(seconds) == pytest.approx(sum(report.seconds.values()), rel=0.1, abs=0.2)
    assert report.predicted_peak_bytes <= step.budget_bytes == 14 << 20
    tried = {each.count: each for each in report.tried_slices}
    costs = [each.cost for each in tried.values() if each.cost is not None]
    assert report.micro_batches.count in tried
    assert report.micro_batches.cost == min(costs)
    assert all(each.bound <= (each.cost or np.inf) for each in tried.values())
    assert "micro-batches" in report.sentence() and "looked at" in str(report)


def test_auto_leaves_alone_what_fits_and_its_plan_is_for_no_slices(tmp_path):
    _, step = compiled("2GiB", "auto")
    assert step.report().micro_batches is None and step.result is None
    step.save(tmp_path / "plan.json")
    with pytest.raises(checkmate.PlanFileError, match="is for a whole batch, and a batch of 16 in"):
        compiled("2GiB", 2, plan=tmp_path / "plan.json")


def test_auto_does_not_split_what_is_bound_together_and_names_the_op():
    norm = {"norm": keras.layers.BatchNormalization}
    _, step = compiled("70%", "auto", net=norm)
    report = step.report()
    assert report.micro_batches is None and step.plan.recomputed
    assert "batch_normalization" in report.notes[-1] and "not split" in report.notes[-1]
    with pytest.raises(checkmate.CheckmateError, match="batch_normalization"):
        compiled("10MiB", "auto", net=norm, rewrites=())


@pytest.mark.slow
def test_a_smaller_batch_runs_in_slices_of_the_same_size():
    plain, whole = compiled("2GiB", 1)
    ours, step = compiled("30MiB", 4)
    for examples in (8, 3):
        losses, _ = trained(step, 1, examples)
        expected, _ = trained(whole, 1, examples)
        np.testing.assert_allclose(losses, expected, rtol=1e-6)
    assert_close(ours, plain)


@pytest.mark.slow
def test_one_op_does_not_set_the_least_budget():
    with pytest.raises(checkmate.CheckmateError, match='micro_batches="auto"'):
        compiled("12MiB", 1)
    _, step = compiled("12MiB", "auto")
    assert step.report().predicted_peak_bytes <= step.budget_bytes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "micro_batches", "budget"), [("plan.json", 4, "40MiB"), ("folder", "auto", "14MiB")]
)
def test_a_plan_in_slices_is_kept_in_a_file(tmp_path, name, micro_batches, budget):
    if name == "folder":
        _, step = compiled(budget, micro_batches, plan=tmp_path / name)
        assert step.kept_at.exists()
    else:
        _, step = compiled(budget, micro_batches)
        step.save(tmp_path / name)
    _, again = compiled(budget, micro_batches, plan=tmp_path / name)
    assert again.plan == step.plan
    assert again.report().micro_batches.count == step.report().micro_batches.count
    assert any("The plan is from" in note for note in again.report().notes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("budget", "micro_batches", "norm"),
    [("45%", 4, "LayerNormalization"), ("70%", "auto", "BatchNormalization")],
)
def test_a_share_is_one_of_what_the_plain_step_took_when_the_plan_was_made(
    tmp_path, monkeypatch, budget, micro_batches, norm
):
    """What it is predicted to take differs a little with what is in use. Batches of the second net
    are not split."""

    def planned(budget, **more):
        net = {"norm": getattr(keras.layers, norm)}
        return compiled(budget, micro_batches, net=net, **more)[1]

    step = planned(budget)
    assert (step.report().micro_batches is None) == (micro_batches == "auto")
    step.save(tmp_path / "plan.json")
    predicted = Predictor.plain_peak_bytes
    monkeypatch.setattr(Predictor, "plain_peak_bytes", lambda self: predicted(self) * 8 // 10)
    again = planned(budget, plan=tmp_path / "plan.json")
    assert again.plan == step.plan
    assert again.budget_bytes == pytest.approx(step.budget_bytes, abs=2**16)
    with pytest.raises(checkmate.PlanFileError):
        planned("20%", plan=tmp_path / "plan.json")


@pytest.mark.slow
def test_random_numbers_of_slices_are_said():
    def step(x):
        noise = tf.random.normal(x.shape)
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tf.tanh(x) * noise)
        return tape.gradient(loss, x)

    function = checkmate.tf2.function(step, budget="1GiB", micro_batches=4, verbose=False)
    function(tf.ones((16, 1 << 14)))
    assert any("are drawn for each slice" in note for note in function.report().notes)


def test_a_number_by_hand_is_refused_with_what_would_help():
    with pytest.raises(checkmate.CheckmateError, match="More micro-batches"):
        compiled("5MiB", 2)


def test_a_step_that_only_writes_is_told_to_return_something():
    total = tf.Variable(tf.zeros((8, 8)))

    def step(x):
        total.assign_add(tf.matmul(tf.tanh(x), tf.tanh(x), transpose_a=True))

    with pytest.raises(checkmate.CheckmateError, match="Return a value that it computes"):
        checkmate.tf2.function(step, tf.TensorSpec((4, 8)), budget="1GiB", micro_batches=2)


def test_a_batch_of_one_is_not_said_to_be_tried_in_slices():
    def step(x):
        return tf.reduce_sum(tf.tanh(tf.tanh(x @ tf.ones((64, 64))) @ tf.ones((64, 64))))

    with pytest.raises(checkmate.CheckmateError, match="too few examples"):
        checkmate.tf2.function(
            step, tf.TensorSpec((1, 640, 64)), budget="100KiB", micro_batches="auto"
        )
