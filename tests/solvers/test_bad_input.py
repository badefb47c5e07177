"""Whatever the graph, the budget or the machine: an answer within the budget, or one of the library's errors."""

import importlib.util
import subprocess
import sys

import pytest
from oracles import run_plan
from strategies import training_chain

from checkmate import DFGraph, GraphError, InfeasibleBudgetError, Op, Plan, SolverFailedError, SolveStatus, floor, replay, solve
from checkmate.solvers.retention import Retention

FAST = ("auto", "local_search", "lp_rounding", "retention", "chen_greedy", "revolve", "min_cut")


def ask(graph, budget, name):
    return solve(graph, budget, solver=Retention(start_share=0) if name == "retention" else name, time_limit_s=5, throw=False)


def test_no_graph_at_all():
    with pytest.raises(GraphError, match="at least one op"):
        DFGraph(())


def test_a_cycle_is_named():
    nx = pytest.importorskip("networkx")
    with pytest.raises(GraphError, match="cycle"):
        DFGraph.from_networkx(nx.DiGraph([("a", "b"), ("b", "c"), ("c", "a")]))


@pytest.mark.parametrize("cost", [-1.0, float("nan"), float("inf"), None])
def test_costs_that_are_none(cost):
    with pytest.raises(GraphError, match="cost"):
        Op("a", cost=cost)


@pytest.mark.parametrize("name", FAST)
def test_huge_costs_beside_small_ones(name):
    """Engines have tolerances; the judge has none. What is cheap beside 1e15 must not be thrown away, and the budget is a limit."""
    graph = training_chain(8, costs=(1e15, 1e3, 1.0), sizes=(7, 10, 3))
    result = ask(graph, "80%", name)
    if result.plan is not None:
        assert replay(graph, result.plan).peak_bytes <= result.budget_bytes
        assert graph.total_cost <= result.cost
        assert result.bound <= result.cost
    if name == "auto":
        assert result.plan is not None


@pytest.mark.parametrize("name", FAST)
def test_values_without_bytes_and_ops_without_cost(name):
    ops = training_chain(8, sizes=(10, 0, 6), costs=(3.0, 0.0)).ops
    graph = DFGraph(ops, (len(ops) - 1,))
    result = ask(graph, "70%", name)
    if result.plan is not None:
        run_plan(graph, result.plan)
        assert result.peak_bytes <= result.budget_bytes
    nothing = DFGraph(tuple(Op(f"op{i}", (i - 1,) if i else (), 0.0, 0) for i in range(5)), (4,))
    assert ask(nothing, 1, name).status is SolveStatus.OPTIMAL


@pytest.mark.parametrize("name", FAST)
def test_budgets_at_the_edges(name):
    graph = training_chain(6, sizes=(4, 9, 2), fixed_bytes=11)
    lowest, peak = floor(graph).bytes, replay(graph, Plan.keep_all(graph)).peak_bytes
    for budget_bytes in (peak, peak + 1, 10 * peak):
        result = ask(graph, budget_bytes, name)
        assert (result.status, result.cost) == (SolveStatus.OPTIMAL, graph.total_cost)
    at_the_floor = ask(graph, lowest, name)
    assert at_the_floor.plan is None or at_the_floor.peak_bytes <= lowest
    with pytest.raises(InfeasibleBudgetError):
        solve(graph, lowest - 1, solver=name)


def test_sizes_of_terabytes():
    graph = training_chain(8, sizes=(10**13, 3 * 10**12 + 1, 7))
    for name in FAST:
        result = ask(graph, "80%", name)
        assert result.plan is None or result.peak_bytes <= result.budget_bytes, name


def test_interval_engine_that_breaks(monkeypatch):
    from checkmate.solvers.backends import engines, ortools_intervals

    def breaks(*_args, **_facts):
        raise RuntimeError("out of luck")

    monkeypatch.setattr(ortools_intervals, "solve", breaks)
    monkeypatch.setattr(engines, "FEW_VALUES", 100)
    monkeypatch.setattr(engines, "_beside_tensorflow", lambda: False)
    with pytest.raises(SolverFailedError, match="out of luck"):
        solve(training_chain(6), "70%", solver=Retention(start_share=0))


def test_no_time_to_start_the_engine():
    """The process of an engine takes longer to start than there is time: no answer, but no error either."""
    for name in ("milp_scip", "lp_rounding"):
        assert solve(training_chain(30), "70%", solver=name, time_limit_s=0.2, throw=False).status in SolveStatus


PIECES = {
    "checkmate": "import checkmate",
    # A graph so small that every engine runs in this process.
    "solvers": """
import checkmate
from checkmate.solvers.backends.engines import SMALL, installed_engines
from checkmate.solvers.formulation import formulate
ops = tuple(checkmate.Op(f"op{i}", (i - 1,) if i else (), 1, 4) for i in range(4))
graph = checkmate.DFGraph((*ops, checkmate.Op("end", (0, 3), 1, 1)), (4,))
assert len(formulate(graph, 9).problem.value) < SMALL
for name in ("auto", "milp_cbc", "milp_highs", "milp_cp_sat", "lp_rounding"):
    assert checkmate.solve(graph, 9, solver=name, time_limit_s=20).cost == 6, name
""",
    "tensorflow": "import tensorflow",
}
ORDERS = [("tensorflow", "checkmate", "solvers"), ("checkmate", "tensorflow", "solvers"), ("solvers", "tensorflow", "checkmate")]


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_packages_in_every_order(order):
    if not importlib.util.find_spec("tensorflow"):  # not imported here: the tests' own process stays without it
        pytest.skip("needs TensorFlow")
    script = "\n".join(PIECES[piece] for piece in order) + "\nprint('done')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1:] == ["done"], done.stderr[-2000:]
