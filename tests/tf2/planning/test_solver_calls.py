"""Calls of the solver while a step is planned."""

from __future__ import annotations

import time

import pytest
import strategies

from checkmate import Plan, replay
from checkmate.solvers.auto.solver import Auto
from checkmate.solvers.baselines.chen import CheckpointAll
from checkmate.tf2.options import PlanOptions
from checkmate.tf2.planning.budget_loop import TUNING
from checkmate.tf2.planning.plan_search import SolverCalls
from checkmate.tf2.planning.request import Clock

pytestmark = pytest.mark.usefixtures("tensorflow")

GRAPH = strategies.training_chain(8)


def calls(**options):
    asked = PlanOptions(**options)
    return SolverCalls(GRAPH, asked, Clock())


def test_a_call_without_a_plan_says_how_low_it_came():
    """Checkpoint-all comes no lower than the plain step."""
    plain = replay(GRAPH, Plan.keep_all(GRAPH)).peak_bytes
    solver = calls(solver=CheckpointAll())
    assert solver.reached_bytes is None
    assert solver.best(plain - 1) is None
    assert solver.reached_bytes == plain


@pytest.mark.parametrize(
    "options", [{}, {"time_limit_s": 9}, {"cost_model": "unit"}, {"solver": Auto(gap=0.1)}]
)
def test_the_default_solver_ends_where_it_no_longer_pays_unless_the_user_says(options):
    expected = options.get("solver", "auto") if options else Auto(steps=TUNING.steps)
    assert calls(**options)._solver == expected


@pytest.mark.parametrize("asked", [None, 9])
def test_plans_after_the_first_have_half_the_time_that_is_not_asked_for(asked):
    solver = calls(solver=CheckpointAll(), time_limit_s=asked)
    limits = []
    for _ in range(3):
        solver.best(2**40)
        limits.append(solver.time_limit_s)
    assert limits == ([9] * 3 if asked else [TUNING.min_time_s, *[TUNING.min_time_s / 2] * 2])


def test_the_seconds_of_a_phase_add_up():
    clock = Clock()
    for total in (1, 2):
        with clock.phase("solving"):
            time.sleep(0.01)
        assert clock.seconds["solving"] >= 0.01 * total
    assert clock.seconds.keys() == {"solving"}
