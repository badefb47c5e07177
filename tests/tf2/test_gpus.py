"""What is known of a GPU, and of its memory, from TensorFlow, its allocator and the driver. None
is needed: what they say is made up."""

import pytest
import tensorflow as tf
from fake_gpus import GIB

from checkmate.errors import CheckmateError, DriverUnavailableError
from checkmate.tf2 import device as devices
from checkmate.tf2.eager import context
from checkmate.tf2.memory import budget as budgets
from checkmate.tf2.memory.probe import probe

pytestmark = pytest.mark.usefixtures("tensorflow")

FIRST = ("GPU-aaaa-1111", 10 * GIB, (9, 0))
SECOND = ("GPU-bbbb-2222", 20 * GIB, (9, 0))
PART = ("MIG-cccc-3333", 5 * GIB, (9, 0))


@pytest.mark.parametrize(
    ("asked", "first", "free"),
    [
        *((None, 0, 10), (None, 1, 20), ("1", 0, 20), ("1,0", 1, 10), (" 1 , 0 ", 0, 20)),
        *(("GPU-bbbb-2222", 0, 20), ("GPU-bb,0", 0, 20), ("0,GPU-bbbb-2222", 1, 20)),
        ("MIG-cccc-3333", 0, 5),
    ],
)
def test_the_driver_is_asked_about_the_gpu_that_cuda_sees(machine, asked, first, free):
    found = machine.driver(FIRST, SECOND, parts={"GPU-dddd": PART})
    machine.sees(first=first)
    machine.set(CUDA_VISIBLE_DEVICES=asked)
    assert devices.driver_free_bytes("GPU:0") == free * GIB
    assert not found.open


@pytest.mark.parametrize("asked", ["0", "GPU-aaaa", None])
def test_of_a_gpu_that_is_divided_the_first_part_counts(machine, asked):
    machine.driver(FIRST, SECOND, parts={FIRST[0]: PART})
    machine.sees()
    machine.set(CUDA_VISIBLE_DEVICES=asked)
    assert devices.driver_free_bytes("GPU:0") == 5 * GIB


@pytest.mark.parametrize("asked", ["", "-1", "NoDevFiles", "-1,0", "7", "GPU-eeee"])
def test_a_gpu_that_is_not_named_is_refused(machine, asked):
    found = machine.driver(FIRST, SECOND)
    machine.sees()
    machine.set(CUDA_VISIBLE_DEVICES=asked)
    with pytest.raises(DriverUnavailableError, match="give the budget in bytes"):
        devices.driver_free_bytes("GPU:0")
    assert not found.open


def test_another_order_than_cuda_s_is_refused(machine):
    machine.driver(("GPU-t4", 15 * GIB, (7, 5)), FIRST)
    machine.sees(capability=(9, 0))
    with pytest.raises(DriverUnavailableError, match="CUDA_DEVICE_ORDER=PCI_BUS_ID"):
        devices.driver_free_bytes("GPU:0")


def test_logical_devices_are_parts_of_physical_ones(machine):
    machine.sees(2, first=3)
    parts = {"/physical_device:GPU:3": ["a", "b"], "/physical_device:GPU:4": []}
    machine.patch(tf.config, "get_logical_device_configuration", lambda each: parts[each.name])
    found = [devices.physical_gpu(f"GPU:{k}").name[-1] for k in range(3)]
    assert found == ["3", "3", "4"]


def test_by_default_the_pool_s_limit_is_what_there_is_and_no_driver_is_asked(machine):
    machine.driver()
    machine.sees(current=7 * GIB, peak=9 * GIB)
    machine.pool(40 * GIB)
    assert budgets.free_bytes("GPU:0") == 40 * GIB
    assert budgets.auto_budget("GPU:0") == int(40 * GIB * (1 - budgets.CAP_RESERVE))


@pytest.mark.parametrize(("size", "there"), [(40, 22), (21, 21), (None, 22)])
def test_with_growth_other_processes_may_take_what_the_pool_has_not(machine, size, there):
    """`None`: CUDA's own allocator, of which the profiler sees nothing."""
    machine.driver(FIRST, SECOND)
    machine.sees(first=1, growth=size is not None, current=GIB, peak=2 * GIB)
    machine.pool(size and size * GIB)
    assert budgets.free_bytes("GPU:0") == there * GIB
    assert budgets.auto_budget("GPU:0") == int(there * GIB * (1 - budgets.AUTO_RESERVE))


def test_the_variable_that_tensorflow_reads_decides_about_growth(machine):
    machine.sees(growth=False)
    assert not devices.pool_grows("GPU:0")
    machine.set(TF_FORCE_GPU_ALLOW_GROWTH="true")
    assert devices.pool_grows("GPU:0")


def test_where_the_driver_is_needed_and_missing_what_to_install_is_said(machine):
    machine.driver()
    machine.sees(growth=True)
    machine.pool(40 * GIB)
    with pytest.raises(DriverUnavailableError, match=r"pip install nvidia-ml-py.*in bytes"):
        budgets.auto_budget("GPU:0")
    assert budgets.free_or_none("GPU:0") is None


def test_a_driver_that_fails_is_named(machine):
    found = machine.driver(FIRST)
    machine.sees(growth=True)
    machine.pool(40 * GIB)

    def fails():
        raise found.NVMLError("Driver/library version mismatch")

    machine.patch(found, "nvmlInit", fails)
    with pytest.raises(CheckmateError, match="version mismatch"):
        budgets.free_bytes("GPU:0")


def test_the_description_names_the_gpu_and_its_arithmetic(machine):
    machine.sees()
    here = devices.describe("GPU:0")
    assert here.startswith("NVIDIA H100 compute 9.0 TF32")
    tf.config.experimental.enable_tensor_float_32_execution(False)
    try:
        assert "TF32" not in devices.describe("GPU:0")
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(True)


def test_dtr_with_a_budget_in_bytes_asks_no_driver(machine):
    machine.driver()
    machine.sees(growth=True)
    forgotten = []
    machine.patch(tf.config.experimental, "reset_memory_stats", forgotten.append)
    context.reserve("GPU:0", GIB)
    assert forgotten == ["GPU:0"]


def test_what_is_free_in_a_pool_that_grows_is_not_asked(machine):
    """Each request would take memory from other processes, for good."""
    machine.sees(growth=True)
    machine.patch(devices, "training_device", lambda: "GPU:0")
    machine.patch(tf.raw_ops, "Empty", lambda **_: pytest.fail("memory was requested"))
    with pytest.raises(CheckmateError, match="memory growth"):
        probe(GIB)
