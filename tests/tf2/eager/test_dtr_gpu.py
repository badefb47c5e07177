"""What eager dynamic rematerialization does for GPUs, shown without one."""

from pathlib import Path

import pytest
import tensorflow as tf
from eager_programs import MIB, arrays, managed_above, normal, same, weights
from processes import found, started

from checkmate.tf2.eager import budget as budgets
from checkmate.tf2.eager import private_api
from checkmate.tf2.eager.op_kinds import Needs, kind_of
from checkmate.tf2.eager.storage import EagerCall

pytestmark = pytest.mark.usefixtures("tensorflow")


@pytest.mark.slow
def test_the_training_device_need_not_be_the_first():
    """Of two logical devices the second trains: the self-test passes, and evicts there."""
    result = found(started(Path(__file__).with_name("second_device.py")))
    assert result["rematerializations"] > 0 and result["same"]
    assert result["device"].endswith("CPU:1")


TRIED_BYTES = 40 * MIB


class Trying:
    """Has the first run of each convolution take much memory, by the allocator's count."""

    def __init__(self, machine):
        self.peak, self.runs = 0, {}
        ask, reset, run = (
            private_api.memory_info,
            tf.config.experimental.reset_memory_stats,
            EagerCall.run,
        )

        def count(device):
            info = ask(device)
            return {**info, "peak": max(info["peak"], self.peak)}

        def forget(device):
            self.peak = 0
            reset(device)

        def runs(call, values, name=None):
            if "Conv2D" in call.name:
                self.runs[call.name] = self.runs.get(call.name, 0) + 1
                if self.runs[call.name] == 1:
                    self.peak = ask("CPU:0")["current"] + TRIED_BYTES
            return run(call, values, name)

        machine.patch(private_api, "memory_info", count)
        machine.patch(tf.config.experimental, "reset_memory_stats", forget)
        machine.patch(EagerCall, "run", runs)


def name_in(key):
    """The op type of a key, which holds another where values of inputs decide."""
    return name_in(key[0]) if isinstance(key, tuple) else key.name


def test_a_run_ten_times_as_large_that_tries_algorithms_is_not_learnt(machine):
    """Nor is it counted as memory above the budget."""
    x, w = normal(8, 128, 128, 8), weights(3, 3, 8, 8)  # 4 MiB

    def gradient():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.nn.conv2d(tf.tanh(x), w, 1, "SAME") ** 2)
        return arrays([loss, tape.gradient(loss, w)])

    plain = gradient()
    trying = Trying(machine)
    with managed_above(36 * MIB) as runtime:
        same(gradient(), plain)
        first = dict(trying.runs)
        same(gradient(), plain)
    assert first == {f"Conv2D{part}": 2 for part in ("", "BackpropInput", "BackpropFilter")}
    assert trying.runs == {name: count + 1 for name, count in first.items()}
    known = runtime._needs._known.items()
    learnt = {name_in(key): each.bytes for key, each in known if isinstance(each, Needs)}
    assert 4 * MIB <= learnt["Conv2D"] < 8 * MIB
    assert all(learnt[name] < TRIED_BYTES for name in first)
    assert runtime.policy.budget.overshoots == 0
    assert runtime.policy.allocator.peak_bytes <= runtime.policy.budget.promised_bytes


def test_which_ops_are_run_before_they_are_measured():
    names = ("Conv2D", "Conv3DBackpropFilterV2", "DepthwiseConv2dNative", "MatMul", "CudnnRNNV3")
    assert [kind_of(name).tries_algorithms for name in names] == [True, True, True, False, False]


def test_the_second_run_of_a_function_says_what_it_needs(machine):
    """A function cannot be run twice to try algorithms in it."""
    took, watched = iter([40 * MIB, 4 * MIB]), budgets.Allocator.watched

    def watch(self, run, *, rehearse=False):
        assert not rehearse
        result, _, held = watched(self, run)
        return result, next(took), held

    whole = tf.function(lambda x: tf.reduce_sum(x * x))
    x = normal(512, 512)
    whole(x)
    machine.patch(budgets.Allocator, "watched", watch)
    with managed_above(100 * MIB) as runtime:
        for expected in (40 * MIB, 4 * MIB, 4 * MIB):
            whole(x)
            (needs,) = runtime._needs._opaque.values()
            assert needs.bytes == expected
