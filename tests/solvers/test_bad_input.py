"""Whatever the graph, the budget or the machine: an answer within the budget, or one of the
library's errors."""

import importlib.util
import os
import subprocess
from pathlib import Path

import pytest
from oracles import cheapest, run_plan
from scripts import run_python
from strategies import training_chain, tree

from benchmarks.problems import budget_at
from checkmate import (
    BudgetError,
    DFGraph,
    GraphError,
    NoPlanFoundError,
    Op,
    Plan,
    SolverFailedError,
    SolverUnavailableError,
    SolveStatus,
    floor,
    replay,
    solve,
    solve_curve,
)
from checkmate.solvers.backends import engines
from checkmate.solvers.local.repair import Repair, trim
from checkmate.solvers.local.stage_plan import StagePlan
from checkmate.solvers.paper.formulation import formulate
from checkmate.solvers.paper.retention import Retention

FAST = ("auto", "lp_rounding", "retention", "chen_greedy", "revolve", "min_cut")


def ask(graph, budget, name):
    return solve(
        graph,
        budget,
        solver=Retention(start_share=0) if name == "retention" else name,
        time_limit_s=10,
        throw=False,
    )


CHAIN = training_chain(5)
REFUSED = [
    *(
        (lambda f=f, graph=graph, budget=budget: f(graph, budget), GraphError, said)
        for graph, said in (
            ("graph.json", "takes a DFGraph; got str. DFGraph.load reads a file"),
            (None, "takes a DFGraph; got NoneType"),
        )
        for f, budget in ((solve, "60%"), (solve_curve, ["60%"]))
    ),
    *(
        (
            lambda f=f, budget=budget, seconds=seconds: f(CHAIN, budget, time_limit_s=seconds),
            BudgetError,
            r"time_limit_s is a number of seconds, 0 or more; got ",
        )
        for seconds in (-1, float("nan"), float("-inf"), "3", None, True)
        for f, budget in ((solve, "85%"), (solve, "100%"), (solve_curve, ["85%"]))
    ),
    (
        lambda: solve(CHAIN, "60%", solver="milp_scip"),
        SolverUnavailableError,
        r"no solver 'milp_scip'. Did you mean 'milp:scip'\? .*milp\[:cbc\|scip\|highs\|cp_sat\]",
    ),
    (lambda: solve(CHAIN, "60%", solver=7), SolverUnavailableError, "7 is no solver: .*run.search"),
]


@pytest.mark.parametrize(("call", "error", "said"), REFUSED)
def test_refused(call, error, said):
    with pytest.raises(error, match=said):
        call()


@pytest.mark.parametrize("name", FAST)
def test_huge_costs_beside_small_ones(name):
    """Engines have tolerances; the judge has none. What is cheap beside 1e15 must not be thrown
    away, and the budget is a limit."""
    results = []
    for costs in ((1e15, 1e3, 1.0), (1.0, 1e15, 1e3)):
        graph = training_chain(4, costs=costs, sizes=(7, 10, 3))
        peak = replay(graph, Plan.keep_all(graph)).peak_bytes
        for budget_bytes in range(floor(graph).bytes, peak, 2):
            least, result = cheapest(graph, budget_bytes), ask(graph, budget_bytes, name)
            assert result.status is not SolveStatus.INFEASIBLE
            if result.plan is not None:
                assert replay(graph, result.plan).peak_bytes <= budget_bytes
                assert result.bound * (1 - 1e-6) <= least <= result.cost
            results.append(result)
    found = sum(result.plan is not None for result in results)
    assert len(results) == 6
    assert found == 6 if name == "auto" else found >= 4


@pytest.mark.parametrize("name", FAST)
def test_values_without_bytes_and_ops_without_cost(name):
    ops = training_chain(8, sizes=(10, 0, 6), costs=(3.0, 0.0)).ops
    graph = DFGraph(ops, (len(ops) - 1,))
    result = ask(graph, "70%", name)
    if name != "min_cut":
        assert result.plan is not None
    if result.plan is not None:
        run_plan(graph, result.plan)
        assert result.peak_bytes <= result.budget_bytes
        assert set(result.plan.recomputed) <= {
            i for i, op in enumerate(graph.ops) if op.output_bytes or not op.cost
        }
    nothing = DFGraph(tuple(Op(f"op{i}", (i - 1,) if i else (), 0.0, 0) for i in range(5)), (4,))
    assert ask(nothing, 1, name).status is SolveStatus.OPTIMAL
    assert ask(nothing, "60%", name).status is SolveStatus.OPTIMAL


def test_a_curve_of_a_graph_that_needs_no_memory():
    nothing = DFGraph(tuple(Op(f"op{i}", (i - 1,) if i else (), 1.0, 0) for i in range(3)), (2,))
    assert [result.cost for result in solve_curve(nothing, [2, "50%"]).results] == [3.0, 3.0]


def test_taking_evaluations_back_ends_with_the_time():
    """They are looked at one by one, and in a large graph there are thousands."""
    stage_plan = StagePlan(training_chain(60))
    Repair(stage_plan, floor(stage_plan.graph).bytes * 2, lambda: False).run()
    before, asked, plenty = stage_plan.moves(), iter((False, True)), 10**9
    trim(stage_plan, plenty, out_of_time=lambda: next(asked))
    assert len(before) - len(stage_plan.moves()) == 1
    trim(stage_plan, plenty)
    assert not stage_plan.moves() and len(before) > 2


def test_sizes_of_terabytes():
    graph = training_chain(8, sizes=(10**13, 3 * 10**12 + 1, 7))
    small = training_chain(8, sizes=(10**4, 3 * 10**3, 7))
    for name in ("auto", "lp_rounding", "chen_greedy", "min_cut"):
        result, alike = (
            solve(each, "80%", solver=name, time_limit_s=30) for each in (graph, small)
        )
        assert result.peak_bytes <= result.budget_bytes, name
        assert result.cost == alike.cost, name


class FindsNothing:
    name = "finds_nothing"

    def run(self, search):
        """Gives up."""


def test_a_solver_that_finds_nothing_names_the_default_one():
    with pytest.raises(NoPlanFoundError, match=r"Or try solver='auto'\.$"):
        solve(training_chain(8), "70%", solver=FindsNothing())


def test_the_budget_that_a_refusal_names_has_a_plan():
    graph = tree(32, seed=1)
    with pytest.raises(NoPlanFoundError, match=r"Raise the budget to .*: a plan with that") as told:
        solve(graph, budget_at(graph, 0.02), time_limit_s=1)
    assert solve(graph, told.value.best_peak_bytes, time_limit_s=5).plan


@pytest.mark.parametrize(
    "solver", ["auto", "milp:scip", "lp_rounding", Retention(start_share=0)], ids=str
)
def test_all_the_time_there_is(solver):
    graph = training_chain(5, sizes=(4, 9, 2))
    result = solve(graph, "85%", solver=solver, time_limit_s=float("inf"))
    assert result.peak_bytes <= result.budget_bytes


def test_no_time_to_start_the_engine():
    """The process of an engine takes longer to start than there is time: what was found before it
    is the answer, which is Chen's plan for one of these and nothing for the other."""
    for name, status in (
        ("milp:scip", SolveStatus.FEASIBLE),
        ("lp_rounding", SolveStatus.NOT_FOUND),
    ):
        result = solve(training_chain(30), "70%", solver=name, time_limit_s=0.1, throw=False)
        assert result.status is status


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_an_engine_that_is_killed_is_an_error_or_the_plan_found_before(monkeypatch, caplog):
    """A real engine, killed by the system before it can answer, as when memory runs out."""
    real, graph = (
        subprocess.Popen,
        training_chain(30, skip=3, costs=(3.0, 1.0, 4.0), sizes=(9, 2, 6, 5)),
    )

    def doomed(*arguments, **facts):
        child = real(*arguments, **facts)
        child.kill()
        return child

    monkeypatch.setattr(subprocess, "Popen", doomed)
    program = formulate(graph, replay(graph, Plan.keep_all(graph)).peak_bytes // 2)
    with pytest.raises(
        SolverFailedError, match=r"engine 'scip' ended with code -9.*Try another engine"
    ):
        engines.solve_matrices(program.problem, engine="scip", time_limit_s=60)

    with caplog.at_level("WARNING", logger="checkmate"):
        result = solve(graph, "60%", solver="milp:scip", time_limit_s=60)
    assert result.status is SolveStatus.FEASIBLE
    assert result.peak_bytes <= result.budget_bytes
    assert "ended with code -9" in caplog.text


# A graph so small that every engine runs in this process, where that can be.
SOLVE = """
import checkmate
from checkmate.solvers.backends.engines import SMALL
from checkmate.solvers.paper.formulation import formulate
ops = tuple(checkmate.Op(f"op{i}", (i - 1,) if i else (), 1, 4) for i in range(4))
graph = checkmate.DFGraph((*ops, checkmate.Op("end", (0, 3), 1, 1)), (4,))
assert len(formulate(graph, 9).problem.value) < SMALL
for name in NAMES:
    assert checkmate.solve(graph, 9, solver=name, time_limit_s=20).cost == 6, name
"""
PIECES = {
    "checkmate": "import checkmate",
    "solvers": SOLVE.replace(
        "NAMES", "('auto', 'milp', 'milp:highs', 'milp:cp_sat', 'lp_rounding')"
    ),
    "scip": SOLVE.replace("NAMES", "('milp:scip',)"),
    "tensorflow": "import tensorflow as tf; assert float(tf.reduce_sum(tf.ones(3))) == 3",
    "ortools": (
        "from ortools.linear_solver import pywraplp; assert pywraplp.Solver.CreateSolver('SCIP')"
    ),
    "mathopt": "from ortools.math_opt.python import mathopt; assert mathopt.Model()",
    # As the real one: it cannot be imported beside OR-tools, nor OR-tools beside it.
    "highspy": "import highspy",
}
ORDERS = [
    ("solvers", "ortools", "mathopt"),
    ("mathopt", "ortools", "solvers"),
    ("scip", "highspy"),
    ("highspy", "scip"),
    ("checkmate", "tensorflow", "solvers"),
    ("solvers", "ortools", "tensorflow", "mathopt"),
    ("tensorflow", "mathopt", "solvers", "ortools"),
]
"""Orders in which these packages bear each other without checkmate. MathOpt before TensorFlow is
not one: that fails by itself."""

HIGHSPY = """
import sys
class Clash:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("ortools.linear_solver.python") or name.startswith("ortools.sat.python"):
            raise ImportError("undefined symbol")
if any(name.startswith(("ortools.linear_solver", "ortools.sat")) for name in sys.modules):
    raise ImportError("undefined symbol")
sys.meta_path.insert(0, Clash())
"""


@pytest.mark.parametrize(
    "order",
    [
        pytest.param(order, marks=[pytest.mark.slow] if "tensorflow" in order[1:] else [])
        for order in ORDERS
    ],
    ids="-".join,
)
def test_packages_in_every_order(order, tmp_path):
    # Not imported here: the tests' own process stays without it.
    if "tensorflow" in order and not importlib.util.find_spec("tensorflow"):
        pytest.skip("needs TensorFlow")
    if "highspy" in order:
        (tmp_path / "highspy.py").write_text(HIGHSPY)
    done = run_python("\n".join(PIECES[piece] for piece in order) + "\nprint('done')", tmp_path)
    assert done.stdout.splitlines()[-1:] == ["done"], done.stderr[-2000:]


ABANDONED = """
from checkmate.solvers import background
from checkmate.solvers.backends import scipy
from checkmate.solvers.paper.formulation import formulate
from test_engines import hard
problem = formulate(*hard()).problem
task = background.BackgroundTask(lambda: scipy.solve(problem, time_limit_s=2.0))
assert task.result(0.5) is None
assert background.unfinished_tasks() == [task]
"""


def test_a_process_that_ends_while_an_engine_works_in_it_ends_well():
    here = Path(__file__).parent
    done = run_python(ABANDONED, here / "backends", here.parent)
    assert (done.returncode, done.stderr) == (0, "")


INTERRUPTED = """
import os, signal, threading, time
from checkmate.solvers import background
free = threading.Event()
work = background.BackgroundTask(lambda: free.wait(30))
threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    work.result(20)
except KeyboardInterrupt:
    print("interrupted", work.busy, background.unfinished_tasks() == [work])
free.set()
work.wait()
print(work.busy)
"""


def test_work_goes_on_after_an_interrupt_and_is_known_to():
    done = run_python(INTERRUPTED)
    assert done.stdout.split("\n")[:2] == ["interrupted True True", "False"], done.stderr


def test_repairs_look_at_the_clock_between_two_candidates():
    # One op reads all there is, so that nothing helps: every candidate is tried.
    many = 20
    ops = [
        Op("x", (), 3, 50),
        *(Op(f"m{k}", (0,), 2, 5) for k in range(many)),
        Op("big", tuple(range(many + 1)), 1, 5),
    ]
    ops += [Op(f"g{k}", (0, k, many + 1), 2, 5, is_backward=True) for k in range(1, many + 1)]
    graph = DFGraph((*ops, Op("end", tuple(range(many + 2, 2 * many + 2)), 1, 1)), (2 * many + 2,))
    stages, calls = StagePlan(graph), []

    def out_of_time() -> bool:
        calls.append(None)
        return len(calls) >= 5

    assert not Repair(stages, stages.peak_bytes - 3, out_of_time).run()
    assert len(calls) < 10  # there are more candidates than that


@pytest.mark.parametrize("factor", [1e-320, 1e-300, 1e300])
def test_costs_at_the_ends_of_what_numbers_can_be(factor):
    graph = training_chain(30, skip=3, costs=(factor,))
    result = solve(graph, "60%", time_limit_s=5)
    assert result.peak_bytes <= result.budget_bytes
    assert result.bound <= result.cost


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_dtr_with_costs_whose_products_are_infinite():
    graph = training_chain(
        30, costs=(3e305, 7e305, 2e305, 9e305, 5e305), sizes=(10, 3, 25, 14, 30, 8)
    )
    budget = (
        floor(graph).bytes
        + (replay(graph, Plan.keep_all(graph)).peak_bytes - floor(graph).bytes) * 2 // 5
    )
    result = solve(graph, budget, solver="dtr")
    assert result.plan.recomputed and result.peak_bytes <= budget


@pytest.mark.parametrize("engine", ["milp", "milp:highs", "milp:scip"])
def test_integer_programs_tell_small_costs_beside_large_ones(engine):
    many = 10**6
    graph = DFGraph(
        (
            Op("o0", (), many, 148174446962),
            Op("o1", (0,), 4, 451118585805),
            Op("o2", (0, 1), 5, 104517299831),
            Op("o3", (0, 1, 2), many, 843261565022, 421630782511),
            Op("o4", (0, 2), 8, 943597783632),
            Op("o5", (), 3, 431210336623),
            Op("o6", (0, 4, 5), 2, 17338718829, 17338718829),
            Op("o7", (1, 5), 0.4, 176226265597),
        )
    )
    budget = 1968702680132
    result, optimum = solve(graph, budget, solver=engine), cheapest(graph, budget)
    assert result.bound <= optimum
    assert result.cost == pytest.approx(optimum, rel=1e-6)
