"""What the allocator says of its free chunks is believed by a simulation that is then right about
all that follows."""

import gc
import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import tensorflow as tf
from processes import found, started

from checkmate.core.allocator import UNIT_BYTES
from checkmate.errors import CheckmateError
from checkmate.tf2 import device as devices

pytestmark = pytest.mark.usefixtures("tensorflow")

MIB = 2**20
PROGRAM = Path(__file__).parent / "random_requests.py"


def same(compared):
    return (
        compared["same_chunk"] == compared["requests"] > 400
        and compared["same_in_use"] == compared["events"]
        and compared["same_peak"]
    )


@pytest.mark.parametrize("chunks", ["known", pytest.param("roomy", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("bfc", "least_requested"), [("true", 1), ("false", 256 * 2**10)])
def test_random_requests_get_the_chunks_of_the_simulation(bfc, least_requested, chunks):
    seen = found(
        started(PROGRAM, 3, 2400, chunks, TF_CPU_ALLOCATOR_USE_BFC=bfc, TF_ENABLE_ONEDNN_OPTS="1")
    )
    if bfc == "false" and not seen["reports"]:
        pytest.skip("no oneDNN here: the default allocator counts nothing")
    assert seen["least_requested"] == pytest.approx(least_requested, rel=0.1), (
        "smaller requests go to another allocator"
    )
    assert seen["fresh"]
    assert same(seen["from_start"]), "regions grow as they should"
    assert len(set(seen["in_use"])) == 1, (
        "the probe counts what was in use, and leaves nothing in use"
    )
    assert same(seen["from_probe"])
    assert seen["same_run"]
    assert seen["large_was_used"] and not seen["fetched"], (
        "else nothing is shown of the large chunk"
    )
    assert seen["chunks_at_end"] >= 4
    assert seen["same_at_end"]
    assert seen["same_hole"] == (chunks == "known")
    assert seen["same_when_released"] == [True, True]


@pytest.mark.parametrize("step_bytes", [1, 1000, MIB - 255, 5 * MIB + 1])
def test_what_a_step_needs_is_there(tensorflow, step_bytes):
    from checkmate.tf2.memory.probe import probe

    gc.collect()
    pool = probe(step_bytes)
    assert pool.largest_hole_bytes >= step_bytes
    assert probe(step_bytes).free_chunks == pool.free_chunks


@pytest.mark.slow
@pytest.mark.own_process
def test_a_chunk_about_as_large_as_a_step_is_known(tensorflow):
    """Just as large, one unit more, one that is not split, and smaller ones with it that are full
    after many requests."""
    from checkmate.tf2.memory.probe import probe

    whole = probe(60 * MIB).largest_hole_bytes
    assert whole == 64 * MIB, "the region that fits the step"
    buffers = [tf.raw_ops.Empty(shape=[n * MIB], dtype=tf.uint8) for n in (20, 3, 13, 3)]
    walls = buffers[1::2]
    del buffers
    for more in (0, 256, 512, MIB):
        pool = probe(25 * MIB - more)
        assert [size for _, size in pool.free_chunks if size > 2 * MIB] == [
            20 * MIB,
            13 * MIB,
            25 * MIB,
        ]
        assert pool.in_use_bytes == sum(wall.shape[0] for wall in walls)


def test_only_one_profile_at_a_time(tensorflow, tmp_path):
    from checkmate.tf2.memory.probe import probe

    tensorflow.profiler.experimental.start(str(tmp_path))
    try:
        with pytest.raises(CheckmateError, match="in use already"):
            probe(MIB)
    finally:
        tensorflow.profiler.experimental.stop(save=False)


def test_an_allocator_that_does_not_report_is_not_asked(machine):
    from checkmate.tf2.memory.probe import probe

    machine.patch(devices, "allocator_reports", lambda device: False)
    with pytest.raises(CheckmateError, match="does not say how much is in use"):
        probe(MIB)


def test_an_allocator_that_is_not_bfc_is_not_believed(machine):
    from checkmate.tf2.memory import probe

    observe = probe.observe
    machine.patch(probe, "observe", lambda call: replace(observe(call), events=()))
    with pytest.raises(CheckmateError, match="not TensorFlow's BFC allocator"):
        probe.probe(MIB)


def test_more_memory_than_there_is(tensorflow, machine, monkeypatch):
    """In earnest, TensorFlow would wait ten seconds."""
    from checkmate.tf2.memory.probe import probe

    empty, before = tf.raw_ops.Empty, devices.bytes_in_use("CPU:0")

    def at_most(shape, dtype):
        if tf.reduce_prod(tf.cast(shape, tf.int64)) >= 2**30:
            raise tf.errors.ResourceExhaustedError(None, None, "OOM")
        return empty(shape=shape, dtype=dtype)

    machine.patch(tf.raw_ops, "Empty", at_most)
    assert probe(MIB).largest_hole_bytes >= MIB
    with pytest.raises(CheckmateError, match=r"has no 200\.00 GiB in one piece"):
        probe(200 * 2**30)
    monkeypatch.setenv("TF_CPU_BFC_MEM_LIMIT_IN_MB", "512")  # is not asked for more
    machine.patch(tf.raw_ops, "Empty", empty)
    with pytest.raises(CheckmateError, match=r"has no 600\.00 MiB in one piece"):
        probe(600 * MIB)
    gc.collect()
    assert devices.bytes_in_use("CPU:0") <= before


def test_answers_that_do_not_fit_together(tensorflow, monkeypatch):
    from checkmate.tf2.memory import probe

    before = devices.bytes_in_use("CPU:0")
    count = itertools.count(0, MIB // 3)
    with monkeypatch.context() as patch:
        # As if others took as much between any two reads.
        patch.setattr(devices, "bytes_in_use", lambda device: next(count))
        with pytest.raises(CheckmateError, match="Do other threads use it"):
            probe.probe(MIB // 4)
    places = itertools.count(2**40, MIB)
    with monkeypatch.context() as patch:
        patch.setattr(probe, "address_of", lambda buffer: next(places))
        with pytest.raises(CheckmateError, match="Do other threads use it"):
            probe.probe(MIB)
    gc.collect()
    assert devices.bytes_in_use("CPU:0") <= before


def test_what_others_do_meanwhile_counts(tensorflow, machine):
    """When all chunks are full, another thread requests a buffer and releases one that it had."""
    from checkmate.tf2.memory import probe

    gc.collect()
    in_use = probe.probe(60 * MIB).in_use_bytes
    theirs = [tf.raw_ops.Empty(shape=[300000], dtype=tf.uint8)]
    places = [probe.address_of(theirs[0])]
    request_within = probe.request_within

    def disturbed(place, shape, most, others):
        answer = request_within(place, shape, most, others)
        if tf.reduce_prod(shape) == UNIT_BYTES:
            theirs[:] = [tf.raw_ops.Empty(shape=[500000], dtype=tf.uint8)]
            places.append(probe.address_of(theirs[0]))
        return answer

    machine.patch(probe, "request_within", disturbed)
    pool = probe.probe(60 * MIB)
    released, requested = places
    assert 500000 <= pool.in_use_bytes - in_use <= 1000000
    assert [
        any(start <= place < start + size for start, size in pool.free_chunks) for place in places
    ] == [True, False]
    assert released != requested
