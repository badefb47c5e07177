"""What the runtime does, in cases small enough to follow by hand."""

import contextlib
import math

import pytest
from hypothesis import given, settings
from logs import op_logs

from checkmate import EvictionError
from checkmate.dtr.heuristic import HEURISTICS, Heuristic
from checkmate.dtr.policy import CountingBackend
from checkmate.dtr.program import Program, Run
from checkmate.dtr.runtime import Deallocation, Runtime
from checkmate.dtr.storage import FRESH
from checkmate.errors import ThrashingError


def runtime(budget=math.inf, heuristic="lru", **options):
    return Runtime(
        CountingBackend(), budget_bytes=budget, heuristic=HEURISTICS[heuristic], **options
    )


def call(rt, *inputs, size=1, cost=1):
    return rt.call("op", inputs, [size], [FRESH], cost)[0]


def test_inputs_are_locked_while_missing_ones_come_back():
    rt = runtime(3)
    a = call(rt)
    b = call(rt)
    c, d, e = (call(rt) for _ in range(3))
    assert not a.defined
    assert not b.defined
    with pytest.raises(
        EvictionError,
        match=r"'op' needs 1 B within 3 B, of which 3 B is locked or pinned.*1 B too much",
    ):
        call(rt, e, a, b)
    assert all(not tensor.storage.locks for tensor in (a, b, c, d, e))
    assert len(rt.pool) == rt.backend.in_use == 3


def test_a_view_goes_with_its_storage_and_is_made_again_by_its_own_call():
    rt = runtime()
    a = call(rt, size=4, cost=10)
    (v,) = rt.call("view", [a], [4], [0], 1)
    assert v.storage is a.storage
    assert v.storage.cost == 11
    assert rt.backend.in_use == 4
    rt.release(a)
    assert v.defined
    rt.release(v)
    assert not a.defined
    assert not v.defined
    rt.materialize(v)
    assert a.defined
    assert rt.recomputed_cost == 11
    assert rt.backend.in_use == 4


def test_pinned_stays_until_unpinned():
    rt = runtime(2)
    a = call(rt)
    rt.pin(a)
    rt.pin(a)
    b = call(rt)
    c = call(rt)
    assert a.defined
    assert not b.defined
    rt.release(a)
    assert a.defined
    rt.unpin(a)
    assert not a.defined
    assert c.defined


def test_the_limit_is_looked_at_after_each_recomputation():
    rt = runtime(1, recompute_limit=3)
    a, b = call(rt, cost=2), call(rt, cost=2)
    rt.materialize(a)
    with pytest.raises(ThrashingError, match="cost 4, more than the limit of 3"):
        rt.materialize(b)
    assert b.defined


@pytest.mark.parametrize(("policy", "in_use"), [("ignore", 5), ("eager", 4), ("banish", 4)])
def test_policies(policy, in_use):
    rt = runtime(deallocation=policy)
    a = call(rt)
    b = call(rt, a, size=4)
    rt.release(a)
    assert rt.backend.in_use == in_use
    assert b.storage.pinned == (policy == "banish")


def test_banishing_waits_for_what_was_evicted_and_then_goes_up():
    rt = runtime(3, deallocation=Deallocation.BANISH)
    a = call(rt)
    b = call(rt, a)
    c = call(rt, b)
    call(rt)  # evicts a
    assert not a.defined
    rt.release(b)
    assert b.storage.banished
    assert c.storage.pinned
    rt.release(a)
    assert a.storage.banished
    rt.release(c)
    assert c.storage.banished
    assert not c.storage.material


def test_what_was_made_of_the_banished_frees_it_when_it_is_back():
    rt = runtime(2, deallocation=Deallocation.BANISH)
    a = call(rt)
    b = call(rt, a)
    rt.materialize(a)
    call(rt)
    call(rt)
    assert not b.defined
    rt.release(a)
    assert not a.storage.banished  # b still needs it
    rt.materialize(b)
    assert a.storage.banished
    assert b.storage.pinned


def test_chains_longer_than_pythons_stack():
    rt = runtime(2)
    chain = [call(rt)]
    for _ in range(5000):
        chain.append(call(rt, chain[-1]))
    rt.materialize(chain[-3])
    assert rt.rematerializations == 4999


class Failing(CountingBackend):
    """Breaks when it runs one op again."""

    def __init__(self):
        super().__init__()
        self.ran = set()

    def compute(self, call, duplicates):
        if call.number == 1 and call in self.ran:
            raise ZeroDivisionError
        self.ran.add(call)
        super().compute(call, duplicates)


def test_an_op_that_breaks_while_others_wait_leaves_no_locks():
    rt = Runtime(Failing(), budget_bytes=3, heuristic=HEURISTICS["lru"])
    chain = [call(rt)]
    for _ in range(5):
        chain.append(call(rt, chain[-1]))
    with pytest.raises(ZeroDivisionError):
        rt.materialize(chain[2])
    assert all(not tensor.storage.locks for tensor in chain)
    assert len(rt.pool) == sum(tensor.storage.material for tensor in chain) == rt.backend.in_use
    rt.materialize(chain[0])
    assert chain[0].defined


class Checked(Runtime):
    """Compares, before each op, every cost in the pool with the definition."""

    def call(self, *arguments):
        for storage in self.pool:
            assert self.neighbourhood.cost(storage) == pytest.approx(self.defined_cost(storage))
        return super().call(*arguments)

    def defined_cost(self, storage):
        ways = {"ancestors": ("deps",), "neighbourhood": ("deps", "users")}[self.counted]
        total = storage.cost
        for way in ways:
            found, waiting = set(), [storage]
            while waiting:
                for other in getattr(waiting.pop(), way):
                    if not other.material and other not in found:
                        found.add(other)
                        waiting.append(other)
            total += sum(other.cost for other in found)
        return total


@pytest.mark.parametrize("policy", ["eager", "ignore", "banish"])
@pytest.mark.parametrize("counted", ["ancestors", "neighbourhood"])
@settings(max_examples=25)
@given(log=op_logs(many_views=True))
def test_neighbourhoods_are_exact(counted, policy, log):
    program = Program.from_log(log)
    rt = Checked(
        CountingBackend(),
        budget_bytes=max(1, program.plain_peak_bytes * 7 // 10),
        heuristic=Heuristic(counted),
        deallocation=policy,
    )
    rt.counted = counted
    with contextlib.suppress(EvictionError):
        program.run(rt)


@pytest.mark.parametrize("policy", ["eager", "ignore", "banish"])
@settings(max_examples=40)
@given(log=op_logs(many_views=True))
def test_nothing_is_recomputed_without_a_budget(policy, log):
    program = Program.from_log(log)
    rt = runtime(heuristic="dtr_eq", deallocation=policy)
    program.run(rt)
    assert rt.evictions == rt.eager_evictions
    assert rt.clock == 1 + program.cost + rt.recomputed_cost
    if policy != "eager":  # there a view can outlive what it was made of and be asked for again
        assert rt.rematerializations == 0
    if policy == "ignore":
        assert rt.backend.in_use == sum(
            sum(step.sizes) for step in program.steps if isinstance(step, Run)
        )
