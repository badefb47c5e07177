"""A program of its own: `train_on_batch`, plain and then under a budget that holds all; prints as
JSON what each asks the allocator for.

With one thread, since what is in memory together depends on which of several is quicker; and by
what is asked for, since what the allocator adds depends on what lies where in its memory.
"""

from __future__ import annotations

import json
import os

os.environ |= {"TF_CPU_ALLOCATOR_USE_BFC": "true", "TF_CPP_MIN_LOG_LEVEL": "3"}

import keras
import numpy as np
import tensorflow as tf
from requests_seen import most_requested_bytes

import checkmate
from checkmate.tf2.memory.profiler import observe

BATCH = 64


def main() -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    keras.utils.set_random_seed(3)
    inputs = x = keras.Input((32, 32, 3))
    for width in (16, 32):
        x = keras.layers.ReLU()(
            keras.layers.BatchNormalization()(keras.layers.Conv2D(width, 3, padding="same")(x))
        )
    model = keras.Model(inputs, keras.layers.Dense(4)(keras.layers.GlobalAveragePooling2D()(x)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(), loss, metrics=["accuracy"], jit_compile=False)
    chance = np.random.default_rng(0)
    images = tf.constant(chance.normal(size=(BATCH, 32, 32, 3)).astype("float32"))
    labels = tf.constant(chance.integers(0, 4, BATCH))

    def asked_for() -> list[int]:
        model.train_on_batch(images, labels)
        model.train_on_batch(images, labels)
        return [
            most_requested_bytes(observe(lambda: model.train_on_batch(images, labels)))
            for _ in range(3)
        ]

    found = {"plain": asked_for()}
    checkmate.tf2.rematerialize(model, budget="64GiB", cost_model="roofline")
    print("FOUND " + json.dumps(found | {"planned": asked_for()}), flush=True)


if __name__ == "__main__":
    main()
