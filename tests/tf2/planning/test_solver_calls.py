"""Calls of the solver while a step is planned."""

from __future__ import annotations

import pytest
import strategies

from checkmate import Plan, replay
from checkmate.solvers.auto.solver import Auto
from checkmate.solvers.baselines.chen import CheckpointAll
from checkmate.tf2.options import PlanOptions
from checkmate.tf2.planning import solver_calls
from checkmate.tf2.planning.budget_loop import TUNING
from checkmate.tf2.planning.request import Clock
from checkmate.tf2.planning.solver_calls import SolverCalls

pytestmark = pytest.mark.usefixtures("tensorflow")

GRAPH = strategies.training_chain(8)


def calls(**options):
    asked = PlanOptions(**options)
    return SolverCalls(GRAPH, asked, Clock())


@pytest.fixture
def asked(monkeypatch):
    """The solvers that are called, none of which runs."""
    found = []

    def solve(graph, budget, *, solver, **options):
        found.append(solver)
        return checkpoint_all(graph, budget, solver="checkpoint_all")

    checkpoint_all = solver_calls.solve
    monkeypatch.setattr(solver_calls, "solve", solve)
    return found


def test_the_default_solver_ends_where_it_no_longer_pays(asked):
    calls().best(2**40)
    assert asked == [Auto(steps=TUNING.steps)]


@pytest.mark.parametrize(
    "options", [{"time_limit_s": 9}, {"cost_model": "unit"}, {"solver": Auto(gap=0.1)}]
)
def test_what_the_user_asks_for_is_kept(asked, options):
    calls(**options).best(2**40)
    assert asked == [options.get("solver", "auto")]


def test_a_call_without_a_plan_says_how_low_it_came():
    """Checkpoint-all comes no lower than the plain step."""
    plain = replay(GRAPH, Plan.keep_all(GRAPH)).peak_bytes
    solver = calls(solver=CheckpointAll())
    assert solver.reached_bytes is None
    assert solver.best(plain - 1) is None
    assert solver.reached_bytes == plain
