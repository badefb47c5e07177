"""The device as planning sees it: what of its memory is there to be used."""

import os
import subprocess
import sys

import pytest
import tensorflow as tf
from tensorflow.python.framework.config import is_op_determinism_enabled

from checkmate.tf2 import device as devices
from checkmate.tf2.memory import budget as budgets

pytestmark = pytest.mark.usefixtures("tensorflow")

UNDER_A_CAP = """
import tensorflow as tf
from checkmate.tf2 import device as devices
from checkmate.tf2.memory import budget as budgets

mib = 2**20
# The pool has grown by regions of about 2, 4 and 8 MiB.
kept = [tf.zeros([3 * mib], tf.uint8) for _ in range(3)]
room = devices.fetch_region("CPU:0", 64 * mib)
assert 40 * mib <= room <= 55 * mib, room
assert devices.bytes_in_use("CPU:0") <= 16 * mib
there = tf.zeros([room], tf.uint8)  # in one piece
assert budgets.auto_budget("CPU:0") == int(64 * mib * (1 - budgets.CAP_RESERVE))
assert budgets.pool_limit_bytes("CPU:0") == 64 * mib  # by the profiler's events alone
"""


def test_room_under_a_cap_is_what_is_left_of_it_in_one_piece():
    settings = {"TF_CPU_ALLOCATOR_USE_BFC": "true", "TF_CPU_BFC_MEM_LIMIT_IN_MB": "64"}
    done = subprocess.run(
        [sys.executable, "-c", UNDER_A_CAP],
        env=os.environ | settings,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_room_without_a_cap_is_all_that_was_asked_for():
    assert devices.fetch_region("CPU:0", 2**20) == 2**20
    assert devices.fetch_region("CPU:0", 0) == devices.fetch_region("CPU:0", -1) == 0


def test_no_memory_of_a_gpu_is_fetched_ahead(machine):
    machine.patch(tf.raw_ops, "Empty", lambda **_: pytest.fail("memory was fetched"))
    assert devices.fetch_region("GPU:0", 2**20) == 0


@pytest.mark.parametrize(
    ("cap", "reserve"), [(None, budgets.AUTO_RESERVE), (10**9, budgets.CAP_RESERVE)]
)
def test_an_automatic_budget_leaves_less_to_others_where_there_are_none(machine, cap, reserve):
    machine.patch(budgets, "free_bytes", lambda device: 10**9)
    machine.patch(devices, "cap_bytes", lambda device: cap)
    assert budgets.auto_budget("CPU:0") == int(10**9 * (1 - reserve))


def test_the_installed_tensorflow_tells_whether_ops_are_deterministic():
    assert is_op_determinism_enabled()
    assert "deterministic" in devices.describe("CPU:0").split()


def test_without_that_function_the_description_says_so(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "tensorflow.python.framework.config", None)
    assert "determinism not known" in devices.describe("CPU:0")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TF_CUDNN_WORKSPACE_LIMIT_IN_MB", "64"),
        ("TF_CUDNN_USE_AUTOTUNE", "0"),
        ("TF_GPU_ALLOCATOR", "cuda_malloc_async"),
        ("NVIDIA_TF32_OVERRIDE", "0"),
        ("TF_XLA_FLAGS", "--tf_xla_auto_jit=2"),
    ],
)
def test_what_decides_about_kernels_is_in_the_description(machine, name, value):
    here = devices.describe("CPU:0")
    machine.set(**{name: value})
    assert devices.describe("CPU:0") == " ".join(sorted_in(here, f"{name}={value}"))


def sorted_in(text, setting):
    """The words of a description with one more setting of the environment among its last."""
    words = text.split()
    first = next((k for k, word in enumerate(words) if "=" in word), len(words))
    return [*words[:first], *sorted([*words[first:], setting])]


def test_each_gpu_has_an_allocator_of_its_own():
    names = {k: f"GPU_{k}_bfc" for k in (0, 1, 10)}
    asked = devices.allocator_name("GPU:0")
    assert [k for k, name in names.items() if asked in name] == [0]


def test_cuda_s_own_allocator_is_not_seen_by_the_profiler(machine):
    machine.patch(devices, "allocator_reports", lambda device: True)
    assert devices.requests_are_seen("GPU:0")
    machine.set(TF_GPU_ALLOCATOR="cuda_malloc_async")
    assert not devices.requests_are_seen("GPU:0")
    assert devices.requests_are_seen("CPU:0")
