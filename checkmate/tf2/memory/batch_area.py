"""A free chunk of the device's memory that is set apart for batches and small values, so that they
do not cut the memory that steps take and give back.

A batch that is made between two steps gets the smallest free chunk that fits. Where that is the
large one from which a step takes its memory, the step finds it cut in two, in another place each
time, and its peak differs from step to step. A chunk of the size of a few batches with a small
buffer behind it, which nobody gives back, does not join the large one, and is a better fit.

Small buffers do the same while a step runs: those of the step, and those that a pipeline takes
beside it at any time. They find room in that chunk, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import tensorflow as tf

from checkmate.core.allocator import UNIT_BYTES
from checkmate.tf2 import device as devices
from checkmate.tf2.execution.output_buffers import OutputBuffers
from checkmate.tf2.graph.sizes import rounded_up
from checkmate.tf2.graph.trace import TracedStep
from checkmate.tf2.memory.probe import address_of, smallest_bytes
from checkmate.tf2.memory.program import exact_bytes

BATCHES = 4
"""For how many batches: the one in use, the one before, and what a pipeline makes ahead."""

REQUESTS, SMALL_REQUESTS = 4, 300
"""How many buffers of a size the allocator is asked for at most until one lies behind the chunk,
and how many of the smallest size. Between two steps a few chunks are free; what cannot be filled
soon is larger than that behind the chunk."""


def make_output_buffers(traced: TracedStep) -> OutputBuffers | None:
    """Returns memory for a step's results, with memory set apart for its batches and small values;
    None where there is too little."""
    try:
        buffers = OutputBuffers(traced)
    except tf.errors.ResourceExhaustedError:
        return None
    sizes = [exact_bytes(tensor) for tensor in traced.argument_tensors()]
    # Last, as it would be a good fit for results.
    buffers.batch_area = set_apart(sizes, 2 * traced.small_bytes)
    return buffers


def set_apart(sizes: Sequence[int], small_bytes: int = 0) -> tf.Tensor | None:
    """Sets memory apart for batches and returns the buffer that keeps it apart, to be held; None
    where that is not possible.

    Args:
      sizes: The bytes of each tensor of a batch.
      small_bytes: What else is to find room there.
    """
    device = devices.training_device()
    if not devices.allocator_reports(device):
        return None
    smallest = smallest_bytes(device)
    batch = sum(rounded_up(size) for size in sizes if size >= smallest)
    area = BATCHES * batch + rounded_up(small_bytes)
    if not batch:
        return None
    halves = [max(batch, smallest)]
    while halves[-1] > smallest:
        halves.append(max(smallest, halves[-1] // 2 // UNIT_BYTES * UNIT_BYTES))
    with tf.device("CPU:0"):  # all of them first, as they take chunks, too
        shapes = [tf.constant([size // UNIT_BYTES, UNIT_BYTES]) for size in (area, *halves)]
    before = devices.bytes_in_use(device)
    with contextlib.suppress(tf.errors.ResourceExhaustedError), tf.device(device):
        chunk = tf.raw_ops.Empty(shape=shapes[0], dtype=tf.uint8)
        # Else it got a free chunk whole, which is apart as it is.
        if devices.bytes_in_use(device) - before == area:
            return _behind(chunk, address_of(chunk) + area, shapes[1:])
    return None


def _behind(chunk: tf.Tensor, address: int, shapes: list[tf.Tensor]) -> tf.Tensor | None:
    """A buffer of the smallest size at the address right behind a chunk, where a free one begins;
    None where none begins there.

    Buffers of sizes that halve fill the chunks that fit better.
    """
    others = [chunk]
    for shape in shapes:
        is_smallest = shape is shapes[-1]
        for _ in range(SMALL_REQUESTS if is_smallest else REQUESTS):
            buffer = tf.raw_ops.Empty(shape=shape, dtype=tf.uint8)
            if address_of(buffer) == address:
                if is_smallest:
                    return buffer
                break
            others.append(buffer)
        del buffer  # before the next one is asked for
    return None
