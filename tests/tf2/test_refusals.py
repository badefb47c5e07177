"""What compile() refuses, and how it says so."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from dense import (
    BATCH,
    Idle,
    ThenEnds,
    batch_of,
    compiled,
    dense_model,
    planned,
    planner_of,
    raising,
)

import checkmate
from checkmate import (
    InfeasibleBudgetError,
    NoPlanFoundError,
    SolverFailedError,
    SolveStatus,
    floor,
    replay,
)
from checkmate.tf2.planning import refusal
from checkmate.tf2.planning.plan_search import PlanSearch
from checkmate.tf2.planning.refusal import needs_apart
from checkmate.units import format_bytes

# Budgets are those of a step made before.
pytestmark = pytest.mark.usefixtures("tensorflow", "alone")


@pytest.fixture
def predicted_low(monkeypatch):
    """Has half of the budget be the predicted peak of each plan, whatever the allocator loses."""
    predict = PlanSearch._predict

    def low(self, candidate):
        predict(self, candidate)
        candidate.expected_bytes = self.memory.limit_bytes // 2

    monkeypatch.setattr(PlanSearch, "_predict", low)


def quickly(budget, **options):
    """Plans the step; a refusal does not look for what would fit."""
    planner, specs = planner_of(budget, explains=False, **options)
    return planner.plan(specs)


def uncounted(text):
    """A text without the numbers that Keras gives to the optimizers of a process."""
    return re.sub(r"\bsgd_\d+/", "sgd/", text)


@pytest.mark.own_process
@pytest.mark.slow
@pytest.mark.parametrize("written", [int, format_bytes])
@pytest.mark.parametrize("kept", [False, True])
def test_the_advice_of_a_budget_below_the_floor_works(kept, written):
    """A notebook keeps the last refusal, and what its frames hold."""
    step = compiled()
    budget = floor(step.graph).bytes - 10_000
    with pytest.raises(InfeasibleBudgetError) as caught:
        compiled(budget=budget)
    error = caught.value if kept else caught.value.with_traceback(None)
    del caught
    assert error.budget_bytes == budget
    assert error.floor_bytes > error.budget_bytes
    assert error.shortfall_bytes == error.floor_bytes - error.budget_bytes
    lowest = max(needs_apart(step.planned.traced, step.graph), key=lambda need: need.bytes)
    assert error.op == lowest.op
    assert uncounted(error.op_name) == uncounted(step.graph.ops[error.op].name)
    assert error.op_name in str(error)
    assert "'dense_model'" in str(error)
    assert uncounted(max(lowest.values)[1]) in uncounted(str(error))
    assert (
        f"budget that a plan was found for is {format_bytes(error.smallest_budget_bytes)}"
        in str(error)
    )
    assert compiled(budget=written(error.smallest_budget_bytes)).plan.recomputed
    batch, within = re.search(r"a batch of at most (\d+) within ([\d.]+ \w+)", str(error)).groups()
    assert 1 <= int(batch) < BATCH
    x, y = batch_of(int(batch))
    compiled(inputs=x, labels=y, budget=within)


def test_a_solver_that_fails():
    class Failing(ThenEnds):
        def run(self, search):
            self.end()

    with pytest.raises(SolverFailedError, match="broke"):
        compiled(
            budget=planned().budget_bytes, solver=Failing(raising(SolverFailedError("it broke")))
        )


def test_a_solver_that_fails_after_it_found_a_plan(predicted_low):
    step = compiled(
        budget=int(1.2 * planned().budget_bytes),
        solver=ThenEnds(raising(SolverFailedError("it broke"))),
    )
    assert step.plan.recomputed


def test_a_solver_that_finds_nothing():
    with pytest.raises(NoPlanFoundError) as caught:
        compiled(budget=planned().budget_bytes, solver=Idle())
    assert caught.value.best_peak_bytes is not None
    # It finds nothing but the plain step.
    assert caught.value.smallest_budget_bytes > planned().budget_bytes
    batch = int(re.search(r"a batch of at most (\d+)", str(caught.value))[1])
    assert batch <= BATCH * planned().budget_bytes // caught.value.smallest_budget_bytes


def test_what_is_proven_of_one_order_of_ops_is_no_proof_for_a_step():
    class ProvesOfItsOrder(Idle):
        def run(self, search):
            search.prove_infeasible("not in this order.")

    with pytest.raises(NoPlanFoundError, match="in this order of ops"):
        quickly(planned().budget_bytes, solver=ProvesOfItsOrder())
    with pytest.raises(NoPlanFoundError, match="solver 'idle' found none"):
        quickly(planned().budget_bytes, solver=Idle())


def test_what_need_not_be_in_memory_together_proves_nothing():
    """Small values count as resident, and batches that a pipeline may make are reckoned with;
    neither is part of what a proof says is needed."""
    step = compiled()
    lowest, small = floor(step.graph).bytes, step.planned.traced.small_bytes
    assert 0 < small < 0.05 * lowest
    with pytest.raises(NoPlanFoundError, match="with small values"):
        quickly(lowest - small)
    with pytest.raises(InfeasibleBudgetError) as caught:
        quickly(lowest - small - 1)
    assert caught.value.floor_bytes == lowest - small


def test_a_plan_that_is_found_for_another_budget_is_taken(predicted_low):
    """What a search finds is not monotone in the budget; without this the refusal named a budget
    that was refused in turn."""
    low, graph = planned().plan, planned().graph
    needed = replay(graph, low).peak_bytes

    class FindsItForMore(Idle):
        def run(self, search):
            if search.budget_bytes > 1.2 * needed:
                search.offer(low, by="here")

    ahead = planned().report().memory.next_batch_bytes
    step = compiled(budget=int(1.15 * needed) + ahead, solver=FindsItForMore())
    assert step.plan == low
    assert step.result.bound == pytest.approx(step.graph.total_cost)


def test_ctrl_c_takes_the_best_plan(predicted_low):
    step = compiled(
        budget=int(1.2 * planned().budget_bytes), solver=ThenEnds(raising(KeyboardInterrupt))
    )
    assert step.result.status is SolveStatus.INTERRUPTED
    assert step.plan.recomputed
    assert np.isfinite(float(step(*batch_of())[1]))


def test_ctrl_c_before_any_plan():
    class Interrupted(Idle):
        def run(self, search):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compiled(budget=planned().budget_bytes, solver=Interrupted())


def test_advice_at_a_batch_of_one_or_where_variables_bind():
    def message(batch, budget):
        x, y = batch_of(batch)
        with pytest.raises((InfeasibleBudgetError, NoPlanFoundError)) as caught:
            compiled(inputs=x, labels=y, budget=budget, time_limit_s=1)
        return str(caught.value)

    assert "are resident whatever the batch." in message(1, 1000)
    assert "resident whatever the batch" in message(BATCH, 1000)
    weights = 4 * dense_model().count_params()
    single = message(1, int(1.25 * weights))
    assert single.endswith("Raise the budget.") or single.endswith("Raise the budget to that.")


def test_the_gradient_of_a_dense_layer_names_the_keras_that_has_a_smaller_one(monkeypatch):
    kernel = tf.Variable(tf.ones((64, 64)))

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.matmul(x, kernel) ** 2)  # as Dense does before Keras 3.15
        kernel.assign_sub(tape.gradient(loss, kernel))
        return loss

    def message():
        options = {"cost_model": "roofline", "budget": "1MiB", "time_limit_s": 1}
        with pytest.raises((InfeasibleBudgetError, NoPlanFoundError)) as caught:
            checkmate.tf2.function(step, tf.TensorSpec((256, 4, 64)), **options)
        return str(caught.value)

    assert "Keras" not in message()
    monkeypatch.setattr(keras, "__version__", "3.14.1")
    assert "Keras 3.15 makes the sum alone; this is Keras 3.14.1." in message()


def test_on_a_gpu_a_convolution_that_binds_names_what_limits_its_workspace(machine):
    from types import SimpleNamespace

    def message(*layers):
        model = keras.Sequential([keras.Input((32, 32, 8)), *layers, keras.layers.Flatten()])
        with pytest.raises((InfeasibleBudgetError, NoPlanFoundError)) as caught:
            x, y = np.zeros((8, 32, 32, 8), "float32"), np.zeros((8, 1), "float32")
            checkmate.tf2.compile(
                model, "mse", "sgd", x, y, budget="300KiB", cost_model="roofline", time_limit_s=1
            )
        return str(caught.value)

    convolution = keras.layers.Conv2D(8, 5, padding="same")
    assert "CUDNN" not in message(convolution)
    machine.patch(refusal, "devices", SimpleNamespace(training_device=lambda: "GPU:0"))
    assert re.search(
        r"workspace of the algorithm.*TF_CUDNN_WORKSPACE_LIMIT_IN_MB", message(convolution)
    )
    assert "CUDNN" not in message(keras.layers.Dense(8, activation="gelu"))
