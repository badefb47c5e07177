"""A process that holds memory of the GPU, so that another finds little of it."""

from __future__ import annotations

import sys
from typing import Any

from checkmate.bench.training import MIB


def hold(leave_bytes: int) -> list[Any]:
    """Takes all memory of the GPU that the driver says is free, except so many bytes; returns what
    keeps it."""
    import tensorflow as tf

    from checkmate.tf2 import device as devices
    from checkmate.tf2 import gpus

    device = devices.training_device()
    with tf.device(device):
        kept = [tf.zeros((1024,))]  # CUDA takes what it needs
        while (free := gpus.driver_free_bytes(device)) > leave_bytes:
            part = min(256 * MIB, free - leave_bytes)
            if part < 32 * MIB:
                break
            kept.append(tf.zeros((part // 4,)))
    return kept


if __name__ == "__main__":
    held = hold(int(sys.argv[1]))
    print("ready", flush=True)
    sys.stdin.read()
