"""Steps that TensorFlow traced and ran once (`make.py`): the models of its memory, the judge and
the solvers are held to what was recorded, without TensorFlow."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
from oracles import run_plan

from checkmate import DFGraph, InfeasibleBudgetError, Plan, SolveStatus, floor, replay, solve
from checkmate.core.allocator import Pool
from checkmate.core.events import Program, learn, requests_by_node
from checkmate.core.files import load_plan
from checkmate.core.footprint import Footprint, Kind, Node
from checkmate.plot.usage import usage
from checkmate.solvers.solve import SOLVERS

FILES = {path.stem: path for path in sorted(Path(__file__).parent.glob("*.json"))}
KINDS = {kind.value[0]: kind for kind in Kind}
SMALL = ("shared_layer", "unet")
SECONDS = ("auto", "lp_rounding", "milp", "retention", "state_space")
"""Solvers that are asked for plans of the small steps alone."""

EMPTY = [(1 << 50, 1 << 50)]

each_step = pytest.mark.parametrize("name", FILES)


class Golden:
    """One file."""

    def __init__(self, path):
        self.data = json.loads(path.read_text())
        self.names = {}

    def part(self, name, folder):
        """The path of a file with what is written under a key."""
        path = folder / f"{name}.json"
        path.write_text(json.dumps(self.data[name]))
        return path

    def program(self, which):
        rows, outputs = self.data[which]["nodes"], self.data[which]["outputs"]
        return Program(
            tuple(
                Node(
                    f"{which}{k}",
                    f"key{key}",
                    KINDS[kind],
                    tuple((f"{which}{i}", output) for i, output in reads),
                    tuple(sizes),
                    workspace,
                    bool(in_place),
                    bool(shares),
                )
                for k, (key, kind, reads, sizes, workspace, in_place, shares) in enumerate(rows)
            ),
            tuple((f"{which}{i}", output) for i, output in outputs),
        )

    def footprints(self):
        by_node, by_key = self.data["footprints"]
        return {f"planned{k}": Footprint.of_row(row) for k, row in by_node} | {
            f"key{k}": Footprint.of_row(row) for k, row in by_key
        }

    def log(self):
        """The allocator's log as `requests_by_node` reads it."""
        names = {-2: None, -1: ""}
        return [
            (names.get(k, f"planned{k}"), address, size, bool(is_output))
            for k, address, size, is_output, *_ in self.data["log"]["events"]
        ]


@cache
def golden(name):
    return Golden(FILES[name])


@pytest.fixture
def graph(name, tmp_path):
    return DFGraph.load(golden(name).part("graph", tmp_path))


def peak_of_steps(events, constants, batch, before_next):
    """The peak of some steps that each keep the last one's results, and get a new batch before or
    after the last one is released."""
    pool = Pool.of_free_chunks(EMPTY)
    for size in constants:
        pool.request(size)
    old, results, peak = [], [], 0
    for _ in range(6):
        for address in old if before_next else ():
            pool.release(address)
        new = [pool.request(size) for size in batch]
        for address in () if before_next else old:
            pool.release(address)
        old, places = new, {}
        peak = max(peak, pool.run(events.steps, places))
        for address in results:
            pool.release(address)
        results = [places[buffer] for buffer in events.results]
    return peak


@each_step
@pytest.mark.parametrize("which", ["plain", "planned"])
def test_the_simulated_peak_is_the_recorded_one(name, which):
    found = golden(name)
    events = found.program(which).events(found.footprints())
    constants, batch = found.data[which]["constants"], found.data["batch"]
    peaks = [peak_of_steps(events, constants, batch, before) for before in (False, True)]
    assert max(peaks) == found.data[which]["peak"]
    assert events.most_requested_bytes <= max(peaks)


@each_step
def test_each_request_of_the_real_step_gets_the_chunk_that_it_got(name):
    log = golden(name).data["log"]
    pool = Pool.of_free_chunks(log["free"], in_use_bytes=log["in_use"])
    requested = set()
    for k, address, size, _, chunk_bytes, in_use_bytes in log["events"]:
        if k == -2:
            if address not in requested:  # what was in use before the step
                pool.add_chunk_in_use(address, chunk_bytes)
            pool.release(address)
        else:
            requested.add(address)
            assert pool.request(size) == address
            assert pool.chunk_bytes(address) == chunk_bytes
        assert pool.in_use_bytes == in_use_bytes


@each_step
def test_what_is_learnt_from_the_log_asks_for_what_was_logged(name):
    found = golden(name)
    footprints = learn(found.program("planned"), requests_by_node(found.log()))
    assert footprints == {key: found.footprints()[key] for key in footprints}
    events = found.program("planned").events(footprints)
    live, total, most = {}, 0, 0
    for node, address, size, _ in found.log():
        total += size if node is not None else -live.pop(address, 0)
        if node is not None:
            live[address], most = size, max(most, total)
    # Ops within a loop are no nodes of the program. TensorFlow folds a few small ones.
    has_loop = any(kind not in footprints for kind in requests_by_node(found.log()) if kind)
    assert most <= events.most_requested_bytes + 64 or has_loop
    assert events.most_requested_bytes <= most + 64


@each_step
def test_the_judge_finds_the_recorded_peaks_cost_and_values(name, graph, tmp_path):
    found = golden(name).data
    plan = load_plan(golden(name).part("plan", tmp_path), graph=graph)
    plain, timeline = replay(graph, Plan.keep_all(graph)), replay(graph, plan)
    assert [plain.peak_bytes, timeline.peak_bytes] == found["peaks"]
    assert timeline.peak_bytes <= found["plan"]["budget_bytes"] < plain.peak_bytes
    assert timeline.cost == pytest.approx(found["cost"]) and plan.recomputed
    values = run_plan(graph, Plan.keep_all(graph))
    assert run_plan(graph, plan).items() >= {i: values[i] for i in graph.outputs}.items()
    assert usage(graph, plan).bytes_by_part.sum(1).max() == timeline.peak_bytes


@each_step
def test_below_the_floor_it_is_refused_with_floor_and_amount(name, graph):
    needed, op = golden(name).data["floor"]
    assert floor(graph).bytes == needed
    with pytest.raises(InfeasibleBudgetError, match=op) as caught:
        solve(graph, needed - 100)
    assert (caught.value.floor_bytes, caught.value.shortfall_bytes) == (needed, 100)


@pytest.mark.parametrize(
    ("name", "solver"),
    [
        (name, solver)
        for solver in sorted(SOLVERS)
        for name in (SMALL if solver in SECONDS else FILES)
    ],
)
def test_plans_of_solvers_are_legal_and_no_better_than_the_bound(name, graph, solver):
    asked = golden(name).data["plan"]
    result = solve(graph, asked["budget_bytes"], solver=solver, time_limit_s=1, throw=False)
    assert result.status is not SolveStatus.INFEASIBLE
    if result.plan is not None:
        timeline = replay(graph, result.plan)
        assert timeline.peak_bytes <= asked["budget_bytes"]
        assert timeline.cost == pytest.approx(result.cost)
        assert timeline.cost >= asked["bound"] * (1 - 1e-6)
    if solver == "auto":
        assert result.cost <= golden(name).data["cost"] * 1.001
