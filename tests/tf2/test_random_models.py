"""Whatever the model: the planned step is the plain one, and asks for no more than its budget.

A few models run with the slow tests; $CHECKMATE_RANDOM_MODELS says how many, for a long run.
"""

import os

import keras
import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from random_models import BATCH, models
from unhurried import UNHURRIED

import checkmate
from checkmate import InfeasibleBudgetError, NoPlanFoundError

OPTIONS = {"cost_model": "roofline", "solver": UNHURRIED, "verbose": False}

TRIES = 4
"""How often a budget is raised to what the refusal of the one before says. It is foreseen and not
measured, and these models take less than a MiB."""

pytestmark = pytest.mark.usefixtures("tensorflow")


def planned(model, optimizer, batch, budget):
    """The step at this budget, or at one that a refusal says is enough; None where no such budget
    is told, or holds."""
    for tried in range(TRIES):
        try:
            step = checkmate.tf2.compile(
                model, "mse", keras.optimizers.get(optimizer), *batch, budget=budget, **OPTIONS
            )
        except (InfeasibleBudgetError, NoPlanFoundError) as refusal:
            assert refusal.smallest_budget_bytes is None or refusal.smallest_budget_bytes > budget
            budget = refusal.smallest_budget_bytes
            if budget is None:
                event("refused")
                return None
        else:
            event(
                f"planned after {tried} refusals, {'with' if step.plan.recomputed else 'without'}"
                " recomputation"
            )
            return step
    event("refused what was told to be enough")
    return None


@settings(
    max_examples=int(os.environ.get("CHECKMATE_RANDOM_MODELS", "2")),
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
@given(model_and_optimizer=models(), share=st.floats(0.35, 0.95))
@pytest.mark.slow
def test_values_and_budget_hold(model_and_optimizer, share):
    model, optimizer = model_and_optimizer
    chance = np.random.default_rng(0)
    batch = (
        chance.normal(size=(BATCH, 12, 12, 3)).astype("float32"),
        chance.normal(size=(BATCH, 4)).astype("float32"),
    )
    plain = checkmate.tf2.compile(
        model, "mse", optimizer, *batch, budget="1000%", **OPTIONS
    ).report()
    resident = plain.fixed_bytes + plain.outside_bytes
    step = planned(
        model, optimizer, batch, int(resident + share * (plain.plain_peak_bytes - resident))
    )
    if step is None:
        return
    result = checkmate.tf2.verify(step, batch)
    assert all(each.is_rounding for each in result.differences), str(result)
    assert not result.not_run and not result.run_again, str(result)
    # What the allocator loses besides, in a pool of a few MiB that is cut by all that ran before,
    # is another matter.
    assert result.measured_peak_bytes - result.lost_bytes <= step.budget_bytes, str(result)
