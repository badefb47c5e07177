"""GPUs that are not there: what TensorFlow and the driver would say of them."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import tensorflow as tf

from checkmate.tf2.memory import budget as budgets

GIB = 2**30


class Driver(ModuleType):
    """In the place of pynvml: GPUs by their NVML index, each (uuid, free bytes, capability), and
    the parts (MIG) of those that are divided."""

    class NVMLError(Exception):
        pass

    def __init__(self, gpus, parts=None):
        super().__init__("pynvml")
        self.gpus, self.parts, self.open = gpus, parts or {}, 0

    def nvmlInit(self):
        self.open += 1

    def nvmlShutdown(self):
        self.open -= 1

    def nvmlDeviceGetCount(self):
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index):
        if index >= len(self.gpus):
            raise self.NVMLError("Invalid Argument")
        return self.gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid):
        everything = [*self.gpus, *self.parts.values()]
        found = [each for each in everything if each[0] == uuid]
        if not found:
            raise self.NVMLError("Not Found")
        return found[0]

    def nvmlDeviceGetUUID(self, handle):
        return handle[0]

    def nvmlDeviceGetCudaComputeCapability(self, handle):
        return handle[2]

    def nvmlDeviceGetMigMode(self, handle):
        if not self.parts:
            raise self.NVMLError("Not Supported")
        return [int(handle[0] in self.parts), 0]

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle, index):
        assert index == 0
        return self.parts[handle[0]]

    def nvmlDeviceGetMemoryInfo(self, handle):
        assert self.open, "nvmlInit was not called"
        return SimpleNamespace(free=handle[1])


class Machine:
    """Has TensorFlow and the driver see GPUs that are not there, as long as a test lasts."""

    def __init__(self, patch):
        self._patch = patch
        for name in ("CUDA_VISIBLE_DEVICES", "TF_FORCE_GPU_ALLOW_GROWTH", "TF_GPU_ALLOCATOR"):
            patch.delenv(name, raising=False)
        patch.setattr(budgets, "_pool_limits", {})

    def driver(self, *gpus, parts=None):
        """Installs a driver with these GPUs, or none."""
        found = Driver(gpus, parts) if gpus else None
        self._patch.setitem(sys.modules, "pynvml", found)
        return found

    def sees(self, count=1, *, first=0, growth=False, capability=(9, 0), current=0, peak=0):
        """Has TensorFlow see GPUs, the first of which is the physical number `first`."""
        seen = [SimpleNamespace(name=f"/physical_device:GPU:{first + k}") for k in range(count)]
        name = {"device_name": "NVIDIA H100", "compute_capability": capability}
        info = {"current": current, "peak": peak}
        self.patch(tf.config, "get_visible_devices", lambda kind=None: seen)
        self.patch(tf.config, "get_logical_device_configuration", lambda each: None)
        self.patch(tf.config.experimental, "get_device_details", lambda each: name)
        self.patch(tf.config.experimental, "get_memory_growth", lambda each: growth)
        self.patch(tf.config.experimental, "get_memory_info", lambda device: info)

    def set(self, **environment):
        """Sets those of these variables that have a value."""
        for name, value in environment.items():
            if value is not None:
                self._patch.setenv(name, value)

    def pool(self, limit_bytes):
        """Has the allocator's events tell a limit, or none be seen."""
        events = () if limit_bytes is None else (SimpleNamespace(limit_bytes=limit_bytes),)
        self.patch(budgets, "observe", lambda call: SimpleNamespace(events=events))

    def patch(self, where, name, instead):
        self._patch.setattr(where, name, instead)
