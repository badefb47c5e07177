"""The roofline's rates: those of the GPU that is there, for plans and for eager mode."""

import pytest
import tensorflow as tf
from eager_programs import normal

from checkmate.tf2.costs import roofline
from checkmate.tf2.eager.budget import EagerOptions
from checkmate.tf2.eager.interception import Interception
from checkmate.tf2.eager.runtime import EagerRuntime

pytestmark = pytest.mark.usefixtures("tensorflow")


@pytest.mark.parametrize(
    ("capability", "flop_per_byte", "without_tf32"),
    [((7, 0), 17, 17), ((7, 5), 25, 25), ((8, 0), 100, 12.5), ((9, 0), 147, 20)],
)
def test_flop_per_byte_follow_from_the_compute_capability(
    machine, capability, flop_per_byte, without_tf32
):
    machine.sees(capability=capability)
    for enabled, expected in ((True, flop_per_byte), (False, without_tf32)):
        machine.patch(
            tf.config.experimental, "tensor_float_32_execution_enabled", lambda on=enabled: on
        )
        rates = roofline.rates_of("GPU:0")
        assert rates.flops_per_s / rates.bytes_per_s == pytest.approx(expected, rel=0.03)


def test_another_gpu_has_the_rates_that_the_documentation_names(machine):
    machine.sees(capability=(12, 1))
    assert roofline.rates_of("GPU:0") == roofline.NAMED[roofline.OTHER].with_tf32
    assert roofline.rates_of("CPU:0") == roofline.CPU


def test_eager_mode_counts_by_the_same_rates(machine):
    """Of a product that FLOPs bound on a T4 and bandwidth bounds on an H100."""
    x, w = normal(2048, 256), normal(256, 256)
    graph = tf.function(tf.matmul).get_concrete_function(x, w).graph
    (product,) = (o for o in graph.get_operations() if o.type == "MatMul")
    for capability in ((7, 5), (9, 0)):
        machine.sees(capability=capability)
        runtime = EagerRuntime("GPU:0", EagerOptions())
        with Interception(runtime):
            tf.matmul(x, w)
        expected = roofline.roofline_s(product, roofline.GPUS[capability][0])
        assert runtime.policy.first_cost == pytest.approx(expected)
