"""Several replicas: the same losses as plain training under the same strategy, one plan for all."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from processes import found, found_by_workers, started

import checkmate
from checkmate.tf2 import device as devices
from checkmate.tf2.replicas import WholeStep, exchange_bytes

PROGRAM = Path(__file__).with_name("distributed.py")
MIB = 2**20


def check(result):
    assert result["recomputed"]
    assert len(set(result["plain"]["losses"])) > 1, "nothing is trained"
    np.testing.assert_allclose(result["planned"]["losses"], result["plain"]["losses"], rtol=1e-6)
    np.testing.assert_allclose(result["planned"]["weights"], result["plain"]["weights"], rtol=1e-6)
    measured, budget = result["peaks"]
    assert measured <= budget
    assert result["rooms"] and not any(result["rooms"]), (
        "the plan is replayed by the function of all replicas, and nobody would use them"
    )


@pytest.mark.slow
def test_two_mirrored_devices():
    """The last batch is smaller, and of equal parts."""
    result = found(started(PROGRAM, "mirrored", 1024, 2 * 1024 + 200, 2))
    check(result)
    assert result["planned"] == result["plain"], "to the bit"
    plain, planned = result["unbuilt"]
    assert planned == plain and len(set(plain)) == 2
    assert "a batch is split exactly or not at all" in result["refused"]
    assert sum("share this device's memory" in note for note in result["notes"]) == 1
    assert not [text for text in result["warned"] if "significant overhead" in text]
    assert result["ran"] == [6, None], "the allocator counts a whole step, not a replica's"


@pytest.mark.slow
def test_all_that_replicas_keep_is_counted_before_the_first_step():
    """Weights and both slots of Adam, of both replicas: on CPUs they have one allocator. Losses are
    those of plain replicas to the bit."""
    result = found(started(PROGRAM, "memory", 1024, 1024, 1))
    batch = 1024 * (512 * 4 + 8)
    # The allocator gives out chunks of up to twice of what a weight takes: by how much more differs
    # from process to process, not within one.
    assert result["counted"] - batch >= 2 * 3 * result["weights"]
    assert 0 <= result["counted"] - result["in_use"] <= batch, "what training keeps was counted"
    assert result["recomputed"] and result["same"] and result["changes"] > 1
    assert [note for note in result["notes"] if "share this device" not in note] == []
    assert result["said"] == []


def whole_step(run, *, budget, exchange=0, replicas=1):
    start = devices.bytes_in_use("CPU:0")
    report = SimpleNamespace(name="replicated", memory=SimpleNamespace(start_bytes=start))
    planned = SimpleNamespace(report=report)
    return WholeStep(run, planned, start + budget, replicas=replicas, exchange=exchange)


@pytest.mark.usefixtures("tensorflow")
@pytest.mark.parametrize(
    ("exchange", "replicas", "over"), [(9, 1, True), (9, 2, True), (7, 1, False)]
)
def test_the_exchange_of_gradients_is_expected_before_it_runs(exchange, replicas, over):
    step = whole_step(
        lambda: pytest.fail("a step ran"),
        budget=8 * MIB,
        exchange=exchange * MIB,
        replicas=replicas,
    )
    assert len(step.notes) == over
    if over:
        assert f"expected to take {replicas}.00 MiB more" in step.notes[0]


@pytest.mark.usefixtures("tensorflow")
def test_a_whole_step_is_measured_when_it_runs_for_the_second_time():
    """Each run takes what it is told; kernels that are tried in the first are no matter."""
    for sizes, noted in (((64, 4, 64), 0), ((4, 64, 4), 1)):
        step = whole_step(lambda size: tf.zeros([size * MIB], tf.uint8)[0], budget=32 * MIB)
        for size in sizes:
            step(size)
        assert len(step.notes) == noted
        assert all(" took " in note and "raise the budget" in note for note in step.notes)


@pytest.mark.usefixtures("tensorflow")
def test_packed_gradients_take_twice_what_they_are():
    rows = tf.IndexedSlices(tf.zeros([4, 64]), tf.constant([0, 1, 2, 3]))
    assert exchange_bytes([tf.zeros([256, 256]), None, rows]) == 2 * (256 * 1024 + 1024 + 256)


@pytest.mark.usefixtures("tensorflow")
def test_strategies_that_one_plan_cannot_serve():
    # Of devices that this machine need not have.
    mixed = object.__new__(tf.distribute.MirroredStrategy)
    mixed._extended = SimpleNamespace(worker_devices=("/device:GPU:0", "/device:CPU:0"))
    for strategy, text in (
        (mixed, r"unequal devices \(CPU, GPU\)"),
        (tf.distribute.OneDeviceStrategy("CPU:0"), "OneDeviceStrategy"),
    ):
        with pytest.raises(checkmate.TraceError, match=text):
            checkmate.tf2.function(tf.reduce_sum, budget="1GiB", strategy=strategy)


@pytest.mark.slow
def test_two_workers():
    results = found_by_workers(PROGRAM, "workers", 1024, 1024 * 10, 2)
    for result in results:
        check(result)
        assert len(result["plain"]["losses"]) == 20
    assert results[0]["planned"]["losses"] == pytest.approx(
        results[1]["planned"]["losses"], rel=1e-6
    )
    assert results[0]["steps"] == results[1]["steps"], "the workers run one plan"
