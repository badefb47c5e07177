"""How much memory of a device there is for a training step, and what `budget="auto"` stands for."""

from __future__ import annotations

import contextlib
import logging

import tensorflow as tf

from checkmate.tf2 import device as devices
from checkmate.tf2 import gpus
from checkmate.tf2.memory.profiler import observe

log = logging.getLogger("checkmate")

AUTO_RESERVE = 0.1
"""Share of the free memory that `budget="auto"` leaves to others: the input pipeline, the CUDA
context, fragmentation."""

CAP_RESERVE = 0.04
"""The same of an allocator's own limit, which no other process can take from."""

_pool_limits: dict[str, int] = {}


def free_bytes(device: str) -> int:
    """The bytes that a training step could use now, those that this process has in memory included.

    The pool of a GPU has a limit, which follows from the GPU or its part (MIG), from `memory_limit`
    and from the memory that was free when TensorFlow began. By default the pool takes all of it at
    once. With memory growth, and with CUDA's own allocator, other processes may take it first: then
    it is at most the driver's free memory plus the pool's peak. Raises `DriverUnavailableError`,
    and `CheckmateError` while another profile is taken.
    """
    if device.startswith("GPU"):
        limit = pool_limit_bytes(device)
        if limit is not None and not gpus.grows(device):
            return limit
        there = driver_limit_bytes(device)
        return there if limit is None else min(limit, there)
    if limit := devices.cap_bytes(device):
        return limit
    import psutil

    own = psutil.Process().memory_info().rss
    return min([psutil.virtual_memory().available + own, *container_limits()])


def free_or_none(device: str) -> int | None:
    """As `free_bytes`; None where that cannot be found out."""
    try:
        return free_bytes(device)
    except Exception as error:  # NVML is another program's, and may be missing or refuse
        log.info("How much memory is free on %s is not known: %s", device, error)
        return None


def auto_budget(device: str) -> int:
    """The bytes of `budget="auto"`. Raises as `free_bytes`."""
    return int(free_bytes(device) * (1 - (CAP_RESERVE if _is_its_own(device) else AUTO_RESERVE)))


def driver_limit_bytes(device: str) -> int:
    """The free bytes of a GPU by its driver, plus the pool's: its limit where it grows. Raises
    `DriverUnavailableError`."""
    pool = tf.config.experimental.get_memory_info(device)["peak"]
    return gpus.driver_free_bytes(device) + int(pool)


def pool_limit_bytes(device: str) -> int | None:
    """The limit of the device's allocator, as the profiler shows for one request; None if it shows
    none."""
    if device not in _pool_limits:

        def request() -> None:
            with tf.device(device):
                tf.raw_ops.Empty(shape=[2**10], dtype=tf.float32)

        events = observe(request).events if devices.requests_are_seen(device) else ()
        if not events:
            return None
        _pool_limits[device] = events[0].limit_bytes
    return _pool_limits[device]


def _is_its_own(device: str) -> bool:
    """Whether no other process can take from the memory that is there."""
    if device.startswith("GPU"):
        return pool_limit_bytes(device) is not None and not gpus.grows(device)
    return devices.cap_bytes(device) is not None


def container_limits() -> list[int]:
    found = []
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError), open(path, encoding="utf-8") as file:
            found.append(int(file.read()))
    return found
