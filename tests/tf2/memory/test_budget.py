"""What a budget is spent on."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.usefixtures("tensorflow")
MIB = 2**20


def budget(limit=100 * MIB, **changes):
    from checkmate.tf2.memory.budget import SPARE_SHARE, MemoryBudget

    kinds = {
        "resident_bytes": 20 * MIB,
        "next_batch_bytes": 4 * MIB,
        "step_bytes": 6 * MIB,
        "start_bytes": 25 * MIB,
    }
    return MemoryBudget(limit, **{**kinds, "spare_share": SPARE_SHARE, **changes})


def test_what_is_left_is_for_activations():
    memory = budget()
    assert memory.fixed_bytes == 30 * MIB and memory.activation_bytes == 70 * MIB
    assert memory.most_bytes == 100 * MIB - memory.spare_bytes
    assert memory.peak(25 * MIB) == memory.resident_bytes + memory.next_batch_bytes, (
        "nothing beside what was there at first"
    )
    assert memory.peak(90 * MIB) == 65 * MIB + 24 * MIB


def test_no_more_is_spared_than_there_is():
    assert budget(29 * MIB).spare_bytes == 0
    assert budget(29 * MIB).most_bytes == 29 * MIB
    assert budget(spare_share=0.0).spare_bytes == 0


@pytest.mark.parametrize("has_loops", [False, True])
@pytest.mark.parametrize("room", [1000, 10**5, 10**6, 3 * MIB, 10**7, 10**9])
def test_a_refusal_names_a_budget_that_what_was_measured_leaves_enough_of(room, has_loops):
    from checkmate.tf2.memory.budget import LOOP_SPARE_SHARE, SPARE_SHARE

    share = LOOP_SPARE_SHARE if has_loops else SPARE_SHARE
    peak = budget().fixed_bytes + room
    enough = budget(budget(spare_share=share).enough_bytes(peak), spare_share=share)
    assert peak <= enough.most_bytes <= peak + 1
    assert enough.spare_bytes == pytest.approx(share * enough.activation_bytes, abs=1)


def test_the_kinds_of_bytes_of_a_step(tensorflow):
    """A step on a batch of 4 MiB, with 1 MiB of variables, and 8 MiB of others."""
    from training import planned_function

    from checkmate.tf2 import device as devices
    from checkmate.tf2.memory.budget import MemoryBudget, outside_bytes

    tf = tensorflow
    weight = tf.Variable(tf.ones((2**18,)))
    others = tf.ones((2**21,))

    def step(x):
        weight.assign_add(x[: 2**18])
        return tf.reduce_sum(tf.sin(x))

    traced = planned_function(step, tf.ones((2**20,)), budget="64GiB")._main.traced
    options = {"has_batch": False, "gone_bytes": 0, "next_batches": 0}
    in_use = devices.bytes_in_use(devices.training_device())
    memory = MemoryBudget.of(traced, 64 * MIB, in_use_bytes=in_use, **options)
    assert memory.resident_bytes == memory.start_bytes == in_use + 4 * MIB, "the batch comes to it"
    assert memory.next_batch_bytes == 0
    assert memory.outside_bytes(traced) == memory.resident_bytes - traced.before_bytes >= 8 * MIB
    assert (
        memory.resident_bytes + memory.step_bytes
        == memory.outside_bytes(traced) + traced.graph.fixed_bytes
    )
    held = MemoryBudget.of(traced, 64 * MIB, in_use_bytes=in_use, **{**options, "has_batch": True})
    assert held.resident_bytes == in_use, "the batch is there"
    gone = MemoryBudget.of(
        traced, 64 * MIB, in_use_bytes=in_use, **{**options, "gone_bytes": 3 * MIB}
    )
    assert (
        gone.resident_bytes == memory.resident_bytes - 3 * MIB
        and gone.start_bytes == memory.start_bytes
    )
    assert gone.peak(in_use) == memory.peak(in_use) - 3 * MIB
    ahead = MemoryBudget.of(traced, 64 * MIB, in_use_bytes=in_use, **{**options, "next_batches": 2})
    assert ahead.next_batch_bytes >= 8 * MIB
    assert ahead.outside_bytes(traced) == memory.outside_bytes(traced) + ahead.next_batch_bytes
    assert outside_bytes(traced) >= 0
    del others
