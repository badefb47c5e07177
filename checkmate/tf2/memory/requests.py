"""Requests to TensorFlow's allocator for buffers that are never written to, and their addresses.

TensorFlow gives the address of an eager tensor in the DLPack format alone.
"""

from __future__ import annotations

import ctypes

import tensorflow as tf

from checkmate.core.allocator import ONEDNN_SMALLEST_BYTES, UNIT_BYTES
from checkmate.tf2 import device as devices


def smallest_bytes(device: str) -> int:
    """Returns the smallest request that the device's pool serves, rounded up; smaller ones are not
    counted."""
    return UNIT_BYTES if devices.counts_everything(device) else ONEDNN_SMALLEST_BYTES


def address_of(buffer: tf.Tensor) -> int:
    """Returns where an eager tensor lies: the first field of its DLPack structure."""
    capsule = tf.experimental.dlpack.to_dlpack(buffer)
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return ctypes.c_void_p.from_address(pointer(capsule, b"dltensor")).value or 0


def halved_sizes(largest_bytes: int, smallest_bytes: int) -> list[int]:
    """Returns sizes that halve, from the largest down to the smallest, in the allocator's units."""
    sizes = [max(largest_bytes, smallest_bytes)]
    while sizes[-1] > smallest_bytes:
        sizes.append(max(smallest_bytes, sizes[-1] // 2 // UNIT_BYTES * UNIT_BYTES))
    return sizes


def shape_of(size: int) -> tf.Tensor:
    """Returns the shape of a buffer of so many bytes. On a CPU the shape takes a chunk itself, so
    make it before anything is counted."""
    with tf.device("CPU:0"):
        return tf.constant([size // UNIT_BYTES, UNIT_BYTES])


def request(shape: tf.Tensor) -> tuple[tf.Tensor, int]:
    """Returns a buffer on the training device, with the bytes of its chunk."""
    device = devices.training_device()
    before = devices.bytes_in_use(device)
    with tf.device(device):
        buffer = tf.raw_ops.Empty(shape=shape, dtype=tf.uint8)
    return buffer, devices.bytes_in_use(device) - before


def request_within(
    place: range, shape: tf.Tensor, most: int, others: list[tf.Tensor]
) -> tuple[tf.Tensor, int] | None:
    """Requests buffers until one begins within a range of addresses, and returns it with the bytes
    of its chunk; None where none of so many does.

    The allocator gives out the smallest free chunk that fits. So the other buffers fill the chunks
    that fit better; they are appended to `others`, which keeps them in memory.
    """
    for _ in range(most):
        buffer, chunk_bytes = request(shape)
        if address_of(buffer) in place:
            return buffer, chunk_bytes
        others.append(buffer)
    return None
