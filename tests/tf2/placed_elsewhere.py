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
from checkmate.tf2.execution.replay import OutputBuffers, Replayed

SECOND = "CPU:1"
RESOLVED = ("ReadVariableOp", "DisableCopyOnRead", "ResourceStridedSliceAssign")
"""TensorFlow places them where their variable is."""

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
tf.config.experimental.enable_op_determinism()
devices.training_device = lambda: SECOND


case = keras_models.cnn(32)
with tf.device(SECOND):
    case.model = keras.models.clone_model(case.model)
    optimizer = keras.optimizers.Adam(0.01)
    plain = training(case.model, case.loss, optimizer)
    batch = tf.constant(case.inputs), tf.constant(case.labels)


def is_resolved(operation):
    """True for arguments, for what TensorFlow places where a variable or a result is, and for the
    few numbers that such ops read."""
    readers = [reader.type for each in operation.outputs for reader in each.consumers()]
    return (
        operation.type in ("Placeholder", "NoOp", *RESOLVED)
        or (operation.type == "Const" and set(readers) <= {*RESOLVED})
        or (operation.type == "Identity" and not readers)
    )


def step(images, labels):
    with tf.device(SECOND):
        return plain(images, labels)


traced = checkmate.tf2.trace(step, *batch)
plan = repeating(traced.graph)
assert plan.recomputed
run = Replayed(traced, plan, OutputBuffers(traced))
before = [variable.numpy() for variable in traced.variables]
losses = []
for each in (run, tf.function(step)):
    for variable, value in zip(traced.variables, before, strict=True):
        variable.assign(value)
    losses.append([float(each(*batch)) for _ in range(3)])

found = {
    "elsewhere": [
        [operation.type, operation.name, operation.device]
        for operation in run.function.graph.get_operations()
        if not is_resolved(operation) and not operation.device.endswith(SECOND)
    ],
    "variables": sorted({variable.device for variable in traced.variables}),
    "losses": losses,
}
print("FOUND " + json.dumps(found), flush=True)
