"""Memory that is set apart for batches: they lie in it, and the large chunk stays whole."""

import gc

import pytest
import tensorflow as tf

from checkmate.tf2 import device as devices
from checkmate.tf2.memory.probe import BATCHES, address_of, probe, set_apart

BATCH = [1_228_800, 409_600]


def requested(size):
    return tf.raw_ops.Empty(shape=tf.constant([size // 256, 256]), dtype=tf.uint8)


def chunks():
    """(bytes, address) of the free chunks, the largest first."""
    return sorted(((size, address) for address, size in probe(400 << 20).free_chunks), reverse=True)


@pytest.mark.slow
@pytest.mark.own_process
def test_batches_do_not_cut_the_large_chunk(tensorflow):
    devices.fetch_region("CPU:0", 600 << 20)
    apart = set_apart(BATCH, 1000)
    area = BATCHES * sum(BATCH) + 1024
    end = address_of(apart)
    assert area in [size for size, _ in chunks()]
    largest = chunks()[0]
    held = [requested(size) for _ in range(BATCHES - 1) for size in BATCH]
    assert any(end - area <= address_of(each) < end for each in held), (
        "others lie in chunks that fit better"
    )
    assert chunks()[0] == largest
    del held, apart
    gc.collect()
    assert area not in [size for size, _ in chunks()], "it lasts as long as what keeps it apart"


@pytest.mark.own_process
@pytest.mark.slow
def test_it_takes_a_few_batches_to_set_memory_apart(tensorflow):
    """A chunk that is not split has none behind it: nothing is asked for again and again."""
    hole, _ = requested(BATCHES * sum(BATCH) + 4096), requested(256)
    del hole
    _, before, peak = devices.peak_above("CPU:0", lambda: set_apart(BATCH))
    assert peak - before <= 3 * BATCHES * sum(BATCH)
    assert devices.bytes_in_use("CPU:0") - before <= 4096


def test_where_the_allocator_does_not_report_nothing_is_set_apart(tensorflow, machine):
    machine.patch(devices, "allocator_reports", lambda device: False)
    assert set_apart(BATCH) is None
    assert set_apart([]) is None
