"""Every limit on the memory of a device, with who sets it."""

import pytest
import tensorflow as tf

from checkmate.demo import memory_limits as limits
from checkmate.demo.memory_limits import Limit
from checkmate.errors import DriverUnavailableError
from checkmate.tf2 import device as devices
from checkmate.tf2.memory import budget as budgets

pytestmark = pytest.mark.usefixtures("tensorflow")
MIB = 2**20


def test_a_cpu_has_those_of_machine_container_and_allocator(monkeypatch):
    total, _ = limits._machine_bytes()
    monkeypatch.setenv("TF_CPU_BFC_MEM_LIMIT_IN_MB", "300")
    # Of the second version of control groups, and of the first where there is no limit.
    monkeypatch.setattr(budgets, "container_limits", lambda: [512 * MIB, 2**63 - 4096])
    found = limits.memory_limits("CPU:0")
    assert Limit(300 * MIB, limits.CAP) in found
    assert [each.bytes for each in found if each.by == limits.CONTAINER] == [512 * MIB]
    free = {each.by: each.bytes for each in found}[limits.MACHINE]
    assert 0 < free <= total


def test_the_allocator_s_limit_is_its_own():
    """That of this process began without the variable, whatever is set now."""
    found = {each.by: each.bytes for each in limits.memory_limits("CPU:0")}
    assert found[limits.ALLOCATOR] > devices.bytes_in_use("CPU:0")
    assert limits.CAP not in found


class Part:
    def __init__(self, memory_limit):
        self.memory_limit = memory_limit


@pytest.fixture
def gpus_of(monkeypatch):
    """Has TensorFlow see GPUs with these logical devices, and their driver and allocator have
    limits."""

    def of(parts):
        monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: list(range(len(parts))))
        monkeypatch.setattr(tf.config, "get_logical_device_configuration", parts.__getitem__)
        monkeypatch.setattr(limits, "_driver_bytes", lambda device: 3000 * MIB)
        monkeypatch.setattr(limits, "_allocator_bytes", lambda device: 2500 * MIB)

    return of


@pytest.mark.parametrize(
    ("parts", "expected"),
    [([None], {}), ([[Part(None)]], {}), ([[Part(2048)]], {limits.LOGICAL_DEVICE: 2048 * MIB})],
)
def test_a_gpu_has_those_of_driver_and_logical_device(gpus_of, parts, expected):
    gpus_of(parts)
    found = {each.by: each.bytes for each in limits.memory_limits("GPU:0")}
    known = {limits.DRIVER: 3000 * MIB, limits.ALLOCATOR: 2500 * MIB}
    assert found == {**known, **expected}


def test_the_second_logical_device_may_be_the_next_gpu_s(gpus_of):
    gpus_of([[Part(1024), Part(512)], [Part(256)]])
    found = [devices.memory_limit_bytes(f"GPU:{k}") for k in range(3)]
    assert found == [1024 * MIB, 512 * MIB, 256 * MIB]
    with pytest.raises(ValueError, match="sees no GPU:3"):
        devices.memory_limit_bytes("GPU:3")


def test_a_driver_that_cannot_be_asked_is_left_out(monkeypatch):
    def missing(device):
        raise DriverUnavailableError("the package nvidia-ml-py is not installed")

    monkeypatch.setattr(devices, "pool_grows", lambda device: True)
    monkeypatch.setattr(budgets, "driver_limit_bytes", missing)
    assert limits._driver_bytes("GPU:0") is None
