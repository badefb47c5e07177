"""What a budget is spent on."""

from __future__ import annotations

import pytest
import tensorflow as tf
from dense import batch_of, planned
from training import planned_function

from checkmate.tf2 import device as devices
from checkmate.tf2.memory.budget import (
    MORE_BATCHES,
    RESERVES,
    MemoryBudget,
    ahead,
    argument_bytes,
    bytes_ahead,
    other_bytes_in_use,
)

pytestmark = pytest.mark.usefixtures("tensorflow")
MIB = 2**20


def budget(limit=100 * MIB, **changes):
    kinds = {
        "resident_bytes": 20 * MIB,
        "counted_bytes": 17 * MIB,
        "batch_bytes": 2 * MIB,
        "next_batch_bytes": 4 * MIB,
        "step_bytes": 6 * MIB,
        "start_bytes": 25 * MIB,
    }
    return MemoryBudget(limit, **{**kinds, "reserve_share": RESERVES.simulated, **changes})


def test_what_is_left_is_for_activations():
    memory = budget()
    assert memory.fixed_bytes == 30 * MIB and memory.activation_budget_bytes == 70 * MIB
    assert memory.other_bytes == 7 * MIB and memory.graph_fixed_bytes == 23 * MIB
    assert memory.peak_limit_bytes == 100 * MIB - memory.reserve_bytes
    assert memory.peak(25 * MIB) == memory.resident_bytes + memory.next_batch_bytes, (
        "nothing but what was there at first"
    )
    assert memory.peak(90 * MIB) == 65 * MIB + 24 * MIB


def test_the_reserve_is_no_more_than_there_is():
    assert budget(29 * MIB).reserve_bytes == 0
    assert budget(29 * MIB).peak_limit_bytes == 29 * MIB
    assert budget(reserve_share=0.0).reserve_bytes == 0


@pytest.mark.parametrize("has_loops", [False, True])
@pytest.mark.parametrize("activations", [1000, 10**5, 10**6, 3 * MIB, 10**7, 10**9])
def test_a_measured_peak_leaves_the_reserve_of_the_budget_that_a_refusal_names(
    activations, has_loops
):
    share = RESERVES.with_loops if has_loops else RESERVES.simulated
    peak = budget().fixed_bytes + activations
    found = budget(budget(reserve_share=share).smallest_limit_bytes(peak), reserve_share=share)
    assert peak <= found.peak_limit_bytes <= peak + 1
    assert found.reserve_bytes == pytest.approx(share * found.activation_budget_bytes, abs=1)


def test_the_kinds_of_bytes_of_a_step(tensorflow):
    """A step on a batch of 4 MiB, with 1 MiB of variables, and 8 MiB of others."""
    weight = tf.Variable(tf.ones((2**18,)))
    others = tf.ones((2**21,))

    def step(x):
        weight.assign_add(x[: 2**18])
        return tf.reduce_sum(tf.sin(x))

    traced = planned_function(step, tf.ones((2**20,)), budget="64GiB").planned.traced
    in_use = devices.bytes_in_use(devices.training_device())

    def of(has_batch=False, released_bytes=0, next_batches=0):
        return MemoryBudget.of(
            traced,
            64 * MIB,
            in_use,
            has_batch=has_batch,
            released_bytes=released_bytes,
            next_batches=next_batches,
        )

    memory = of()
    assert memory.resident_bytes == memory.start_bytes == in_use + 4 * MIB, "the batch comes to it"
    assert memory.next_batch_bytes == 0
    assert memory.other_bytes == memory.resident_bytes - traced.before_bytes >= 8 * MIB
    assert memory.graph_fixed_bytes == traced.graph.fixed_bytes
    assert of(has_batch=True).resident_bytes == in_use, "the batch is there"
    released = of(released_bytes=3 * MIB)
    assert released.resident_bytes == memory.resident_bytes - 3 * MIB
    assert released.start_bytes == memory.start_bytes
    assert released.peak(in_use) == memory.peak(in_use) - 3 * MIB
    ahead = of(next_batches=2)
    assert ahead.next_batch_bytes >= 8 * MIB
    assert ahead.other_bytes == memory.other_bytes + ahead.next_batch_bytes
    assert other_bytes_in_use(traced) == in_use - traced.before_bytes
    del others


def test_memory_is_set_aside_for_more_batches_where_they_are_small(tensorflow):
    traced = planned().planned.traced
    assert argument_bytes(traced) >= sum(each.nbytes for each in batch_of())
    assert bytes_ahead(traced, 0) == 0
    assert bytes_ahead(traced, 2) in [k * argument_bytes(traced) for k in range(2, 9)]
    assert [ahead(2, 100, peak * 100) for peak in (1, 50, 75, 100, 10**4)] == [
        200, 200, 300, 400, 200 + 100 * MORE_BATCHES,
    ]  # fmt: skip
