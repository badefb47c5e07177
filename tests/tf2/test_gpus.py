"""What is known of a GPU, and of its memory, from TensorFlow, its allocator and the driver. None
is needed: what they say is made up."""

import sys
from types import SimpleNamespace

import pytest
from fake_gpus import GIB, driver, visible

from checkmate.errors import CheckmateError, DriverUnavailableError
from checkmate.tf2 import device as devices
from checkmate.tf2 import gpus
from checkmate.tf2.memory import available

pytestmark = pytest.mark.usefixtures("tensorflow")

FIRST = ("GPU-aaaa-1111", 10 * GIB, (9, 0))
SECOND = ("GPU-bbbb-2222", 20 * GIB, (9, 0))
PART = ("MIG-cccc-3333", 5 * GIB, (9, 0))


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch):
    """The environment names no GPUs, and nothing is known of their allocators."""
    for name in ("CUDA_VISIBLE_DEVICES", "TF_FORCE_GPU_ALLOW_GROWTH", "TF_GPU_ALLOCATOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(available, "_pool_limits", {})


@pytest.fixture
def limit(monkeypatch):
    """Has the allocator's events tell a limit, or none be seen."""

    def say(size):
        events = () if size is None else (SimpleNamespace(limit_bytes=size),)
        monkeypatch.setattr(available, "observe", lambda call: SimpleNamespace(events=events))

    return say


@pytest.mark.parametrize(
    ("asked", "first", "free"),
    [
        (None, 0, 10),
        (None, 1, 20),
        ("1", 0, 20),
        ("1,0", 1, 10),
        (" 1 , 0 ", 0, 20),
        ("GPU-bbbb-2222", 0, 20),
        ("GPU-bb,0", 0, 20),
        ("0,GPU-bbbb-2222", 1, 20),
        ("MIG-cccc-3333", 0, 5),
    ],
)
def test_the_driver_is_asked_about_the_gpu_that_cuda_sees(monkeypatch, asked, first, free):
    found = driver(monkeypatch, FIRST, SECOND, parts={"GPU-dddd": PART})
    visible(monkeypatch, first=first)
    if asked is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", asked)
    assert gpus.driver_free_bytes("GPU:0") == free * GIB
    assert not found.open


@pytest.mark.parametrize("asked", ["0", "GPU-aaaa", None])
def test_of_a_gpu_that_is_divided_the_first_part_counts(monkeypatch, asked):
    driver(monkeypatch, FIRST, SECOND, parts={FIRST[0]: PART})
    visible(monkeypatch)
    if asked is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", asked)
    assert gpus.driver_free_bytes("GPU:0") == 5 * GIB


@pytest.mark.parametrize("asked", ["", "-1", "NoDevFiles", "-1,0", "7", "GPU-eeee"])
def test_a_gpu_that_is_not_named_is_refused(monkeypatch, asked):
    found = driver(monkeypatch, FIRST, SECOND)
    visible(monkeypatch)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", asked)
    with pytest.raises(DriverUnavailableError, match="give the budget in bytes"):
        gpus.driver_free_bytes("GPU:0")
    assert not found.open


def test_another_order_than_cuda_s_is_refused(monkeypatch):
    driver(monkeypatch, ("GPU-t4", 15 * GIB, (7, 5)), FIRST)
    visible(monkeypatch, capability=(9, 0))
    with pytest.raises(DriverUnavailableError, match="CUDA_DEVICE_ORDER=PCI_BUS_ID"):
        gpus.driver_free_bytes("GPU:0")


def test_logical_devices_are_parts_of_physical_ones(monkeypatch):
    import tensorflow as tf

    visible(monkeypatch, 2, first=3)
    parts = {"/physical_device:GPU:3": ["a", "b"], "/physical_device:GPU:4": []}
    monkeypatch.setattr(
        tf.config, "get_logical_device_configuration", lambda each: parts[each.name]
    )
    found = [gpus.physical(f"GPU:{k}").name[-1] for k in range(3)]
    assert found == ["3", "3", "4"]


def test_by_default_the_pool_s_limit_is_what_there_is_and_no_driver_is_asked(monkeypatch, limit):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    visible(monkeypatch, current=7 * GIB, peak=9 * GIB)
    limit(40 * GIB)
    assert available.free_bytes("GPU:0") == 40 * GIB
    assert available.auto_budget("GPU:0") == int(40 * GIB * (1 - available.CAP_RESERVE))


@pytest.mark.parametrize(("size", "there"), [(40, 22), (21, 21), (None, 22)])
def test_with_growth_other_processes_may_take_what_the_pool_has_not(
    monkeypatch, limit, size, there
):
    """`None`: CUDA's own allocator, of which the profiler sees nothing."""
    driver(monkeypatch, FIRST, SECOND)
    visible(monkeypatch, first=1, growth=size is not None, current=GIB, peak=2 * GIB)
    limit(size and size * GIB)
    assert available.free_bytes("GPU:0") == there * GIB
    assert available.auto_budget("GPU:0") == int(there * GIB * (1 - available.AUTO_RESERVE))


def test_the_variable_that_tensorflow_reads_decides_about_growth(monkeypatch):
    visible(monkeypatch, growth=False)
    assert not gpus.grows("GPU:0")
    monkeypatch.setenv("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    assert gpus.grows("GPU:0")


def test_where_the_driver_is_needed_and_missing_what_to_install_is_said(monkeypatch, limit):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    visible(monkeypatch, growth=True)
    limit(40 * GIB)
    with pytest.raises(DriverUnavailableError, match=r"pip install nvidia-ml-py.*in bytes"):
        available.auto_budget("GPU:0")
    assert available.free_or_none("GPU:0") is None


def test_a_driver_that_fails_is_named(monkeypatch, limit):
    found = driver(monkeypatch, FIRST)
    visible(monkeypatch, growth=True)
    limit(40 * GIB)

    def fails():
        raise found.NVMLError("Driver/library version mismatch")

    monkeypatch.setattr(found, "nvmlInit", fails)
    with pytest.raises(CheckmateError, match="version mismatch"):
        available.free_bytes("GPU:0")


def test_the_description_names_the_gpu_and_its_arithmetic(monkeypatch):
    import tensorflow as tf

    visible(monkeypatch)
    here = devices.describe("GPU:0")
    assert here.startswith("NVIDIA H100 compute 9.0 TF32")
    tf.config.experimental.enable_tensor_float_32_execution(False)
    try:
        assert "TF32" not in devices.describe("GPU:0")
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(True)


def test_dtr_with_a_budget_in_bytes_asks_no_driver(monkeypatch):
    from checkmate.tf2.eager import context

    monkeypatch.setitem(sys.modules, "pynvml", None)
    visible(monkeypatch, growth=True)
    import tensorflow as tf

    forgotten = []
    monkeypatch.setattr(tf.config.experimental, "reset_memory_stats", forgotten.append)
    context.reserve("GPU:0", GIB)
    assert forgotten == ["GPU:0"]


def test_what_is_free_in_a_pool_that_grows_is_not_asked(monkeypatch):
    """Each request would take memory from other processes, for good."""
    import tensorflow as tf

    from checkmate.tf2.memory.probe import probe

    visible(monkeypatch, growth=True)
    monkeypatch.setattr(devices, "training_device", lambda: "GPU:0")
    monkeypatch.setattr(tf.raw_ops, "Empty", lambda **_: pytest.fail("memory was requested"))
    with pytest.raises(CheckmateError, match="memory growth"):
        probe(GIB)
