"""A program of its own: trains under a budget on the second of two logical CPUs, and prints as JSON
what it found. Logical devices must be set up before TensorFlow starts."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

os.environ |= {"TF_CPU_ALLOCATOR_USE_BFC": "true", "TF_CPP_MIN_LOG_LEVEL": "3"}
sys.path.insert(0, str(Path(__file__).parents[1]))

import tensorflow as tf
from eager_programs import arrays, chain, gradients, plain_peak

from checkmate.tf2 import device as devices
from checkmate.tf2 import dtr


def main() -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    devices.training_device = lambda: "CPU:1"
    with tf.device("CPU:1"):
        variables, loss = chain()
        plain, _, peak = plain_peak(variables, loss)
        before = tf.config.experimental.get_memory_info("CPU:1")["current"]
        with dtr(before + int(0.7 * peak), overhead_limit=1e9) as context:
            value = loss()
            device = value.device
            del value
            found = arrays(gradients(variables, loss))
    same = all((a == b).all() for a, b in zip(found, plain, strict=True))
    result = {
        "rematerializations": context.stats.rematerializations,
        "same": same,
        "device": device,
    }
    print("FOUND " + json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
