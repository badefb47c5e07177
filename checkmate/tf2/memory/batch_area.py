"""A free chunk of the device's memory that is set apart for batches and small values, so that they
do not cut the memory that steps take and give back.

A batch that is made between two steps gets the smallest free chunk that fits. Where that is the
large one from which a step takes its memory, the step finds it cut in two, in another place each
time, and its peak differs from step to step. A chunk of the size of a few batches, followed by a
small buffer that is never released, does not join the large chunk, and is a better fit.

Small buffers do the same while a step runs: those of the step, and those that a pipeline takes
meanwhile. They lie in that chunk, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import tensorflow as tf

from checkmate.core.allocator import rounded_up
from checkmate.tf2 import device as devices
from checkmate.tf2.execution.results import OutputBuffers
from checkmate.tf2.graph.trace import TracedStep
from checkmate.tf2.memory.prediction import exact_bytes
from checkmate.tf2.memory.probe import (
    address_of,
    halved_sizes,
    request,
    request_within,
    shape_of,
    smallest_bytes,
)

BATCHES = 4
"""For how many batches: the one in use, the one before, and what a pipeline makes ahead."""

MAX_REQUESTS, MAX_SMALL_REQUESTS = 4, 300
"""How many buffers of a size are requested at most until one follows the chunk, and how many of the
smallest size. Between two steps a few chunks are free; what so many requests do not fill is larger
than the chunk's successor."""


def make_output_buffers(traced: TracedStep) -> OutputBuffers | None:
    """Buffers for a step's results, with memory set apart for its batches and small values; None
    where there is too little memory."""
    try:
        buffers = OutputBuffers(traced)
    except tf.errors.ResourceExhaustedError:
        return None
    sizes = [exact_bytes(tensor) for tensor in traced.argument_tensors()]
    # Last, as it would be a good fit for results.
    buffers.batch_area = set_apart(sizes, 2 * traced.small_bytes)
    return buffers


def set_apart(sizes: Sequence[int], small_bytes: int = 0) -> tf.Tensor | None:
    """A buffer that keeps memory apart for batches (`sizes` of their tensors) and small buffers
    while it exists; None where that is not possible."""
    device = devices.training_device()
    if not devices.allocator_reports(device):
        return None
    smallest = smallest_bytes(device)
    batch = sum(rounded_up(size) for size in sizes if size >= smallest)
    area = BATCHES * batch + rounded_up(small_bytes)
    if not batch:
        return None
    shapes = [shape_of(size) for size in (area, *halved_sizes(batch, smallest))]
    with contextlib.suppress(tf.errors.ResourceExhaustedError):
        chunk, chunk_bytes = request(shapes[0])
        # A larger chunk is a free one that was given out whole, which is apart already.
        if chunk_bytes == area:
            return _next_to(chunk, address_of(chunk) + area, shapes[1:])
    return None


def _next_to(chunk: tf.Tensor, address: int, shapes: list[tf.Tensor]) -> tf.Tensor | None:
    """A buffer of the last shape at the address where a chunk ends; None if no free chunk begins
    there."""
    others = [chunk]
    for shape in shapes[:-1]:
        # Larger buffers fill the chunks that fit better.
        request_within(range(address, address + 1), shape, MAX_REQUESTS, others)
    found = request_within(range(address, address + 1), shapes[-1], MAX_SMALL_REQUESTS, others)
    return found and found[0]
