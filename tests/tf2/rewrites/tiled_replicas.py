"""A program of its own: trains attention on two mirrored devices, plain and with its largest ops in
tiles, and prints as JSON what it found."""

from __future__ import annotations

import json
import os

os.environ |= {"TF_CPU_ALLOCATOR_USE_BFC": "true", "TF_CPP_MIN_LOG_LEVEL": "3"}

import keras
import tensorflow as tf
from tiled_nets import below, normal, two_layers

import checkmate

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
LENGTH, WIDTH, BATCH = 256, 16, 4


def train(budget):
    keras.utils.set_random_seed(1)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model, _, _ = two_layers((LENGTH, WIDTH))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.1), loss)
    if budget:
        options = {"cost_model": "roofline", "verbose": False}
        checkmate.tf2.rematerialize(model, budget=budget, **options)
    x, y = normal(2 * BATCH, LENGTH, WIDTH), below(4, 2 * BATCH, LENGTH)
    losses = model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0).history["loss"]
    split = checkmate.tf2.planned(model).report().split_layers if budget else {}
    return losses, [float(tf.reduce_sum(each)) for each in model.trainable_variables], split


tf.config.experimental.enable_op_determinism()
plain, planned = train(None), train("40%")
found = {"plain": plain[:2], "planned": planned[:2], "split": planned[2]}
print("FOUND", json.dumps(found))
