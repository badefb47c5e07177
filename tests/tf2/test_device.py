"""The device as planning sees it: what of its memory is there to be used."""

import os
import subprocess
import sys

import pytest

from checkmate.tf2 import device as devices

pytestmark = pytest.mark.usefixtures("tensorflow")

UNDER_A_CAP = """
import tensorflow as tf
from checkmate.tf2 import device as devices

mib = 2**20
# The pool has grown by regions of about 2, 4 and 8 MiB.
kept = [tf.zeros([3 * mib], tf.uint8) for _ in range(3)]
room = devices.fetch_region("CPU:0", 64 * mib)
assert 40 * mib <= room <= 55 * mib, room
assert devices.bytes_in_use("CPU:0") <= 16 * mib
there = tf.zeros([room], tf.uint8)  # in one piece
assert devices.auto_budget("CPU:0") == int(64 * mib * (1 - devices.CAP_RESERVE))
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


@pytest.mark.parametrize(
    ("cap", "reserve"), [(None, devices.AUTO_RESERVE), (10**9, devices.CAP_RESERVE)]
)
def test_an_automatic_budget_leaves_less_to_others_where_there_are_none(monkeypatch, cap, reserve):
    monkeypatch.setattr(devices, "free_bytes", lambda device: 10**9)
    monkeypatch.setattr(devices, "cap_bytes", lambda device: cap)
    assert devices.auto_budget("CPU:0") == int(10**9 * (1 - reserve))
