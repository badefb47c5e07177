"""Annealing counts what the judge counts after every change, undoes changes exactly, and keeps to
the order it is told to keep."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import oracles
import pytest
import strategies
from hypothesis import given, settings
from hypothesis import strategies as st
from scripts import run_python

from benchmarks import problems
from benchmarks.problems import budget_at, layered
from checkmate import DFGraph, Op, Plan, floor, replay
from checkmate.solvers.annealing.annealer import Annealer, AnnealingRun, AnnealingTask
from checkmate.solvers.annealing.arrays import IN_ANY_ORDER, IN_STAGES, REPEATS_ANYWHERE


def _start(graph: DFGraph) -> list[int]:
    return list(range(len(graph)))


def _run(annealer: Annealer, proposals: int, **options) -> bool:
    """Goes on with about so many proposals in all."""
    each = max(1, proposals // annealer.evictable)
    return annealer.run(AnnealingRun(annealer.current, each, **options))


def _check_counts(graph: DFGraph, budget: int, annealer: Annealer) -> None:
    """Compares where the annealer is, within the budget or not, with the judge."""
    evaluations = annealer.current
    memory = annealer.memory
    anew = Annealer(graph, budget, evaluations)
    assert np.array_equal(anew.memory, memory)
    plan = Plan.from_order(graph, evaluations)
    timeline = replay(graph, plan)
    oracles.run_plan(graph, plan)
    if len(plan.computed) == len(evaluations):
        assert timeline.peak_bytes == memory.max()
    else:  # the plan leaves out evaluations that nothing reads
        assert timeline.peak_bytes <= memory.max()
    if annealer.best is not None:
        best = replay(graph, Plan.from_order(graph, annealer.best))
        assert best.peak_bytes <= budget
        assert best.cost <= annealer.best_cost + 1e-9


@settings(max_examples=250)
@given(
    strategies.graphs(max_ops=10),
    st.integers(0, 99),
    st.integers(0, 60),
    st.integers(0, 2),
    st.integers(0, 1000),
)
def test_cost_and_memory_are_the_judges(graph, tightness, proposals, placement, seed):
    budget = replay(graph, Plan.keep_all(graph)).peak_bytes * tightness // 100
    annealer = Annealer(graph, budget, _start(graph), seed=seed)
    # So hot that it goes everywhere.
    _run(annealer, proposals, hot=100.0, cold=50.0, placement=placement)
    _check_counts(graph, budget, annealer)


@pytest.mark.parametrize("placement", [IN_STAGES, REPEATS_ANYWHERE, IN_ANY_ORDER])
@pytest.mark.parametrize("hot", [1.0, 30.0])
def test_larger_graphs_too(placement, hot):
    graph = strategies.training_chain(
        30,
        skip=3,
        costs=(8.0, 1.0, 0.5),
        sizes=(100, 100, 50),
        updates=True,
        gradient_bytes=2,
        fixed_bytes=300,
    )
    budget = budget_at(graph, 0.3)
    annealer = Annealer(graph, budget, _start(graph), seed=1)
    for _ in range(5):
        _run(annealer, 2000, hot=hot, placement=placement)
        _check_counts(graph, budget, annealer)


@settings(max_examples=150)
@given(strategies.problems(strategies.graphs(max_ops=7)), st.integers(0, 1000))
def test_given_order_against_brute_force(problem, seed):
    """What it finds is within the budget, in stage form and no cheaper than the cheapest plan."""
    graph, budget = problem
    annealer = Annealer(graph, budget, _start(graph), seed=seed)
    _run(annealer, 600)
    cheapest = oracles.cheapest(graph, budget)
    if annealer.best is None:
        return
    plan = Plan.from_order(graph, annealer.best)
    timeline = replay(graph, plan)
    assert timeline.peak_bytes <= budget
    assert cheapest is not None
    assert cheapest - 1e-9 <= timeline.cost <= annealer.best_cost + 1e-9
    assert list(dict.fromkeys(plan.computed)) == _start(graph)


@pytest.mark.parametrize("placement", [IN_STAGES, REPEATS_ANYWHERE])
def test_what_is_read_is_overwritten_and_made_again(placement):
    """Backward ops may write over the activations that they read, two of which are read once more
    at the end."""
    chain = strategies.training_chain(12, skip=3)
    activations = [d for d, op in enumerate(chain.ops) if op.name.startswith("f")]
    ops = [
        replace(op, in_place=tuple(d for d in op.deps if d in activations))
        if op.is_backward
        else op
        for op in chain.ops
    ]
    ops.append(Op("end", (chain.index("f6"), chain.index("f11"), len(ops) - 1)))
    graph = DFGraph(tuple(ops), (len(ops) - 1,))
    budget = floor(graph).bytes
    assert budget < floor(replace(graph, ops=tuple(replace(op, in_place=()) for op in ops))).bytes
    annealer, costs = Annealer(graph, budget, _start(graph), seed=1), []
    for _ in range(10):
        _run(annealer, 5000, placement=placement)
        _check_counts(graph, budget, annealer)
        costs.append(annealer.best_cost)
    assert min(costs) == 61.5  # proven to be the least


def test_order_alone_can_be_enough():
    graph = layered(100)
    budget = int(0.85 * replay(graph, Plan.keep_all(graph)).peak_bytes)
    annealer = Annealer(graph, budget, _start(graph))
    _run(annealer, 30_000, placement=IN_ANY_ORDER, only_move=True)
    assert annealer.best is not None
    assert sorted(annealer.best) == _start(graph)
    assert replay(graph, Plan.from_order(graph, annealer.best)).peak_bytes <= budget


def test_an_op_runs_again_while_its_input_is_still_there():
    """Right before its use would be too late: the input, which is larger and cannot be made again,
    fits beside `wide` no more."""
    graph = DFGraph(
        (
            Op("input", (), 1, 6, recomputable=False),
            Op("value", (0,), 1, 4),
            Op("use", (1,), 1, 0),
            Op("full", (2,), 1, 8),
            Op("after_full", (3,), 1, 0),
            Op("last_use_of_input", (0, 4), 1, 0),
            Op("wide", (5,), 1, 9),
            Op("late_use", (1, 6), 1, 0),
        ),
        (7,),
    )
    annealer = Annealer(graph, 14, _start(graph))
    _run(annealer, 2000, placement=REPEATS_ANYWHERE)
    assert annealer.best is not None
    assert annealer.best_cost == graph.total_cost + 1
    assert replay(graph, Plan.from_order(graph, annealer.best)).peak_bytes <= 14


def test_same_seed_same_answer():
    graph = strategies.training_chain(12, skip=3)

    def ask(seed):
        annealer = Annealer(graph, budget_at(graph, 0.3), _start(graph), seed=seed)
        _run(annealer, 3000)
        return annealer.best, annealer.memory.tolist()

    assert ask(1) == ask(1)
    assert ask(1)[1] != ask(2)[1]


def test_time_that_is_short_ends_a_run():
    graph = strategies.training_chain(30)
    annealer = Annealer(graph, budget_at(graph, 0.3), _start(graph))
    run = AnnealingRun(_start(graph), 300)
    assert not annealer.run(run, lambda: 0.0)
    assert annealer.current == list(_start(graph))
    left = iter((1.0, 1.0, 0.0))
    assert not annealer.run(run, lambda: next(left))
    assert annealer.run(run)


def test_a_task_that_is_stopped_takes_no_more_runs():
    graph = strategies.training_chain(12)
    budget = budget_at(graph, 0.4)
    run = AnnealingRun(_start(graph), 10**9)  # hours
    task = AnnealingTask(Annealer(graph, budget), itertools.repeat(run), lambda: 1e6, share=0.1)
    while not task.found[1]:
        task.wait(0.01)
    task.stop()
    assert not task.busy
    cost, order = task.found
    timeline = replay(graph, Plan.from_order(graph, order))
    assert timeline.peak_bytes <= budget
    assert timeline.cost <= cost + 1e-9


def test_costs_of_all_sizes():
    graph = strategies.training_chain(10, costs=(1e15, 1e3, 0.0), sizes=(2**40, 1, 0))
    annealer = Annealer(graph, budget_at(graph, 0.4), _start(graph))
    _run(annealer, 5000)
    _check_counts(graph, budget_at(graph, 0.4), annealer)
    assert annealer.best is not None


FIRST_CALL = """
import logging
logging.basicConfig(format="%(message)s", level=logging.INFO)
from checkmate import DFGraph, Op
from checkmate.solvers.annealing.annealer import Annealer
Annealer(DFGraph((Op("op"),)), 0, (0,))
"""


@pytest.mark.slow
def test_the_first_call_says_that_it_compiles_and_later_ones_do_not(tmp_path):
    runs = [run_python(FIRST_CALL, NUMBA_CACHE_DIR=str(tmp_path)) for _ in range(2)]
    assert [run.stderr.count("Compiling the annealer") for run in runs] == [1, 0]


@pytest.mark.slow
def test_a_command_that_ends_before_the_code_is_compiled_waits_for_it(tmp_path):
    problems.load("resnet50").save(tmp_path / "graph.json")
    asked = {
        "arguments": ["solve", str(tmp_path / "graph.json"), "-b", "30%", "--time-limit", "1"],
        "NUMBA_CACHE_DIR": str(tmp_path),
    }
    runs = [run_python("from checkmate.cli import main; main()", **asked) for _ in range(2)]
    assert [run.stderr.count("checkmate: Waiting for the annealer") for run in runs] == [1, 0]


REJECTED = """
import os
os.environ.pop("NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING", None)  # set by this process
import checkmate.solvers.annealing.kernel
from numba.core.errors import TypingError
print(TypingError("rejected"))
"""


def test_printing_beside_the_compilation_is_not_disturbed(tmp_path):
    """Numba's errors exchange `sys.stdout` where colorama is installed, and most compilations
    raise and catch some. This colorama says that it is asked to."""
    (tmp_path / "colorama.py").write_text(
        "__version__ = '9.9.9'\n"
        "Back = Fore = Style = type('Codes', (), {'__getattr__': lambda self, name: ''})()\n"
        "def init(): print('exchanged')\n"
        "reinit = deinit = init\n"
    )
    done = run_python(REJECTED, tmp_path)
    assert done.stdout == "rejected\n"


QUICK = """
import sys
from checkmate import DFGraph, Op, solve
layers = [Op(f"f{i}", (i - 1,) if i else (), 1, 100) for i in range(8)]
gradients = [Op(f"b{i}", tuple({i, 14 - i}), 2, 100) for i in reversed(range(8))]
print(solve(DFGraph((*layers, *gradients), (15,)), 650).status.name, "numba" in sys.modules)
"""


def test_a_search_that_is_short_loads_no_compiled_code():
    done = run_python(QUICK)
    assert done.stdout.split() == ["OPTIMAL", "False"]


def test_a_run_starts_from_an_order_of_any_length():
    """A relaxed solution, or another solver's plan, may recompute far more than the order before
    it."""
    graph = strategies.training_chain(6)
    budget = budget_at(graph, 0.4)
    annealer = Annealer(graph, budget, _start(graph))
    long = [*_start(graph), *[0] * (10 * len(graph) + 200)]
    assert not annealer.run(AnnealingRun(long, 1), lambda: 0.0)
    assert annealer.current == long
    assert annealer.best is None and annealer.best_cost == float("inf")
    _run(annealer, 20_000, placement=REPEATS_ANYWHERE)
    _check_counts(graph, budget, annealer)
    assert annealer.best is not None


def _shifted(graph: DFGraph, fixed_bytes: int) -> DFGraph:
    return replace(graph, fixed_bytes=graph.fixed_bytes + fixed_bytes)


def test_fixed_bytes_are_nothing_to_anneal():
    graph = strategies.training_chain(30, skip=3, costs=(8.0, 1.0, 0.5), sizes=(100, 100, 50))
    budget = replay(graph, Plan.keep_all(graph)).peak_bytes // 2
    found = []
    for fixed in (0, 10**7):
        annealer = Annealer(_shifted(graph, fixed), budget + fixed, range(len(graph)))
        _run(annealer, 40_000)
        found.append((annealer.best, annealer.best_cost, annealer.current))
    assert found[0] == found[1]
    assert found[0][0] is not None


def test_only_ops_that_may_be_evicted_are_counted_and_drawn():
    graph = strategies.training_chain(30, skip=3)
    budget = replay(graph, Plan.keep_all(graph)).peak_bytes // 2
    # Thousands of updates, each of which reads the one before, as of an optimizer's counters:
    # nothing can be gained there.
    n = len(graph)
    updates = tuple(Op(f"u{k}", (n - 1 + k,), 1e-3, 1, recomputable=False) for k in range(3000))
    longer = DFGraph((*graph.ops, *updates), (n + 2999,))
    alone, among = Annealer(graph, budget, range(n)), Annealer(longer, budget + 1, range(n + 3000))
    assert among.evictable == alone.evictable == n
    _run(alone, 400 * n)
    _run(among, 400 * n)
    assert among.best is not None
    assert among.best_cost - longer.total_cost < 0.5 * graph.total_cost


@pytest.mark.parametrize("name", ["resnet50", "unet", "transformer12"])
def test_the_price_rises_in_a_short_run_too(name):
    graph = problems.load(name)
    annealer = Annealer(graph, budget_at(graph, 0.1), range(len(graph)))
    # At 1 % for every half of a proposal per op, the price would less than double, and nothing
    # would fit.
    annealer.run(AnnealingRun(range(len(graph)), 30, 0.05, 0.01, price=annealer.first_price))
    assert annealer.best is not None
