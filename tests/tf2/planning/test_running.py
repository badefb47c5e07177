"""Planning runs no step; the first real ones confirm it, and lead to another plan where they take
more than the budget."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import tensorflow as tf
from dense import planned, planner_of
from training import planned_function

from checkmate.tf2.execution.replay import Replayed
from checkmate.tf2.memory.prediction import Peak, Predictor
from checkmate.tf2.planning.budget_loop import TUNING
from checkmate.tf2.planning.request import Reason
from checkmate.tf2.planning.running import RunningStep
from checkmate.tf2.planning.store import path_of

pytestmark = pytest.mark.usefixtures("tensorflow", "alone")

WIDTH, ROWS = 256, 4096


class Chain:
    """A training step of dense layers on 4,096 rows of 256 numbers: 4 MiB for each value."""

    def __init__(self, depth=8, dropout=0.0):
        self.dropout = dropout
        self.weights = [
            tf.Variable(tf.random.stateless_normal((WIDTH, WIDTH), (k, 1)) / 16)
            for k in range(depth)
        ]
        self.count = tf.Variable(0, dtype=tf.int64)
        self.x = tf.random.stateless_normal((ROWS, WIDTH), (1, 2))

    def step(self, x):
        self.count.assign_add(1)
        with tf.GradientTape() as tape:
            h = x
            for weight in self.weights:
                h = tf.tanh(h @ weight)
                if self.dropout:  # the state is the kernel's
                    h = tf.nn.dropout(h, self.dropout, seed=1)
            loss = tf.reduce_mean(h * h)
        for weight, gradient in zip(self.weights, tape.gradient(loss, self.weights), strict=True):
            weight.assign_sub(0.1 * gradient)
        return loss

    def planned(self, budget="60%", **options):
        return planned_function(self.step, self.x, budget=budget, **options)

    def state(self):
        return [variable.numpy().tobytes() for variable in (*self.weights, self.count)]


def test_no_step_runs_before_the_first_call():
    chain = Chain()
    before = chain.state()
    step = chain.planned()
    first = step.planned
    assert step.plan.recomputed and chain.state() == before
    report = step.report()
    assert report.steps == 0 and report.measured_peak_bytes is None
    assert "no step ran yet" in str(report) and "(both predicted)" in report.sentence()
    for k in range(1, 4):
        step(chain.x)
        assert int(chain.count) == k and step.report().steps == k
    assert step.planned is first, "the plan was confirmed"
    assert "measured in 3 steps" in str(step.report())
    assert step.report().step_seconds > 0


def test_steps_take_what_was_predicted():
    step = Chain().planned()
    for _ in range(4):
        step(Chain().x)
    report = step.report()
    assert report.measured_peak_bytes <= report.budget_bytes
    # Batches that a pipeline may make are set aside, and here each is there while the next is made.
    ahead = report.memory.next_batch_bytes
    assert report.measured_peak_bytes <= report.predicted_peak_bytes
    assert report.predicted_peak_bytes - ahead <= 1.01 * report.measured_peak_bytes


@pytest.fixture
def predicted(monkeypatch):
    """Has predictions say that a step takes this share of what it takes, but for corrections."""
    peak = Predictor.peak

    def of(share):
        def less(self, plan):
            found = peak(self, plan)
            missing = int((1 - share) * found.rise_bytes)
            return Peak(found.bytes - missing, found.rise_bytes - missing)

        monkeypatch.setattr(Predictor, "peak", less)

    return of


@pytest.fixture
def failing(monkeypatch):
    """Has runs of a step raise these errors, one each, and then go on."""
    run = Replayed.__call__

    def of(*errors, before=lambda: None):
        ahead = iter(errors)

        def call(self, *flat):
            for error in ahead:
                before()
                raise error
            return run(self, *flat)

        monkeypatch.setattr(Replayed, "__call__", call)

    return of


def test_a_step_above_the_budget_is_said_and_the_next_runs_lower(predicted, caplog):
    predicted(0.5)
    chain = Chain()
    step = chain.planned("70%")
    first, same = step.planned, chain.planned("70%")
    same(chain.x)
    assert same.plan == step.plan
    less = same.report().measured_peak_bytes - 4 * 2**20
    del same
    step._planner.budget_bytes = step._main.budget_bytes = less  # a step takes more than that
    with caplog.at_level(logging.WARNING, "checkmate"):
        step(chain.x)
    assert "Step 1 of" in caplog.text and "more than the budget" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING, "checkmate"):
        for _ in range(3):
            step(chain.x)
    assert step.planned is not first and not caplog.text
    assert step.report().measured_peak_bytes <= step.budget_bytes
    assert int(chain.count) == 5


def test_a_step_that_has_drawn_from_its_kernels_state_keeps_its_plan(caplog):
    """Another plan would draw the first numbers again."""
    chain, reference = Chain(dropout=0.3), Chain(dropout=0.3)
    tf.random.set_seed(1)
    step = chain.planned("70%")
    first = step.planned
    ours = [step(chain.x).numpy()]
    step._main.budget_bytes = 2**20  # each step takes more than that
    with caplog.at_level(logging.WARNING, "checkmate"):
        ours += [step(chain.x).numpy() for _ in range(3)]
    tf.random.set_seed(1)
    plain = tf.function(reference.step)
    np.testing.assert_array_equal(ours, [plain(reference.x).numpy() for _ in range(4)])
    assert step.planned is first and caplog.text.count("has drawn random numbers") == 1


def test_steps_that_take_less_lead_to_a_cheaper_plan_once(predicted, monkeypatch):
    from checkmate.tf2.planning import running

    predicted(1.3)
    monkeypatch.setattr(running.RunningStep, "_may_be_cheaper", lambda self: self.correction < 0.97)
    chain = Chain()
    step = chain.planned("70%")
    dear = step.result.cost
    plans = set()
    for _ in range(6):
        step(chain.x)
        plans.add(step.planned)
    assert len(plans) <= 2 and step.result.cost < dear
    assert step.report().measured_peak_bytes <= step.budget_bytes


def test_a_step_that_runs_out_of_memory_is_done_again_lower(failing, caplog):
    """Its state is as before it, so that it counts once."""
    chain, reference = Chain(), Chain()
    step = chain.planned()
    first = step.planned
    name = next(o.name for o in step.planned.traced.groups[4])
    message = f"OOM\n\t [[{{{{node planned/{name}/evaluation_0}}}}]]"
    failing(
        tf.errors.ResourceExhaustedError(None, None, message),
        before=lambda: chain.count.assign_add(1),
    )
    plain = tf.function(reference.step)
    for _ in range(2):
        np.testing.assert_array_equal(step(chain.x).numpy(), plain(reference.x).numpy())
    assert chain.state() == reference.state() and step.planned is not first
    assert "ran out of memory" in caplog.text


def test_a_step_that_cannot_be_undone_says_what_may_have_changed(failing):
    chain = Chain()
    step = chain.planned()
    failing(tf.errors.ResourceExhaustedError(None, None, "OOM, nobody knows where"))
    with pytest.raises(tf.errors.ResourceExhaustedError, match="may have changed: Variable"):
        step(chain.x)


def test_an_error_of_the_step_is_the_users_own_and_the_plan_stays(failing):
    chain = Chain()
    step = chain.planned()
    first, mine = step.planned, [KeyboardInterrupt()]
    for kind in (tf.errors.InvalidArgumentError, tf.errors.OutOfRangeError):
        mine.append(kind(None, None, "mine"))
    failing(*mine)
    for error in mine:
        with pytest.raises(type(error)) as caught:
            step(chain.x)
        assert caught.value is error
    step(chain.x)
    assert step.planned is first and int(chain.count) == 1


def test_what_comes_to_be_in_use_leads_to_another_plan_before_it_is_above(caplog):
    chain = Chain()
    step = chain.planned("75%")
    step(chain.x)
    first = step.planned
    held = tf.zeros((6, ROWS, WIDTH))
    with caplog.at_level(logging.INFO, "checkmate"):
        step(chain.x)
    assert step.planned is not first and "with what is in use now" in caplog.text
    report = step.report()
    assert report.measured_peak_bytes <= step.budget_bytes
    assert report.in_a_line().endswith("MiB too much with what is in use now")
    assert "planned anew" in report.in_a_line()
    assert "note: The step was planned anew. 'step' may take" in str(report)
    del held


def test_a_step_that_just_fits_runs_in_order_and_one_that_fits_well_unchanged():
    """In plain TensorFlow ops run when they can, and a few of the largest values can come to be in
    memory together."""
    chain = Chain()
    plain = chain.planned("1000%").report().plain_peak_bytes
    value = 4 * ROWS * WIDTH
    tight = chain.planned(plain + value).report()
    assert tight.result is not None and not tight.result.plan.recomputed
    assert tight.expected_peak_bytes <= plain + value
    loose = chain.planned(plain + (TUNING.plain_values + 1) * value).report()
    assert loose.result is None


@pytest.mark.slow
@pytest.mark.own_process
def test_constants_come_with_the_first_step_and_are_no_rise_of_it():
    chain = Chain()
    large = np.random.default_rng(0).random((2 * ROWS, WIDTH)).astype("float32")  # 8 MiB

    def step(x):
        return chain.step(x + tf.constant(large)[:ROWS])

    found = planned_function(step, chain.x, budget="75%")
    running = RunningStep(found.planned, found.budget_bytes, "step")
    running(chain.x)
    assert running.rise_bytes <= 1.02 * found.planned.rise_bytes


def test_a_plan_made_anew_takes_the_place_of_that_in_the_folder(tmp_path):
    """As steps took more than was predicted."""
    planner, specs = planner_of(int(1.2 * planned().budget_bytes), plan=tmp_path)
    first = planner.plan(specs)
    path = path_of(planner.request, first.traced)
    left = path.read_bytes()
    again = planner.anew(first, specs, (), Reason("It took more.", "more", 1.1))
    assert "solving" in again.report.seconds, "planned, and not taken from the folder"
    assert path.read_bytes() != left


def test_where_no_other_plan_is_found_training_goes_on_under_the_first_with_a_warning(caplog):
    planner, specs = planner_of(int(1.2 * planned().budget_bytes))
    first = planner.plan(specs)
    assert planner.anew(first, specs, (), Reason("It took more.", "more", 3.0)) is first
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1 and warnings[0].startswith("It took more. No other plan")
