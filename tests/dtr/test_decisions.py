"""The simulator against the naive reference: the same storages evicted in the same order, and so
the same figures."""

import contextlib
import random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from logs import op_logs
from reference import GaveUp, Reference

from checkmate.dtr.heuristic import HEURISTICS
from checkmate.dtr.policy import CountingBackend
from checkmate.dtr.pool import Pool, Search
from checkmate.dtr.program import Program
from checkmate.dtr.runtime import Runtime
from checkmate.dtr.simulator import simulate
from checkmate.dtr.steps import Run
from checkmate.dtr.storage import Storage
from checkmate.errors import EvictionError

DETERMINISTIC = tuple(name for name in HEURISTICS if name != "random")


def run_reference(program, budget, heuristic, limit, eager):
    reference, tensors, status = Reference(budget, heuristic, limit, eager), [], "ok"
    try:
        for step in program.steps:
            if isinstance(step, Run):
                tensors += reference.call(
                    [tensors[i] for i in step.inputs], step.sizes, step.aliases, step.cost
                )
            elif step.method == "retain":
                tensors[step.tensor].block.refs += 1
            elif step.method == "release":
                reference.release(tensors[step.tensor])
            else:
                assert step.method == "pin"
                reference.pin(tensors[step.tensor])
    except GaveUp as end:
        status = str(end)
    return status, reference


class Witness(CountingBackend):
    """Writes down which storages are freed, numbered in the order in which they were first made."""

    def __init__(self):
        super().__init__()
        self.numbers, self.decisions = {}, []

    def compute(self, call, duplicates):
        super().compute(call, duplicates)
        for tensor in call.outputs:
            self.numbers.setdefault(tensor.storage, len(self.numbers))

    def free(self, storage):
        super().free(storage)
        self.decisions.append(self.numbers[storage])


def check(program, budget, heuristic, overhead_limit, eager):
    policy = "eager" if eager else "ignore"
    limit = program.cost * (overhead_limit - 1)
    status, reference = run_reference(program, budget, heuristic, limit, eager)
    chosen = HEURISTICS[heuristic]
    for few in (0, 3, 10**9):  # arrays alone, both, one storage after the other alone
        witness = Witness()
        with contextlib.suppress(EvictionError):
            program.run(
                Runtime(
                    witness,
                    budget_bytes=budget,
                    heuristic=chosen,
                    deallocation=policy,
                    recompute_limit=limit,
                    search=Search(few=few),
                )
            )
        assert witness.decisions == reference.decisions
    run = simulate(
        program, budget, heuristic=heuristic, overhead_limit=overhead_limit, deallocation=policy
    )
    figures = (
        run.status.value,
        run.evictions,
        run.rematerializations,
        run.peak_bytes,
        run.cost - run.plain_cost,
    )
    assert figures == (
        status,
        len(reference.decisions),
        reference.again,
        reference.peak,
        reference.extra,
    )


@pytest.mark.parametrize("heuristic", DETERMINISTIC)
@settings(max_examples=60)
@given(
    log=op_logs(),
    share=st.floats(0.4, 1.0),
    eager=st.booleans(),
    overhead_limit=st.sampled_from((1.5, 2.0, 8.0)),
)
def test_decisions_are_those_of_the_reference(heuristic, log, share, eager, overhead_limit):
    program = Program.from_log(log)
    assume(program.plain_peak_bytes)
    check(program, max(1, int(share * program.plain_peak_bytes)), heuristic, overhead_limit, eager)


@st.composite
def pools(draw):
    """Storages of sizes and times for which products are not exact in floating point, with ties
    made on purpose."""
    sizes = st.integers(0, 2**40) | st.sampled_from((0, 3 * 2**30, 3 * 2**31))
    times = st.integers(1, 2**40) | st.sampled_from((2**33 - 7, 2**34 - 14))
    return draw(
        st.lists(
            st.tuples(sizes, times, st.sampled_from((0, 1, 7, 10**9)) | st.integers(0, 2**40)),
            min_size=1,
            max_size=30,
        )
    )


@pytest.mark.parametrize("heuristic", ["local", "lru", "size"])
@given(
    facts=pools(),
    clock=st.integers(2**41, 2**42),
    now=st.none() | st.integers(0, 2**42),
    horizon=st.just(0) | st.integers(1, 2**41),
    zero=st.booleans(),
    few=st.sampled_from((0, 10**9)),
    seed=st.integers(0, 9),
)
def test_the_lowest_score_of_equal_ones_the_last(
    heuristic, facts, clock, now, horizon, zero, few, seed
):
    # As in a backward pass: some were read after the moment that is asked for.
    now = clock if now is None else now
    chosen = HEURISTICS[heuristic]
    neighbourhood = chosen.neighbourhood()
    pool = Pool(chosen, neighbourhood, Search(few=few))
    storages = []
    for size, last, cost in facts:
        storage = Storage(size)
        storage.cost, storage.last_access = max(cost, 0 if zero else 1), clock - last
        storages.append(storage)
        pool.add(storage)
    chance = random.Random(seed)
    while storages:
        expected, best = None, float("inf")
        for storage in storages:
            score = chosen.score(neighbourhood.cost(storage), storage, now, horizon)
            if score <= best:
                expected, best = storage, score
            if score == 0:
                break
        assert pool.choose(now, horizon) is expected
        read = chance.choice(storages)
        read.last_access = clock - chance.randrange(1, 2**40)
        pool.touched(read)
        gone = chance.choice(storages)
        storages.remove(gone)
        pool.discard(gone)
        assert list(pool) == storages
        assert len(pool) == len(storages)
