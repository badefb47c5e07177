"""The device that trains: which one it is, what decides its speed, and what its allocator says; how
much memory of a GPU is free on the whole, by NVIDIA's driver.

The driver's library is NVML, read by the package nvidia-ml-py, part of the extra "gpu". It numbers
all GPUs of the machine, TensorFlow those that CUDA_VISIBLE_DEVICES names.

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

from checkmate.errors import DriverUnavailableError

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
        found = gpu_details(device)
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


def physical_gpu(device: str) -> tf.config.PhysicalDevice:
    return _part(device)[0]


def memory_limit_bytes(device: str) -> int | None:
    limit = getattr(_part(device)[1], "memory_limit", None)
    return None if limit is None else int(limit * 2**20)


def _part(device: str) -> tuple[tf.config.PhysicalDevice, Any]:
    """The physical GPU of a logical one, and the logical one's configuration or None."""
    number = int(device.split(":")[1])
    for each in tf.config.get_visible_devices("GPU"):
        parts = tf.config.get_logical_device_configuration(each) or [None]
        if number < len(parts):
            return each, parts[number]
        number -= len(parts)
    raise ValueError(f"TensorFlow sees no {device}.")


def gpu_details(device: str) -> dict[str, Any]:
    """`device_name`, and `compute_capability` as (major, minor)."""
    return dict(tf.config.experimental.get_device_details(physical_gpu(device)))


def pool_grows(device: str) -> bool:
    """Whether the pool grows region by region: other processes can take memory not fetched yet."""
    asked = os.environ.get("TF_FORCE_GPU_ALLOW_GROWTH")
    if asked in ("true", "false"):  # TensorFlow lets the variable decide
        return asked == "true"
    return bool(tf.config.experimental.get_memory_growth(physical_gpu(device)))


def driver_free_bytes(device: str) -> int:
    """Bytes that no process has taken of a GPU, or of a part of it (MIG). Raises
    `DriverUnavailableError` where NVML is missing, fails, or knows no such GPU."""
    try:
        import pynvml  # the package nvidia-ml-py
    except ImportError as error:
        raise _unavailable(
            device, "the package nvidia-ml-py is not installed", "pip install nvidia-ml-py"
        ) from error
    try:
        pynvml.nvmlInit()
        try:
            return int(pynvml.nvmlDeviceGetMemoryInfo(_handle(pynvml, device)).free)
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        raise _unavailable(
            device, f"the driver's answer is: {error}", "See whether nvidia-smi runs"
        ) from error


def _handle(nvml: Any, device: str) -> Any:
    """NVML's handle of a GPU that TensorFlow numbers among those that are visible."""
    number = int(physical_gpu(device).name.rsplit(":", 1)[1])
    asked = os.environ.get("CUDA_VISIBLE_DEVICES")
    entry = str(number) if asked is None else _entry(asked, number)
    if entry is None:
        raise _unavailable(
            device, f"CUDA_VISIBLE_DEVICES={asked!r} names no GPU {number}", "Name it there"
        )
    if not entry.isdecimal():
        return _by_uuid(nvml, entry)
    found = nvml.nvmlDeviceGetHandleByIndex(int(entry))
    here, there = gpu_details(device), tuple(nvml.nvmlDeviceGetCudaComputeCapability(found))
    if tuple(here.get("compute_capability", there)) != there:
        raise _unavailable(
            device,
            f"its GPU {entry} is another one than CUDA's (compute capability {there})",
            "Set CUDA_DEVICE_ORDER=PCI_BUS_ID before TensorFlow is imported",
        )
    return _first_part(nvml, found)


def _entry(asked: str, number: int) -> str | None:
    """The entry of CUDA_VISIBLE_DEVICES for a visible GPU. CUDA reads up to the first entry that
    names none, such as -1."""
    entries = []
    for entry in map(str.strip, asked.split(",")):
        if not (entry.isdecimal() or entry.startswith(("GPU-", "MIG-"))):
            break
        entries.append(entry)
    return entries[number] if number < len(entries) else None


def _by_uuid(nvml: Any, entry: str) -> Any:
    """The handle of a UUID. CUDA takes the beginning of a GPU's, too; NVML the whole only."""
    if entry.startswith("GPU-"):
        for k in range(nvml.nvmlDeviceGetCount()):
            found = nvml.nvmlDeviceGetHandleByIndex(k)
            uuid = nvml.nvmlDeviceGetUUID(found)
            if (uuid.decode() if isinstance(uuid, bytes) else uuid).startswith(entry):
                return _first_part(nvml, found)
    return nvml.nvmlDeviceGetHandleByUUID(entry)


def _first_part(nvml: Any, handle: Any) -> Any:
    """Of a GPU that is divided (MIG) its first part, which is the one that CUDA sees."""
    try:
        divided = nvml.nvmlDeviceGetMigMode(handle)[0]
    except nvml.NVMLError:  # this GPU cannot be divided
        return handle
    return nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, 0) if divided else handle


def _unavailable(device: str, found: str, cure: str) -> DriverUnavailableError:
    return DriverUnavailableError(
        f"How much memory of {device} is free is asked of NVIDIA's driver (NVML), and {found}."
        f" {cure}, or give the budget in bytes."
    )
