"""simulate(): graphs become plans that the judge accepts, and every end of a run is a result."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from logs import chain, op_logs
from oracles import run_plan
from strategies import graphs, training_chain

from checkmate import (
    BudgetError,
    CheckmateError,
    DFGraph,
    Op,
    Plan,
    PlanFileError,
    floor,
    replay,
    simulate,
)
from checkmate.dtr.heuristic import HEURISTICS, Heuristic
from checkmate.dtr.log import OpLog
from checkmate.dtr.log_format import Call, Constant, Copy, CopyFrom, Release
from checkmate.dtr.pool import Search
from checkmate.dtr.program import Program
from checkmate.dtr.simulator import DTRStatus


@settings(max_examples=80)
@given(
    graph=graphs(max_ops=9),
    share=st.floats(0.0, 1.0),
    heuristic=st.sampled_from(sorted(HEURISTICS)),
    policy=st.sampled_from(("eager", "ignore")),
)
def test_the_run_of_a_graph_is_a_plan(graph, share, heuristic, policy):
    program = Program.from_graph(graph)
    plain = Plan.keep_all(graph)
    assert program.plain_peak_bytes == replay(graph, plain).peak_bytes
    budget = max(
        1, int(floor(graph).bytes + share * (program.plain_peak_bytes - floor(graph).bytes))
    )
    run = simulate(program, budget, heuristic=heuristic, deallocation=policy, overhead_limit=10)
    assert run.peak_bytes <= budget
    assert (run.plan is not None) == (run.status == "ok") == (not run.message)
    if run.plan is not None:
        timeline = replay(graph, run.plan)
        assert (timeline.peak_bytes, timeline.cost) == (run.peak_bytes, run.cost)
        assert sum(run.plan.recomputed.values()) == run.rematerializations
        values = run_plan(graph, plain)
        assert run_plan(graph, run.plan).items() >= {i: values[i] for i in graph.outputs}.items()


@pytest.mark.parametrize("updates", [False, True])
@pytest.mark.parametrize("heuristic", ["dtr", "dtr_eq", "msps"])
def test_training_steps_recompute(heuristic, updates):
    graph = training_chain(30, updates=updates, gradient_bytes=1, fixed_bytes=20)
    run = simulate(graph, "60%", heuristic=heuristic)
    assert run.status == "ok"
    assert run.rematerializations > 0
    assert replay(graph, run.plan).peak_bytes == run.peak_bytes <= run.budget_bytes


def test_what_is_overwritten_is_kept_as_long_as_anything_may_need_it():
    """`b` may be recomputed from `a` after `u` has changed what `a` read: `a` is pinned from there
    to the last reader of `b`."""
    ops = (
        Op("a", (), 1, 4),
        Op("b", (0,), 1, 4),
        Op("u", (), 1, 0, overwrites=(0,)),
        *(Op(f"x{k}", (), 1, 4) for k in range(4)),
        Op("sum", (3, 4, 5, 6), 1, 4),
        Op("c", (1, 7), 1, 4),
    )
    graph = DFGraph(ops, (8,))
    run = simulate(graph, 24, heuristic="lru", overhead_limit=10)
    assert run.status == "ok"
    assert run.plan.recomputed == {1: 1}
    replay(graph, run.plan)


def test_the_three_ends():
    log = chain(20)
    assert simulate(log, 20).status == "ok"
    assert simulate(log, 2).status == "oom"
    thrashed = simulate(log, 3, overhead_limit=1)
    assert thrashed.status == "thrashed"
    assert thrashed.overhead == 22 / 21
    assert simulate(log, 3).status == "ok"
    for budget, word in ((20, "ok"), (2, "oom")):
        assert str(simulate(log, budget)).startswith(word)
    assert "Raise the budget" in simulate(log, 2).message


def test_below_the_working_set_of_one_op():
    run = simulate(OpLog((Constant("w", 100), Call(("x",), "big", ("w",), 1, (50,), (-1,)))), 120)
    assert (run.status, run.peak_bytes) == ("oom", 100)
    assert (
        "'big' needs 50 B within 120 B, of which 100 B is locked or pinned and cannot be evicted:"
        " 30 B too much" in run.message
    )


def test_what_is_held_at_the_end_must_be_there_together():
    calls = tuple(Call((f"x{i}",), "f", (), 1, (1,), (-1,)) for i in range(5))
    assert simulate(OpLog(calls), 4).status == "oom"
    assert simulate(OpLog((*calls, Release("x0"))), 4).status == "ok"


def test_shares_are_of_the_peak_without_a_budget():
    log = OpLog((Constant("w", 7), *chain(5).instructions))
    plain = simulate(log, "100%")
    assert plain.budget_bytes == plain.plain_peak_bytes == plain.peak_bytes == 13
    assert simulate(log, "70%").budget_bytes == 9


def test_figures_are_the_same_every_time():
    graph = training_chain(25, skip=4, sizes=(3, 9, 5), costs=(2.0, 7.0, 1.0))
    for heuristic in HEURISTICS:
        first, second = (
            simulate(graph, "55%", heuristic=heuristic, overhead_limit=20) for _ in range(2)
        )
        assert first == second
        assert first.plan == second.plan


def test_seeds():
    graph = training_chain(40)
    plans = {
        simulate(graph, "60%", heuristic="random", search=Search(seed=seed), overhead_limit=20).plan
        for seed in range(5)
    }
    assert len(plans) == 5


def test_sampling_and_small_ones_left_out():
    graph = training_chain(60, sizes=(100, 100, 1))
    whole = simulate(graph, "50%", overhead_limit=20)
    sampled = simulate(graph, "50%", overhead_limit=20, search=Search(sample=True))
    assert sampled.status == "ok"
    assert sampled.plan != whole.plan
    by_size = {"budget": "50%", "heuristic": "msps", "overhead_limit": 20}
    large = simulate(graph, **by_size, search=Search(smallest=0.5))
    assert large.status == "ok"
    small = {i for i, op in enumerate(graph.ops) if op.output_bytes < 50}
    assert not small & set(large.plan.recomputed)
    assert not small & set(
        simulate(
            graph, "50%", heuristic="lru", overhead_limit=20, search=Search(smallest=0.5)
        ).plan.recomputed
    )
    assert small & set(simulate(graph, "50%", heuristic="lru", overhead_limit=20).plan.recomputed)


@settings(max_examples=60)
@given(log=op_logs(), share=st.floats(0.5, 1.0))
def test_searching_less_keeps_the_budget(log, share):
    program = Program.from_log(log)
    budget = max(1, int(share * program.plain_peak_bytes))
    for search in (Search(sample=True), Search(smallest=0.01), Search(sample=True, smallest=1.0)):
        run = simulate(program, budget, search=search)
        assert run.peak_bytes <= budget


def test_heuristics_are_products_of_named_factors():
    log = chain(30)
    for name, heuristic in HEURISTICS.items():
        assert str(heuristic) == name
        assert simulate(log, 9, heuristic=name, overhead_limit=20) == simulate(
            log, 9, heuristic=heuristic, overhead_limit=20
        )
    own = Heuristic("own", size=False, staleness=False)
    assert simulate(log, 9, heuristic=own).heuristic.startswith("Heuristic(cost='own'")


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"heuristic": "fifo"}, CheckmateError, r"no heuristic 'fifo'. Known: dtr, dtr_eq"),
        (
            {"deallocation": "later"},
            CheckmateError,
            "no deallocation policy 'later'. Known: ignore, eager, banish",
        ),
        ({"overhead_limit": 0.5}, CheckmateError, "overhead limit of 0.5"),
        ({"overhead_limit": float("nan")}, CheckmateError, "overhead limit of nan"),
        ({"budget": "much"}, BudgetError, "much"),
        ({"log": 3}, CheckmateError, "takes an OpLog, a DFGraph or the path"),
        ({"log": "no/such/file"}, PlanFileError, "Cannot read no/such/file"),
    ],
)
def test_bad_arguments(arguments, error, said):
    arguments = {"log": chain(3), "budget": "100%"} | arguments
    with pytest.raises(error, match=said):
        simulate(arguments.pop("log"), arguments.pop("budget"), **arguments)
    with pytest.raises(CheckmateError, match="no cost 'all'"):
        Heuristic("all")


@pytest.mark.parametrize("share", [-1, float("nan")])
def test_a_search_that_leaves_out_no_share(share):
    with pytest.raises(CheckmateError, match="smallest is a share of the mean size, 0 or more"):
        Search(smallest=share)


def test_files_of_both_kinds(tmp_path):
    graph = training_chain(8)
    graph.save(tmp_path / "graph.json")
    OpLog.from_graph(graph).save(tmp_path / "program.log")
    assert simulate(tmp_path / "graph.json", "80%").plan is not None
    assert dataclasses.replace(simulate(tmp_path / "graph.json", "80%"), plan=None) == simulate(
        str(tmp_path / "program.log"), "80%"
    )


def test_a_log_of_constants_costs_nothing():
    run = simulate(OpLog((Constant("w", 3),)), "100%")
    assert (run.status, run.overhead, run.peak_bytes) == ("ok", 1.0, 3)


@pytest.mark.parametrize("policy", ["ignore", "eager", "banish"])
def test_a_name_copied_onto_its_own_tensor_changes_nothing(policy):
    made = (Constant("w", 3), Call(("x",), "f", ("w",), 5, (4,), (-1,)))
    used = Call(("y",), "g", ("x",), 5, (4,), (-1,))
    plain = simulate(OpLog((*made, used)), 100, deallocation=policy)
    for copies in (
        (CopyFrom("x", "x"),),
        (Copy("z", "x"), CopyFrom("z", "x"), CopyFrom("x", "z"), Release("z")),
    ):
        found = simulate(OpLog((*made, *copies, used)), 100, deallocation=policy)
        assert (found.evictions, found.rematerializations, found.overhead, found.peak_bytes) == (
            0,
            0,
            1.0,
            plain.peak_bytes,
        )


def test_a_run_without_time_is_given_up():
    graph = training_chain(20)
    asked = []
    run = simulate(graph, "60%", out_of_time=lambda: asked.append(1) or len(asked) > 10)
    assert run.status is DTRStatus.THRASHED
    assert run.plan is None
    assert len(asked) == 11
