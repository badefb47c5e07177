"""Asks TensorFlow's allocator for random buffers, and its simulation too, in a process in which
nothing else ran.

The simulation begins with nothing, as the allocator does, and later anew with what `probe` finds.
Prints where they agreed. With the word "roomy", the allocator has a free chunk of which `probe`
does not learn the size.
"""

import json
import os
import random
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import tensorflow as tf

from checkmate.core.allocator import ONEDNN_SMALLEST_BYTES, Pool
from checkmate.tf2 import device as devices
from checkmate.tf2.memory.probe import probe
from checkmate.tf2.memory.profiler import observe

MIB = 2**20
FIRST_BYTES, THEN_BYTES, ROOM_BYTES = 100 * MIB, 700 * MIB, 1300 * MIB  # nothing is written to them


class Buffers:
    """Buffers of random sizes, from a byte to 360 MiB, as likely to have n bits as n + 1."""

    def __init__(self, seed):
        self.chance, self.held = random.Random(seed), []

    def request_and_release(self, times, most_bytes):
        for _ in range(times):
            held_bytes = sum(buffer.shape[0] for buffer in self.held)
            if self.held and (held_bytes > most_bytes or self.chance.random() < 0.45):
                self.held.pop(self.chance.randrange(len(self.held)))
            else:
                size = int(2 ** self.chance.uniform(0, 28.5))
                # Equal sizes, too.
                size = -(-size // 4096) * 4096 if self.chance.random() < 0.3 else size
                self.held.append(tf.raw_ops.Empty(shape=[size], dtype=tf.uint8))


def compared(pool, events, *, addresses):
    """How many requests got the same chunk in the simulation, and after how many events as much was
    in use."""
    found = {"requests": 0, "same_chunk": 0, "events": len(events), "same_in_use": 0}
    at = {}
    for event in events:
        if event.is_request:
            address = at[event.address] = pool.request(event.requested_bytes)
            found["requests"] += 1
            found["same_chunk"] += (not addresses or address == event.address) and pool.chunk_bytes(
                address
            ) == event.chunk_bytes
        else:
            pool.release(at.pop(event.address))
        found["same_in_use"] += pool.in_use_bytes == event.in_use_bytes
    return found | {"same_peak": pool.peak_bytes == max(event.in_use_bytes for event in events)}


def main(seed, times, roomy):
    device = devices.training_device()
    if not devices.allocator_reports(device):
        return {"reports": False}
    smallest = 1 if devices.counts_everything(device) else ONEDNN_SMALLEST_BYTES
    buffers, kept = Buffers(seed), []
    found = {"reports": True, "fresh": tf.config.experimental.get_memory_info(device)["peak"] == 0}
    events = observe(lambda: buffers.request_and_release(times, FIRST_BYTES)).events
    found["from_start"] = compared(Pool(smallest_bytes=smallest), events, addresses=False)
    # What is in use now can not be released in the simulation that follows.
    kept, buffers.held = (buffers.held, [])

    if roomy:
        devices.fetch_region(device, 3 * ROOM_BYTES)
    before = devices.bytes_in_use(device)
    pool = probe(ROOM_BYTES)
    found["in_use"] = [before, pool.in_use_bytes, devices.bytes_in_use(device)]
    first, again = pool.free_chunks, probe(ROOM_BYTES).free_chunks
    events = observe(lambda: buffers.request_and_release(times, THEN_BYTES)).events
    requests = [(event.address, event.requested_bytes * event.is_request) for event in events]
    found["same_run"] = pool.copy().run(requests) == max(event.in_use_bytes for event in events)
    found["from_probe"] = compared(pool, events, addresses=True)
    found["least_requested"] = min(event.requested_bytes for event in events)
    found["large_was_used"] = pool.largest_hole_bytes < max(size for _, size in first)
    found["fetched"] = pool.fetched_bytes

    end = probe(pool.largest_hole_bytes)  # one byte more, and it would fetch a region
    simulated_chunks, chunks = (
        sorted((size, address) for address, size in each.free_chunks) for each in (pool, end)
    )
    found["chunks_at_end"] = len(chunks)
    found["same_at_end"] = (
        simulated_chunks[:-1] == chunks[:-1] and simulated_chunks[-1][1] == chunks[-1][1]
    )
    found["same_hole"] = pool.largest_hole_bytes == end.largest_hole_bytes
    buffers.held.clear()
    found["same_when_released"] = [again == first, probe(ROOM_BYTES).free_chunks == first]
    del kept
    return found


if __name__ == "__main__":
    print("FOUND " + json.dumps(main(int(sys.argv[1]), int(sys.argv[2]), "roomy" in sys.argv)))
