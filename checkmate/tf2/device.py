"""The device that trains: which one it is, what decides its speed, and what its allocator says.

`describe` asks whether ops are deterministic. TensorFlow has a public function that turns this on
and none that tells, so that this file uses
`tensorflow.python.framework.config.is_op_determinism_enabled`; `test_device` asserts that the
installed TensorFlow has it. Without it the text says that this is not known.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from checkmate.tf2 import gpus

UNSPLIT_BYTES = 128 * 2**20
"""TensorFlow's BFC allocator gives out a free chunk whole where less than this would be left of it,
and less than what was requested. With as much beyond what a step takes, the pool's last chunk is
always split."""


def training_device() -> str:
    return "GPU:0" if tf.config.list_logical_devices("GPU") else "CPU:0"


def keras_backend() -> str:
    """The backend of Keras in this process: "tensorflow", or that of KERAS_BACKEND or its settings
    file."""
    import keras

    return keras.backend.backend()


def describe(device: str) -> str:
    """The key of measurements: all that decides how fast ops are and how much memory they take."""
    if device.startswith("GPU"):
        found = gpus.details(device)
        capability = ".".join(map(str, found.get("compute_capability", "?")))
        tf32 = tf.config.experimental.tensor_float_32_execution_enabled()
        parts = [found.get("device_name", "GPU"), f"compute {capability}"]
        parts += ["TF32"] if tf32 else []
    else:
        threads = tf.config.threading.get_intra_op_parallelism_threads() or os.cpu_count()
        parts = [_cpu_name(), f"{threads} threads"]
    settings = [
        f"{name}={os.environ[name]}"
        for name in sorted(os.environ)
        if name in _DECIDING or name.startswith("TF_CUDNN_")
    ]
    return " ".join([*parts, *_determinism(), *settings])


_DECIDING = (
    "NVIDIA_TF32_OVERRIDE",
    "TF_CPU_ALLOCATOR_USE_BFC",
    "TF_ENABLE_ONEDNN_OPTS",
    "TF_GPU_ALLOCATOR",
    "TF_XLA_FLAGS",  # may have XLA compile ops without being asked
    "XLA_FLAGS",
)
"""Variables of the environment that decide which kernels run, or what memory they may take; so do
those of cuDNN, `TF_CUDNN_...`."""


def _determinism() -> list[str]:
    try:
        from tensorflow.python.framework.config import is_op_determinism_enabled
    except ImportError:
        return ["determinism not known"]
    return ["deterministic"] if is_op_determinism_enabled() else []


def allocator_name(device: str) -> str:
    """The common part of the names of the device's allocators in the profiler's events; each GPU
    has one of its own."""
    return f"GPU_{device.split(':')[1]}_bfc" if device.startswith("GPU") else "cpu"


def requests_are_seen(device: str) -> bool:
    """Whether the profiler sees the allocator's events: where it reports, except for CUDA's own
    allocator."""
    own = device.startswith("GPU") and os.environ.get("TF_GPU_ALLOCATOR") == "cuda_malloc_async"
    return allocator_reports(device) and not own


def kernels_are_traced(device: str) -> bool:
    """Whether the profiler sees which kernels ran. By default it leaves out those that are cheap
    for the host, as all of a GPU are, and TensorFlow 2.21 ignores the option for more."""
    return device.startswith("CPU")


def allocator_reports(device: str) -> bool:
    """Whether the allocator reports the bytes in use: on GPUs, and on CPUs with oneDNN or with
    TF_CPU_ALLOCATOR_USE_BFC=true. That of oneDNN, the default on x86, counts whole chunks, without
    small ones."""
    try:
        tf.config.experimental.get_memory_info(device)
    except (ValueError, tf.errors.OpError):
        return False
    return True


def counts_everything(device: str) -> bool:
    """Whether the allocator's report includes small tensors."""
    return allocator_reports(device) and (
        device.startswith("GPU")
        or os.environ.get("TF_CPU_ALLOCATOR_USE_BFC", "").lower() in ("1", "true")
    )


def bytes_in_use(device: str) -> int:
    """0 where the allocator does not report."""
    if not allocator_reports(device):
        return 0
    return tf.config.experimental.get_memory_info(device)["current"]


def peak_above(device: str, call: Callable[[], Any]) -> tuple[Any, int, int]:
    """(result of `call`, bytes in use before, peak bytes meanwhile), by the allocator's count."""
    tf.config.experimental.reset_memory_stats(device)
    before = bytes_in_use(device)
    result = call()
    synchronize()
    return result, before, tf.config.experimental.get_memory_info(device)["peak"]


def forget_peak(device: str) -> None:
    """Has the allocator's highest count begin anew: what planning ran is no part of training."""
    if allocator_reports(device):
        tf.config.experimental.reset_memory_stats(device)


def may_fetch(device: str) -> bool:
    """Whether the pool may fetch memory ahead: on CPUs. A GPU's pool is one region from the start;
    with memory growth it would take from other processes what no step may ever need."""
    return device.startswith("CPU")


def fetch_region(device: str, size: int) -> int:
    """Has the allocator fetch a region of `size` bytes now, which it keeps for later, and returns
    how many bytes it fetched: none where it may not (`may_fetch`).

    A pool that grows region by region gives out whole old chunks of up to twice the request. From
    one large region it cuts what is requested. Nothing is written to the memory, so that the system
    need not provide it before it is used.

    A pool that has a limit fetches what is left of it, if that is less: its regions never join, and
    TensorFlow waits ten seconds before it refuses.
    """
    for region in _region_sizes(device, size) if may_fetch(device) else ():
        try:
            # Two dimensions, as sizes are 32-bit numbers in a shape.
            with tf.device(device):
                tf.raw_ops.Empty(shape=[-(-region // 2**10), 2**10], dtype=tf.uint8)
            return region
        except tf.errors.ResourceExhaustedError:
            continue
    return 0


def _region_sizes(device: str, size: int) -> list[int]:
    """The sizes to request in turn. Each region of a pool is about twice the one before: with a
    limit, what they left of it is all there is."""
    sizes = [size]
    if (cap := cap_bytes(device)) is not None:
        grown = 1 << tf.config.experimental.get_memory_info(device)["peak"].bit_length()
        sizes = list(dict.fromkeys(min(size, cap - int(times * grown)) for times in (1, 1.25, 2)))
    return [each for each in sizes if each > 0]


def value_bytes(tensor: tf.Tensor) -> int:
    if tensor.dtype in (tf.string, tf.resource, tf.variant):
        return 0
    return int(tf.size(tensor)) * tensor.dtype.size


def all_value_bytes(result: Any) -> int:
    flat = tf.nest.flatten(result, expand_composites=True)
    return sum(value_bytes(each) for each in flat if each is not None)


def synchronize() -> None:
    """Waits until the device has run all its kernels; those on a GPU run asynchronously."""
    # tf.test.experimental.sync_devices would wait for other workers, too.
    with tf.device(training_device()):
        tf.raw_ops.SyncDevice()


def cap_bytes(device: str) -> int | None:
    """The limit of a CPU's allocator; None where the user set none."""
    limit = os.environ.get("TF_CPU_BFC_MEM_LIMIT_IN_MB")
    if not limit or not device.startswith("CPU") or not allocator_reports(device):
        return None
    return int(limit) * 2**20


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            named = (line for line in file if line.startswith("model name"))
            return next((line.split(":", 1)[1].strip() for line in named), platform.machine())
    except OSError:
        return platform.processor() or platform.machine()
