"""A program of its own, as logical devices must be set up before TensorFlow starts: a step that
trains on the second of two devices, planned, and where all its ops run. Prints what it found as
JSON."""

from __future__ import annotations

import json
import os

os.environ |= {"TF_CPU_ALLOCATOR_USE_BFC": "true", "TF_CPP_MIN_LOG_LEVEL": "3"}

import keras
import keras_models
import tensorflow as tf
from plans import repeating
from tracing import training

import checkmate
from checkmate.tf2 import device as devices
from checkmate.tf2.execution.output_buffers import OutputBuffers
from checkmate.tf2.execution.replay import Replayed

SECOND = "CPU:1"
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
tf.config.experimental.enable_op_determinism()
devices.training_device = lambda: SECOND


def on_second(names):
    return {name for name in names if not name.endswith(SECOND)}


with tf.device(SECOND):
    case = keras_models.cnn(32)
    step = training(case.model, case.loss, keras.optimizers.Adam(0.01))
    batch = tf.constant(case.inputs), tf.constant(case.labels)
    traced = checkmate.tf2.trace(step, *batch)
plan = repeating(traced.graph)
assert plan.recomputed
run = Replayed(traced, plan, OutputBuffers(traced))
before = tf.config.experimental.get_memory_info("CPU:0")["current"]
results = [float(run(*batch)) for _ in range(3)]
tf.config.experimental.reset_memory_stats("CPU:0")
first = tf.config.experimental.get_memory_info("CPU:0")["current"]
run(*batch)
elsewhere = [
    [operation.type, operation.name, operation.device]
    for operation in run.function.graph.get_operations()
    if operation.type not in ("Placeholder", "NoOp") and not operation.device.endswith(SECOND)
]
print(
    "FOUND "
    + json.dumps(
        {
            "elsewhere": elsewhere,
            "ops": len(run.function.graph.get_operations()),
            "variables": sorted({variable.device for variable in traced.variables}),
            "taken_from_the_first": tf.config.experimental.get_memory_info("CPU:0")["peak"] - first,
            "losses": results,
        }
    ),
    flush=True,
)
