"""Engines as black boxes: what they answer, and what becomes of a missing package, a crash, a
time-out and Ctrl-C."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scripts import run_python
from strategies import training_chain

from checkmate import Plan, SolverFailedError, SolverUnavailableError, replay
from checkmate.solvers.backends import engines
from checkmate.solvers.backends.engines import ENGINES, solve_matrices
from checkmate.solvers.backends.matrices import AnswerStatus, MatrixProblem
from checkmate.solvers.paper.formulation import formulate

MILP_ENGINES = tuple(engine for engine in ENGINES if engine != "clp")


def knapsack(capacity=6.0, least=-np.inf):
    """Maximize 5a + 4b + 3c with 4a + 3b + 2c <= capacity, 0 or 1 each, and the value at least
    `least`: 8 (a, c) whole, 8.33 relaxed, at 6."""
    cost, weight = np.array([-5.0, -4.0, -3.0]), np.array([4.0, 3.0, 2.0])
    bounds = np.array([-np.inf, least]), np.array([capacity, np.inf])
    start, column = np.array([0, 3, 6], np.int32), np.array([0, 1, 2, 0, 1, 2], np.int32)
    return MatrixProblem(
        cost,
        np.zeros(3),
        np.ones(3),
        np.ones(3, bool),
        start,
        column,
        np.concatenate([weight, -cost]),
        *bounds,
    )


def hard(layers=60):
    """A program that no engine finishes in seconds."""
    graph = training_chain(layers, skip=3, costs=(3.0, 1.0, 4.0, 1.0, 5.0), sizes=(9, 2, 6, 5, 3))
    peak = replay(graph, Plan.keep_all(graph)).peak_bytes
    return graph, int(0.45 * peak)


@pytest.mark.parametrize("engine", MILP_ENGINES)
def test_integer_optimum(engine):
    answer = solve_matrices(knapsack(), engine=engine, time_limit_s=20)
    assert answer.status is AnswerStatus.OPTIMAL
    assert np.round(answer.x).tolist() == [1, 0, 1]
    assert answer.bound == pytest.approx(-8, abs=1e-5)


def test_relaxed_optimum():
    answer = solve_matrices(knapsack(), engine="clp", time_limit_s=20)
    assert answer.status is AnswerStatus.OPTIMAL
    assert answer.bound == pytest.approx(-8 - 1 / 4, abs=1e-3)
    assert knapsack().violation(answer.x) < 1e-3


@pytest.mark.parametrize("engine", ENGINES)
def test_infeasible(engine):
    answer = solve_matrices(knapsack(least=9.0), engine=engine, time_limit_s=20)
    assert answer.status is AnswerStatus.INFEASIBLE
    assert answer.x is None


@pytest.fixture
def small(monkeypatch):
    """Sets up to which size a program is solved in this process."""
    return lambda most: monkeypatch.setattr(engines, "SMALL", most)


@pytest.mark.parametrize("engine", ["cbc", "scip", "highs", "clp"])
def test_the_child_process_answers_as_this_one_does(engine, small):
    here = solve_matrices(knapsack(), engine=engine, time_limit_s=20)
    small(0)
    there = solve_matrices(knapsack(), engine=engine, time_limit_s=20)
    assert (there.status, there.x.tolist(), there.bound) == (
        here.status,
        here.x.tolist(),
        here.bound,
    )


def test_ctrl_c_is_python_s_again_after_an_engine():
    program = """
        import os, signal
        from test_engines import ENGINES, knapsack, solve_matrices
        from checkmate.solvers.backends import engines
        assert not engines.needs_process()
        for engine in ENGINES:
            solve_matrices(knapsack(), engine=engine, time_limit_s=20)
            try:
                os.kill(os.getpid(), signal.SIGINT)
                print(engine, "swallowed it")
            except KeyboardInterrupt:
                print(engine)
    """
    ran = run_python(program)
    assert ran.stdout.split() == list(ENGINES), (ran.returncode, ran.stdout, ran.stderr)


@pytest.mark.parametrize("engine", MILP_ENGINES)
def test_a_start_is_not_made_worse(engine):
    answer = solve_matrices(
        knapsack(), engine=engine, time_limit_s=20, start=np.array([1.0, 0.0, 1.0])
    )
    assert knapsack().cost @ answer.x == pytest.approx(-8)


@pytest.mark.parametrize("most", [0, 1500], ids=["child", "here"])
def test_no_time_limit(most, small):
    small(most)
    for engine in ("cbc", "scip", "highs", "cp_sat", "clp"):
        assert (
            solve_matrices(knapsack(), engine=engine, time_limit_s=float("inf")).status
            is AnswerStatus.OPTIMAL
        ), engine


def test_unknown_engine_names_the_known_ones():
    with pytest.raises(SolverUnavailableError, match="cbc, clp, scip"):
        solve_matrices(knapsack(), engine="gurobi", time_limit_s=1)


@pytest.mark.parametrize(("engine", "package"), [("cbc", "cylp"), ("scip", "ortools")])
def test_a_package_that_cannot_be_imported_is_named(engine, package, small, tmp_path, monkeypatch):
    (tmp_path / f"{package}.py").write_text(
        f"raise ImportError('libCbc.so.3: cannot open', name={package!r})"
    )
    small(0)  # in a process of its own, which finds this one first
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SolverUnavailableError, match=f"libCbc.*pip install {package}"):
        solve_matrices(knapsack(), engine=engine, time_limit_s=20)


@pytest.mark.parametrize(("engine", "module"), [("cbc", "cbc"), ("scip", "ortools")])
def test_a_breaking_package_is_chained(engine, module, monkeypatch):
    def breaks(*_args, **_facts):
        raise RuntimeError("segment of something")

    monkeypatch.setattr(
        importlib.import_module(f"checkmate.solvers.backends.{module}"), "solve", breaks
    )
    # In this process, where it is the one that breaks.
    monkeypatch.setattr(engines, "needs_process", lambda: False)
    with pytest.raises(
        SolverFailedError, match="2 rows and 3 columns: RuntimeError segment of something"
    ) as caught:
        solve_matrices(knapsack(), engine=engine, time_limit_s=1)
    assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.parametrize("engine", MILP_ENGINES)
def test_time_limit(engine):
    """The program takes an engine minutes: that this ends at all, and unproven, is the limit."""
    program = formulate(*hard())
    answer = solve_matrices(program.problem, engine=engine, time_limit_s=1)
    assert answer.status in (AnswerStatus.UNKNOWN, AnswerStatus.FEASIBLE)
    assert (answer.x is not None) == (answer.status is AnswerStatus.FEASIBLE)


def test_what_does_not_stop_is_ended_and_its_start_is_the_answer(small, monkeypatch):
    small(0)
    real = subprocess.Popen
    children = []

    def sleeper(command, **facts):
        children.append(
            real(
                [
                    sys.executable,
                    "-c",
                    "import signal, time; signal.signal(2, signal.SIG_IGN); time.sleep(3600)",
                ],
                **facts,
            )
        )
        return children[-1]

    monkeypatch.setattr(subprocess, "Popen", sleeper)
    start = np.array([0.0, 1.0, 1.0])
    answer = solve_matrices(knapsack(), engine="cbc", time_limit_s=0.5, start=start)
    assert answer.status is AnswerStatus.FEASIBLE and answer.x is start
    assert children[0].poll() is not None


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_ctrl_c_gets_through_and_leaves_no_process():
    script = """
        import os, signal, threading
        from checkmate.solvers.backends import engines
        from checkmate.solvers.paper.formulation import formulate
        from test_engines import hard
        import subprocess
        children, real = [], subprocess.Popen
        def start(*args, **facts):
            children.append(real(*args, **facts))
            threading.Timer(1.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
            return children[-1]
        subprocess.Popen = start
        try:
            engines.solve_matrices(formulate(*hard()).problem, engine="cbc", time_limit_s=3600)
            print("not interrupted")
        except KeyboardInterrupt:
            print("interrupted", children[0].poll() is not None)
    """
    done = run_python(script, Path(__file__).parent, Path(__file__).parents[1])
    assert done.stdout.strip() == "interrupted True", done.stderr


def test_violation_looks_at_bounds_and_rows():
    problem = knapsack(least=3.0)
    assert problem.violation(np.array([0.0, 0.0, 1.0])) == 0
    assert problem.violation(np.array([0.0, 0.0, 0.0])) == 3  # worth 3 too little
    assert problem.violation(np.array([1.0, 1.0, 0.0])) == 1  # weighs 7
    assert problem.violation(np.array([0.0, 0.0, 1.5])) == 0.5
