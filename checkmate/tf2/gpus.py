"""A GPU as TensorFlow and NVIDIA's driver know it: which one it is, and how much of its memory is
free on the whole.

The driver's library is NVML, read by the package nvidia-ml-py, part of the extra "gpu". It numbers
all GPUs of the machine, TensorFlow those that CUDA_VISIBLE_DEVICES names.
"""

from __future__ import annotations

import os
from typing import Any

import tensorflow as tf

from checkmate.errors import DriverUnavailableError


def physical(device: str) -> tf.config.PhysicalDevice:
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


def details(device: str) -> dict[str, Any]:
    """`device_name`, and `compute_capability` as (major, minor)."""
    return dict(tf.config.experimental.get_device_details(physical(device)))


def grows(device: str) -> bool:
    """Whether the pool grows region by region: other processes can take memory not fetched yet."""
    asked = os.environ.get("TF_FORCE_GPU_ALLOW_GROWTH")
    if asked in ("true", "false"):  # TensorFlow lets the variable decide
        return asked == "true"
    return bool(tf.config.experimental.get_memory_growth(physical(device)))


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
    number = int(physical(device).name.rsplit(":", 1)[1])
    asked = os.environ.get("CUDA_VISIBLE_DEVICES")
    entry = str(number) if asked is None else _entry(asked, number)
    if entry is None:
        raise _unavailable(
            device, f"CUDA_VISIBLE_DEVICES={asked!r} names no GPU {number}", "Name it there"
        )
    if not entry.isdecimal():
        return _by_uuid(nvml, entry)
    found = nvml.nvmlDeviceGetHandleByIndex(int(entry))
    here, there = details(device), tuple(nvml.nvmlDeviceGetCudaComputeCapability(found))
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
