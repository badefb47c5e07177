"""The limits on the memory of the device that trains, and who sets them."""

from __future__ import annotations

from dataclasses import dataclass

from checkmate.errors import CheckmateError, DriverUnavailableError
from checkmate.tf2 import device as devices
from checkmate.tf2.memory import budget as budgets

ALLOCATOR = "the allocator"
CAP = "TF_CPU_BFC_MEM_LIMIT_IN_MB"
CONTAINER = "the container"
MACHINE = "the machine's free memory"
DRIVER = "the driver (NVML)"
LOGICAL_DEVICE = "memory_limit of the logical device"


@dataclass(frozen=True, slots=True)
class Limit:
    bytes: int
    by: str


def memory_limits(device: str) -> list[Limit]:
    """Returns every limit that can be found out; a driver that cannot be asked is left out."""
    found = [(_allocator_bytes(device), ALLOCATOR)]
    if device.startswith("GPU"):
        found += [(_driver_bytes(device), DRIVER)]
        found += [(devices.memory_limit_bytes(device), LOGICAL_DEVICE)]
    else:
        total, free = _machine_bytes()
        found += [(devices.cap_bytes(device), CAP)]
        # A container without a limit has one that is larger than any machine.
        found += [(each, CONTAINER) for each in budgets.container_limits() if each < total]
        found += [(free, MACHINE)]
    return [Limit(size, by) for size, by in found if size is not None]


def _allocator_bytes(device: str) -> int | None:
    try:
        return budgets.pool_limit_bytes(device)
    except CheckmateError:  # another profile is being taken
        return None


def _driver_bytes(device: str) -> int | None:
    """The driver's limit of a pool that grows; any other has taken all that it may."""
    try:
        return budgets.driver_limit_bytes(device) if devices.pool_grows(device) else None
    except DriverUnavailableError:
        return None


def _machine_bytes() -> tuple[int, int]:
    import psutil

    memory = psutil.virtual_memory()
    return memory.total, memory.available + psutil.Process().memory_info().rss
