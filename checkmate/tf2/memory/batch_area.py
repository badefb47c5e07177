"""A free chunk of the device's memory that is set apart for batches, so that they do not cut the memory that steps take and give back.

A batch that is made between two steps gets the smallest free chunk that fits. Where that is the large one from which a step takes its memory, the
step finds it cut in two, in another place each time: with batches of 1 % of what a step takes, peaks of MobileNet and of a U-Net were up to 6 %
higher than on a batch that stays where it is. A chunk of the size of a few batches with a small buffer behind it, which nobody gives back, does not
join the large one, and is a better fit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import tensorflow as tf

from checkmate.core.allocator import ONEDNN_SMALLEST_BYTES, UNIT_BYTES
from checkmate.tf2 import device as devices
from checkmate.tf2.flat_graph import rounded_up
from checkmate.tf2.memory.probe import address_of

BATCHES = 4
"""For how many batches: the one in use, the one before, and what a pipeline makes ahead."""

MOST_REQUESTS = 300
"""How many buffers the allocator is asked for at most. Between two steps a few chunks are free."""


def set_apart(sizes: Sequence[int]) -> tf.Tensor | None:
    """Sets memory apart for batches and returns the buffer that keeps it apart, to be held; None where that is not possible.

    Args:
      sizes: The bytes of each tensor of a batch.
    """
    device = devices.training_device()
    if not devices.allocator_reports(device):
        return None
    smallest = UNIT_BYTES if devices.counts_everything(device) else ONEDNN_SMALLEST_BYTES
    area = BATCHES * sum(rounded_up(size) for size in sizes if size >= smallest)
    if not area:
        return None
    halves = [area]
    while halves[-1] > smallest:
        halves.append(max(smallest, halves[-1] // 2 // UNIT_BYTES * UNIT_BYTES))
    with tf.device("CPU:0"):  # all of them first, as they take chunks, too
        shapes = [tf.constant([size // UNIT_BYTES, UNIT_BYTES]) for size in halves]
    with contextlib.suppress(tf.errors.ResourceExhaustedError), tf.device(device):
        chunk = tf.raw_ops.Empty(shape=shapes[0], dtype=tf.uint8)
        return _behind(chunk, address_of(chunk) + area, shapes)
    return None


def _behind(chunk: tf.Tensor, address: int, shapes: list[tf.Tensor]) -> tf.Tensor | None:
    """A buffer of the smallest size at the address right behind a chunk, where a free one begins; None where none begins there.

    Buffers of sizes that halve fill the chunks that fit better, until one of each size lies at the address.
    """
    others, at = [chunk], 0
    for _ in range(MOST_REQUESTS):
        buffer = tf.raw_ops.Empty(shape=shapes[at], dtype=tf.uint8)
        if address_of(buffer) != address:
            others.append(buffer)
        elif at == len(shapes) - 1:
            return buffer
        else:
            at += 1
        del buffer  # before the next one is asked for
    return None
